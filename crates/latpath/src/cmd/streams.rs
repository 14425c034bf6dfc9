//! `latpath streams`: lists the streams on a device or in a file.

use super::interrupt::stop_flag;
use super::report::print;
use super::Outcome;
use anyhow::Result;
use clap::{ArgGroup, Args as ClapArgs};
use latpath_linux::monotonic;
use latpath_model::stream::format_mac;
use latpath_model::Ns;
use latpath_stats::units::{count, rate};
use latpath_traffic::{
    Capture, CaptureError, Discovery, FoundStream, Groups, Listen, PacketSocket, Received, Receiver,
};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most rows of the table; who floods a bus with names shall not flood the terminal.
const MOST_ROWS: usize = 200;

/// List the Sampled Values streams that pass a device or stand in a capture.
#[derive(ClapArgs)]
#[command(group(ArgGroup::new("place").required(true).args(["interface", "read"])))]
pub struct Args {
    /// Device to listen on, in both directions
    #[arg(short, long, value_name = "IF")]
    interface: Option<String>,
    /// Capture to read: pcap or pcapng
    #[arg(short, long, value_name = "FILE")]
    read: Option<PathBuf>,
    /// How long to listen
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration, conflicts_with = "read")]
    duration: Duration,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<Outcome> {
    let stop = stop_flag()?;
    let mut found = Discovery::default();
    let (ended, dropped, place) = match (&args.read, &args.interface) {
        (Some(path), _) => (read(path, &mut found, &stop).map_err(Into::into), 0, path.display().to_string()),
        (None, Some(device)) => {
            let socket = PacketSocket::open(device, Listen::AllSv)?;
            socket.join(&Groups::Everything)?;
            let mut receiver = Receiver::new(socket, true)?;
            let ended = listen(&mut receiver, args.duration, &mut found, &stop);
            (ended, receiver.dropped(), device.clone())
        }
        (None, None) => unreachable!("clap asks for one of both"),
    };
    // What cannot be read at all gets no empty table.
    if ended.is_ok() || found.frames > 0 {
        let printed = print(&match args.json {
            true => format!("{}\n", to_json(&found, dropped)),
            false => text(&found, dropped, &place),
        });
        ended?;
        printed?;
    } else {
        ended?;
    }
    Ok(Outcome::Done)
}

fn read(path: &Path, found: &mut Discovery, stop: &AtomicBool) -> Result<(), CaptureError> {
    let mut capture = Capture::open(path)?;
    while let Some(packet) = capture.next_packet()? {
        found.note(packet.t, &packet.bytes, None);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

fn listen(receiver: &mut Receiver, time: Duration, found: &mut Discovery, stop: &AtomicBool) -> Result<()> {
    let end = monotonic().saturating_add(Ns::try_from(time.as_nanos()).unwrap_or(Ns::MAX));
    let mut note = |r: Received<'_>| found.note(r.arrival.unwrap_or(r.had), r.frame, r.tag);
    while !stop.load(Ordering::Relaxed) && monotonic() < end {
        receiver.receive(&mut note)?;
    }
    Ok(receiver.drain(&mut note)?)
}

fn to_json(found: &Discovery, dropped: u64) -> Value {
    let row = |s: &FoundStream| {
        let totals = s.tracker.totals();
        json!({
            "svid": String::from_utf8_lossy(&s.svid),
            "appid": s.appid,
            "vlan": s.vlan,
            "pcp": s.priority,
            "dst": format_mac(&s.dst),
            "src": format_mac(&s.src),
            "frames": s.frames,
            "rate_hz": s.frames_hz(),
            "asdus": s.asdus,
            "samples_per_s": s.samples_hz(),
            "wrap": s.tracker.wrap(),
            "lost": totals.lost,
            "duplicates": totals.duplicates,
            "out_of_order": totals.out_of_order,
        })
    };
    json!({
        "streams": found.streams().map(row).collect::<Vec<_>>(),
        "frames": found.frames,
        "malformed": found.malformed,
        "other_frames": found.not_sv,
        "streams_overflow": found.beyond,
        "socket_dropped": dropped,
    })
}

fn text(found: &Discovery, dropped: u64, place: &str) -> String {
    let mut lines = Vec::new();
    let head = ["svID", "APPID", "VLAN", "dst", "frames", "frames/s", "ASDUs", "samples/s", "wrap", "lost"];
    let mut rows = vec![head.map(String::from)];
    for s in found.streams().take(MOST_ROWS) {
        rows.push([
            // An svID comes from the wire: nothing in it may reach the terminal as a control code.
            String::from_utf8_lossy(&s.svid).escape_debug().to_string(),
            format!("{:#06x}", s.appid),
            s.vlan.map_or("-".into(), |v| v.to_string()),
            format_mac(&s.dst),
            count(s.frames),
            s.frames_hz().map_or("-".into(), rate),
            s.asdus.to_string(),
            s.samples_hz().map_or("-".into(), rate),
            s.tracker.wrap().map_or("not seen yet".into(), |w| w.to_string()),
            count(s.tracker.totals().lost),
        ]);
    }
    if rows.len() == 1 {
        lines.push(format!("{place}: no Sampled Values"));
    } else {
        let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
        for row in &rows {
            let line: Vec<String> =
                row.iter().enumerate().map(|(i, cell)| format!("{cell:<w$}", w = width(i))).collect();
            lines.push(line.join("  ").trim_end().to_string());
        }
    }
    let more = found.streams().count().saturating_sub(MOST_ROWS) as u64;
    let notes = [
        (more, "more streams (--json lists all)"),
        (found.malformed, "frames of Sampled Values cannot be read"),
        (found.beyond, "frames belong to further streams, beyond the 4096 that are told apart"),
        (dropped, "frames were dropped by the kernel: the ring was full"),
    ];
    for (n, what) in notes.into_iter().filter(|(n, _)| *n > 0) {
        lines.push(format!("{} {what}", count(n)));
    }
    lines.join("\n") + "\n"
}
