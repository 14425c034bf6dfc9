//! The options of an ethtool(8) request, in the form that ethtool accepts: `rx 256 tx 256`, `autoneg off`.

use crate::nic::Refusal;

/// One option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opt {
    pub name: String,
    pub value: u32,
    /// Whether the values are `on` and `off`.
    pub is_switch: bool,
    /// Highest value that the device accepts, if it reports one.
    pub max: Option<u32>,
}

impl Opt {
    pub fn switch(name: impl Into<String>, on: bool) -> Self {
        Self { name: name.into(), value: on.into(), is_switch: true, max: None }
    }

    pub fn number(name: impl Into<String>, value: u32, max: Option<u32>) -> Self {
        Self { name: name.into(), value, is_switch: false, max }
    }

    fn text(&self) -> String {
        match (self.is_switch, self.value) {
            (true, 0) => "off".into(),
            (true, _) => "on".into(),
            (false, value) => value.to_string(),
        }
    }

    fn parse(&self, text: &str) -> Option<u32> {
        match (self.is_switch, text) {
            (true, "on") => Some(1),
            (true, "off") => Some(0),
            (true, _) => None,
            (false, text) => text.parse().ok(),
        }
    }
}

/// The options' names and values; `None` if there are no options.
pub(crate) fn text(options: &[Opt]) -> Option<String> {
    let all: Vec<String> = options.iter().map(|option| format!("{} {}", option.name, option.text())).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Pairs of option and value. A driver's option may contain spaces in its name, so a name extends to the next value.
fn pairs(text: &str) -> Option<Vec<(String, &str)>> {
    let (mut all, mut name) = (Vec::new(), Vec::new());
    for word in text.split_whitespace() {
        let is_value = word == "on" || word == "off" || word.bytes().all(|b| b.is_ascii_digit());
        match is_value && !name.is_empty() {
            true => all.push((std::mem::take(&mut name).join(" "), word)),
            false => name.push(word),
        }
    }
    name.is_empty().then_some(all)
}

/// Sets the options named in a text to the values given there; other options stay unchanged. Returns whether any value
/// changes.
///
/// # Errors
/// If the text cannot be parsed, names an option that the device lacks (unless its value is off or 0), or exceeds a
/// maximum.
pub(crate) fn change(options: &mut [Opt], doing: &str, value: &str) -> Result<bool, Refusal> {
    let invalid = |why: String| Refusal::Failed(format!("{doing} {value}: {why}"));
    let pairs = pairs(value).filter(|pairs| !pairs.is_empty());
    let pairs = pairs.ok_or_else(|| invalid("options and values are expected: rx 64 tx 128".into()))?;
    let names: Vec<String> = options.iter().map(|option| option.name.clone()).collect();
    let mut is_change = false;
    for (name, value) in pairs {
        let Some(option) = options.iter_mut().find(|option| option.name == name) else {
            // An option that the device lacks counts as off, or 0.
            if is_nothing(value) {
                continue;
            }
            let has = if names.is_empty() { "no option".to_owned() } else { names.join(", ") };
            return Err(Refusal::NotOffered(format!("{doing}: the device has no option {name} (it has {has})")));
        };
        let new = option.parse(value);
        let new =
            new.ok_or_else(|| invalid(format!("{value} is not a value of {name}, which is {}", option.text())))?;
        if let Some(max) = option.max.filter(|max| new > *max) {
            return Err(invalid(format!("the device takes {max} for {name} at most")));
        }
        is_change |= option.value != new;
        option.value = new;
    }
    Ok(is_change)
}

fn is_nothing(value: &str) -> bool {
    value == "0" || value == "off"
}

/// Whether a value that was read contains all options of `wanted` with the same values. It may contain further options;
/// an option missing from it counts as off, or 0.
pub(crate) fn covers(read: &str, wanted: &str) -> bool {
    let (Some(read), Some(wanted)) = (pairs(read), pairs(wanted)) else { return read == wanted };
    let has = |(name, value): &(String, &str)| match read.iter().find(|(known, _)| known == name) {
        Some((_, known)) => known == value,
        None => is_nothing(value),
    };
    !wanted.is_empty() && wanted.iter().all(has)
}

/// The first option of `wanted` that is missing from `read`, unless its wanted value is off, or 0.
pub(crate) fn missing(read: &str, wanted: &str) -> Option<String> {
    let (read, wanted) = (pairs(read)?, pairs(wanted)?);
    let lacks = |(name, value): &(String, &str)| !is_nothing(value) && !read.iter().any(|(known, _)| known == name);
    wanted.into_iter().find(lacks).map(|(name, _)| name)
}

/// Parses the file that represents a device in a directory tree. Its first line is the value; lines such as `max rx
/// 4096` give the maxima.
pub(crate) fn of_file(text: &str) -> Vec<Opt> {
    let mut lines = text.lines();
    let value = lines.next().unwrap_or_default();
    let maxima: Vec<(String, &str)> = lines.filter_map(|line| pairs(line.strip_prefix("max ")?)).flatten().collect();
    let max = |name: &str| maxima.iter().find(|(known, _)| known == name).and_then(|(_, max)| max.parse().ok());
    let one = |(name, value): (String, &str)| match value {
        "on" | "off" => Opt::switch(name, value == "on"),
        number => {
            let max = max(&name);
            Opt::number(name, number.parse().unwrap_or(0), max)
        }
    };
    pairs(value).unwrap_or_default().into_iter().map(one).collect()
}

/// The file with new values and unchanged maxima.
pub(crate) fn to_file(text: &str, options: &[Opt]) -> String {
    let rest: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
    format!("{}\n{rest}", self::text(options).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_value_changes_only_what_it_names() {
        let mut all = of_file("rx 256 tx 512\nmax rx 4096 tx 4096\n");
        assert_eq!(change(&mut all, "ethtool -G eth0", "rx 64"), Ok(true));
        assert_eq!(text(&all).as_deref(), Some("rx 64 tx 512"));
        assert_eq!(change(&mut all, "ethtool -G eth0", "tx 512 rx-mini 0"), Ok(false));
        assert_eq!(to_file("rx 256 tx 512\nmax rx 4096 tx 4096\n", &all), "rx 64 tx 512\nmax rx 4096 tx 4096\n");
    }

    #[test]
    fn a_refusal_says_what_the_device_has_and_takes() {
        let mut all = of_file("rx 256 tx 512\nmax rx 4096 tx 4096\n");
        let mut refused = |value: &str| change(&mut all, "ethtool -G eth0", value).unwrap_err().to_string();
        assert_eq!(refused("rx 8192"), "ethtool -G eth0 rx 8192: the device takes 4096 for rx at most");
        assert!(refused("rx-jumbo 9").contains("no option rx-jumbo (it has rx, tx)"));
        for bad in ["", "rx", "64", "rx on", "rx 64 tx", "rx 99999999999"] {
            assert!(change(&mut all, "", bad).is_err(), "{bad:?}");
        }
        let mut switches = of_file("autoneg on rx off tx off");
        assert!(change(&mut switches, "", "rx 1").is_err());
    }

    #[test]
    fn an_option_that_the_device_lacks_is_named_unless_it_is_off() {
        assert_eq!(missing("rx 2 tx 2", "combined 1").as_deref(), Some("combined"));
        assert_eq!(missing("rx 2 tx 2", "tx 1 combined 0"), None);
        assert_eq!(missing("legacy-rx off", "no-such-flag off"), None);
    }

    #[test]
    fn a_reading_covers_a_value_that_names_less() {
        assert!(covers("rx 64 tx 128", "tx 128") && covers("rx 64 tx 128", "tx 128 rx 64"));
        assert!(!covers("rx 64 tx 128", "tx 64") && !covers("rx 64", "combined 1"));
        assert!(covers("rx 64", "rx-mini 0") && covers("legacy-rx on", "no-such-flag off"), "the device lacks it");
        assert!(covers("Some Flag on other off", "Some Flag on") && !covers("on", "off") && covers("off", "off"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(file in "\\PC{0,80}", value in "[a-z 0-9-]{0,40}") {
            let mut all = of_file(&file);
            let _ = change(&mut all, "", &value);
            let _ = covers(&file, &value);
        }

        #[test]
        fn the_text_of_options_reads_back(rx: u32, tx: u32, adaptive: bool) {
            let all = vec![Opt::switch("adaptive-rx", adaptive), Opt::number("rx", rx, None), Opt::number("tx", tx, None)];
            let written = text(&all).unwrap();
            proptest::prop_assert_eq!(of_file(&written), all);
            proptest::prop_assert!(covers(&written, &written));
        }
    }
}
