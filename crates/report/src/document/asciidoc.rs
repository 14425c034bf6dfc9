//! AsciiDoc.

use super::{Findings, Markup};
use crate::page::{Block, Picture};
use latpath_stats::text::Table;

/// The document as AsciiDoc.
pub fn asciidoc(findings: &Findings) -> String {
    MARKUP.write(findings)
}

/// AsciiDoc of blocks with a title.
pub(crate) fn asciidoc_of(title: &str, blocks: &[Block]) -> String {
    MARKUP.write_blocks(title, blocks)
}

const MARKUP: Markup = Markup { heading: "=", bullet: "*", escaped, warning, code, table: written, picture };

fn warning(text: &str) -> String {
    format!("WARNING: {text}\n")
}

/// The picture's file beside the document. Its name is latpath's own.
fn picture(picture: &Picture) -> String {
    let caption = picture.caption.replace(['"', ']', '['], "'");
    format!("image::{}[\"{caption}\"]\n", picture.file)
}

/// A block of commands. Removes lines of four hyphens, which would end the block; no command consists of them.
fn code(commands: &[&str]) -> String {
    let commands = commands.iter().map(|command| if command.trim_end() == "----" { "" } else { command });
    format!("[source,sh]\n----\n{}\n----\n", commands.collect::<Vec<_>>().join("\n"))
}

fn written(table: &Table) -> String {
    let columns: Vec<&str> = table.heads().map(|(_, left)| if left { "<" } else { ">" }).collect();
    let heads: Vec<String> = table.heads().map(|(head, _)| format!("|{}", escaped(head))).collect();
    let mut out = format!("[%header%autowidth,cols=\"{}\"]\n|===\n{}\n\n", columns.join(","), heads.join(" "));
    for cells in table.rows() {
        let cells: Vec<String> = cells.iter().map(|cell| format!("|{}", escaped(cell.trim()))).collect();
        out += &(cells.join(" ") + "\n");
    }
    out + "|===\n"
}

/// Escapes text for AsciiDoc. Possible markup is enclosed in a passthrough, in which AsciiDoc replaces only special
/// characters; the separator of tables is escaped even there.
fn escaped(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " ,%/→–±\u{202f}".contains(c);
    let is_number = |c: char| ".:-".contains(c);
    let single = |pair: &[u8]| !(is_number(pair[0].into()) && is_number(pair[1].into()));
    let is_safe = text.chars().all(|c| is_plain(c) || is_number(c))
        && text.as_bytes().windows(2).all(single)
        && !text.contains("://")
        && !text.ends_with(':');
    match is_safe {
        true => text.into(),
        false => {
            // A backslash before the bracket would keep the passthrough open.
            let inside = text.trim_end_matches('\\');
            let behind = "{backslash}".repeat(text.len() - inside.len());
            format!("pass:c[{}]{behind}", inside.replace(']', "\\]").replace('|', "\\|"))
        }
    }
}
