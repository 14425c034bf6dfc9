//! No command writes through a link, wherever the user permits it to write.

use crate::runs::{stderr, Bench};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn a_link_that_others_have_planted_is_refused_or_replaced_and_never_followed() {
    let bench = Bench::with_run();
    let at = |name: &str| bench.dir.path().join(name);
    let header = r#"# latpath profile 1 {"window_ns":1000000000,"cpus":"0-1","idle_ns":1500000000}"#;
    fs::write(at("profile"), format!("{header}\na;b 3\n")).unwrap();
    fs::write(at("victim"), "mine").unwrap();
    fs::create_dir(at("study")).unwrap();
    let configuration =
        r#"{"version":3,"name":"a","vm":"v","kernel":"","latpath":"","command":[],"alone":[],"notes":[]}"#;
    fs::write(at("study/a.json"), configuration).unwrap();
    let commands: [&[&str]; 8] = [
        &["report", "run", "--csv", "out"],
        &["report", "run", "--html", "out"],
        &["report", "run", "--asciidoc", "out"],
        &["compare", "run", "--against", "run", "--html", "out"],
        &["export", "jsonl", "run", "-o", "out"],
        &["export", "csv", "run", "-o", "out"],
        &["profile", "--diff", "profile", "profile", "--svg", "out"],
        &["study", "vhost", "-o", "study", "--html", "out"],
    ];
    // A link to a device is not accepted as a device: another user's link could lead to a disk.
    for target in [at("victim"), "/dev/full".into()] {
        for command in commands {
            symlink(&target, at("out")).unwrap();
            let refused = bench.latpath(command);
            assert_eq!(refused.status.code(), Some(1), "{command:?}: {}", stderr(&refused));
            assert!(stderr(&refused).contains("--force"), "{command:?}: {}", stderr(&refused));
            let replaced = bench.latpath(&[command, &["--force"]].concat());
            assert_eq!(replaced.status.code(), Some(0), "{command:?}: {}", stderr(&replaced));
            assert!(at("out").symlink_metadata().unwrap().is_file(), "{command:?}");
            assert_eq!(fs::read(at("victim")).unwrap(), b"mine", "{command:?}");
            fs::remove_file(at("out")).unwrap();
        }
    }
}

#[test]
fn what_is_in_a_studys_directory_and_no_file_of_its_own_is_refused_at_once() {
    let bench = Bench::new();
    let study = bench.dir.path().join("study");
    fs::create_dir(&study).unwrap();
    nix::unistd::mkfifo(&study.join("a.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let out = bench.latpath(&["study", "vhost", "-o", "study"]);
    assert!(out.status.code() == Some(1) && stderr(&out).contains("it is no file"), "{}", stderr(&out));
    fs::remove_file(study.join("a.json")).unwrap();
    symlink("/dev/zero", study.join("a.json")).unwrap();
    let out = bench.latpath(&["study", "vhost", "-o", "study"]);
    assert!(out.status.code() == Some(1) && stderr(&out).contains("it is no file"), "{}", stderr(&out));
}
