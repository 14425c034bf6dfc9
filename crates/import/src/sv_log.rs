//! Parses lines of `sv_timestamp_logger`: `ITERATION:SVID:SMPCNT:MICROSECONDS`, one per frame, with the svID and smpCnt
//! of its first ASDU, and the time by the logger's `CLOCK_REALTIME` (or the NIC's). An svID may contain colons.
//!
//! The iteration is the number of times that smpCnt has gone back since the logger was started, over all streams
//! together. If two loggers were started at different times, or one missed a wrap, it does not identify a packet, so
//! the joiner uses the time instead.

use latpath_model::Ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The line up to, but excluding, smpCnt.
    pub start: &'a [u8],
    pub svid: &'a [u8],
    pub smp_cnt: u16,
    /// Time, ns since 1970, in whole microseconds.
    pub t: Ns,
}

/// Prefix of a line that the logger prints at its end if it counted losses.
const TRAILER: &[u8] = b"SV drop: ";

/// Whether the line has the logger's count of losses.
pub(crate) fn is_trailer(line: &[u8]) -> bool {
    line.starts_with(TRAILER)
}

impl<'a> Line<'a> {
    /// Parses a line without its end. The error describes the fault.
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
        Ok(Self { start: &line[..rest.len() + 1], svid, smp_cnt, t })
    }

    /// Quickly parses a line of the usual form: up to smpCnt, it equals `start`, and its time has 16 digits, which is
    /// the case until the year 2286. Returns smpCnt, the time, and the length of the line including its end.
    #[inline]
    pub fn parse_next(text: &[u8], start: &[u8]) -> Option<(u16, Ns, usize)> {
        let rest = text.strip_prefix(start)?;
        let (digits, smp_cnt) = leading_number(rest)?;
        let rest = rest.get(digits..digits + 18)?;
        let ((8, high), (8, low)) = (leading_number(&rest[1..])?, leading_number(&rest[9..])?) else { return None };
        let is_line = rest[0] == b':' && rest[17] == b'\n';
        let end = start.len() + digits + 18;
        is_line.then_some((u16::try_from(smp_cnt).ok()?, nanoseconds(high * 100_000_000 + low)?, end))
    }
}

/// Number of leading digits among the first eight bytes, and their value; `None` if there is no digit, or with fewer
/// than eight bytes. Converts all digits in parallel: each byte to a digit, each two digits to a two-digit number, each
/// two of these to a four-digit number.
#[inline]
fn leading_number(text: &[u8]) -> Option<(usize, u64)> {
    let ones = u64::from_le_bytes(*text.first_chunk()?) ^ 0x3030_3030_3030_3030;
    let above_nine = (((ones & 0x7f7f_7f7f_7f7f_7f7f) + 0x7676_7676_7676_7676) | ones) & 0x8080_8080_8080_8080;
    let digits = above_nine.trailing_zeros() as usize / 8;
    let ones = ones.checked_shl(64 - 8 * digits as u32)?;
    let twos = (ones * 10 + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos * 100 + (twos >> 16)) & 0x0000_ffff_0000_ffff;
    Some((digits, (fours & 0xffff) * 10_000 + (fours >> 32)))
}

fn nanoseconds(micros: u64) -> Option<Ns> {
    Ns::try_from(micros).ok()?.checked_mul(1000)
}

/// Splits at the last colon.
fn split_last(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().rposition(|b| *b == b':')?;
    Some((&text[..at], &text[at + 1..]))
}

/// Parses a number of at most 18 digits; `None` for anything else.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_the_loggers_manual_is_read() {
        let line = Line::parse(b"0:svID0000:3999:1727698715978775").unwrap();
        assert_eq!(
            line,
            Line { start: b"0:svID0000:", svid: b"svID0000", smp_cnt: 3999, t: 1_727_698_715_978_775_000 }
        );
        assert_eq!(
            Line::parse(b"12:a:b:7:1\r").unwrap(),
            Line { start: b"12:a:b:", svid: b"a:b", smp_cnt: 7, t: 1000 }
        );
    }

    #[test]
    fn invalid_lines_are_refused_with_the_reason() {
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
        fn the_fast_path_reads_the_same_as_the_slow_one(it in 0_u32.., svid in "[A-Z:0-9]{1,9}", cnt in 0_u16.., us in 0_i64..1 << 53) {
            let text = format!("{it}:{svid}:{cnt}:{us}\n");
            let start = format!("{it}:{svid}:");
            let line = Line::parse(text.trim_end().as_bytes()).unwrap();
            prop_assert_eq!(line, Line { start: start.as_bytes(), svid: svid.as_bytes(), smp_cnt: cnt, t: us * 1000 });
            let has_sixteen = us.to_string().len() == 16;
            let next = Line::parse_next(text.as_bytes(), line.start);
            prop_assert_eq!(next, has_sixteen.then_some((cnt, us * 1000, text.len())));
        }

        #[test]
        fn both_agree_about_any_bytes(cnt in "[0-9]{0,6}[:/;]", us in "[0-9]{14,18}", end in "[\r\n:/]{0,2}", more in "[0-9:]{0,9}") {
            let text = format!("1:M:{cnt}{us}{end}{more}").into_bytes();
            if let Some((cnt, t, len)) = Line::parse_next(&text, b"1:M:") {
                prop_assert_eq!(Line::parse(&text[..len - 1]), Ok(Line { start: b"1:M:", svid: b"M", smp_cnt: cnt, t }));
                prop_assert_eq!(text[len - 1], b'\n');
            }
            let _ = Line::parse(&text);
        }

        #[test]
        fn leading_numbers_are_those_of_other_readers(text in prop::collection::vec(any::<u8>(), 8), digits in "[0-9]{0,9}") {
            let text = [digits.as_bytes(), &text].concat();
            let len = text.iter().take(8).take_while(|b| b.is_ascii_digit()).count();
            let number = std::str::from_utf8(&text[..len]).unwrap().parse().ok().map(|n| (len, n));
            prop_assert_eq!(leading_number(&text), number);
        }
    }
}
