//! Sightings as packets of a pcapng file (draft-ietf-opsawg-pcapng) with an interface for each point. A run stores no
//! frames; each is rebuilt from its stream and key.

use crate::{each_journey, notes, ExportError, ExportRequest, Exported};
use latpath_analysis::recorded_layout;
use latpath_clock::TimeOfDay;
use latpath_journey::Journey;
use latpath_model::text::{cut, printable};
use latpath_model::{DropNote, Ns, Passage, PointInfo, PointKind, StreamSpec};
use latpath_run::{Run, Select};
use latpath_stats::units::count;
use std::io::Write;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Option codes: `COMMENT` of any block, `APPLICATION` of the section header, `NAME` and `RESOLUTION` of interfaces,
/// `PACKET_ID` of packets; and the link type `ETHERNET`.
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const PACKET_ID: u16 = 5;
const ETHERNET: u16 = 1;
/// Maximum size of an option's text, bytes.
const MAX: usize = 4096;

/// Writes all sightings of a run whose frames can be rebuilt.
pub fn write(request: &mut ExportRequest, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let run = request.run;
    let mut rebuilt = Rebuilt::of(run)?;
    out.write_all(&rebuilt.head)?;
    let select = Select { cpus_and_threads: false, ..Select::default() };
    let damaged = each_journey(run, &select, request.stop, |journey| out.write_all(rebuilt.packets(journey)))?;
    out.flush()?;
    let mut notes = notes(run, &damaged);
    notes.extend(rebuilt.notes());
    Ok(Exported { summary: format!("{} sightings as packets", count(rebuilt.written)), notes })
}

/// A point of the run, as an interface.
struct Interface {
    point: usize,
    name: String,
    kind: PointKind,
}

/// Rebuilds packets from journeys.
struct Rebuilt<'a> {
    streams: Vec<(&'a StreamSpec, String)>,
    drop_notes: &'a [DropNote],
    /// Interfaces in the order in which packets pass them; drops last.
    interfaces: Vec<Interface>,
    /// Indexes of points whose times are computed, each with the event at that time.
    computed: Vec<(usize, &'static str)>,
    time_of_day: TimeOfDay,
    /// Encoded section header and interface blocks.
    head: Vec<u8>,
    packets: Vec<u8>,
    written: u64,
    /// For each stream, the number of journeys whose frames cannot be rebuilt, and the reason.
    refused: Vec<(u64, String)>,
    /// Number of sightings before 1970.
    early: u64,
}

impl<'a> Rebuilt<'a> {
    fn of(run: &'a Run) -> Result<Self, ExportError> {
        let (manifest, points) = (run.manifest(), run.points());
        let streams: Vec<_> = manifest.streams.iter().map(|s| (s, printable(&s.short()))).collect();
        let refusals: Vec<_> = manifest.streams.iter().map(|s| s.rebuild(0).err()).collect();
        if let Some(Some(why)) = refusals.first().filter(|_| refusals.iter().all(Option::is_some)) {
            let stream = streams[0].0;
            return Err(ExportError::Lacks(format!(
                "no frame of {stream} can be rebuilt: {why}; csv, jsonl and parquet have the same journeys"
            )));
        }
        let order = recorded_layout(run).route.order;
        let in_order = |p: &usize| order.iter().position(|o| usize::from(*o) == *p).unwrap_or(usize::MAX);
        let is_seen = |p: &usize| computed(points[*p].point.kind).is_none();
        let mut known: Vec<usize> = (0..points.len()).filter(is_seen).collect();
        known.sort_by_key(in_order);
        let name = |p: usize| printable(&points[p].point.to_string());
        let interface = |point: usize| Interface { point, name: name(point), kind: points[point].point.kind };
        let interfaces: Vec<Interface> = known.into_iter().map(interface).collect();
        let mut head = section();
        interfaces.iter().for_each(|i| put_interface(&mut head, i, &points[i.point]));
        Ok(Self {
            refused: vec![(0, String::new()); streams.len()],
            streams,
            drop_notes: &manifest.drop_notes,
            interfaces,
            computed: (0..points.len()).filter_map(|p| Some((p, computed(points[p].point.kind)?))).collect(),
            time_of_day: manifest.time_of_day(),
            head,
            packets: Vec::new(),
            written: 0,
            early: 0,
        })
    }

    /// Encodes a journey's sightings as packets, in the order of the route.
    fn packets(&mut self, j: &Journey) -> &[u8] {
        self.packets.clear();
        let Some((stream, name)) = self.streams.get(usize::from(j.stream)) else { return &[] };
        let frame = match stream.rebuild(j.key) {
            Ok(frame) => frame,
            Err(why) => {
                let refused = &mut self.refused[usize::from(j.stream)];
                *refused = (refused.0 + 1, why);
                return &[];
            }
        };
        let mut before: Option<(&str, Ns)> =
            self.computed.iter().find(|(p, _)| j.seen >> p & 1 == 1).map(|(p, what)| (*what, j.t[*p]));
        let key = format!("{} {}", stream.key.name(), stream.key.text(j.key));
        for (id, interface) in self.interfaces.iter().enumerate().filter(|(_, i)| j.seen >> i.point & 1 == 1) {
            let t = j.t[interface.point];
            let Ok(utc) = u64::try_from(self.time_of_day.utc(t)) else {
                self.early += 1;
                continue;
            };
            let mut text = format!("{}, journey {} of {name}, {key}", interface.name, j.number);
            if let Some((before, earlier)) = before {
                text += &format!(", {} ns after {before}", t.saturating_sub(earlier));
            }
            if interface.kind.is_drop() {
                let note = usize::from(j.drop_note).checked_sub(1).and_then(|note| self.drop_notes.get(note));
                let why = note.map(|note| printable(&format!(": {} in {}", note.reason, note.function)));
                text += &format!(", dropped{}", why.unwrap_or_default());
            }
            let packet_id = u64::from(j.stream) << 48 | j.number & 0xffff_ffff_ffff;
            put_packet(&mut self.packets, (id as u32, utc), &frame, &text, packet_id);
            self.written += 1;
            before = Some((&interface.name, t));
        }
        &self.packets
    }

    fn notes(&self) -> Vec<String> {
        let left_out = self.streams.iter().zip(&self.refused).filter(|(_, (n, _))| *n > 0);
        let mut notes: Vec<String> = left_out
            .map(|((stream, _), (n, why))| format!("{stream}: its {} journeys are left out: {why}", count(*n)))
            .collect();
        if self.early > 0 {
            notes.push(format!("{} sightings before 1970 are left out: pcapng has no such times", count(self.early)));
        }
        notes
    }
}

/// The event at the computed times of points of this kind; `None` if their times are those of sightings.
fn computed(kind: PointKind) -> Option<&'static str> {
    let is_planned = kind.info().passage == Passage::Planned;
    kind.is_computed().then_some(if is_planned { "it was to be sent" } else { "its sample was taken" })
}

