//! The text of `/proc/interrupts`.

/// A line: an interrupt, or a counter of another kind (`PIN`, `LOC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptLine<'a> {
    /// IRQ number, or the name of the counter.
    pub label: &'a str,
    /// Sum over all CPUs.
    pub count: u64,
    /// The words after the counts: chip, type and names.
    pub words: &'a str,
}

/// The lines of the text that have a count for each CPU in its header.
pub fn lines(text: &str) -> impl Iterator<Item = InterruptLine<'_>> {
    let cpus = text.lines().next().map_or(0, |head| head.split_whitespace().count());
    text.lines().skip(1).filter_map(move |line| {
        let (label, mut rest) = line.split_once(':')?;
        let mut count = 0u64;
        for _ in 0..cpus {
            let word = rest.trim_start();
            let (number, after) = word.split_at(word.find(char::is_whitespace).unwrap_or(word.len()));
            count = count.saturating_add(number.parse().ok()?);
            rest = after;
        }
        Some(InterruptLine { label: label.trim(), count, words: rest.trim() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_sum_of_its_counts_and_the_words_behind() {
        let text =
            "     CPU0    CPU1\n  4:   1   1234  IR-IO-APIC   4-edge   ttyS0\nPIN:  2  3  Posted\n 30: 1\nrubbish\n";
        let line = |label, count, words| InterruptLine { label, count, words };
        let expected = [line("4", 1235, "IR-IO-APIC   4-edge   ttyS0"), line("PIN", 5, "Posted")];
        assert_eq!(lines(text).collect::<Vec<_>>(), expected);
    }
}
