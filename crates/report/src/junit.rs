//! Verdicts on limits as JUnit XML, the form in which CI servers take test results.
//!
//! Elements and attributes are those of the schema that Jenkins and GitLab read: `testsuites`, `testsuite`, `testcase`, `failure`.

use crate::document::escaped;
use crate::limit::LimitVerdict;
use latpath_model::text::printable;

/// The verdicts as one suite of tests: a test for each limit. `what` is what was measured.
pub fn junit(what: &str, limits: &[LimitVerdict]) -> String {
    let attribute = |text: &str| escaped(&printable(text));
    let failures = limits.iter().filter(|limit| !limit.is_kept()).count();
    let counts = format!("tests=\"{}\" failures=\"{failures}\"", limits.len());
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"latpath\" {counts}>\n  <testsuite name=\"{}\" {counts}>\n",
        attribute(what)
    );
    for limit in limits {
        let (name, about) = (attribute(&limit.limit), limit.about.as_ref());
        xml += &format!("    <testcase classname=\"latpath.limits\" name=\"{name}\"");
        xml += ">\n";
        if let Some(why) = limit.why() {
            let about = about.map_or(String::new(), |about| format!("{} ({})", about.name, about.source));
            let (why, about, kind) = (attribute(why), attribute(&about), limit.word().replace(' ', "-"));
            xml += &format!("      <failure type=\"{kind}\" message=\"{why}\">{about}</failure>\n");
        }
        if let Some(measured) = &limit.measured {
            xml += &format!("      <system-out>{}</system-out>\n", attribute(measured));
        }
        xml += "    </testcase>\n";
    }
    xml + "  </testsuite>\n</testsuites>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::About;

    #[test]
    fn each_limit_is_a_test_and_hostile_names_are_text() {
        let verdict = |limit: &str, broken: Option<&str>, not_shown: Option<&str>| LimitVerdict {
            limit: limit.into(),
            about: Some(About { name: "a\u{1b}[2J".into(), source: "b & <c>".into() }),
            measured: Some("7 <ms>".into()),
            broken: broken.map(Into::into),
            not_shown: not_shown.map(Into::into),
            ..LimitVerdict::default()
        };
        let limits = [
            verdict("lost<=0", None, None),
            verdict("</x>\":max<=3ms", Some("4 ms > 3 ms"), None),
            verdict("journeys>=9", None, Some("no packet")),
        ];
        let xml = junit("run \"1\"", &limits);
        let document = roxmltree::Document::parse(&xml).unwrap();
        let cases: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testcase")).collect();
        let names: Vec<_> = cases.iter().map(|case| case.attribute("name").unwrap()).collect();
        assert_eq!(names, ["lost<=0", "</x>\":max<=3ms", "journeys>=9"]);
        let failure = cases[1].first_element_child().unwrap();
        assert_eq!((failure.attribute("message"), failure.text()), (Some("4 ms > 3 ms"), Some("a?[2J (b & <c>)")));
        assert_eq!(failure.attribute("type"), Some("broken"));
        assert_eq!(cases[2].first_element_child().unwrap().attribute("type"), Some("not-shown"));
        let kept = cases[0].first_element_child().unwrap();
        assert_eq!((kept.tag_name().name(), kept.text()), ("system-out", Some("7 <ms>")));
        assert_eq!(document.root_element().attribute("failures"), Some("2"));
    }
}
