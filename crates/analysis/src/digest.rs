//! Digest of a run's content.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum depth of directories in a run.
const DEPTH: usize = 4;

/// The SHA-256 of a run's files, equal to the output of `find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`
/// in the run's directory; for a log, the SHA-256 of the file. Skips everything but regular files.
///
/// # Errors
/// If a file cannot be read.
pub fn digest(run: &Path) -> io::Result<String> {
    if run.is_file() {
        return Ok(hex(&of_file(run)?));
    }
    let mut files = Vec::new();
    collect(run, Path::new("."), DEPTH, &mut files)?;
    files.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    let mut all = Sha256::new();
    for file in files {
        all.update(hex(&of_file(&run.join(&file))?));
        all.update(b"  ");
        all.update(file.as_os_str().as_encoded_bytes());
        all.update(b"\n");
    }
    Ok(hex(&all.finalize()))
}

fn of_file(file: &Path) -> io::Result<impl AsRef<[u8]>> {
    let mut one = Sha256::new();
    io::copy(&mut File::open(file)?, &mut one)?;
    Ok(one.finalize())
}

fn collect(run: &Path, folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(run.join(folder))? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, folder.join(entry.file_name()));
        if kind.is_file() {
            files.push(path);
        } else if kind.is_dir() && depth > 0 {
            collect(run, &path, depth - 1, files)?;
        }
    }
    Ok(())
}

fn hex(bytes: &impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/x"), "1").unwrap();
        std::fs::write(folder.path().join("b.json"), "2").unwrap();
        let command = "find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum";
        let out = std::process::Command::new("sh").args(["-c", command]).current_dir(folder.path()).output().unwrap();
        let expected = String::from_utf8(out.stdout).unwrap();
        assert_eq!(expected.split(' ').next(), Some(digest(folder.path()).unwrap().as_str()));
    }
}
