//! Lines of `sv_timestamp_logger`: `ITERATION:SVID:SMPCNT:MICROSECONDS`, one for each frame, with the svID and smpCnt of its first
//! ASDU and the logger's `CLOCK_REALTIME` (or the NIC's time). An svID may hold colons itself.
//!
//! The iteration counts how often smpCnt went back, from the logger's start on, over all streams together: it names no
//! packet where two loggers started apart or one lost a wrap, so the joiner goes by time instead.

use latpath_model::Ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub svid: &'a [u8],
    pub smp_cnt: u16,
    /// ns since 1970; whole microseconds.
    pub t: Ns,
}

/// A line that the logger prints at its end if it was asked to count losses.
const TRAILER: &[u8] = b"SV drop: ";

/// Whether the line says how many losses the logger counted.
pub(crate) fn is_trailer(line: &[u8]) -> bool {
    line.starts_with(TRAILER)
}

impl<'a> Line<'a> {
    /// Reads a line without its end. The error says what is wrong with it.
    pub fn parse(line: &'a [u8]) -> Result<Self, &'static str> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (rest, micros) = split_last(line).ok_or("it has no colon")?;
        let (rest, smp_cnt) = split_last(rest).ok_or("it has one colon alone")?;
        let at = rest.iter().position(|b| *b == b':').ok_or("it has two colons alone")?;
        let (iteration, svid) = (&rest[..at], &rest[at + 1..]);
        if svid.is_empty() || svid.len() > latpath_protocols::sv::MAX_SVID {
            return Err("an svID has 1 to 129 bytes");
        }
        number(iteration).ok_or("its first field is no number")?;
        let smp_cnt = number(smp_cnt).and_then(|n| u16::try_from(n).ok()).ok_or("smpCnt is a number up to 65535")?;
        let t = number(micros).and_then(nanoseconds).ok_or("its last field is no time in microseconds since 1970")?;
        Ok(Self { svid, smp_cnt, t })
    }

    /// The same for a line that begins as most do: of this svID. Returns the length of the line with its end.
    #[inline]
    pub fn parse_next(text: &[u8], svid: &[u8]) -> Option<(u16, Ns, usize)> {
        let at = digits(text, 0)?.1;
        let end = at + 1 + svid.len();
        if text.get(at) != Some(&b':') || text.get(at + 1..end) != Some(svid) || text.get(end) != Some(&b':') {
            return None;
        }
        let (smp_cnt, at) = digits(text, end + 1)?;
        if text.get(at) != Some(&b':') {
            return None;
        }
        let (micros, at) = digits(text, at + 1)?;
        (text.get(at) == Some(&b'\n')).then_some(())?;
        Some((u16::try_from(smp_cnt).ok()?, nanoseconds(micros)?, at + 1))
    }
}

fn nanoseconds(micros: u64) -> Option<Ns> {
    Ns::try_from(micros).ok()?.checked_mul(1000)
}

/// What stands before the last colon and behind it.
fn split_last(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().rposition(|b| *b == b':')?;
    Some((&text[..at], &text[at + 1..]))
}

fn number(text: &[u8]) -> Option<u64> {
    digits(text, 0).filter(|(_, end)| *end == text.len()).map(|(n, _)| n)
}

/// The number that stands from `at` on, and where it ends. `None` where there is none, and beyond 18 digits.
#[inline]
fn digits(text: &[u8], at: usize) -> Option<(u64, usize)> {
    let (mut n, mut end) = (0_u64, at);
    while let Some(digit) = text.get(end).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
        if end - at == 18 {
            return None;
        }
        n = n * 10 + u64::from(digit);
        end += 1;
    }
    (end > at).then_some((n, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_the_loggers_manual_is_read() {
        let line = Line::parse(b"0:svID0000:3999:1727698715978775").unwrap();
        assert_eq!(line, Line { svid: b"svID0000", smp_cnt: 3999, t: 1_727_698_715_978_775_000 });
        assert_eq!(Line::parse(b"12:a:b:7:1\r").unwrap(), Line { svid: b"a:b", smp_cnt: 7, t: 1000 });
    }

    #[test]
    fn what_is_no_line_says_why() {
        for (text, why) in [
            ("", "no colon"),
            ("1:2", "one colon"),
            ("a:b:c", "two colons"),
            ("x:MU:1:5", "first field"),
            ("0::1:5", "svID"),
            ("0:MU:65536:5", "smpCnt"),
            ("0:MU:1:-5", "microseconds"),
            ("0:MU:1:99999999999999999999", "microseconds"),
            ("0:MU:1:999999999999999999", "microseconds"),
        ] {
            assert!(Line::parse(text.as_bytes()).unwrap_err().contains(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_short_way_reads_what_the_long_one_reads(it in 0_u32.., svid in "[A-Z:0-9]{1,9}", cnt in 0_u16.., us in 0_i64..1 << 50) {
            let text = format!("{it}:{svid}:{cnt}:{us}\n");
            let line = Line::parse(text.trim_end().as_bytes()).unwrap();
            prop_assert_eq!(line, Line { svid: svid.as_bytes(), smp_cnt: cnt, t: us * 1000 });
            prop_assert_eq!(Line::parse_next(text.as_bytes(), svid.as_bytes()), Some((cnt, us * 1000, text.len())));
        }

        #[test]
        fn both_agree_about_any_bytes(text in prop::collection::vec(prop::sample::select(b"01:9M\n\r".to_vec()), 0..24)) {
            if let Some((cnt, t, len)) = Line::parse_next(&text, b"M") {
                prop_assert_eq!(Line::parse(&text[..len - 1]), Ok(Line { svid: b"M", smp_cnt: cnt, t }));
            }
            let _ = Line::parse(&text);
        }
    }
}
