//! `latpath ping caps`: shows the timestamps that a device claims to make, and verifies them.

use crate::cmd::report::print_as;
use crate::cmd::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_nic_timestamps::document::{
    CapsDocument, CheckDocument, CheckState, ClockDocument, SettingDocument, StampsDocument,
};
use latpath_nic_timestamps::{verify, Caps, RxFilter, RxHardware, Trial};
use latpath_stats::{text::Table, units::duration};
use std::time::Duration;

/// Time for which to listen for frames; on most networks, neighbours and bridges send some within it.
const LISTEN: Duration = Duration::from_millis(300);

/// Show which timestamps a device claims to take, and test whether it does
///
/// Sends up to three frames that no bridge forwards (ethertype 0x88B5), and enables the NIC's timestamps for that time;
/// some drivers then restart their queues.
#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  latpath ping caps -i enp7s0\n  latpath ping caps -i enp7s0 --no-verify --json")]
pub struct Args {
    /// Device to test
    #[arg(short, long, value_name = "IF")]
    interface: String,
    /// Show only the driver's claims: send nothing, and enable nothing
    #[arg(long)]
    no_verify: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    let caps = Caps::of(&args.interface)?;
    let trial = match args.no_verify {
        true => Trial::default(),
        false => Trial { send: true, listen: LISTEN },
    };
    let verified = verify(&caps, trial);
    verified.notes.iter().for_each(|note| eprintln!("latpath: {note}"));
    let document = CapsDocument::of(&caps, &verified);
    print_as(args.json, || &document, || text(&document, &caps.rx_nic()))?;
    Ok(Outcome::Done)
}

fn names(filters: &[RxFilter]) -> String {
    filters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The document as text; `received`: the received packets that the NIC claims to stamp.
fn text(caps: &CapsDocument, received: &RxHardware) -> String {
    let mut head = vec![format!("driver {}", caps.driver.as_deref().unwrap_or("unknown"))];
    head.extend(caps.bus.clone());
    head.push(match (caps.up, caps.link) {
        (false, _) => "down".into(),
        (true, false) => "up, no link".into(),
        (true, true) => "up".into(),
    });
    let set = match &caps.set {
        Some(SettingDocument { tx, rx }) => format!("tx {tx}, rx {rx}"),
        None => format!("unknown: {}", caps.set_unknown.as_deref().unwrap_or_default()),
    };
    let mut lines =
        vec![format!("{}: {}", caps.device, head.join(", ")), format!("  clock      {}", clock(caps.phc.as_ref()))];
    if caps.phc.is_some() || caps.set.is_some() {
        lines.push(format!("  set to     {set}"));
    }
    lines.push(String::new());
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_string();
    let received_by_nic = match received {
        RxHardware::AllFrames => "all frames".into(),
        RxHardware::Only(filters) => format!("{} alone", names(filters)),
        RxHardware::Nothing => yes_no(false),
    };
    let StampsDocument { tx_sched, tx_driver, tx_nic, rx_nic, rx_kernel } = &caps.stamps;
    let mut table = Table::new(&["<stamp", "<claimed", "<used", "<found out"]);
    for (name, claimed, stamp) in [
        ("TX sched", "always".into(), tx_sched),
        ("TX driver", yes_no(tx_driver.claimed), tx_driver),
        ("TX NIC", yes_no(tx_nic.claimed), tx_nic),
        ("RX NIC", received_by_nic, rx_nic),
        ("RX kernel", "always".into(), rx_kernel),
    ] {
        table.row(vec![name.into(), claimed, yes_no(stamp.used), result(&stamp.check)]);
    }
    lines.extend(table.lines(2, usize::MAX, '…'));
    if let RxHardware::Only(_) = received {
        lines.push(
            "\nThe NIC stamps no received frames but those of PTP or NTP: probes have the kernel's stamp alone.".into(),
        );
    }
    lines.join("\n") + "\n"
}

fn result(check: &CheckDocument) -> String {
    let why = check.why.as_deref().unwrap_or_default();
    match check.state {
        CheckState::Works => "works".into(),
        CheckState::Fails => format!("fails: {why}"),
        CheckState::NotTried => format!("not tried: {why}"),
        CheckState::NotOffered => "-".into(),
    }
}

fn clock(phc: Option<&ClockDocument>) -> String {
    let Some(phc) = phc else { return "none".into() };
    let (index, state) = (phc.index, result(&phc.check));
    let (Some(by), Some(offset), Some(bound)) = (&phc.read_by, phc.offset_ns, phc.uncertainty_ns) else {
        return format!("/dev/ptp{index}, {state}");
    };
    let name = phc.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let (offset, bound) = (duration(offset), duration(bound));
    format!("/dev/ptp{index}{name}, {state}; {offset} ahead of CLOCK_MONOTONIC ± {bound}, read by {by}")
}
