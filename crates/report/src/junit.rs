//! Verdicts on limits as JUnit XML, the form in which CI servers take test results.
//!
//! Elements and attributes are those of the schema that Jenkins and GitLab read: `testsuites`, `testsuite`, `testcase`, `failure`.

use crate::document::escaped;
use crate::limit::LimitVerdict;
use latpath_model::text::printable;

/// The verdicts as one suite of tests: a test for each limit. `what` is what was measured.
pub fn junit(what: &str, limits: &[LimitVerdict]) -> String {
    let attribute = |text: &str| escaped(&printable(text));
    let failures = limits.iter().filter(|limit| limit.broken.is_some()).count();
    let counts = format!("tests=\"{}\" failures=\"{failures}\"", limits.len());
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"latpath\" {counts}>\n  <testsuite name=\"{}\" {counts}>\n",
        attribute(what)
    );
    for limit in limits {
        let (name, about) = (attribute(&limit.limit), limit.about.as_ref());
        xml += &format!("    <testcase classname=\"latpath.limits\" name=\"{name}\"");
        xml += &match &limit.broken {
            None => "/>\n".to_owned(),
            Some(why) => {
                let about = about.map_or(String::new(), |about| format!("{} ({})", about.name, about.source));
                let (why, about) = (attribute(why), attribute(&about));
                format!(">\n      <failure type=\"limit\" message=\"{why}\">{about}</failure>\n    </testcase>\n")
            }
        };
    }
    xml + "  </testsuite>\n</testsuites>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::About;

    #[test]
    fn each_limit_is_a_test_and_hostile_names_are_text() {
        let verdict = |limit: &str, broken: Option<&str>| LimitVerdict {
            limit: limit.into(),
            about: Some(About { name: "a\u{1b}[2J".into(), source: "b & <c>".into() }),
            measured: None,
            broken: broken.map(Into::into),
        };
        let xml = junit("run \"1\"", &[verdict("lost<=0", None), verdict("</x>\":max<=3ms", Some("4 ms > 3 ms"))]);
        let document = roxmltree::Document::parse(&xml).unwrap();
        let cases: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testcase")).collect();
        let names: Vec<_> = cases.iter().map(|case| case.attribute("name").unwrap()).collect();
        assert_eq!(names, ["lost<=0", "</x>\":max<=3ms"]);
        let failure = cases[1].first_element_child().unwrap();
        assert_eq!((failure.attribute("message"), failure.text()), (Some("4 ms > 3 ms"), Some("a?[2J (b & <c>)")));
        assert_eq!((cases[0].has_children(), document.root_element().attribute("failures")), (false, Some("1")));
    }
}
