//! GitHub's Markdown.

use super::{Findings, Markup};
use crate::page::Picture;
use latpath_stats::text::Table;

/// Writes the document as Markdown.
pub fn markdown(findings: &Findings) -> String {
    let warning = |text: &str| format!("- **{text}**");
    Markup { heading: "#", bullet: "-", escaped, warning, code, table: written, picture }.write(findings)
}

/// Refers to the picture's file, which is beside the document.
fn picture(picture: &Picture) -> String {
    format!("![{}]({})\n", escaped(&picture.caption), picture.file)
}

/// Formats a fenced block. The fence is longer than any run of backticks in the commands.
fn code(commands: &[&str]) -> String {
    let longest = commands.iter().flat_map(|command| command.split(|c| c != '`')).map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}sh\n{}\n{fence}\n", commands.join("\n"))
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

/// Escapes text for Markdown: CommonMark, section 2.4.
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
