//! GitHub's Markdown.

use super::{lines, runs_of_one_kind, Findings};
use crate::page::Block;
use latpath_stats::text::Table;

/// The document.
pub fn markdown(findings: &Findings) -> String {
    let (title, blocks) = findings.blocks(false);
    let mut out = format!("# {}\n", escaped(&title));
    for blocks in runs_of_one_kind(&blocks) {
        for block in blocks {
            match block {
                Block::Heading(text) => out += &format!("\n## {}\n", escaped(text)),
                Block::Subheading(text) => out += &format!("\n### {}\n", escaped(text)),
                Block::Table(table) | Block::Steps(table, _) => out += &format!("\n{}", written(table)),
                _ => {}
            }
        }
        let list: Vec<String> = match &blocks[0] {
            Block::Line(_) => lines(blocks).map(escaped).collect(),
            Block::Warning(_) => lines(blocks).map(|text| format!("**{}**", escaped(text))).collect(),
            Block::Item(..) => blocks.iter().filter_map(item).collect(),
            _ => continue,
        };
        if !list.is_empty() {
            out += &format!("\n- {}\n", list.join("\n- "));
        }
    }
    out
}

fn item(block: &Block) -> Option<String> {
    match block {
        Block::Item(name, value) if name.is_empty() => Some(escaped(value)),
        Block::Item(name, value) => Some(format!("{}: {}", escaped(name), escaped(value))),
        _ => None,
    }
}

fn written(table: &Table) -> String {
    let row = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells.map(|cell| escaped(cell.trim())).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rules: Vec<&str> = table.heads().map(|(_, left)| if left { ":---" } else { "---:" }).collect();
    let mut out = row(&mut table.heads().map(|(head, _)| head));
    out += &format!("| {} |\n", rules.join(" | "));
    table.rows().iter().for_each(|cells| out += &row(&mut cells.iter().map(String::as_str)));
    out
}

/// Text that Markdown shows as it is: CommonMark, section 2.4.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if "\\`*_[]<>#|&~$".contains(c) || text[at..].starts_with("://") {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
