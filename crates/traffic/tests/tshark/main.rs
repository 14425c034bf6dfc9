//! Compares with tshark: both read the same packets, bytes and times, or both reject the file. If a file is damaged in
//! the middle, both read the part before the damage.

mod made;
mod values;

use latpath_testkit::{need_root, need_tool, trial, Failed, Lack, Trial};
use latpath_traffic::{is_capture, CaptureError, CaptureFile};
use made::{damage, Chance};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};

fn main() -> ExitCode {
    let tshark = || need_tool("tshark");
    let cases = folder_of_cases();
    let tests = vec![
        trial("samples_and_values_of_messages_are_decoded_as_tshark_decodes_them", &[tshark()], values::compare),
        trial("files_of_each_form_are_read_as_tshark_reads_them", &[tshark()], forms),
        trial("sixty_damaged_files_are_read_as_tshark_reads_them", &[tshark()], || damaged(0..60)),
        trial("a_thousand_damaged_files_are_read_as_tshark_reads_them", &[tshark()], || damaged(60..1060)).in_lab(),
        trial(
            "files_of_other_writers_are_read_as_tshark_reads_them",
            &[tshark(), need_tool("editcap"), need_tool("mergecap"), need_tool("text2pcap"), need_tool("tcpdump")],
            writers,
        ),
        trial(
            "files_that_were_captured_are_read_as_tshark_reads_them",
            &[tshark(), need_root(), need_tool("dumpcap"), need_tool("tcpdump"), need_tool("bash")],
            captured,
        ),
        trial("files_of_public_reports_are_read_as_tshark_reads_them", &[tshark(), lack(&cases)], move || {
            let files = std::fs::read_dir(&cases)?.flatten().map(|entry| entry.path());
            compare(&files.filter(|path| path.to_string_lossy().contains(".pcap")).collect::<Vec<_>>())
        }),
    ];
    latpath_testkit::main(tests.into_iter().map(Trial::side_by_side).collect())
}

fn folder_of_cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/cases")
}

fn lack(folder: &Path) -> Lack {
    (!folder.exists()).then(|| "../shared/data/cases is not there".into())
}

/// A packet: its length on the wire, and its bytes.
#[derive(Debug, PartialEq)]
struct Packet {
    len: u64,
    bytes: String,
}

/// The packets that tshark reads from a file, and whether it complains.
fn by_tshark(path: &Path) -> Result<(Vec<(String, Packet)>, bool), String> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "json", "-x", "-J", "frame", "-r"]).arg(path);
    let output = tshark.output().map_err(|e| e.to_string())?;
    let complains = !output.status.success();
    let text = String::from_utf8_lossy(&output.stdout);
    if text.trim().is_empty() {
        return Ok((Vec::new(), complains));
    }
    let all: Vec<Value> = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let packet = |value: &Value| {
        let layers = &value["_source"]["layers"];
        let field = |name: &str| layers["frame"][name].as_str().unwrap_or_default().to_owned();
        let len = field("frame.len").parse().unwrap_or_default();
        let bytes = layers["frame_raw"][0].as_str().unwrap_or_default().to_owned();
        (field("frame.time_epoch"), Packet { len, bytes })
    };
    Ok((all.iter().map(packet).collect(), complains))
}

/// Whether a time printed by tshark, e.g. `-37.500000000`, equals `t`. For damaged files, tshark's arithmetic may
/// overflow: it stores the fraction of a second of a pcap file in 32 bits, and multiplies that of a pcapng file in 64
/// bits, too few for `fine` times. Times beyond 292 years do not fit into ns since 1970.
fn is_time(text: &str, t: i64, fine: bool) -> bool {
    let Some((whole, fraction)) = text.split_once('.').filter(|(_, fraction)| fraction.len() == 9) else { return true };
    let (Ok(seconds), Ok(fraction)) = (whole.parse::<i128>(), fraction.parse::<i128>()) else { return false };
    let is_negative = whole.starts_with('-');
    let ns = seconds * 1_000_000_000 + if is_negative { -fraction } else { fraction };
    let apart = i128::from(t) - ns;
    let overflown = [apart, i128::from(t) - seconds.abs() * 1_000_000_000 + fraction].map(|apart| apart % (1 << 32));
    i64::try_from(ns).is_err() || apart == 0 || overflown.contains(&0) || fine && apart.abs() < 1_000_000_000
}

