//! Self-contained HTML: the page makes no requests, and its Content-Security-Policy allows none. The page is also
//! well-formed XML, so that a strict parser can check it.

use super::{charts, lines, runs_of_one_kind, Findings};
use crate::page::{Block, ChartPlace};
use base64::{engine::general_purpose::STANDARD, Engine};
use latpath_analysis::LimitVerdict;
use latpath_stats::text::Table;
use sha2::{Digest, Sha256};
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// Content of any HTML page.
pub(crate) struct Sheet<'a> {
    /// Title of the page.
    pub title: String,
    /// Content of the page.
    pub blocks: Vec<Block>,
    /// Verdicts on the user's limits.
    pub limits: &'a [LimitVerdict],
    /// Whether the verdict has weaknesses.
    pub is_weak: bool,
    /// Data of the charts, as JSON without characters that HTML or XML would parse as markup.
    pub data: String,
    /// Origin of the content, for the footer.
    pub source: String,
}

/// Maximum size of the document, bytes. Worst packets beyond it are left out.
const MAX_BYTES: usize = 5_000_000;

/// Writes the document as HTML.
pub fn html(findings: &Findings) -> String {
    let (mut drawn, data) = (findings.summary.worst.len(), charts::data(findings));
    let source = format!("the run with SHA-256 {}", findings.sha256);
    loop {
        let (title, blocks) = findings.blocks(true, drawn);
        let (limits, data, source) = (findings.limits, data.clone(), source.clone());
        let is_weak = !findings.weaknesses().is_empty();
        let page = sheet(&Sheet { title, blocks, limits, is_weak, data, source });
        if page.len() <= MAX_BYTES || drawn == 0 {
            return page;
        }
        // If a page is too long, worst packets make up most of it.
        drawn = drawn * MAX_BYTES / page.len() * 19 / 20;
    }
}

/// Maximum length of a cell that is not wrapped, characters.
const LONG: usize = 40;

/// Writes a complete HTML page.
pub(crate) fn sheet(sheet: &Sheet) -> String {
    let (title, source, data) = (escaped(&sheet.title), escaped(&sheet.source), &sheet.data);
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        csp_source(STYLE),
        csp_source(SCRIPT)
    );
    let mut body = Body::default();
    runs_of_one_kind(&sheet.blocks).for_each(|blocks| body.write(blocks));
    let (contents, sections) = body.finish();
    let is_any = |word: &str| sheet.limits.iter().any(|limit| limit.word() == word);
    let state = match (is_any("broken"), is_any(LimitVerdict::CANNOT_BE_JUDGED)) {
        _ if sheet.limits.is_empty() => "",
        (true, _) => "<p class=\"broken\">A limit is broken</p>",
        (false, true) => "<p class=\"broken\">Not all limits can be judged</p>",
        (false, false) if sheet.is_weak => "<p class=\"weak\">All limits are kept, but see what weakens this</p>",
        (false, false) => "<p class=\"kept\">All limits are kept</p>",
    };
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<meta name=\"generator\" content=\"latpath {version}\"/>\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n{state}\n</header>\n\
         <nav aria-label=\"Contents\">\n<ul>\n{contents}</ul>\n</nav>\n<main>\n\
         <noscript><p>The charts need JavaScript; the tables do not.</p></noscript>\n{sections}</main>\n\
         <footer><p>Written by latpath {version} from {source}</p></footer>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// The sections and the table of contents being built.
#[derive(Default)]
struct Body {
    contents: String,
    out: String,
    section: usize,
    table: usize,
    heading: String,
}

impl Body {
    fn finish(mut self) -> (String, String) {
        self.end_section();
        (self.contents, self.out)
    }

    fn end_section(&mut self) {
        if self.section > 0 {
            self.out += "</section>\n";
        }
    }

    fn write(&mut self, blocks: &[Block]) {
        match &blocks[0] {
            Block::Line(_) => self.list("lines", blocks),
            Block::Warning(_) => self.list("warnings", blocks),
            Block::Item(..) => self.items(blocks),
            Block::Chart(_) => self.charts(blocks),
            Block::Code(_) => self.code(blocks),
            _ => {}
        }
        for block in blocks {
            match block {
                Block::Heading(text) => self.heading(text),
                Block::Subheading(text) => self.out += &format!("<h3>{}</h3>\n", escaped(text)),
                Block::Table(table) => self.table(table, None),
                Block::Details(name, table) => {
                    self.out += &format!("<details>\n<summary>{}</summary>\n", escaped(name));
                    self.table(table, None);
                    self.out += "</details>\n";
                }
                Block::Steps(table, bars) => self.table(table, Some(bars)),
                Block::Picture(picture) => {
                    let caption = escaped(&picture.caption);
                    self.out += &format!("<figure>{}<figcaption>{caption}</figcaption></figure>\n", picture.svg.trim());
                }
                _ => {}
            }
        }
    }

