//! An initramfs: a cpio archive in the "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst). It
//! is not compressed, because an emulated guest would take longer to decompress it than QEMU takes to read it.

use std::{collections::BTreeSet, path::Path};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
const CHARACTER: u32 = 0o020_600;

/// The archive under construction.
#[derive(Default)]
pub(crate) struct Initramfs {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Initramfs {
    /// Adds a file with these permissions, and the folders above it.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, FILE | permissions, (0, 0), content);
    }

    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.parents(path);
        self.entry(path, LINK, (0, 0), to.as_bytes());
    }

    /// Adds a folder, and the folders above it.
    pub(crate) fn folder(&mut self, path: &str) {
        let path = path.trim_start_matches('/');
        self.parents(path);
        if self.folders.insert(path.into()) {
            self.entry(path, FOLDER, (0, 0), &[]);
        }
    }

    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, CHARACTER, (major, minor), &[]);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some(parent) = Path::new(path).parent().and_then(Path::to_str) {
            if !parent.is_empty() && parent != "/" {
                self.folder(parent);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let path = path.trim_start_matches('/');
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a file of an initramfs is smaller than 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a path is short");
        let folder = u32::from(mode == FOLDER);
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let head = [self.entries, mode, 0, 0, 1 + folder, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in head {
            self.bytes.extend_from_slice(format!("{number:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mode, size and name of each entry, parsed from the archive.
    fn list(archive: &[u8]) -> Vec<(u32, usize, String)> {
        let number = |at: usize| u32::from_str_radix(std::str::from_utf8(&archive[at..at + 8]).unwrap(), 16).unwrap();
        let (mut at, mut found) = (0, Vec::new());
        while at < archive.len() {
            assert_eq!(&archive[at..at + 6], b"070701");
            let (mode, size, name) = (number(at + 14), number(at + 54) as usize, number(at + 94) as usize);
            let text = std::str::from_utf8(&archive[at + 110..at + 110 + name - 1]).unwrap();
            found.push((mode, size, text.to_owned()));
            at = (at + 110 + name).next_multiple_of(4);
            at = (at + size).next_multiple_of(4);
        }
        found
    }

    #[test]
    fn an_archive_lists_each_folder_once_and_before_what_it_holds() {
        let mut archive = Initramfs::default();
        archive.file("/bin/a/tool", 0o755, b"12345");
        archive.link("/bin/sh", "a/tool");
        archive.folder("/bin");
        archive.character_device("/dev/console", 5, 1);
        let list = list(&archive.finish());
        let names: Vec<_> = list.iter().map(|(_, _, name)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/a", "bin/a/tool", "bin/sh", "dev", "dev/console", "TRAILER!!!"]);
        assert_eq!((list[2].0, list[2].1), (0o100_755, 5));
        assert_eq!((list[3].0, list[3].1), (0o120_777, 6));
    }

    #[test]
    fn every_entry_is_padded_to_four_bytes() {
        let mut archive = Initramfs::default();
        archive.file("/x", 0o644, b"1");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        // header 110 + "x\0" = 112, content 1 padded to 4: the next entry's magic is at 116.
        assert_eq!(&bytes[116..122], b"070701");
    }
}
