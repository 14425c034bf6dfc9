//! Generates captures in all formats byte by byte, and damages them.

/// Writes a file's numbers in either byte order.
pub struct Bytes {
    pub is_big: bool,
    pub out: Vec<u8>,
}

impl Bytes {
    pub fn new(is_big: bool) -> Self {
        Self { is_big, out: Vec::new() }
    }

    pub fn u16(&mut self, n: u16) {
        self.out.extend(if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() });
    }

    pub fn u32(&mut self, n: u32) {
        self.out.extend(if self.is_big { n.to_be_bytes() } else { n.to_le_bytes() });
    }

    /// Pads to a multiple of four bytes.
    pub fn pad(&mut self) {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }
}

/// Number of packets per file.
const PACKETS: u32 = 9;

fn packet(n: u32) -> Vec<u8> {
    let mut bytes = vec![1, 0x0c, 0xcd, 4, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0xba, 0x40, 0];
    bytes.extend((0..20 + n * 3).map(|i| (i * 7 + n) as u8));
    bytes
}

/// A pcap file with this magic number, this version and these bytes between each record's header and its packet.
pub fn pcap(is_big: bool, magic: u32, version: (u16, u16), more: &[u8]) -> Vec<u8> {
    let mut file = Bytes::new(is_big);
    file.u32(magic);
    file.u16(version.0);
    file.u16(version.1);
    // The unused time zone and accuracy, a snap length that the packets exceed, and Ethernet with a frame check
    // sequence.
    for word in [3600, 6, 64, 1 | 0x2400_0000] {
        file.u32(word);
    }
    for n in 0..PACKETS {
        let bytes = packet(n);
        let kept = if n % 3 == 2 { bytes.len() - 5 } else { bytes.len() };
        let (mut first, mut second) = (kept as u32, bytes.len() as u32);
        if version < (2, 3) {
            std::mem::swap(&mut first, &mut second);
        }
        for word in [1_700_000_000 + n, 999_000 + n * 100, first, second] {
            file.u32(word);
        }
        file.out.extend(more);
        file.out.extend(&bytes[..kept]);
    }
    file.out
}

fn block(file: &mut Bytes, kind: u32, body: &[u8]) {
    let mut padded = body.to_vec();
    padded.resize(body.len().next_multiple_of(4), 0);
    let len = padded.len() as u32 + 12;
    file.u32(kind);
    file.u32(len);
    file.out.extend(padded);
    file.u32(len);
}

fn options(is_big: bool, all: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = Bytes::new(is_big);
    for (code, value) in all {
        out.u16(*code);
        out.u16(value.len() as u16);
        out.out.extend(*value);
        out.pad();
    }
    if !all.is_empty() {
        out.u32(0);
    }
    out.out
}

fn section(file: &mut Bytes, all: &[(u16, &[u8])]) {
    let mut body = Bytes::new(file.is_big);
    body.u32(0x1a2b_3c4d);
    body.u32(if file.is_big { 0x0001_0000 } else { 1 });
    body.out.extend([0xff; 8]);
    body.out.extend(options(file.is_big, all));
    block(file, 0x0a0d_0d0a, &body.out);
}

fn interface(file: &mut Bytes, link: u16, all: &[(u16, &[u8])]) {
    let mut body = Bytes::new(file.is_big);
    body.u16(link);
    body.u16(0);
    body.u32(60);
    body.out.extend(options(file.is_big, all));
    block(file, 1, &body.out);
}

fn enhanced(file: &mut Bytes, interface: u32, units: u64, n: u32, all: &[(u16, &[u8])]) {
    let mut body = Bytes::new(file.is_big);
    let bytes = packet(n);
    for word in [interface, (units >> 32) as u32, units as u32, bytes.len() as u32, bytes.len() as u32 + n % 2] {
        body.u32(word);
    }
    body.out.extend(bytes);
    body.pad();
    body.out.extend(options(file.is_big, all));
    block(file, 6, &body.out);
}

/// Writes a packet block of the obsolete type.
fn old(file: &mut Bytes, interface: u16, units: u64, n: u32) {
    let mut body = Bytes::new(file.is_big);
    let bytes = packet(n);
    body.u16(interface);
    body.u16(3);
    for word in [(units >> 32) as u32, units as u32, bytes.len() as u32, bytes.len() as u32] {
        body.u32(word);
    }
    body.out.extend(bytes);
    block(file, 2, &body.out);
}

fn simple(file: &mut Bytes, n: u32) {
    let mut body = Bytes::new(file.is_big);
    let bytes = packet(n);
    body.u32(bytes.len() as u32);
    body.out.extend(&bytes[..bytes.len().min(60)]);
    block(file, 3, &body.out);
}