    fn heading(&mut self, text: &str) {
        self.end_section();
        self.section += 1;
        let (n, text) = (self.section, escaped(text));
        let _ = writeln!(self.contents, "<li><a href=\"#s{n}\">{text}</a></li>");
        let _ = writeln!(self.out, "<section aria-labelledby=\"s{n}\">\n<h2 id=\"s{n}\">{text}</h2>");
        self.heading = text;
    }

    fn list(&mut self, class: &str, blocks: &[Block]) {
        let items: Vec<String> = lines(blocks).map(escaped).collect();
        match items.as_slice() {
            [] => {}
            [one] => self.out += &format!("<p class=\"{class}\">{one}</p>\n"),
            several => {
                self.out += &format!("<ul class=\"{class}\">\n<li>{}</li>\n</ul>\n", several.join("</li>\n<li>"))
            }
        }
    }

    fn code(&mut self, blocks: &[Block]) {
        let commands: Vec<String> = blocks.iter().filter_map(Block::command).map(escaped).collect();
        self.out += &format!("<pre class=\"scroll\" tabindex=\"0\"><code>{}</code></pre>\n", commands.join("\n"));
    }

    fn items(&mut self, blocks: &[Block]) {
        self.out += "<dl>\n";
        for block in blocks {
            let Block::Item(name, value) = block else { continue };
            if !name.is_empty() {
                self.out += &format!("<dt>{}</dt>", escaped(name));
            }
            self.out += &format!("<dd>{}</dd>\n", escaped(value));
        }
        self.out += "</dl>\n";
    }

    /// Writes the placeholders of charts, which the script draws.
    fn charts(&mut self, blocks: &[Block]) {
        self.out += "<div class=\"charts\">\n";
        for block in blocks {
            let Block::Chart(ChartPlace { kind, segment, parts, name, caption }) = block else { continue };
            let (name, caption) = (escaped(name), escaped(caption));
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            let parts = parts.join(" ");
            let _ = writeln!(
                self.out,
                "<figure data-chart=\"{kind}\" data-segment=\"{segment}\" data-parts=\"{parts}\" data-name=\"{name}\">\
                 <figcaption>{caption}</figcaption></figure>"
            );
        }
        self.out += "</div>\n";
    }

    /// Writes a table, which scrolls on its own if it is too wide. The first column with a heading contains the row
    /// headers.
    fn table(&mut self, table: &Table, bars: Option<&Vec<(u32, u32)>>) {
        self.table += 1;
        let heads: Vec<(&str, bool)> = table.heads().collect();
        let named = heads.iter().position(|(head, _)| !head.is_empty()).unwrap_or(0);
        let label = format!("{}, table {}", self.heading, self.table);
        self.out += &format!(
            "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{label}\"><table>\n<thead><tr>"
        );
        let side = |left: bool| if left { "" } else { " class=\"n\"" };
        for (head, left) in &heads {
            self.out += &match head.is_empty() {
                true => "<td></td>".into(),
                false => format!("<th scope=\"col\"{}>{}</th>", side(*left), escaped(head)),
            };
        }
        if bars.is_some() {
            self.out += "<td></td>";
        }
        self.out += "</tr></thead>\n<tbody>\n";
        let mut name = "";
        for (row, cells) in table.rows().iter().enumerate() {
            self.out += "<tr>";
            for (at, (cell, (_, left))) in cells.iter().zip(&heads).enumerate() {
                let cell = cell.trim();
                // A row without a name continues the previous row, so it repeats that row's name.
                name = if at == named && !cell.is_empty() { cell } else { name };
                let long = *left && cell.chars().count() > LONG;
                let side = if long { " class=\"long\"" } else { side(*left) };
                self.out += &match at == named {
                    true => format!("<th scope=\"row\"{side}>{}</th>", escaped(name)),
                    false => format!("<td{side}>{}</td>", escaped(cell)),
                };
            }
            if let Some((from, to)) = bars.and_then(|bars| bars.get(row)) {
                self.out += &bar(*from, *to);
            }
            self.out += "</tr>\n";
        }
        self.out += "</tbody>\n</table></div>\n";
    }
}

/// Draws the bar of a step from `from` to `to`, thousandths of the packet's time. Hidden from screen readers, because
/// the table contains the figures.
fn bar(from: u32, to: u32) -> String {
    let width = to.saturating_sub(from);
    let shown = if width == 0 {
        String::new()
    } else {
        format!("<rect x=\"{from}\" width=\"{}\" height=\"10\"/>", width.max(3))
    };
    format!("<td class=\"bar\"><svg viewBox=\"0 0 1003 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{shown}</svg></td>")
}

/// Escapes text for HTML, including attributes.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns the source expression that allows an inline script or style in a Content-Security-Policy: `sha256-…`.
fn csp_source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}
