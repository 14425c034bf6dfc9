//! Verdicts on limits as JUnit XML, the format of test results that CI servers read.
//!
//! Elements and attributes are those of the schema that Jenkins and GitLab read: `testsuites`, `testsuite`,
//! `testcase`, `failure`.

use crate::document::escaped;
use latpath_analysis::LimitVerdict;
use latpath_model::text::printable;
use std::io::Read;
use std::path::Path;

/// Beginning of each file of verdicts, by which latpath recognises its own files.
const BEGIN: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"latpath\"";

/// Formats the verdicts as a test suite with a test for each limit. `what` names the measured run.
pub fn junit(what: &str, limits: &[LimitVerdict]) -> String {
    let attribute = |text: &str| escaped(&printable(text));
    let failures = limits.iter().filter(|limit| !limit.is_kept()).count();
    let counts = format!("tests=\"{}\" failures=\"{failures}\"", limits.len());
    let mut xml = format!("{BEGIN} {counts}>\n  <testsuite name=\"{}\" {counts}>\n", attribute(what));
    for limit in limits {
        let (name, about) = (attribute(&limit.limit), limit.about.as_ref());
        xml += &format!("    <testcase classname=\"latpath.limits\" name=\"{name}\"");
        xml += ">\n";
        if limit.why().is_some() {
            let about = about.map_or(String::new(), |about| format!("{} ({})", about.name, about.source));
            let (message, about, kind) =
                (attribute(&message(limit)), attribute(&about), limit.word().replace(' ', "-"));
            xml += &format!("      <failure type=\"{kind}\" message=\"{message}\">{about}</failure>\n");
        }
        if let Some(measured) = &limit.measured {
            xml += &format!("      <system-out>{}</system-out>\n", attribute(measured));
        }
        xml += "    </testcase>\n";
    }
    xml + "  </testsuite>\n</testsuites>\n"
}

/// Returns the figure and its limit, e.g. `lost 15 358, limit lost<=0`, followed by the reason if it cannot be judged.
fn message(verdict: &LimitVerdict) -> String {
    let LimitVerdict { limit, measured, broken, cannot_be_judged, .. } = verdict;
    let figure = limit.rsplit_once("<=").or(limit.rsplit_once(">=")).map_or(&limit[..], |(figure, _)| figure.trim());
    let held = match measured {
        Some(measured) => format!("{figure} {measured}, limit {limit}"),
        None => format!("limit {limit}"),
    };
    let why = match (broken, cannot_be_judged) {
        // The text of a broken limit may only repeat the figure.
        (Some(why), _) => (Some(why) != measured.as_ref()).then_some(why),
        (None, open) => open.as_ref(),
    };
    let word = if broken.is_some() { "" } else { "cannot be judged: " };
    why.map_or(held.clone(), |why| format!("{held}: {word}{why}"))
}

/// Whether a path is a regular file (not a symbolic link) that contains verdicts written by latpath or is empty, so
/// that it may be replaced with new verdicts.
pub fn is_junit_of_latpath(path: &Path) -> bool {
    let is_plain = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let begin = || {
        let file = latpath_linux::open_file(path).ok()?;
        let mut begin = Vec::new();
        file.take(BEGIN.len() as u64).read_to_end(&mut begin).ok()?;
        Some(begin)
    };
    is_plain && begin().is_some_and(|begin| begin.is_empty() || begin == BEGIN.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_analysis::LimitOrigin;

    #[test]
    fn each_limit_is_a_test_and_hostile_names_are_text() {
        let verdict = |limit: &str, broken: Option<&str>, cannot_be_judged: Option<&str>| LimitVerdict {
            limit: limit.into(),
            about: Some(LimitOrigin { name: "a\u{1b}[2J".into(), source: "b & <c>".into() }),
            measured: Some("7 <ms>".into()),
            broken: broken.map(Into::into),
            cannot_be_judged: cannot_be_judged.map(Into::into),
            ..LimitVerdict::default()
        };
        let limits = [
            verdict("lost<=0", None, None),
            verdict("</x>\":max<=3ms", Some("7 <ms>"), None),
            verdict("journeys>=9", None, Some("no packet")),
        ];
        let xml = junit("run \"1\"", &limits);
        let document = roxmltree::Document::parse(&xml).unwrap();
        let cases: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testcase")).collect();
        let names: Vec<_> = cases.iter().map(|case| case.attribute("name").unwrap()).collect();
        assert_eq!(names, ["lost<=0", "</x>\":max<=3ms", "journeys>=9"]);
        let failure = cases[1].first_element_child().unwrap();
        let message = "</x>\":max 7 <ms>, limit </x>\":max<=3ms";
        assert_eq!((failure.attribute("message"), failure.text()), (Some(message), Some("a?[2J (b & <c>)")));
        assert_eq!(failure.attribute("type"), Some("broken"));
        let open = cases[2].first_element_child().unwrap();
        let message = "journeys 7 <ms>, limit journeys>=9: cannot be judged: no packet";
        assert_eq!((open.attribute("type"), open.attribute("message")), (Some("cannot-be-judged"), Some(message)));
        let kept = cases[0].first_element_child().unwrap();
        assert_eq!((kept.tag_name().name(), kept.text()), ("system-out", Some("7 <ms>")));
        assert_eq!(document.root_element().attribute("failures"), Some("2"));
    }

    #[test]
    fn a_file_of_verdicts_may_be_replaced_and_another_file_and_a_link_may_not() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("ours.xml"), junit("run", &[])).unwrap();
        std::fs::write(path("empty.xml"), "").unwrap();
        std::fs::write(path("theirs.xml"), "<?xml version=\"1.0\"?><testsuites/>").unwrap();
        std::os::unix::fs::symlink(path("ours.xml"), path("link.xml")).unwrap();
        let may = ["ours.xml", "empty.xml", "theirs.xml", "link.xml", "none.xml"]
            .map(|name| is_junit_of_latpath(&path(name)));
        assert_eq!(may, [true, true, false, false, false]);
    }
}
