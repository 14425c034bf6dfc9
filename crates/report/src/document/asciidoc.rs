//! AsciiDoc.

use super::{lines, runs_of_one_kind, Findings};
use crate::page::Block;
use latpath_stats::text::Table;

/// The document.
pub fn asciidoc(findings: &Findings) -> String {
    let (title, blocks) = findings.blocks(false);
    let mut out = format!("= {}\n", escaped(&title));
    for blocks in runs_of_one_kind(&blocks) {
        for block in blocks {
            match block {
                Block::Heading(text) => out += &format!("\n== {}\n", escaped(text)),
                Block::Subheading(text) => out += &format!("\n=== {}\n", escaped(text)),
                Block::Table(table) | Block::Steps(table, _) => out += &format!("\n{}", written(table)),
                _ => {}
            }
        }
        let list: Vec<String> = match &blocks[0] {
            Block::Line(_) => lines(blocks).map(|text| format!("* {}", escaped(text))).collect(),
            Block::Warning(_) => lines(blocks).map(|text| format!("WARNING: {}\n", escaped(text))).collect(),
            Block::Item(..) => blocks.iter().filter_map(item).collect(),
            _ => continue,
        };
        if !list.is_empty() {
            out += &format!("\n{}\n", list.join("\n").trim_end());
        }
    }
    out
}

fn item(block: &Block) -> Option<String> {
    match block {
        Block::Item(name, value) if name.is_empty() => Some(format!("* {}", escaped(value))),
        Block::Item(name, value) => Some(format!("* {}: {}", escaped(name), escaped(value))),
        _ => None,
    }
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

/// Text that AsciiDoc shows as it is. What might be markup stands in a passthrough of which special characters alone are
/// replaced; a table's separator is escaped even there.
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
        false => format!("pass:c[{}]", text.replace(']', "\\]").replace('|', "\\|")),
    }
}
