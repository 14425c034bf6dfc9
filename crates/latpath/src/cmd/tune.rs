//! `latpath tune`: gives this machine the settings of a profile, as one change that can be undone.

mod advice;
mod apply;
mod guard;
mod show;
mod watching;

use super::report::{print, print_as};
use super::{Outcome, Usage};
use anyhow::{bail, Result};
use clap::{Args as ClapArgs, Subcommand};
use latpath_linux::Cpus;
use latpath_model::stream::{format_mac, parse_mac};
use latpath_tune::{
    plan, Drift, Format, Machine, Plan, PlanError, Profile, ProfilesDocument, TuneDocument, TuneError, Tuned, Tuning,
    Variables,
};
use latpath_undo::Journal;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// Give this machine the settings of a profile, as one change that can be undone.
#[derive(ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Plan(PlanArgs),
    Apply(Box<apply::Apply>),
    Confirm(Confirm),
    Verify(Verify),
    Undo(Undo),
    #[command(hide = true)]
    Guard(guard::Guard),
}

/// List the profiles, and which of them are applied
#[derive(ClapArgs)]
struct List {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Show what a profile would change here, without changing anything
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath tune plan sv-hypervisor --isolated 2-7
  latpath tune plan sv-guest --interface eth0 --irq-cpu 1 --why
  latpath tune plan ./my-profile.toml --set peer=10.0.0.2")]
struct PlanArgs {
    #[command(flatten)]
    what: ProfileArgs,
    /// Add the reason and the source of each line
    #[arg(long, conflicts_with = "json")]
    why: bool,
    /// Print the plan for another tool: a shell script with undo lines, elements of libvirt's XML, or Ansible variables
    /// of SEAPATH
    #[arg(long, value_name = "FORM", conflicts_with_all = ["why", "json"])]
    export: Option<Form>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// An export format of a plan, for another tool.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Form {
    Shell,
    Libvirt,
    Ansible,
}

impl From<Form> for Format {
    fn from(form: Form) -> Self {
        match form {
            Form::Shell => Self::Shell,
            Form::Libvirt => Self::Libvirt,
            Form::Ansible => Self::Ansible,
        }
    }
}

/// Keep a change that apply --confirm would otherwise undo
#[derive(ClapArgs)]
struct Confirm {
    /// The profile [default: the only one that is unconfirmed]
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
}

/// Show which settings of an applied profile no longer hold; exit code 3 if there are any
#[derive(ClapArgs)]
struct Verify {
    #[command(flatten)]
    what: OptionalWhat,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Undo an applied profile: restore the original values, except those that another program has changed since
#[derive(ClapArgs)]
struct Undo {
    /// The profile, as latpath tune list shows it [default: the only one that is applied]
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    /// Undo all applied profiles
    #[arg(long, conflicts_with = "profile")]
    everything: bool,
}

/// A profile and its variables.
#[derive(ClapArgs)]
struct ProfileArgs {
    /// The profile: a name (latpath tune list), or a file with a dot or a slash in its name (docs/tune.md)
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// Recording to read: only applies settings that latpath explain advises for it
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,
    #[command(flatten)]
    variables: VariableArgs,
}

impl ProfileArgs {
    fn profile(&self) -> Result<Profile> {
        let profile = find(&self.profile)?;
        match &self.run {
            Some(run) => advice::restricted(profile, run),
            None => Ok(profile),
        }
    }
}

/// A profile that may be left out.
#[derive(ClapArgs)]
struct OptionalWhat {
    /// The profile; one that is not applied is compared with the variables of these flags [default: all that are
    /// applied]
    #[arg(value_name = "PROFILE")]
    profile: Option<String>,
    #[command(flatten)]
    variables: VariableArgs,
}

/// The variables of a profile.
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct VariableArgs {
    /// Network device to which the profile applies; can be repeated
    #[arg(short, long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// CPUs for threads that must not be disturbed, e.g. 2-7 [default: those that the kernel isolates]
    #[arg(long, value_name = "CPUS")]
    isolated: Option<Cpus>,
    /// CPUs for everything else, e.g. 0-1 [default: all but the isolated ones]
    #[arg(long, value_name = "CPUS")]
    housekeeping: Option<Cpus>,
    /// CPU of the network devices' interrupts
    #[arg(long, value_name = "CPU")]
    irq_cpu: Option<u32>,
    /// CPU of the application
    #[arg(long, value_name = "CPU")]
    app_cpu: Option<u32>,
    /// Address for the network device, e.g. 192.168.1.10/24; can be repeated (ping-interface)
    #[arg(long, value_name = "CIDR", value_parser = cidr)]
    address: Vec<String>,
    /// The other end and its link-layer address, e.g. 192.168.1.11=02:00:00:00:00:11; can be repeated (ping-interface)
    #[arg(long, value_name = "IP=MAC", value_parser = peer)]
    peer: Vec<String>,
    /// Leave the network device in its network namespace (ping-interface)
    #[arg(long)]
    no_namespace: bool,
    /// Do not start phc2sys (ping-interface)
    #[arg(long)]
    no_ptp: bool,
    /// Value of another variable of the profile; can be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = variable)]
    other: Vec<(String, String)>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, e.g. peer=10.0.0.2")?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    match (is_name, latpath_tune::BUILT_IN.contains(&name)) {
        (false, _) => Err(format!("{name:?}: a variable's name has lower-case letters, digits and _")),
        (true, true) => Err(format!("{name} has a flag of its own: --{}", name.replace('_', "-"))),
        (true, false) => Ok((name.into(), value.into())),
    }
}

/// Checks an address with its prefix length, e.g. `192.168.1.10/24`.
fn cidr(text: &str) -> Result<String, String> {
    let invalid = || format!("{text}: write an address with the length of its prefix, e.g. 192.168.1.10/24");
    let (address, prefix) = text.split_once('/').ok_or_else(invalid)?;
    let address: IpAddr = address.parse().map_err(|_| invalid())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.parse::<u8>().ok().filter(|prefix| *prefix <= longest).ok_or_else(invalid)?;
    Ok(format!("{address}/{prefix}"))
}

/// Parses `IP=MAC`, e.g. `192.168.1.11=02:00:00:00:00:11`, into the form of the setting `device-neighbours`.
fn peer(text: &str) -> Result<String, String> {
    let invalid = || format!("{text}: write IP=MAC, e.g. 192.168.1.11=02:00:00:00:00:11");
    let (address, mac) = text.split_once('=').ok_or_else(invalid)?;
    let address: IpAddr = address.parse().map_err(|_| invalid())?;
    Ok(format!("{address} {}", format_mac(&parse_mac(mac).ok_or_else(invalid)?)))
}

impl VariableArgs {
    /// Variables from the flags that are short forms of --set.
    fn named(&self) -> impl Iterator<Item = (String, String)> {
        let list = |all: &[String]| (!all.is_empty()).then(|| all.join(", "));
        let switch = |on: bool| on.then(|| "1".to_owned());
        let all = [
            ("address", list(&self.address)),
            ("peer", list(&self.peer)),
            ("no_namespace", switch(self.no_namespace)),
            ("no_ptp", switch(self.no_ptp)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
    }

    /// The variables that the user names.
    pub(super) fn variables(&self) -> Variables {
        Variables {
            isolated: self.isolated.clone(),
            housekeeping: self.housekeeping.clone(),
            cpus: Cpus::default(),
            interfaces: self.interfaces.clone(),
            irq_cpu: self.irq_cpu,
            app_cpu: self.app_cpu,
            other: self.other.iter().cloned().chain(self.named()).collect::<BTreeMap<_, _>>(),
        }
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    match args.action {
        Action::List(args) => list(args),
        Action::Plan(args) => show_plan(args),
        Action::Apply(args) => apply::run(*args),
        Action::Confirm(args) => confirm(args),
        Action::Verify(args) => verify(args),
        Action::Undo(args) => undo(args),
        Action::Guard(args) => guard::run(args),
    }
}

/// Fails without root, because only root can change settings and read the journal.
fn need_root(doing: &str) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("latpath tune {doing} needs root: it writes settings and the journal; try with sudo");
    }
    Ok(())
}

fn find(what: &str) -> Result<Profile> {
    Profile::find(what).map_err(|error| Usage(error.to_string()).into())
}

/// Plans a profile. Errors that the user can fix count as wrong usage.
fn planned(profile: &Profile, variables: &Variables, machine: &Machine) -> Result<Plan> {
    plan(profile, variables, machine).map_err(|error: PlanError| Usage(error.to_string()).into())
}

fn list(args: List) -> Result<Outcome> {
    let machine = Machine::this(&[]);
    let tuning = Tuning::new(&machine, Journal::of_this_machine());
    let applied = if nix::unistd::geteuid().is_root() { Some(tuning.applied()?) } else { None };
    let profiles = ProfilesDocument { profiles: Profile::all().into_iter().map(Into::into).collect(), applied };
    let text = show::profiles(&profiles);
    print_as(args.json, || TuneDocument::Profiles(profiles), || text)?;
    Ok(Outcome::Done)
}

fn show_plan(args: PlanArgs) -> Result<Outcome> {
    let profile = args.what.profile()?;
    let variables = args.what.variables.variables();
    let machine = Machine::this(&variables.interfaces);
    let plan = planned(&profile, &variables, &machine)?;
    if let Some(form) = args.export {
        print(&latpath_tune::export(&plan, &machine, form.into()))?;
        return Ok(Outcome::Done);
    }
    let text = show::plan(&plan, args.why);
    print_as(args.json, || TuneDocument::Plan(Box::new(plan)), || text)?;
    Ok(Outcome::Done)
}

fn confirm(args: Confirm) -> Result<Outcome> {
    need_root("confirm")?;
    let machine = Machine::this(&[]);
    let tuning = Tuning::new(&machine, Journal::of_this_machine());
    let name = match args.profile {
        Some(name) => name,
        None => only(tuning.applied()?.into_iter().filter(|one| one.unconfirmed).collect(), "waits to be confirmed")?,
    };
    for subject in tuning.confirm(&name)? {
        print(&format!("{subject}: confirmed; latpath tune undo {subject} takes it back\n"))?;
    }
    Ok(Outcome::Done)
}

/// The subject, if there is exactly one.
fn only(all: Vec<Tuned>, doing: &str) -> Result<String> {
    match all.as_slice() {
        [one] => Ok(one.subject.clone()),
        [] => bail!("no profile {doing}"),
        several => {
            let names: Vec<&str> = several.iter().map(|one| one.subject.as_str()).collect();
            bail!(Usage(format!("name the profile: {} {doing}", names.join(", "))))
        }
    }
}

fn verify(args: Verify) -> Result<Outcome> {
    let variables = args.what.variables.variables();
    let machine = Machine::this(&variables.interfaces);
    let tuning = Tuning::new(&machine, Journal::of_this_machine());
    let is_root = nix::unistd::geteuid().is_root();
    let drifts = match args.what.profile {
        None => {
            need_root("verify without a profile")?;
            let names: Vec<String> = tuning.applied()?.into_iter().map(|one| one.subject).collect();
            if names.is_empty() {
                bail!("no profile is applied; name one to compare this machine with it");
            }
            let mut all = Vec::new();
            for name in names {
                all.extend(tuning.verify(&name)?);
            }
            all
        }
        Some(name) => match if is_root { tuning.verify(&name) } else { not_applied(&name) } {
            Err(TuneError::NotApplied { .. }) => {
                vec![Drift::of(planned(&find(&name)?, &variables, &machine)?)]
            }
            found => found?,
        },
    };
    let is_none = drifts.iter().all(Drift::is_none);
    let text = show::drifts(&drifts);
    print_as(args.json, || TuneDocument::Drifts(drifts), || text)?;
    Ok(if is_none { Outcome::Done } else { Outcome::LimitBroken })
}

fn not_applied(name: &str) -> Result<Vec<Drift>, TuneError> {
    Err(TuneError::NotApplied { subject: name.into(), applied: Vec::new() })
}

fn undo(args: Undo) -> Result<Outcome> {
    need_root("undo")?;
    let machine = Machine::this(&[]);
    let tuning = Tuning::new(&machine, Journal::of_this_machine());
    let mut applied = tuning.applied()?;
    applied.sort_by(|a, b| a.subject.cmp(&b.subject));
    applied.dedup_by(|a, b| a.subject == b.subject);
    let names = match args.profile {
        Some(name) => vec![name],
        None if args.everything => applied.into_iter().map(|one| one.subject).collect(),
        None => vec![only(applied, "is applied")?],
    };
    for name in names {
        let messages = tuning.undo(&name)?;
        print(&show::undone(&name, &messages))?;
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_peers_are_those_of_the_settings_and_a_wrong_one_says_the_form() {
        assert_eq!(cidr("192.168.1.10/24").as_deref(), Ok("192.168.1.10/24"));
        assert_eq!(cidr("FD00::1/64").as_deref(), Ok("fd00::1/64"));
        assert_eq!(peer("192.168.1.11=02:00:00:00:00:1A").as_deref(), Ok("192.168.1.11 02:00:00:00:00:1a"));
        for bad in ["", "192.168.1.10", "192.168.1.10/33", "host/24", "fd00::1/129"] {
            assert!(cidr(bad).unwrap_err().ends_with("e.g. 192.168.1.10/24"), "{bad}");
        }
        for bad in ["", "192.168.1.11", "192.168.1.11=02:00", "x=02:00:00:00:00:11"] {
            assert!(peer(bad).unwrap_err().contains("IP=MAC"), "{bad}");
        }
    }
}