/// Whether an interface's time resolution (`if_tsresol`) is finer than 10⁻¹⁰ or 2⁻³⁴ s.
fn has_fine_times(file: &[u8]) -> bool {
    let is_fine = |w: &[u8]| {
        let is_option = matches!(w[..4], [9, 0, 1, 0] | [0, 9, 0, 1]);
        is_option && (w[4] & 0x7f > if w[4] & 0x80 != 0 { 34 } else { 10 })
    };
    file.windows(5).any(is_fine)
}

/// The packets that latpath reads from a file, and whether it complains.
fn by_latpath(path: &Path) -> (Vec<(i64, Packet)>, bool) {
    let mut packets = Vec::new();
    let Ok(mut capture) = CaptureFile::open(path) else { return (packets, true) };
    loop {
        match capture.next_record() {
            Ok(Some(r)) => {
                // tshark reports lengths up to this value only.
                let len = r.len.min(i32::MAX as usize) as u64;
                let bytes = r.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                packets.push((r.t, Packet { len, bytes }));
            }
            Ok(None) => return (packets, false),
            Err(_) => return (packets, true),
        }
    }
}

fn difference(path: &Path) -> Result<Option<String>, String> {
    let (expected, complains) = by_tshark(path)?;
    let (found, own) = by_latpath(path);
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let fine = has_fine_times(&bytes);
    let same = |(a, b): (&(String, Packet), &(i64, Packet))| a.1 == b.1 && is_time(&a.0, b.0, fine);
    let is_refused = CaptureFile::open(path).map_or(true, |mut capture| {
        // A capture whose only link type is unsupported also counts as refused, because tshark rejects unknown link
        // types.
        matches!(capture.next_packet(), Err(CaptureError::Link { .. })) && capture.interfaces().len() == 1
    });
    // If the header is damaged, tshark may take the file for another format, in which most packets have no times.
    let is_other_format = !is_capture(&bytes) || expected.iter().all(|(time, _)| time.is_empty());
    let refuses = complains && expected.is_empty();
    if is_refused && (refuses || found.is_empty() && is_other_format) {
        return Ok(None);
    }
    let first = expected.iter().zip(&found).position(|pair| !same(pair));
    let what = match first {
        Some(at) => format!("packet {}: tshark {:?}, latpath {:?}", at + 1, expected[at], found[at]),
        None if expected.len() != found.len() => {
            format!("tshark reads {} packets, latpath {}", expected.len(), found.len())
        }
        None if complains != own => format!("of {} packets: tshark complains {complains}, latpath {own}", found.len()),
        None => return Ok(None),
    };
    Ok(Some(format!("{}: {what}", path.display())))
}

/// Compares the files in two threads.
fn compare(files: &[PathBuf]) -> Result<(), Failed> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut differences = Vec::new();
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            match difference(path) {
                Ok(None) => {}
                Ok(Some(different)) | Err(different) => differences.push(different),
            }
        }
        differences
    };
    let differences: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|_| vec!["a panic".into()])).collect()
    });
    match differences.len() {
        0 => Ok(()),
        n => Err(format!("{n} of {} files differ:\n{}", files.len(), differences.join("\n")).into()),
    }
}

fn written(folder: &Path, files: Vec<(String, Vec<u8>)>) -> Result<Vec<PathBuf>, Failed> {
    let write = |(name, bytes): (String, Vec<u8>)| {
        let path = folder.join(name);
        std::fs::write(&path, bytes)?;
        Ok(path)
    };
    files.into_iter().map(write).collect()
}

fn forms() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let files = written(folder.path(), made::all())?;
    for file in &files {
        let (packets, complains) = by_tshark(file)?;
        if complains || packets.len() < 9 {
            return Err(format!("{}: tshark reads {} packets of it", file.display(), packets.len()).into());
        }
    }
    compare(&files)
}

fn tshark_is(version: &str) -> Result<bool, Failed> {
    let output = Command::new("tshark").arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).contains(&format!("TShark (Wireshark) {version}")))
}

