//! Times of segments as an HdrHistogram log: text version 1.3, with histograms in the compressed V2 encoding, in
//! base64. The formats are those of HdrHistogram's `HistogramLogWriter` and `encodeIntoCompressedByteBuffer`.

use crate::{each_journey, notes, ExportError, ExportRequest, Exported};
use base64::{engine::general_purpose::STANDARD, Engine};
use flate2::{write::ZlibEncoder, Compression};
use latpath_model::{Ns, Point, PointId, SegmentKind};
use latpath_run::{Run, Select};
use latpath_stats::units::count;
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// Interval covered by each line, ns.
const INTERVAL: Ns = 10_000_000_000;
/// Maximum number of open intervals; several are needed, because journeys of several streams are read slightly out of
/// order.
const OPEN: usize = 16;
/// Significant digits of a value, and the resulting constants of the format: values below 2048 have a bucket each.
const DIGITS: u32 = 3;
const HALF_BITS: u32 = 10;
const COOKIE: u32 = 0x1c84_9313;
const COMPRESSED: u32 = 0x1c84_9314;

/// Writes the times of all segments, one line per segment and 10 s.
pub fn write(request: &mut ExportRequest, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let run = request.run;
    let segments = Segment::all(run);
    let start = run.manifest().start.monotonic_ns;
    let utc = run.manifest().time_of_day().utc(start);
    writeln!(out, "#[Histogram log format version 1.3]")?;
    writeln!(
        out,
        "#[StartTime: {}.{:03} (seconds since epoch), {}]",
        utc / 1_000_000_000,
        utc / 1_000_000 % 1000,
        run.manifest().start.utc
    )?;
    writeln!(out, "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"")?;
    let mut open: BTreeMap<i64, Vec<Counts>> = BTreeMap::new();
    let mut negative = 0_u64;
    let damaged = each_journey(run, &Select::default(), request.stop, |journey| {
        let Some(first) = journey.first() else { return Ok(()) };
        let counts =
            open.entry((first - start).div_euclid(INTERVAL)).or_insert_with(|| vec![Counts::default(); segments.len()]);
        for (segment, counts) in segments.iter().zip(counts) {
            match segment.ends.iter().find_map(|(from, to)| journey.between(*from, *to)) {
                Some(time @ 0..) => counts.add(time as u64),
                // A negative `Tupcall` only means that the packet did not pass through ovs-vswitchd.
                Some(_) => negative += u64::from(segment.kind != SegmentKind::Tupcall),
                None => {}
            }
        }
        while open.len() > OPEN {
            let Some((at, counts)) = open.pop_first() else { break };
            write_interval(out, &segments, at, &counts)?;
        }
        Ok(())
    })?;
    for (at, counts) in open {
        write_interval(out, &segments, at, &counts)?;
    }
    out.flush()?;
    let mut notes = notes(run, &damaged);
    if negative > 0 {
        notes.push(format!("{} negative times are left out: HdrHistogram has none", count(negative)));
    }
    Ok(Exported { summary: format!("the times of {} segments, a line for each of 10 s", segments.len()), notes })
}

/// A segment, identified by its name. If streams take different routes, it has several pairs of ends.
struct Segment {
    tag: String,
    kind: SegmentKind,
    ends: Vec<(PointId, PointId)>,
}

impl Segment {
    fn all(run: &Run) -> Vec<Self> {
        let id = |point: &Point| run.points().iter().position(|info| info.point == *point).map(|id| id as PointId);
        let mut all: Vec<Self> = Vec::new();
        for segment in &run.manifest().segments {
            let (Some(from), Some(to)) = (id(&segment.from), id(&segment.to)) else { continue };
            // A comma would end the tag, and a line break the line.
            let plain = |c: char| if c == ',' || c.is_whitespace() || c.is_control() { '_' } else { c };
            let tag: String = segment.name.chars().map(plain).collect();
            match all.iter_mut().find(|known| known.tag == tag) {
                Some(known) => known.ends.push((from, to)),
                None => all.push(Self { tag, kind: segment.kind, ends: vec![(from, to)] }),
            }
        }
        all
    }
}

fn write_interval(out: &mut dyn Write, segments: &[Segment], at: i64, counts: &[Counts]) -> io::Result<()> {
    for (segment, counts) in segments.iter().zip(counts).filter(|(_, counts)| !counts.buckets.is_empty()) {
        let (begin, length): (f64, f64) = (at as f64 * (INTERVAL as f64 / 1e9), INTERVAL as f64 / 1e9);
        let most = counts.greatest as f64 / 1e6;
        writeln!(
            out,
            "Tag={},{begin:.3},{length:.3},{most:.3},{}",
            segment.tag,
            STANDARD.encode(counts.compressed()?)
        )?;
    }
    Ok(())
}

/// Counts of values in the buckets of an HdrHistogram with three significant digits.
#[derive(Clone, Default)]
struct Counts {
    buckets: Vec<u64>,
    greatest: u64,
}

impl Counts {
    fn add(&mut self, value: u64) {
        let at = bucket(value);
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, 0);
        }
        self.buckets[at] += 1;
        self.greatest = self.greatest.max(value);
    }

    /// Encodes the histogram in the compressed V2 encoding.
    fn compressed(&self) -> io::Result<Vec<u8>> {
        let mut payload = Vec::new();
        let mut zeros = 0_i64;
        for count in &self.buckets {
            if *count == 0 {
                zeros += 1;
                continue;
            }
            if zeros > 0 {
                put(&mut payload, -std::mem::take(&mut zeros));
            }
            put(&mut payload, *count as i64);
        }
        let mut whole = Vec::with_capacity(payload.len() + 40);
        for word in [COOKIE, payload.len() as u32, 0, DIGITS] {
            whole.extend(word.to_be_bytes());
        }
        for word in [1, self.greatest.max(2), 1.0_f64.to_bits()] {
            whole.extend(word.to_be_bytes());
        }
        whole.extend(payload);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&whole)?;
        let zlib = zlib.finish()?;
        Ok([&COMPRESSED.to_be_bytes()[..], &(zlib.len() as u32).to_be_bytes(), &zlib].concat())
    }
}

/// Index of a value's bucket: buckets keep the 11 leading bits, and follow those of smaller magnitudes.
fn bucket(value: u64) -> usize {
    let above = 64 - (value | ((2 << HALF_BITS) - 1)).leading_zeros() - (HALF_BITS + 1);
    ((above as usize) << HALF_BITS) + (value >> above) as usize
}

/// Appends a signed number in ZigZag LEB128, at most 9 bytes.
fn put(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    for _ in 0..8 {
        if rest < 0x80 {
            return out.push(rest as u8);
        }
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_rise_with_values_and_keep_three_digits() {
        for value in (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + 1, (1_u64 << bit).wrapping_sub(1)]) {
            assert!(bucket(value) <= bucket(value.saturating_add(1)), "{value}");
            assert!(
                bucket(value) < bucket(value.saturating_add(value / 500).saturating_add(1)) || value > u64::MAX / 2
            );
        }
        assert_eq!([bucket(0), bucket(2047), bucket(2048), bucket(2049), bucket(4096)], [0, 2047, 2048, 2048, 3072]);
    }
}
