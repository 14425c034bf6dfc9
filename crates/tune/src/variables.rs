//! Variables for a profile's values: the CPUs for each purpose, the network devices, and the user's other variables.

use latpath_linux::Cpus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Variables that every profile may use.
pub const BUILT_IN: [&str; 12] = [
    "isolated",
    "isolated_mask",
    "housekeeping",
    "housekeeping_mask",
    "cpus",
    "interface",
    "irq_cpu",
    "irq_cpu_mask",
    "app_cpu",
    "app_cpu_mask",
    "other_cpus",
    "free_isolated",
];

/// The variables of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Variables {
    /// CPUs for work that must not be disturbed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<Cpus>,
    /// CPUs for everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub housekeeping: Option<Cpus>,
    /// All online CPUs.
    #[serde(skip_serializing_if = "Cpus::is_empty")]
    pub cpus: Cpus,
    /// Network devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// CPU for the network devices' interrupts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub irq_cpu: Option<u32>,
    /// CPU for the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_cpu: Option<u32>,
    /// Variables of a particular profile, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, String>,
}

impl Variables {
    /// The value of a variable; `interface` is the network device of the place to be set.
    pub(crate) fn get(&self, name: &str, interface: Option<&str>) -> Option<String> {
        let mask = |cpus: &Option<Cpus>| cpus.as_ref().map(mask_of);
        let one = |cpu: Option<u32>| cpu.map(|cpu| mask_of(&[cpu].into_iter().collect()));
        match name {
            "isolated" => self.isolated.as_ref().map(Cpus::to_string),
            "isolated_mask" => mask(&self.isolated),
            "housekeeping" => self.housekeeping.as_ref().map(Cpus::to_string),
            "housekeeping_mask" => mask(&self.housekeeping),
            "cpus" => Some(self.cpus.to_string()),
            "interface" => interface.or(self.interfaces.first().map(String::as_str)).map(str::to_owned),
            "irq_cpu" => self.irq_cpu.map(|cpu| cpu.to_string()),
            "irq_cpu_mask" => one(self.irq_cpu),
            "app_cpu" => self.app_cpu.map(|cpu| cpu.to_string()),
            "app_cpu_mask" => one(self.app_cpu),
            // All CPUs except those of the interrupts and the application.
            "other_cpus" => {
                let used: Cpus = self.irq_cpu.into_iter().chain(self.app_cpu).collect();
                Some(self.cpus.without(&used)).filter(|cpus| !cpus.is_empty()).map(|cpus| cpus.to_string())
            }
            other => self.other.get(other).cloned(),
        }
    }

    /// Replaces the variables in a text.
    ///
    /// # Errors
    /// A variable is not set; the error is its name.
    pub(crate) fn fill(&self, text: &str, interface: Option<&str>) -> Result<String, String> {
        self.fill_with(text, interface, &|_| None)
    }

    /// As [`Variables::fill`], with further variables of the place to be set.
    pub(crate) fn fill_with(
        &self,
        text: &str,
        interface: Option<&str>,
        more: &dyn Fn(&str) -> Option<String>,
    ) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some((before, name, after)) = next(rest) {
            out += before;
            out += &more(name).or_else(|| self.get(name, interface)).ok_or_else(|| name.to_owned())?;
            rest = after;
        }
        Ok(out + rest)
    }

    /// Whether a variable is set.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name, None).is_some_and(|value| !value.is_empty())
    }
}

/// The first variable in a text, as (text before it, name, text after it).
fn next(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// The names of the variables in a text.
pub(crate) fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, name, after) = next(rest)?;
        rest = after;
        Some(name)
    })
}

/// A CPU mask in the kernel's format: hexadecimal words of 32 CPUs, highest first.
pub(crate) fn mask_of(cpus: &Cpus) -> String {
    let most = cpus.iter().last().unwrap_or(0);
    let mut words = vec![0_u32; most as usize / 32 + 1];
    cpus.iter().for_each(|cpu| words[cpu as usize / 32] |= 1 << (cpu % 32));
    let mut words = words.iter().rev();
    let first = words.next().map(|word| format!("{word:x}")).unwrap_or_default();
    words.fold(first, |text, word| format!("{text},{word:08x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        Variables {
            isolated: "2-3,33".parse().ok(),
            interfaces: vec!["eth0".into()],
            other: [("peer".to_owned(), "10.0.0.2".to_owned())].into(),
            ..Variables::default()
        }
    }

    #[test]
    fn variables_are_replaced_and_one_that_is_not_set_is_named() {
        let fill = |text: &str| variables().fill(text, None);
        assert_eq!(fill("{isolated} {isolated_mask}").as_deref(), Ok("2-3,33 2,0000000c"));
        assert_eq!(fill("a{interface}b {peer}").as_deref(), Ok("aeth0b 10.0.0.2"));
        assert_eq!(variables().fill("{interface}", Some("eth1")).as_deref(), Ok("eth1"));
        assert_eq!(fill("{housekeeping}"), Err("housekeeping".into()));
        assert_eq!(fill("{ open"), Ok("{ open".into()));
        assert!(names_in("a{b}{c} {").eq(["b", "c"]));
    }

    #[test]
    fn each_built_in_variable_has_a_value() {
        let cpus: Option<Cpus> = "0".parse().ok();
        let all = Variables {
            isolated: cpus.clone(),
            housekeeping: cpus,
            cpus: "0-3".parse().unwrap(),
            irq_cpu: Some(0),
            app_cpu: Some(1),
            ..variables()
        };
        // `free_isolated` depends on the place, so only it is not set.
        let missing: Vec<_> = BUILT_IN.iter().filter(|name| all.get(name, None).is_none()).collect();
        assert_eq!(missing, [&"free_isolated"]);
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Variables>(&text).unwrap(), all);
    }
}
