use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn profile(chains: &[(&str, Ns)]) -> Profile {
    let mut text = "# latpath profile 1 {\"window_ns\":1000000000,\"cpus\":\"0-1\"}\n".to_owned();
    chains.iter().for_each(|(chain, ns)| text += &format!("{chain} {ns}\n"));
    Profile::parse(text.as_bytes(), "profile").expect("a profile")
}

fn example() -> Profile {
    profile(&[
        ("bash", 7_000_000),
        ("bash;main", 30_000_000),
        ("bash;main;read_[k]", 11_000_001),
        ("bash;main;read_[k];copy_[k]", 9_000_000),
        ("bash;main;write_[k]", 5_000_000),
        ("vm (qemu);[guest vm];iperf3;main", 400_000_000),
        ("vm (qemu);[guest vm vCPU 1]", 41_000_000),
        ("vm (qemu);main;read_[k]", 2_000_000),
    ])
}

/// Reads the times of all frames of a drawing, by call chain in the form of folded lines; each chain starts at the
/// root, `all`.
fn drawn(svg: &str) -> BTreeMap<String, i128> {
    let document = roxmltree::Document::parse(svg).expect("XML");
    let (mut open, mut times) = (Vec::new(), BTreeMap::new());
    for node in document.descendants().filter(|node| node.attribute("role") == Some("treeitem")) {
        let title = node.children().find(|child| child.has_tag_name(("http://www.w3.org/2000/svg", "title")));
        let name = title.and_then(|title| title.text()).expect("a title").lines().next().unwrap_or_default();
        let number = |name: &str| node.attribute(name).and_then(|value| value.parse::<i128>().ok()).expect("a number");
        open.truncate(number("aria-level") as usize - 1);
        open.push(name.to_owned());
        assert_eq!(open.len() as i128, number("aria-level"), "no level is left out");
        times.insert(open.join(";"), number("data-ns"));
    }
    times
}

/// Computes the times from the folded lines, for every prefix of each call chain, starting at the process.
fn folded(profile: &Profile) -> BTreeMap<String, i128> {
    let mut times = BTreeMap::from([("all".to_owned(), 0)]);
    for line in profile.folded() {
        let (chain, ns) = line.rsplit_once(' ').expect("a line");
        let ns: i128 = ns.parse().expect("ns");
        *times.get_mut("all").expect("the root") += ns;
        let ends = chain.match_indices(';').map(|(at, _)| at).chain([chain.len()]);
        ends.for_each(|end| *times.entry(format!("all;{}", &chain[..end])).or_default() += ns);
    }
    times
}

#[test]
fn each_frame_has_the_time_that_the_folded_lines_give_it() {
    let profile = example();
    let svg = flame_graph(&profile).expect("a drawing");
    assert_eq!(drawn(&svg), folded(&profile));
    assert_eq!(svg, flame_graph(&profile).expect("a drawing"), "the same profile is drawn alike");
}

#[test]
fn frames_are_as_wide_as_their_time_and_lie_within_their_callers() {
    let svg = flame_graph(&example()).expect("a drawing");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let of = |name: &str| {
        let frames = document.descendants().filter(|node| node.attribute("role") == Some("treeitem"));
        let title =
            |node: &roxmltree::Node| node.first_element_child().and_then(|title| title.text()).unwrap_or("").to_owned();
        let frame = frames.into_iter().find(|node| title(node).starts_with(name)).expect("a frame");
        let percent =
            |name: &str| frame.attribute(name).expect("a place").trim_end_matches('%').parse::<f64>().expect("%");
        (percent("x"), percent("x") + percent("width"), percent("y"))
    };
    let (all, bash, main, copy) = (of("all"), of("bash"), of("main"), of("copy"));
    assert_eq!((all.0, all.1), (0.0, 100.0));
    assert!((bash.1 - bash.0 - 62.0 / 505.0 * 100.0).abs() < 0.001, "{bash:?}");
    assert!(main.0 > bash.0 && main.1 <= bash.1 + 0.001 && copy.0 > main.0 && copy.1 < main.1);
    assert!(all.2 > bash.2 && bash.2 > main.2 && main.2 > copy.2, "callers are below what they call");
}

