//! Looks for the slowest packet in the pixels of an HTML report, at every zoom, with headless Chromium.
//!
//! ```text
//! cargo run --release -p latpath-report --example find_packet -- REPORT.html REPORT.json
//! ```
//! `REPORT.json` is what `latpath report RUN --json` prints. At each zoom nothing in the chart of `total` may be higher than the
//! packet, which has to be in the column of its time.

use flate2::read::ZlibDecoder;
use serde_json::Value;
use std::error::Error;
use std::io::Read;
use std::process::{Command, Stdio};

/// The window, in pixels; tall enough for all charts.
const WIDTH: usize = 1280;
const HEIGHT: usize = 8000;
/// The colour of the times from least to greatest: `--band` of the style sheet.
const BAND: [u8; 3] = [0x8f, 0xb7, 0xdf];
/// What the script leaves at the chart's sides, and the page at its own.
const LEFT: usize = 66 + 20;
const RIGHT: usize = 14 + 20;
/// So many pixels in a row are of a chart.
const WIDE: usize = 60;

type Res<T> = Result<T, Box<dyn Error>>;

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [html, json] = args.as_slice() else { return Err("usage: find_packet REPORT.html REPORT.json".into()) };
    let (page, report) = (std::fs::read_to_string(html)?, std::fs::read_to_string(json)?);
    let report: Value = serde_json::from_str(&report)?;
    let data = page.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next()).ok_or("no data")?;
    let data: Value = serde_json::from_str(data)?;
    let number = |value: &Value| value.as_f64().ok_or("not a number");
    let total =
        report["segments"].as_array().and_then(|all| all.iter().find(|s| s["kind"] == "total")).ok_or("no total")?;
    let last = data["segments"].as_array().and_then(|all| all.last()).ok_or("no charts")?;
    if !last["label"].as_str().is_some_and(|label| label.starts_with("total")) {
        return Err("the last chart is not that of total".into());
    }
    let at = number(&total["max_at"]["time_ns"])? / 1e9 - number(&data["begin_ms"])? / 1e3;
    let slot = number(&data["slot_ns"])? / 1e9;
    let whole = slot * number(&data["slots"])?;
    println!("slowest packet: {} ms, {at:.3} s after the first", number(&total["max_ns"])? / 1e6);
    let (mut span, mut zooms) = (whole, 0);
    loop {
        // Not in the middle, so that a mark that always stands there is not taken for it.
        let from = (at - span * 0.3).clamp(0.0, whole - span);
        let pixels =
            screenshot(&format!("file://{}#t={from:.9}-{:.9}", std::fs::canonicalize(html)?.display(), from + span))?;
        let (columns, row) = highest(&pixels)?;
        let plot = (WIDTH - LEFT - RIGHT) as f64;
        let column = |t: f64| LEFT as f64 + (t - from) / span * plot;
        // A slot is no narrower than a pixel.
        let begin = (at / slot).floor() * slot;
        let (first, end) = (column(begin) - 2.0, column(begin + slot) + 2.0);
        let is_there = columns.iter().all(|c| (first..=end).contains(&(*c as f64)));
        println!("  {span:12.3} s in view: at x {columns:?}, y {row}; due at {first:.0} to {end:.0}");
        if !is_there {
            return Err(format!("the slowest packet is not the highest with {span} s in view").into());
        }
        zooms += 1;
        if span <= slot * 2.0 {
            break;
        }
        span = (span / 4.0).max(slot * 2.0);
    }
    println!("found at each of {zooms} zooms");
    Ok(())
}

/// The first and last column of the topmost pixels of the last chart of times, and their row.
fn highest(pixels: &[u8]) -> Res<([usize; 2], usize)> {
    let band = |row: usize| {
        let line = &pixels[row * WIDTH * 3..][..WIDTH * 3];
        let is_band =
            |(at, pixel): (usize, &[u8])| (pixel == BAND && (LEFT..WIDTH - RIGHT + 2).contains(&at)).then_some(at);
        line.chunks_exact(3).enumerate().filter_map(is_band).collect::<Vec<_>>()
    };
    let bottom = (0..HEIGHT).rev().find(|row| band(*row).len() >= WIDE).ok_or("no chart")?;
    // A chart's plot is 202 pixels high.
    let top = (bottom.saturating_sub(202)..bottom).find(|row| !band(*row).is_empty()).ok_or("an empty chart")?;
    let columns = band(top);
    Ok(([columns[0], columns[columns.len() - 1]], top))
}

/// A page as it is rendered, three bytes a pixel.
fn screenshot(url: &str) -> Res<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("page.png");
    let flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"];
    let done = Command::new("chromium")
        .args(flags)
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("--window-size={WIDTH},{HEIGHT}"))
        .arg(format!("--screenshot={}", file.display()))
        .args(["--virtual-time-budget=2000", url])
        .stderr(Stdio::null())
        .status()?;
    if !done.success() {
        return Err(format!("chromium: {done}").into());
    }
    decode(&std::fs::read(file)?)
}

/// A PNG of 8 bits a channel without interlacing, as Chromium writes it (RFC 2083).
fn decode(png: &[u8]) -> Res<Vec<u8>> {
    let word =
        |at: usize| png.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).ok_or("cut PNG");
    let (mut at, mut packed) = (8, Vec::new());
    let channels = if png.get(25) == Some(&6) { 4 } else { 3 };
    if (word(16)?, word(20)?) != (WIDTH, HEIGHT) {
        return Err("the picture has another size than the window".into());
    }
    while at + 12 <= png.len() {
        let length = word(at)?;
        if &png[at + 4..at + 8] == b"IDAT" {
            packed.extend_from_slice(png.get(at + 8..at + 8 + length).ok_or("cut PNG")?);
        }
        at += 12 + length;
    }
    let mut raw = Vec::new();
    ZlibDecoder::new(packed.as_slice()).read_to_end(&mut raw)?;
    let stride = WIDTH * channels;
    let mut before = vec![0_u8; stride];
    let mut pixels = Vec::with_capacity(WIDTH * HEIGHT * 3);
    for line in raw.chunks_exact(stride + 1) {
        let mut now = line[1..].to_vec();
        for i in 0..stride {
            let left = if i < channels { 0 } else { now[i - channels] };
            let (up, corner) = (before[i], if i < channels { 0 } else { before[i - channels] });
            let paeth = || {
                let (a, b, c) = (i32::from(left), i32::from(up), i32::from(corner));
                let (pa, pb, pc) = ((b - c).abs(), (a - c).abs(), (a + b - 2 * c).abs());
                if pa <= pb && pa <= pc {
                    left
                } else if pb <= pc {
                    up
                } else {
                    corner
                }
            };
            let guess = match line[0] {
                0 => 0,
                1 => left,
                2 => up,
                3 => ((u16::from(left) + u16::from(up)) / 2) as u8,
                _ => paeth(),
            };
            now[i] = now[i].wrapping_add(guess);
        }
        now.chunks_exact(channels).for_each(|pixel| pixels.extend_from_slice(&pixel[..3]));
        before = now;
    }
    Ok(pixels)
}
