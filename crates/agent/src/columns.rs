//! The encoding of sightings on the wire, a few bytes each.
//!
//! A batch has columns: the time since the previous sighting (2 to 3 bytes at thousands of packets per second), the
//! difference from the previous key of the same stream at the same point (1 byte), and an index (1 byte) into the
//! batch's table of contexts. A context is a combination of point, stream, CPU, thread and drop note.

use crate::message::{Batch, Context, MAX_POINTS};
use latpath_model::{stream::MAX_STREAMS, Ns, PointId, Sighting, StreamId};

/// Maximum number of sightings per batch sent by the agent; small, so that time replies do not wait long.
pub const BATCH: usize = 1024;
/// Maximum number of sightings per batch that the host accepts.
pub const MAX_BATCH: usize = 8192;
/// Size of the encoder's hash table of contexts.
const PLACES: usize = 256;

/// Last key of each stream at each point; the agent and the host keep equal copies.
#[derive(Clone, Debug)]
struct LastKeys(Vec<u32>);

impl LastKeys {
    fn new() -> Self {
        Self(vec![0; MAX_STREAMS * MAX_POINTS])
    }

    fn at(&mut self, stream: usize, point: usize) -> Option<&mut u32> {
        (stream < MAX_STREAMS && point < MAX_POINTS).then(|| &mut self.0[stream * MAX_POINTS + point])
    }
}

/// Encodes sightings.
#[derive(Clone, Debug)]
pub struct Encoder {
    keys: LastKeys,
    places: Box<[u16; PLACES]>,
}

impl Encoder {
    pub fn new() -> Self {
        Self { keys: LastKeys::new(), places: Box::new([0; PLACES]) }
    }

    /// Encodes up to [`MAX_BATCH`] sightings. Returns the number of sightings left out because their stream or point is
    /// out of range.
    pub fn pack(&mut self, sightings: &[Sighting], watermark: Ns) -> (Batch, u64) {
        let first = sightings.first().map_or(0, |s| s.t);
        let mut batch = Batch { watermark, first, ..Batch::default() };
        batch.context.reserve(sightings.len());
        batch.later.reserve(sightings.len());
        batch.key.reserve(sightings.len());
        let (mut last, mut left_out) = (first, 0);
        for s in sightings {
            let Some(key) = self.keys.at(s.stream.into(), s.point.into()) else {
                left_out += 1;
                continue;
            };
            let step = s.key.wrapping_sub(*key) as i32;
            *key = s.key;
            batch.later.push(s.t.wrapping_sub(last));
            batch.key.push(step);
            last = s.t;
            let context = self.context(&mut batch.contexts, s);
            batch.context.push(context);
        }
        (batch, left_out)
    }

    /// Returns the index of a sighting's context. A hash collision only costs a second entry in the batch's table.
    fn context(&mut self, contexts: &mut Vec<Context>, s: &Sighting) -> u32 {
        let context = Context {
            stream: s.stream.into(),
            point: s.point.into(),
            cpu: s.cpu.into(),
            tid: s.tid,
            note: s.note.into(),
        };
        let mix = (context.tid ^ context.stream << 20 ^ context.point << 12 ^ context.cpu << 6 ^ context.note)
            .wrapping_mul(0x9e37_79b1);
        let place = &mut self.places[(mix >> 24) as usize % PLACES];
        if contexts.get(usize::from(*place)) != Some(&context) {
            *place = contexts.len() as u16;
            contexts.push(context);
        }
        (*place).into()
    }
}

/// Valid ranges of the indexes in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    pub streams: usize,
    pub points: usize,
    pub notes: usize,
}

/// Decodes sightings.
#[derive(Clone, Debug)]
pub struct Decoder {
    keys: LastKeys,
}

impl Decoder {
    pub fn new() -> Self {
        Self { keys: LastKeys::new() }
    }

    /// Appends a batch's sightings, with times in the guest's clock.
    ///
    /// # Errors
    /// The batch is invalid; the error describes the problem.
    pub fn unpack(&mut self, batch: &Batch, tables: Tables, out: &mut Vec<Sighting>) -> Result<(), String> {
        let n = batch.context.len();
        if n > MAX_BATCH || batch.later.len() != n || batch.key.len() != n || batch.contexts.len() > n {
            return Err(format!(
                "a batch of {n} sightings with {} times, {} keys and {} contexts",
                batch.later.len(),
                batch.key.len(),
                batch.contexts.len()
            ));
        }
        for c in &batch.contexts {
            check(c, tables)?;
        }
        out.reserve(n);
        let mut t = batch.first;
        for ((&context, &later), &step) in batch.context.iter().zip(&batch.later).zip(&batch.key) {
            let c = usize::try_from(context).ok().and_then(|i| batch.contexts.get(i));
            let c = c.ok_or_else(|| format!("a sighting of context {context} of {}", batch.contexts.len()))?;
            t = t.checked_add(later).ok_or("a sighting at no possible time")?;
            let key = self.keys.at(c.stream as usize, c.point as usize).ok_or("a sighting beyond the tables")?;
            *key = key.wrapping_add_signed(step);
            out.push(Sighting {
                t,
                key: *key,
                tid: c.tid,
                stream: c.stream as StreamId,
                point: c.point as PointId,
                cpu: c.cpu as u16,
                note: c.note as u16,
            });
        }
        Ok(())
    }
}