/// The section header, with a comment on the origin of the packets.
fn section() -> Vec<u8> {
    const ABOUT: &str = "The frames in this file were never captured. latpath rebuilt them from a run, which keeps of each packet its \
        stream, its number in the stream and its times alone: what the stream is named by (such as svID, APPID, VLAN) and the number \
        (such as smpCnt) are those of the packet. All else is made up: source addresses, values, lengths. Each packet here is one \
        sighting of one packet, at the point that is its interface; sightings of one packet follow each other in the order of the route, \
        and have one packet id.";
    let mut body = Vec::new();
    body.extend(0x1a2b_3c4d_u32.to_le_bytes());
    body.extend([1_u16, 0].map(u16::to_le_bytes).concat());
    // The length of the section is unknown.
    body.extend(u64::MAX.to_le_bytes());
    put_option(&mut body, COMMENT, ABOUT.as_bytes());
    put_option(&mut body, APPLICATION, concat!("latpath ", env!("CARGO_PKG_VERSION")).as_bytes());
    put_option(&mut body, 0, &[]);
    let mut out = Vec::new();
    put_block(&mut out, SECTION, &body);
    out
}

fn put_interface(out: &mut Vec<u8>, interface: &Interface, info: &PointInfo) {
    let mut body = Vec::new();
    body.extend([ETHERNET, 0].map(u16::to_le_bytes).concat());
    // 0: no limit on the length of frames.
    body.extend(0_u32.to_le_bytes());
    put_option(&mut body, NAME, cut(&interface.name, MAX).as_bytes());
    // The unit of times is 10^-9 s.
    put_option(&mut body, RESOLUTION, &[9]);
    if !info.clock.is_empty() {
        put_option(&mut body, COMMENT, cut(&format!("clock: {}", printable(&info.clock)), MAX).as_bytes());
    }
    put_option(&mut body, 0, &[]);
    put_block(out, INTERFACE, &body);
}

fn put_packet(out: &mut Vec<u8>, (interface, utc): (u32, u64), frame: &[u8], comment: &str, packet_id: u64) {
    let mut body = Vec::with_capacity(frame.len() + comment.len() + 64);
    let length = frame.len() as u32;
    for word in [interface, (utc >> 32) as u32, utc as u32, length, length] {
        body.extend(word.to_le_bytes());
    }
    body.extend(frame);
    pad(&mut body);
    put_option(&mut body, COMMENT, cut(comment, MAX).as_bytes());
    put_option(&mut body, PACKET_ID, &packet_id.to_le_bytes());
    put_option(&mut body, 0, &[]);
    put_block(out, PACKET, &body);
}

/// Appends a block. The length of `body` must be a multiple of 4.
fn put_block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.extend(kind.to_le_bytes());
    out.extend(length);
    out.extend(body);
    out.extend(length);
}

/// Appends an option; option 0 ends the list.
fn put_option(out: &mut Vec<u8>, option: u16, value: &[u8]) {
    out.extend(option.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}
