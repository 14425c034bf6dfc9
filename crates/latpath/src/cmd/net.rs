//! `latpath net`: builds, shows and removes ways from the wire into VMs.

use super::interrupt::stop_flag;
use super::report::{print, print_as};
use super::{Outcome, Usage};
use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use latpath_stats::text::Table;
use latpath_topology::{down, example, interface_xml, status, up, Direction, Event, Presence, Status, Topology, Way};
use latpath_undo::Journal;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Build a way from the wire into VMs (bridge, macvtap, XDP, Open vSwitch), and remove it without a trace
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  latpath net example bridge > relay.toml
  latpath net up relay.toml
  latpath net status relay.toml
  latpath net down relay.toml")]
pub struct Args {
    #[command(subcommand)]
    net: Net,
}

#[derive(Subcommand)]
enum Net {
    Up(Up),
    Down(Down),
    Status(Show),
    Example(Example),
    Xml(Xml),
}

/// Create the devices, programs and guests of a topology; they exist until `latpath net down`
#[derive(ClapArgs)]
struct Up {
    /// The topology (docs/net.md)
    #[arg(value_name = "TOPOLOGY.toml")]
    topology: PathBuf,
}

/// Remove a topology: delete what up created, in reverse order, and restore what it changed
#[derive(ClapArgs)]
struct Down {
    /// The topology's file, or its name
    #[arg(value_name = "TOPOLOGY")]
    topology: PathBuf,
}

/// Show which parts of a topology exist, what has changed since up, and which points of its way latpath can observe
#[derive(ClapArgs)]
struct Show {
    /// The topology's file, or its name [default: all topologies that are up]
    #[arg(value_name = "TOPOLOGY")]
    topology: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Print a commented topology as a starting point
#[derive(ClapArgs)]
struct Example {
    /// The way into the VM
    way: TopologyName,
}

/// Print the interface of each guest as XML for libvirt
#[derive(ClapArgs)]
struct Xml {
    /// The topology (docs/net.md)
    #[arg(value_name = "TOPOLOGY.toml")]
    topology: PathBuf,
}

/// A way's name on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum TopologyName {
    Bridge,
    Macvtap,
    Xdp,
    Ovs,
    OvsAfxdp,
}

impl From<TopologyName> for Way {
    fn from(named: TopologyName) -> Self {
        match named {
            TopologyName::Bridge => Self::Bridge,
            TopologyName::Macvtap => Self::Macvtap,
            TopologyName::Xdp => Self::Xdp,
            TopologyName::Ovs => Self::Ovs,
            TopologyName::OvsAfxdp => Self::OvsAfxdp,
        }
    }
}

pub fn run(args: Args) -> Result<Outcome> {
    match args.net {
        Net::Up(args) => make(&read(&args.topology)?),
        Net::Down(args) => {
            let removed = down(&name(&args.topology)?)?;
            removed.done.iter().chain(&removed.left_alone).for_each(|what| say(what));
            Ok(Outcome::Done)
        }
        Net::Status(args) => show(&args),
        Net::Example(args) => {
            print(&example(args.way.into()))?;
            Ok(Outcome::Done)
        }
        Net::Xml(args) => {
            let topology = read(&args.topology)?;
            let fragments = topology.guests.iter().map(|guest| interface_xml(&topology, guest) + "\n");
            print(&fragments.collect::<String>())?;
            Ok(Outcome::Done)
        }
    }
}

fn say(line: &str) {
    eprintln!("latpath net: {line}");
}

/// Reads a topology; faults in it count as wrong usage.
fn read(path: &Path) -> Result<Topology> {
    use latpath_topology::Error;
    Topology::read(path).map_err(|error| match error {
        Error::File { .. } | Error::Invalid { .. } => Usage(error.to_string()).into(),
        error => error.into(),
    })
}

/// A topology's name: an argument that is not a file is the name itself.
fn name(argument: &Path) -> Result<String> {
    match argument.is_file() {
        true => Ok(read(argument)?.name),
        false => Ok(argument.display().to_string()),
    }
}

fn make(topology: &Topology) -> Result<Outcome> {
    let stop = stop_flag()?;
    let mut progress = |event: Event<'_>| match event {
        Event::Made(object) => say(&format!("{object}")),
        Event::Set(setting) => say(&format!("{}: {} (before: {})", setting.device, setting.set, setting.before)),
        Event::Waiting(what) => say(what),
        Event::Noted(_) | Event::Changed(_) | Event::Setting(_) => {}
    };
    let made = up(topology, &mut progress, &|| stop.load(Ordering::Relaxed))?;
    made.notes.iter().for_each(|note| say(note));
    let name = &topology.name;
    say(&format!("topology {name} is up; latpath net status {name} shows it, latpath net down {name} removes it"));
    Ok(Outcome::Done)
}

fn show(args: &Show) -> Result<Outcome> {
    let names = match &args.topology {
        Some(topology) => vec![name(topology)?],
        None => latpath_topology::names(&Journal::of_this_machine()),
    };
    let all = names.iter().map(|name| Ok(status(name)?)).collect::<Result<Vec<Status>>>()?;
    print_as(args.json, || &all, || text(&all))?;
    let whole = args.topology.is_none() || all.iter().all(Status::is_whole);
    Ok(if whole { Outcome::Done } else { Outcome::LimitBroken })
}

fn text(all: &[Status]) -> String {
    if all.is_empty() {
        return "no topology is up\n".into();
    }
    all.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new(heads);
    rows.for_each(|row| table.row(row));
    table.lines(2, usize::MAX, '~').join("\n") + "\n"
}

fn one(status: &Status) -> String {
    let state = match (status.complete, status.is_whole()) {
        (false, _) => "unfinished",
        (true, true) => "complete",
        (true, false) => "not as it was made",
    };
    let mut text = format!("{}  {}, {state}\n", status.name, status.way);
    let objects = status.objects.iter().map(|object| {
        let state = match object.state {
            Presence::Present => "there",
            Presence::Missing => "missing",
            Presence::Replaced => "replaced by another",
            Presence::Changed => "changed by another program",
        };
        vec![object.object.clone(), state.into(), object.detail.clone().unwrap_or_default()]
    });
    text += &table(&["<object", "<state", "<detail"], objects);
    text += "\n  points on this way (latpath record, docs/points.md)\n";
    let points = status.points.iter().map(|point| {
        let needs = point.needs.unwrap_or("any kernel").to_owned();
        vec![point.guest.clone(), direction(point.direction).into(), point.point.clone(), needs]
    });
    text += &table(&["<guest", "<direction", "<point", "<needs"], points);
    if status.gaps.is_empty() {
        return text + "\n  nothing on this way is unseen between its points\n";
    }
    text += "\n  not seen on this way\n";
    for gap in &status.gaps {
        text += &format!("  {}: {}: {}; instead: {}\n", direction(gap.direction), gap.what, gap.why, gap.bridged_by);
    }
    text
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::ToGuest => "to the guest",
        Direction::FromGuest => "from the guest",
    }
}
