//! AsciiDoc.

use super::{Findings, Markup};
use crate::page::{Block, Picture};
use latpath_stats::text::Table;

/// Writes the document as AsciiDoc.
pub fn asciidoc(findings: &Findings) -> String {
    MARKUP.write(findings)
}

/// Writes a title and blocks as AsciiDoc.
pub(crate) fn asciidoc_of(title: &str, blocks: &[Block]) -> String {
    MARKUP.write_blocks(title, blocks)
}

const MARKUP: Markup = Markup { heading: "=", bullet: "*", escaped, warning, code, table: written, picture };

fn warning(text: &str) -> String {
    format!("WARNING: {text}\n")
}

/// Refers to the picture's file, which is beside the document. Its name is chosen by latpath and needs no escaping.
fn picture(picture: &Picture) -> String {
    let caption = picture.caption.replace(['"', ']', '['], "'");
    format!("image::{}[\"{caption}\"]\n", picture.file)
}

/// Formats a block of commands. A line of four hyphens would end the block and is removed; no command consists of it.
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

/// Escapes text for AsciiDoc. Text that may contain markup is enclosed in a passthrough, in which AsciiDoc replaces
/// only special characters; the column separator of tables is escaped even there.
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
            // A backslash before the closing bracket would escape it, and the passthrough would not end.
            let inside = text.trim_end_matches('\\');
            let behind = "{backslash}".repeat(text.len() - inside.len());
            format!("pass:c[{}]{behind}", inside.replace(']', "\\]").replace('|', "\\|"))
        }
    }
}