/// A pcapng file with one interface, whose packets have options.
pub fn pcapng(is_big: bool) -> Vec<u8> {
    let mut file = Bytes::new(is_big);
    section(&mut file, &[(1, b"a comment"), (4, b"the writer \xe9")]);
    interface(&mut file, 1, &[(2, b"eth0"), (9, &[9]), (13, &[4]), (61_000, b"of nobody")]);
    for n in 0..PACKETS {
        let flags: &[(u16, &[u8])] = &[(1, b"caf\xe9"), (2, &[1, 0, 0, 0])];
        enhanced(&mut file, 0, 1_700_000_000_123_456_789 + u64::from(n), n, if n % 2 == 0 { flags } else { &[] });
        if n == 4 {
            block(&mut file, 0x0bad_cafe, b"a block of nobody's");
        }
    }
    let mut statistics = vec![0; 12];
    statistics.extend(options(is_big, &[(4, &[0; 8])]));
    block(&mut file, 5, &statistics);
    file.out
}

/// A pcapng file with interfaces that have different time formats, with all three types of packet blocks, and with two
/// sections in different byte orders.
pub fn pcapng_of_sections(is_big: bool) -> Vec<u8> {
    let mut all = Vec::new();
    for is_big in [is_big, !is_big] {
        let mut file = Bytes::new(is_big);
        let offset = if is_big { (-37_i64).to_be_bytes() } else { (-37_i64).to_le_bytes() };
        section(&mut file, &[]);
        interface(&mut file, 1, &[(2, b"csin"), (9, &[6]), (14, &offset)]);
        interface(&mut file, 113, &[(2, b"caf\xe9"), (9, &[0x80 | 20])]);
        for n in 0..PACKETS {
            match n % 4 {
                0 => enhanced(&mut file, 0, 1_700_000_000_000_000 + u64::from(n), n, &[]),
                1 => enhanced(&mut file, 1, 1_700_000_000_u64 << 20 | u64::from(n) << 10, n, &[]),
                2 => old(&mut file, 0, 1_700_000_000_000_000, n),
                _ => simple(&mut file, n),
            }
            if n == 4 {
                interface(&mut file, 1, &[(9, &[3])]);
            }
        }
        enhanced(&mut file, 2, 1_700_000_000_500, 3, &[]);
        all.extend(file.out);
    }
    all
}

/// A file in each format, with its name.
pub fn all() -> Vec<(String, Vec<u8>)> {
    let patched = [7, 0, 0, 0, 0xba, 0x88, 0, 0];
    let patched_with_cpus = [7, 0, 0, 0, 0xba, 0x88, 0, 1, 1, 0, 0, 0];
    let nokia = 0x9fbf_b601_u32.to_le_bytes();
    let mut files = Vec::new();
    for (is_big, order) in [(false, "little"), (true, "big")] {
        let mut add = |name: &str, bytes| files.push((format!("{name}-{order}"), bytes));
        add("microseconds", pcap(is_big, 0xa1b2_c3d4, (2, 4), &[]));
        add("nanoseconds", pcap(is_big, 0xa1b2_3c4d, (2, 4), &[]));
        add("version-2.2", pcap(is_big, 0xa1b2_c3d4, (2, 2), &[]));
        add("version-2.3", pcap(is_big, 0xa1b2_c3d4, (2, 3), &[]));
        add("pcapng", pcapng(is_big));
        add("sections", pcapng_of_sections(is_big));
    }
    files.push(("patched".into(), pcap(false, 0xa1b2_cd34, (2, 4), &patched)));
    files.push(("patched-standard".into(), pcap(false, 0xa1b2_c3d4, (2, 4), &patched)));
    files.push(("patched-with-cpus".into(), pcap(false, 0xa1b2_cd34, (2, 4), &patched_with_cpus)));
    files.push(("nokia".into(), pcap(false, 0xa1b2_c3d4, (2, 4), &nokia)));
    files
}

/// Deterministic pseudorandom numbers (Marsaglia's xorshift).
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Damages a file at one to three positions.
pub fn damage(file: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=chance.below(3) {
        if bytes.is_empty() {
            break;
        }
        // Half of the positions, on average, are chosen near the beginning, where the headers are.
        let reach = if chance.below(2) == 0 { bytes.len().min(160) } else { bytes.len() };
        let at = chance.below(reach);
        let word = at / 4 * 4;
        match chance.below(8) {
            0 => bytes[at] = chance.below(256) as u8,
            1 => bytes[at] ^= 1 << chance.below(8),
            2 => bytes.truncate(chance.below(bytes.len())),
            3 => drop(bytes.drain(word..bytes.len().min(word + 4 * (1 + chance.below(4))))),
            4 => {
                let more = vec![chance.below(256) as u8; 4 * (1 + chance.below(4))];
                drop(bytes.splice(word..word, more));
            }
            5 => {
                let copy = bytes[word..bytes.len().min(word + 64)].to_vec();
                let to = chance.below(bytes.len()) / 4 * 4;
                drop(bytes.splice(to..to, copy));
            }
            _ => {
                let odd = [0, 1, 4, 16, 60, 64, 255, 1 << 16, 262_144, 262_145, u32::MAX, 1 << 31];
                let value = odd[chance.below(odd.len())];
                let value = if chance.below(2) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                let end = bytes.len().min(word + 4);
                bytes[word..end].copy_from_slice(&value[..end - word]);
            }
        }
    }
    bytes
}