fn check(c: &Context, tables: Tables) -> Result<(), String> {
    let beyond = |what: &str, index: u32, of: usize| Err(format!("a sighting of {what} {index}, there are {of}"));
    match c {
        c if c.stream as usize >= tables.streams.min(MAX_STREAMS) => beyond("stream", c.stream, tables.streams),
        c if c.point as usize >= tables.points.min(MAX_POINTS) => beyond("point", c.point, tables.points),
        c if c.note as usize > tables.notes.min(u16::MAX.into()) => beyond("drop note", c.note, tables.notes),
        c if c.cpu > u16::MAX.into() => Err(format!("a sighting on CPU {}", c.cpu)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message as _;

    const TABLES: Tables = Tables { streams: 4, points: 5, notes: 3 };

    fn sighting() -> impl Strategy<Value = Sighting> {
        (any::<i64>(), any::<u32>(), prop_oneof![0..3u32, any::<u32>()], 0..4u16, 0..5u16, any::<u16>(), 0..4u16)
            .prop_map(|(t, key, tid, stream, point, cpu, note)| Sighting {
                t: t >> 2,
                key,
                tid,
                stream,
                point,
                cpu,
                note,
            })
    }

    proptest! {
        #[test]
        fn any_sightings_survive_encoding(
            batches in prop::collection::vec(prop::collection::vec(sighting(), 0..700), 1..5),
        ) {
            let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
            for sightings in batches {
                let (batch, left_out) = encoder.pack(&sightings, 7);
                prop_assert_eq!(left_out, 0);
                let batch = Batch::decode(&*batch.encode_to_vec()).unwrap();
                let mut out = Vec::new();
                decoder.unpack(&batch, TABLES, &mut out).unwrap();
                prop_assert_eq!(out, sightings);
            }
        }

        #[test]
        fn no_batch_makes_the_decoder_panic_or_index_beyond_a_table(
            contexts in prop::collection::vec(any::<[u8; 5]>(), 0..6),
            context in prop::collection::vec(0..8u32, 0..20),
            later in prop::collection::vec(any::<i64>(), 0..20),
            key in prop::collection::vec(any::<i32>(), 0..20),
            first in any::<i64>(),
        ) {
            let contexts = contexts
                .into_iter()
                .map(|[a, b, c, d, e]| Context {
                    stream: u32::from(a) % 6, point: u32::from(b) % 7, cpu: c.into(), tid: d.into(), note: u32::from(e) % 5,
                })
                .collect();
            let n = context.len().min(later.len()).min(key.len());
            let (context, later, key) = (context[..n].to_vec(), later[..n].to_vec(), key[..n].to_vec());
            let batch = Batch { watermark: 0, first, contexts, context, later, key };
            let mut out = Vec::new();
            let _ = Decoder::new().unpack(&batch, TABLES, &mut out);
            for s in out {
                prop_assert!(s.stream < 4 && s.point < 5 && s.note <= 3);
            }
        }
    }

    #[test]
    fn an_invalid_batch_is_refused_with_the_problem() {
        let honest = Encoder::new().pack(&[Sighting { point: 4, ..Sighting::default() }], 0).0;
        let lie = |change: fn(&mut Batch)| {
            let mut batch = honest.clone();
            change(&mut batch);
            Decoder::new().unpack(&batch, TABLES, &mut Vec::new()).unwrap_err()
        };
        assert_eq!(lie(|b| b.contexts[0].point = 5), "a sighting of point 5, there are 5");
        assert_eq!(lie(|b| b.contexts[0].stream = 4), "a sighting of stream 4, there are 4");
        assert_eq!(lie(|b| b.contexts[0].note = 4), "a sighting of drop note 4, there are 3");
        assert_eq!(lie(|b| b.contexts[0].cpu = 1 << 16), "a sighting on CPU 65536");
        assert_eq!(lie(|b| b.context[0] = 1), "a sighting of context 1 of 1");
        assert!(lie(|b| b.key.push(1)).contains("2 keys"));
        assert!(lie(|b| b.context = vec![0; MAX_BATCH + 1]).contains("8193 sightings"));
    }

    /// 4,000 packets per second at 3 points of a guest, two threads on two CPUs and a softirq.
    #[test]
    fn a_usual_sighting_costs_six_bytes_at_most() {
        let sightings: Vec<Sighting> = (0..BATCH as i64)
            .map(|i| {
                let (packet, point) = (i / 3, i % 3);
                Sighting {
                    t: packet * 250_000 + point * 20_000 + packet * 7919 % 5000,
                    key: (packet % 4000) as u32,
                    tid: if point == 2 { 1000 } else { (packet % 2 * 12) as u32 },
                    stream: 0,
                    point: point as PointId,
                    cpu: (packet % 2) as u16,
                    note: 0,
                }
            })
            .collect();
        let mut encoder = Encoder::new();
        let bytes = encoder.pack(&sightings, 9).0.encoded_len() as f64 / BATCH as f64;
        assert!(bytes <= 6.0, "{bytes} bytes a sighting");
    }
}
