//! The error for a new file that cannot be created because its path already exists.

use std::path::Path;

/// Error message that names the existing entry and says what to do next: `instead`, or moving an existing file or
/// directory away.
pub(crate) fn in_the_way(path: &Path, instead: &str) -> String {
    match latpath_linux::special(path) {
        Some(what) => format!("{}: exists already (it is {what}); {instead}", path.display()),
        None => format!("{}: exists already; {instead}, or move this one away", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_moves_a_device_away() {
        let text = in_the_way(Path::new("/dev/null"), "name another file");
        assert_eq!(text, "/dev/null: exists already (it is a device); name another file");
        assert!(in_the_way(Path::new("/proc/version"), "name another file").ends_with(", or move this one away"));
    }
}