fn damaged(seeds: std::ops::Range<u64>) -> Result<(), Failed> {
    let (folder, mut whole) = (tempfile::tempdir()?, made::all());
    // Versions of tshark differ in which old variant they assume for a damaged file; latpath agrees with Debian's, 4.0.
    if !tshark_is("4.0.")? {
        whole.retain(|(name, _)| {
            name.starts_with("nanoseconds") || name.starts_with("pcapng") || name.starts_with("sections")
        });
    }
    let make = |seed: u64| {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (name, bytes) = &whole[chance.below(whole.len())];
        (format!("{seed}-{name}"), damage(bytes, &mut chance))
    };
    let files = written(folder.path(), seeds.map(make).collect())?;
    let differs = compare(&files);
    if let (Err(_), Ok(kept)) = (&differs, std::env::var("LATPATH_KEEP")) {
        for file in &files {
            std::fs::copy(file, Path::new(&kept).join(file.file_name().unwrap_or_default()))?;
        }
    }
    differs
}

/// Runs a shell command in a folder.
fn shell(folder: &Path, line: &str) -> Result<(), Failed> {
    let output = Command::new("sh").args(["-ec", line]).current_dir(folder).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn all_of(folder: &Path, least: usize) -> Result<(), Failed> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().contains(".pcap"));
    if files.len() < least {
        return Err(format!("{} files", files.len()).into());
    }
    compare(&files)
}

fn writers() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    written(folder, vec![("a.pcap".into(), made::pcap(false, 0xa1b2_3c4d, (2, 4), &[]))])?;
    written(folder, vec![("b.pcapng".into(), made::pcapng(true))])?;
    for format in ["pcap", "nsecpcap", "modpcap", "nokiapcap", "rh6_1pcap", "suse6_3pcap", "pcapng"] {
        shell(folder, &format!("editcap -F {format} a.pcap editcap-{format}.pcap"))?;
    }
    shell(folder, "editcap -s 40 a.pcap editcap-cut.pcap; editcap -t -3.5 b.pcapng editcap-shifted.pcapng")?;
    shell(folder, "editcap -c 3 b.pcapng editcap-parts.pcapng; editcap -a 2:remark b.pcapng editcap-remark.pcapng")?;
    shell(folder, "mergecap -w mergecap.pcapng a.pcap b.pcapng; mergecap -F pcap -w mergecap.pcap a.pcap b.pcapng")?;
    shell(folder, "mergecap -I none -a -w mergecap-apart.pcapng a.pcap a.pcap b.pcapng")?;
    shell(folder, "tshark -n -r b.pcapng -w tshark.pcapng; tshark -n -r b.pcapng -F nsecpcap -w tshark.pcap")?;
    shell(folder, "tshark -n -r a.pcap -x | grep -v '^$' >hex; text2pcap hex text2pcap.pcapng; text2pcap -F pcap hex text2pcap.pcap")?;
    shell(folder, "text2pcap -u 1000,319 hex text2pcap-udp.pcapng; text2pcap -l 101 hex text2pcap-raw.pcap")?;
    shell(folder, "tcpdump -Z root -r a.pcap -w tcpdump.pcap 2>&1 || tcpdump -r a.pcap -w tcpdump.pcap")?;
    shell(
        folder,
        "gzip -k a.pcap b.pcapng; cat a.pcap.gz >twice.pcap.gz; cat b.pcapng editcap-shifted.pcapng >sections.pcapng",
    )?;
    shell(folder, "head -c 500 a.pcap.gz >cut.pcap.gz; head -c 700 b.pcapng >cut.pcapng")?;
    all_of(folder, 24)
}

/// Compares captures made with various tools on a device, in a namespace without other traffic.
fn captured() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let line = |capture: &str| {
        let send = "while :; do echo sent >/dev/udp/127.0.0.1/9; done 2>/dev/null";
        format!("unshare -n bash -ec 'ip link set lo up; {send} & {capture} -c 8; kill $!'")
    };
    shell(folder, &line("tcpdump -Z root -i lo -w tcpdump.pcap"))?;
    shell(folder, &line("tcpdump -Z root -i any -s 60 -w tcpdump-any.pcap"))?;
    shell(folder, &line("tcpdump -Z root -i lo --nano -w tcpdump-nano.pcap"))?;
    shell(folder, &line("tcpdump -Z root -y LINUX_SLL -i any -w tcpdump-cooked.pcap"))?;
    shell(folder, &line("dumpcap -q -i lo -i any -s 80 -w dumpcap.pcapng"))?;
    shell(folder, &line("dumpcap -q -P -i lo -w dumpcap.pcap"))?;
    shell(folder, &line("tshark -n -q -i lo -w tshark.pcapng"))?;
    all_of(folder, 7)
}