#[test]
fn a_difference_has_the_colours_of_the_frames_own_times() {
    let before = profile(&[("a;main", 10_000_000), ("a;main;f", 50_000_000), ("a;gone", 5_000_000)]);
    let mut after = profile(&[("a;main", 40_000_000), ("a;main;f", 20_000_000), ("a;new", 4_000_000)]);
    // The second window is twice as long, so times of `before` count twice.
    after.window_ns *= 2;
    let svg = flame_graph_of_difference(&before, &after).expect("a drawing");
    assert_eq!(drawn(&svg), folded(&after), "of the later one");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let mut seen = BTreeMap::new();
    for rect in document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "rect"))) {
        let Some(title) = rect.prev_sibling_element().and_then(|title| title.text()) else { continue };
        let (name, times) = title.split_once('\n').unwrap_or((title, ""));
        seen.insert(name.to_owned(), (rect.attribute("class").unwrap_or("").to_owned(), times.to_owned()));
    }
    let class = |name: &str| seen[name].0.as_str();
    assert_eq!((class("all"), class("a")), ("same", "same"), "what only calls others");
    assert_eq!((class("main"), class("f"), class("new")), ("more", "less", "more"));
    assert!(seen["f"].1.contains("20.00 ms (31.25 %); before 100.0 ms (-80.00 ms)"), "{}", seen["f"].1);
    assert!(seen["main"].1.contains("itself 40.00 ms (62.50 %); before 20.00 ms (+20.00 ms)"), "{}", seen["main"].1);
}

#[test]
fn nothing_to_draw_is_an_error_and_what_is_too_narrow_is_left_out() {
    assert!(flame_graph(&Profile::default()).is_err());
    let before = profile(&[("a", 5)]);
    assert!(flame_graph_of_difference(&before, &profile(&[])).is_err(), "no time after");
    let svg = flame_graph(&profile(&[("a", 1_000_000), ("b;c", 499), ("d;e", 501)])).expect("a drawing");
    assert_eq!(drawn(&svg).into_keys().collect::<Vec<_>>(), ["all", "all;a", "all;d", "all;d;e"]);
}

#[test]
fn names_are_text_and_never_markup() {
    let hostile = "</title><script>alert(1)</script>&#60\"'";
    let svg = flame_graph(&profile(&[(&format!("{hostile};]]>{hostile}"), 5)])).expect("a drawing");
    let names: Vec<_> = drawn(&svg).into_keys().collect();
    assert_eq!(names[1], format!("all;{hostile}"));
    assert_eq!(svg.matches("<script").count(), 1, "the graph's own");
    for elsewhere in ["http://", "https://", "url(", "@import", "<image", "href"] {
        let namespaces = ["http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"];
        let rest = namespaces.iter().fold(svg.clone(), |svg, name| svg.replace(name, ""));
        assert!(!rest.contains(elsewhere), "it refers to something outside of it: {elsewhere}");
    }
}

proptest! {
    #[test]
    fn any_names_make_sound_xml_with_exact_times(
        chains in prop::collection::vec((prop::collection::vec("\\PC{0,12}|.{0,6}", 1..6), 1..1_000_000_000i64), 1..12)
    ) {
        let lines = |(names, ns): &(Vec<String>, Ns)| (names.join(";").replace(['\n', '\r'], " "), *ns);
        let lines: Vec<_> = chains.iter().map(lines).filter(|(chain, _)| !chain.is_empty()).collect();
        prop_assume!(!lines.is_empty());
        let lines: Vec<(&str, Ns)> = lines.iter().map(|(chain, ns)| (chain.as_str(), *ns)).collect();
        let profile = profile(&lines);
        let (drawn, folded) = (drawn(&flame_graph(&profile).expect("a drawing")), folded(&profile));
        let all = folded["all"] as f64;
        for (chain, ns) in &folded {
            prop_assert!(drawn.get(chain) == Some(ns) || *ns as f64 <= all * MIN_SHARE, "{chain:?} has {ns} ns");
        }
        prop_assert!(drawn.keys().all(|chain| folded.contains_key(chain)));
    }
}
