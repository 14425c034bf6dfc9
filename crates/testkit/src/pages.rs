//! Tables in the pages of `docs` that are generated from the program's tables. A test compares them, or writes them if
//! an environment variable requests it.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Environment variable that makes [`holds_table`] write the table instead of failing; any value.
pub const WRITE: &str = "LATPATH_WRITE_PAGES";

/// The path of a file in the repository.
pub fn path(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file)
}

/// Checks that the page contains this table: the line `head`, the line below it, and these `rows`, given without the
/// first and last `|`.
///
/// # Panics
/// If the page has another table (the message contains the command that writes it), or lacks this head.
pub fn holds_table(page: &str, head: &str, rows: &[String], test: &str) {
    let file = path(page);
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let made = with_table(&text, head, rows).unwrap_or_else(|| panic!("{page} has no table with the head {head:?}"));
    if made == text {
        return;
    }
    if env::var_os(WRITE).is_some() {
        return fs::write(&file, made).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    let differs = made.lines().zip(text.lines()).find(|(made, is)| made != is);
    let (made, is) = differs.unwrap_or_default();
    panic!("{page}: the table below {head:?} has\n{is}\ninstead of\n{made}\nTo write it: {WRITE}=1 {test}");
}

/// The page with the rows below `head` replaced by `rows`; `None` if the page lacks the head.
fn with_table(page: &str, head: &str, rows: &[String]) -> Option<String> {
    let lines: Vec<&str> = page.lines().collect();
    let at = lines.iter().position(|line| *line == head)? + 2;
    let end = lines[at..].iter().position(|line| !line.starts_with('|')).map_or(lines.len(), |n| at + n);
    let rows: Vec<String> = rows.iter().map(|row| format!("| {row} |")).collect();
    let all = lines[..at].iter().copied().chain(rows.iter().map(String::as_str)).chain(lines[end..].iter().copied());
    Some(all.collect::<Vec<_>>().join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_replaced_and_nothing_else() {
        let page = "# Page\n\n| a | b |\n|---|---|\n| old | 1 |\n| old | 2 |\n\nText.\n";
        let made = with_table(page, "| a | b |", &["new | 3".to_owned()]).unwrap();
        assert_eq!(made, "# Page\n\n| a | b |\n|---|---|\n| new | 3 |\n\nText.\n");
        assert_eq!(with_table(page, "| c |", &[]), None);
    }
}
