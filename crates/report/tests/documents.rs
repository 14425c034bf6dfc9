//! Reports as documents: HTML, Markdown, AsciiDoc.

mod figures;

use figures::{run, summary};
use latpath_analysis::{Charts, Chosen, LimitOrigin, LimitVerdict};
use latpath_report::{asciidoc, html, markdown, Findings};
use latpath_run::Run;
use latpath_stats::Summary;
use roxmltree::{Document, Node, ParsingOptions};
use std::sync::LazyLock;

/// A malicious name.
const HOSTILE: &str = "</script><script>alert(1)</script>|*_`\"'&]]>\x1b[31m";

fn findings<'a>(run: &'a Run, summary: &'a Summary, limits: &'a [LimitVerdict]) -> Findings<'a> {
    static NONE: LazyLock<Charts> = LazyLock::new(Charts::default);
    static ALL: LazyLock<Chosen> = LazyLock::new(Chosen::default);
    Findings { run, summary, chosen: &ALL, limits, charts: &NONE, explained: None, sha256: "5f2c" }
}

fn limits() -> Vec<LimitVerdict> {
    let limit = |limit: &str, measured: &str, is_broken: bool| LimitVerdict {
        limit: limit.into(),
        about: is_broken.then(|| LimitOrigin { name: "Transfer time".into(), source: "IEC 61850-5 | TT6".into() }),
        measured: Some(measured.into()),
        broken: is_broken.then(|| measured.into()),
        ..LimitVerdict::default()
    };
    vec![limit("total:max<=3ms", "14.61 ms", true), limit("lost<=20", "19", false)]
}

fn written(summary: &Summary, limits: &[LimitVerdict], format: fn(&Findings) -> String) -> String {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let name = |run: &Run| run.path().display().to_string();
    let text = format(&findings(&run, summary, limits)).replace(&name(&run), "RUN");
    let last = run.path().file_name().unwrap().to_str().unwrap().to_owned();
    text.replace(&last, "RUN").replace(&last.replace('_', "\\_"), "RUN")
}

/// Parses a page with a strict XML parser.
fn parsed(html: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(html, options).unwrap_or_else(|e| panic!("{e}"))
}

fn all<'a, 'b>(document: &'a Document<'b>, name: &'a str) -> impl Iterator<Item = Node<'a, 'b>> + 'a {
    document.descendants().filter(move |node| node.has_tag_name(name))
}

#[test]
fn the_markdown_of_a_report() {
    insta::assert_snapshot!(written(&summary(), &limits(), markdown));
}

#[test]
fn the_asciidoc_of_a_report() {
    insta::assert_snapshot!(written(&summary(), &limits(), asciidoc));
}

#[test]
fn the_html_is_one_file_that_asks_for_nothing() {
    let text = written(&summary(), &limits(), html);
    let document = parsed(&text);
    let policy = all(&document, "meta").find(|m| m.attribute("http-equiv") == Some("Content-Security-Policy")).unwrap();
    let policy = policy.attribute("content").unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    for name in ["link", "img", "iframe", "object", "form", "base"] {
        assert_eq!(all(&document, name).count(), 0, "{name}");
    }
    for node in document.descendants() {
        for attribute in node.attributes() {
            let name = attribute.name();
            assert!(!name.starts_with("on") && !["src", "style"].contains(&name), "{name} of {:?}", node.tag_name());
            assert!(name != "href" || attribute.value().starts_with('#'), "{}", attribute.value());
        }
    }
}

#[test]
fn each_heading_is_reached_from_the_contents_and_each_table_names_its_rows_and_columns() {
    let text = written(&summary(), &limits(), html);
    let document = parsed(&text);
    let ids: Vec<_> = all(&document, "h2").map(|h| h.attribute("id").unwrap()).collect();
    let links: Vec<_> = all(&document, "a").map(|a| a.attribute("href").unwrap().trim_start_matches('#')).collect();
    assert_eq!(ids, links);
    for table in all(&document, "table") {
        let head = table.first_element_child().unwrap();
        assert!(head.descendants().any(|n| n.attribute("scope") == Some("col")));
        for row in table.last_element_child().unwrap().children().filter(Node::is_element) {
            assert_eq!(row.children().filter(|n| n.attribute("scope") == Some("row")).count(), 1);
        }
    }
}

#[test]
fn names_that_mean_harm_are_shown_as_text() {
    let mut summary = summary();
    summary.notes = vec![HOSTILE.into()];
    summary.segments[0].name = HOSTILE.into();
    summary.streams[0].stream = HOSTILE.into();
    summary.worst[0].stream = HOSTILE.into();
    let shown = HOSTILE.replace('\x1b', "?");
    let text = written(&summary, &limits(), html);
    let document = parsed(&text);
    assert!(all(&document, "script").all(|script| !script.text().unwrap_or("").contains("alert")));
    let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
    assert!(texts.iter().filter(|text| text.contains(&shown)).count() >= 4);
    let text = written(&summary, &limits(), markdown);
    assert!(text.contains("\\<script\\>") && !text.replace("\\<", "").contains("<script"));
    let text = written(&summary, &limits(), asciidoc);
    assert!(text.contains("pass:c[</script><script>alert(1)</script>\\|*_`\"'&\\]\\]>?[31m]"), "{text}");
}

/// A backslash before the closing bracket of a passthrough would keep it open, and the following text would be parsed.
#[test]
fn a_name_that_ends_in_a_backslash_is_shown_as_text_in_asciidoc() {
    let mut summary = summary();
    for (name, shown) in [
        ("+++<img src=x onerror=alert(1)>+++\\", "|pass:c[+++<img src=x onerror=alert(1)>+++]{backslash} "),
        ("\\\\", "|pass:c[]{backslash}{backslash} "),
    ] {
        summary.streams[0].stream = name.into();
        let text = written(&summary, &limits(), asciidoc);
        assert!(text.contains(shown), "{text}");
        assert!(!text.contains("\\] "), "{text}");
    }
}

#[test]
fn the_same_figures_give_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let (run, summary, limits) = (run(directory.path()), summary(), limits());
    for format in [html, markdown, asciidoc] {
        assert_eq!(format(&findings(&run, &summary, &limits)), format(&findings(&run, &summary, &limits)));
    }
}

#[test]
fn a_verdict_on_limits_says_what_weakens_it() {
    let text = written(&summary(), &limits(), markdown);
    let (_, weak) = text.split_once("What weakens this verdict").unwrap();
    let weak = weak.split("\n## ").next().unwrap();
    assert!(weak.contains("3 packets were seen by no point") && weak.contains("1 pattern found"), "{weak}");
    let mut unknown = summary();
    unknown.machines.retain(|m| m.machine == "host");
    assert!(written(&unknown, &limits(), markdown).contains("clocks were apart is not known: Thyp, total"));
    assert!(!written(&summary(), &[], markdown).contains("What weakens"));
}

#[test]
fn what_cannot_be_judged_is_neither_kept_nor_green() {
    let open = LimitVerdict {
        limit: "total:max<=9ms".into(),
        measured: Some("8.99 ms ±150 µs".into()),
        cannot_be_judged: Some("too close".into()),
        ..LimitVerdict::default()
    };
    let html = written(&summary(), std::slice::from_ref(&open), html);
    assert!(html.contains("Not all limits can be judged") && html.contains("<td>cannot be judged: too close</td>"));
    assert!(html.contains("1 of 1 limits cannot be judged") && !html.contains("class=\"kept\""));
}
