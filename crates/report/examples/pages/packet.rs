//! Finds the slowest packet among the pixels of an HTML report, at every zoom.

use crate::browser::{Browser, Res};
use serde_json::Value;
use std::path::Path;

/// Script that returns the plot area of the last chart over time on the page: x, y, width, height.
const PLOT: &str = "(() => {
  const box = [...document.querySelectorAll('figure[data-chart=time]')].pop().querySelector('svg').getBoundingClientRect();
  return [box.x + scrollX + 66, box.y + scrollY + 10, box.width - 66 - 14, box.height - 10 - 28];
})()";
/// Script that returns the first and last column of the topmost blue pixels of PICTURE, and their row. The range of
/// times and their mean are drawn blue, even if they cover half of a pixel; axes, patterns and the threshold are not.
const TOPMOST: &str = "(async () => {
  const map = await createImageBitmap(new Blob([Uint8Array.from(atob('PICTURE'), c => c.charCodeAt(0))]));
  const paper = new OffscreenCanvas(map.width, map.height).getContext('2d');
  paper.drawImage(map, 0, 0);
  const { data } = paper.getImageData(0, 0, map.width, map.height);
  for (let y = 0; y < map.height; y++) {
    const all = Array.from({ length: map.width }, (_, x) => (y * map.width + x) * 4);
    const blue = all.filter(i => data[i + 2] - data[i] >= 40).map(i => i / 4 % map.width);
    if (blue.length) return [[blue[0], blue[blue.length - 1]], y];
  }
  return null;
})()";

/// Checks that at each zoom the packet is the highest mark in the chart of `total`, in the column of its time. `json`
/// is the output of `latpath report RUN --json`.
pub fn find(browser: &mut Browser, html: &Path, json: &Path) -> Res<()> {
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
    browser.resize(1280, 900)?;
    let (mut span, mut zooms) = (whole, 0);
    loop {
        // Places the packet off centre, so that a fixed mark in the centre is not mistaken for it.
        let from = (at - span * 0.3).clamp(0.0, whole - span);
        browser.open(html, &format!("#t={from:.9}-{:.9}", from + span))?;
        let plot: [f64; 4] = serde_json::from_value(browser.evaluate(PLOT)?)?;
        let (columns, row) = highest(browser, plot)?;
        let column = |t: f64| (t - from) / span * plot[2];
        // A slot is at least a pixel wide.
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

/// First and last column of the highest mark in a part of the page, and its row.
fn highest(browser: &mut Browser, part: [f64; 4]) -> Res<([usize; 2], usize)> {
    let picture = browser.picture(Some(part))?;
    let found = browser.evaluate(&TOPMOST.replace("PICTURE", &picture))?;
    serde_json::from_value::<Option<_>>(found)?.ok_or_else(|| "an empty chart".into())
}
