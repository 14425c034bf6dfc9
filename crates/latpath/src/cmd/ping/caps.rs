//! `latpath ping caps`: shows the timestamps that a device claims to make, and verifies them.

use crate::cmd::report::print_as;
use crate::cmd::Outcome;
use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_nic_timestamps::{verify, Caps, Check, Current, RxFilter, RxHardware, Trial, TxType, Verified};
use latpath_stats::{text::Table, units::duration};
use serde_json::{json, Value};
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
    print_as(args.json, || json(&caps, &verified), || text(&caps, &verified))?;
    Ok(Outcome::Done)
}

/// A row of the table: one kind of stamp.
struct Row {
    key: &'static str,
    name: &'static str,
    claimed: String,
    check: Check,
    used: bool,
}

fn rows(caps: &Caps, verified: &Verified) -> [Row; 5] {
    let used = verified.worth_asking();
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_string();
    let received = match caps.rx_nic() {
        RxHardware::AllFrames => "all frames".into(),
        RxHardware::Only(filters) => format!("{} alone", names(&filters)),
        RxHardware::Nothing => yes_no(false),
    };
    let row = |key, name, claimed, check: &Check, used| Row { key, name, claimed, check: check.clone(), used };
    let by_kernel = Check::Untried("the kernel makes them on every device".into());
    [
        row("tx_sched", "TX sched", "always".into(), &verified.tx_sched, used.tx_sched),
        row("tx_driver", "TX driver", yes_no(caps.tx_driver()), &verified.tx_driver, used.tx_driver),
        row("tx_nic", "TX NIC", yes_no(caps.tx_nic()), &verified.tx_nic, used.tx_nic),
        row("rx_nic", "RX NIC", received, &verified.rx_nic, used.rx_nic),
        row("rx_kernel", "RX kernel", "always".into(), &by_kernel, used.rx_kernel),
    ]
}

fn names(filters: &[RxFilter]) -> String {
    filters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn text(caps: &Caps, verified: &Verified) -> String {
    let mut head = vec![format!("driver {}", caps.driver.as_deref().unwrap_or("unknown"))];
    head.extend(caps.bus.clone());
    head.push(match (caps.up, caps.running) {
        (false, _) => "down".into(),
        (true, false) => "up, no link".into(),
        (true, true) => "up".into(),
    });
    let set = match &caps.current {
        Current::Set(config) => config.to_string(),
        Current::Unknown(why) => format!("unknown: {why}"),
    };
    let mut lines =
        vec![format!("{}: {}", caps.device, head.join(", ")), format!("  clock      {}", clock(caps, verified))];
    if caps.phc.is_some() || matches!(caps.current, Current::Set(_)) {
        lines.push(format!("  set to     {set}"));
    }
    lines.push(String::new());
    let mut table = Table::new(&["<stamp", "<claimed", "<used", "<found out"]);
    for Row { name, claimed, check, used, .. } in rows(caps, verified) {
        table.row(vec![name.into(), claimed, if used { "yes" } else { "no" }.into(), result(&check)]);
    }
    lines.extend(table.lines(2, usize::MAX, '…'));
    if let RxHardware::Only(_) = caps.rx_nic() {
        lines.push(
            "\nThe NIC stamps no received frames but those of PTP or NTP: probes have the kernel's stamp alone.".into(),
        );
    }
    lines.join("\n") + "\n"
}

fn result(check: &Check) -> String {
    match check {
        Check::Works => "works".into(),
        Check::Failed(why) => format!("fails: {why}"),
        Check::Untried(why) => format!("not tried: {why}"),
        Check::NotOffered => "-".into(),
    }
}

fn clock(caps: &Caps, verified: &Verified) -> String {
    let Some(index) = caps.phc else { return "none".into() };
    let Some(read) = &verified.clock_read else { return format!("/dev/ptp{index}, {}", result(&verified.clock)) };
    let name = read.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let (offset, by) = (read.reading.phc_ns.saturating_sub(read.reading.monotonic_ns), read.method);
    let (offset, bound) = (duration(offset), duration(read.reading.uncertainty_ns));
    let state = result(&verified.clock);
    format!("/dev/ptp{index}{name}, {state}; {offset} ahead of CLOCK_MONOTONIC ± {bound}, read by {by}")
}

/// The result as JSON; docs/json.md describes the keys.
fn json(caps: &Caps, verified: &Verified) -> Value {
    let (set, unknown) = match &caps.current {
        Current::Set(config) => {
            (json!({ "tx": config.tx_type.to_string(), "rx": config.rx_filter.to_string() }), Value::Null)
        }
        Current::Unknown(why) => (Value::Null, json!(why)),
    };
    let bits = |mask: u32| (0..32).filter(move |n| mask & (1 << n) != 0);
    let phc = caps.phc.map(|index| {
        let read = verified.clock_read.as_ref();
        let mut phc = json!({
            "index": index,
            "name": read.and_then(|read| read.name.as_ref()),
            "read_by": read.map(|read| read.method.to_string()),
            "offset_ns": read.map(|read| read.reading.phc_ns.saturating_sub(read.reading.monotonic_ns)),
            "uncertainty_ns": read.map(|read| read.reading.uncertainty_ns),
        });
        add_check(&mut phc, &verified.clock);
        phc
    });
    let stamps: serde_json::Map<String, Value> = rows(caps, verified)
        .into_iter()
        .map(|row| {
            let mut stamp = json!({ "claimed": !matches!(row.claimed.as_str(), "no"), "used": row.used });
            add_check(&mut stamp, &row.check);
            (row.key.into(), stamp)
        })
        .collect();
    json!({
        "device": caps.device,
        "ifindex": caps.ifindex,
        "up": caps.up,
        "link": caps.running,
        "driver": caps.driver,
        "bus": caps.bus,
        "phc": phc,
        "set": set,
        "set_unknown": unknown,
        "tx_types": bits(caps.tx_types).map(|n| TxType(n).to_string()).collect::<Vec<_>>(),
        "rx_filters": bits(caps.rx_filters).map(|n| RxFilter(n).to_string()).collect::<Vec<_>>(),
        "stamps": stamps,
        "notes": verified.notes,
    })
}

fn add_check(to: &mut Value, check: &Check) {
    let (state, why) = match check {
        Check::Works => ("works", None),
        Check::Failed(why) => ("fails", Some(why)),
        Check::Untried(why) => ("not_tried", Some(why)),
        Check::NotOffered => ("not_offered", None),
    };
    to["state"] = json!(state);
    to["why"] = json!(why);
}
