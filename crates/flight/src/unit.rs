//! The systemd unit or the control group of a process, and its owner.

use latpath_linux::{proc::Root, Owner};
use latpath_model::text::printable;
use std::path::Path;

/// The unit of a running process on this machine, and the label of its owner.
pub(crate) fn unit_and_owner(pid: u32) -> (Option<String>, Option<String>) {
    let Some(text) = Root::of(Path::new("/")).text(&format!("proc/{pid}/cgroup")) else { return (None, None) };
    (unit(&text), Owner::parse(&text).map(|owner| owner.label()))
}

/// The innermost service in the contents of /proc/PID/cgroup, otherwise the innermost scope, otherwise the name of the
/// last group. `None` for the root group and slices, and for login sessions and systemd itself, whose processes are
/// unrelated.
fn unit(text: &str) -> Option<String> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let controllers = fields.nth(1)?;
        let path = fields.next()?;
        Some((controllers.to_owned(), path.to_owned()))
    };
    let lines: Vec<(String, String)> = text.lines().filter_map(of_line).collect();
    let named = |controllers: &str| lines.iter().find(|(known, _)| known == controllers).map(|(_, path)| path.as_str());
    let is_a_path = |path: &&str| path.len() > 1;
    let path = named("").filter(is_a_path).or(named("name=systemd").filter(is_a_path))?;
    let parts = || path.split('/').rev().filter(|part| !part.is_empty());
    let is_shared = |part: &&str| part.starts_with("user@") || part.starts_with("session-") || *part == "init.scope";
    let ending = |end: &str| parts().find(|part| part.ends_with(end) && !is_shared(part));
    let last = || parts().next().filter(|part| !part.ends_with(".slice") && !is_shared(part));
    ending(".service").or_else(|| ending(".scope")).or_else(last).map(printable).filter(|name| name.len() <= 255)
}

#[cfg(test)]
mod tests {
    use super::unit;

    #[test]
    fn a_process_belongs_to_the_innermost_service_or_scope() {
        for (text, found) in [
            ("0::/system.slice/builder.service", Some("builder.service")),
            ("0::/system.slice/docker-1f.scope/inner", Some("docker-1f.scope")),
            ("0::/user.slice/user-0.slice/user@0.service/app.slice/build.service", Some("build.service")),
            ("0::/user.slice/user-0.slice/session-3.scope", None),
            ("0::/init.scope", None),
            ("0::/user.slice", None),
            ("0::/", None),
            ("0::/lab/compilers", Some("compilers")),
            ("4:cpu:/x\n1:name=systemd:/system.slice/relay.service\n0::/", Some("relay.service")),
            ("", None),
            ("no group", None),
        ] {
            assert_eq!(unit(text).as_deref(), found, "{text}");
        }
    }
}
