//! Permission for the host to run commands.

use latpath_linux::open_file;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Permitted length of a key, bytes.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

/// Permission for the host to run commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Commands {
    /// No commands.
    #[default]
    Refused,
    /// Commands of any connected host; over vsock, only from a reserved port.
    Allowed,
    /// Like `Allowed`, but only if the host also presents this key.
    WithKey(CommandKey),
}

impl Commands {
    /// Whether any commands are permitted.
    pub fn are_allowed(&self) -> bool {
        *self != Self::Refused
    }

    /// Whether a command with this key is permitted.
    pub(crate) fn allow(&self, key: &[u8]) -> bool {
        match self {
            Self::Refused => false,
            Self::Allowed => true,
            Self::WithKey(own) => own.is(key),
        }
    }
}

/// A secret shared by an agent and its host.
#[derive(Clone, PartialEq, Eq)]
pub struct CommandKey(pub(crate) Vec<u8>);

impl fmt::Debug for CommandKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandKey")
    }
}

impl CommandKey {
    /// Reads a key from a file, without leading and trailing white space.
    ///
    /// # Errors
    /// If the file cannot be read, others may read it, or the key has a wrong length.
    pub fn read(path: &Path) -> Result<Self, String> {
        let error = |why: String| format!("{}: {why}", path.display());
        let file = open_file(path).map_err(|e| error(e.to_string()))?;
        let found = file.metadata().map_err(|e| error(e.to_string()))?;
        if found.mode() & 0o077 != 0 {
            return Err(error("other users may read this key: chmod 600 it".into()));
        }
        let mut bytes = Vec::new();
        file.take(*KEY_BYTES.end() as u64 + 1).read_to_end(&mut bytes).map_err(|e| error(e.to_string()))?;
        let key = bytes.trim_ascii();
        match KEY_BYTES.contains(&key.len()) {
            true => Ok(Self(key.into())),
            false => Err(error(format!("a key has {} to {} bytes", KEY_BYTES.start(), KEY_BYTES.end()))),
        }
    }

    /// Compares keys in constant time.
    fn is(&self, other: &[u8]) -> bool {
        let differences = self.0.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == other.len() && differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_private_and_only_an_equal_one_matches() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        fs::write(&file, "0123456789abcdef\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(CommandKey::read(&file).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let commands = Commands::WithKey(CommandKey::read(&file).unwrap());
        assert!(commands.allow(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcdee", b"0123456789abcde", b"0123456789abcdef0"] {
            assert!(!commands.allow(other), "{other:?}");
        }
        fs::write(&file, "short").unwrap();
        assert!(CommandKey::read(&file).unwrap_err().contains("16 to 4096 bytes"));
    }
}
