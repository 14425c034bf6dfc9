//! A plan in its own folder, and the processes and namespaces that it leaves on the machine.

use latpath_study::TrialRecord;
use latpath_testkit::names::own;
use latpath_testkit::{latpath, program, Failed, Finished, Space, Started};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A study with its plan. Its name, which its processes and namespaces contain, is unique on the machine.
pub struct StudyBench {
    space: Space,
    pub name: String,
}

/// Script that sets up and removes a way from one namespace to another: a veth pair, or two veth pairs joined by a
/// bridge.
const WAYS: &str = r#"#!/bin/sh
set -e
case $1 in
down)
  for part in pub switch app; do ip netns del $name-$part 2>/dev/null || true; done;;
up)
  ip netns add $name-pub; ip netns add $name-app
  for part in pub app; do ip netns exec $name-$part sysctl -qw net.ipv6.conf.default.disable_ipv6=1; done
  if [ "$LATPATH_TOPOLOGY" = veth ]; then
    ip link add pub0 netns $name-pub type veth peer name app0 netns $name-app
  else
    ip netns add $name-switch
    ip netns exec $name-switch sysctl -qw net.ipv6.conf.default.disable_ipv6=1
    ip -n $name-switch link add br0 type bridge
    ip link add pub0 netns $name-pub type veth peer name in0 netns $name-switch
    ip link add app0 netns $name-app type veth peer name out0 netns $name-switch
    for device in in0 out0; do ip -n $name-switch link set $device master br0 up; done
    ip -n $name-switch link set br0 up
  fi
  ip -n $name-pub addr add 10.77.0.1/24 dev pub0; ip -n $name-app addr add 10.77.0.2/24 dev app0
  ip -n $name-pub link set pub0 up; ip -n $name-app link set app0 up;;
esac
"#;

impl StudyBench {
    pub fn new() -> Result<Self, Failed> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = own(&format!("study{}", MADE.fetch_add(1, Ordering::Relaxed)));
        let bench = Self { space: Space::new("study")?, name: name.replace('.', "-") };
        fs::write(bench.path("ways.sh"), WAYS)?;
        Ok(bench)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.space.folder().join(file)
    }

    /// Number of lines of a file in the plan's directory.
    pub fn lines(&self, file: &str) -> Result<usize, Failed> {
        Ok(std::fs::read_to_string(self.path(file))?.lines().count())
    }

    /// Writes a plan: its keys (`head`), its directions and ways, then `rest`.
    pub fn write_plan(&self, head: &str, rest: &str) -> Result<(), Failed> {
        let name = &self.name;
        let latpath = program();
        let latpath = latpath.display();
        let direction = |name: &str, stream: &str, from: &str, to: &str| {
            format!(
                "[[direction]]\nname = '{name}'\nstream = 'svid:{stream}-{name}'\n\
                 publish = {{ device = '{from}0', namespace = '{{name}}-{from}', arguments = ['--rate', '1000', '--wrap', '65536'] }}\n\
                 reader = 'exec ip netns exec $name-{to} {latpath} subscribe -i {to}0 --stream svid:{stream}-{name} --name relay'\n"
            )
        };
        let way =
            |name: &str| format!("[[topology]]\nname = '{name}'\nup = 'sh ways.sh up'\ndown = 'sh ways.sh down'\n");
        let plan = format!(
            "name = 'test'\nwindow = '4s'\nthreshold = '1ms'\n{head}\n[variables]\nname = '{name}'\n{}{}{}{}{rest}",
            direction("in", name, "pub", "app"),
            direction("out", name, "app", "pub"),
            way("veth"),
            way("bridge"),
        );
        fs::write(self.path("plan.toml"), plan)?;
        Ok(())
    }

    pub fn study(&self, words: &str) -> Result<Started, Failed> {
        let (plan, study) = (self.path("plan.toml"), self.path("study"));
        self.space.start(latpath(&format!("study run {} -o {} {words}", plan.display(), study.display())))
    }

    pub fn run(&self, words: &str) -> Result<Finished, Failed> {
        // The time limit allows for some tens of trials on a busy machine.
        self.study(words)?.finish(std::time::Duration::from_secs(900))
    }

    pub fn report(&self, words: &str) -> Result<Finished, Failed> {
        self.space.run(latpath(&format!("study report {} {words}", self.path("study").display())))
    }

    /// The record of a trial.
    pub fn record(&self, trial: &str) -> Result<TrialRecord, Failed> {
        let text = fs::read_to_string(self.path("study").join("trials").join(trial).join("trial.json"))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The complete trials, in the order in which they were completed.
    pub fn completed(&self) -> Result<Vec<String>, Failed> {
        let mut all = Vec::new();
        for trial in fs::read_dir(self.path("study").join("trials"))? {
            let trial = trial?;
            if let Ok(found) = fs::metadata(trial.path().join("trial.json")) {
                all.push((found.modified()?, trial.file_name().to_string_lossy().into_owned()));
            }
        }
        all.sort();
        Ok(all.into_iter().map(|(_, name)| name).collect())
    }

    /// Processes of a trial: publisher, reader and load have the study's name in their command line or environment.
    pub fn processes(&self) -> Vec<String> {
        let is_of_study = |pid: &str| {
            let has_name = |file: &str| {
                let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                bytes.windows(self.name.len()).any(|part| part == self.name.as_bytes())
            };
            // The command line of a killed process that has not been reaped yet is empty.
            has_name("cmdline") || (has_name("environ") && pid.parse() != Ok(std::process::id()))
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        pids.filter(|pid| pid.parse::<u32>().is_ok() && is_of_study(pid)).collect()
    }

    /// Number of namespaces of the study's ways.
    pub fn namespaces(&self) -> usize {
        let all = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&self.name)).count()
    }
}

impl Drop for StudyBench {
    fn drop(&mut self) {
        // After a failed test, the namespaces of the last trial may remain.
        for part in ["pub", "switch", "app"] {
            let name = format!("{}-{part}", self.name);
            let _ = std::process::Command::new("ip")
                .args(["netns", "del", &name])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
}
