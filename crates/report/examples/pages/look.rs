//! Checks pages on a desktop, on a phone, in dark mode and on paper: takes screenshots for people to look at, and finds
//! faults automatically.

use crate::browser::{Browser, Res};
use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::{json, Value};
use std::path::Path;

/// Script that finds faults of a displayed page.
const FAULTS: &str = include_str!("look.js");
/// Script that performs all interactions with the charts.
const USE: &str = include_str!("use.js");

/// Window width, colour scheme and medium of a view.
struct View {
    name: &'static str,
    width: usize,
    dark: bool,
    print: bool,
}

/// Views of each page. A4 landscape is 1032 CSS pixels wide within its margins.
const VIEWS: [View; 4] = [
    View { name: "desktop", width: 1280, dark: false, print: false },
    View { name: "phone", width: 390, dark: false, print: false },
    View { name: "dark", width: 1280, dark: true, print: false },
    View { name: "paper", width: 1032, dark: true, print: true },
];

/// Writes `PAGE-VIEW.png` and `PAGE.pdf` into the folder. With `AXE=/path/axe.min.js`, violations found by axe-core
/// count as faults.
///
/// # Errors
/// If any page has a fault.
pub fn at_all(browser: &mut Browser, folder: &Path, pages: &[&str]) -> Res<()> {
    let axe = std::env::var_os("AXE").map(std::fs::read_to_string).transpose()?;
    let mut faults = 0;
    for page in pages {
        let page = Path::new(page);
        let name = page.file_stem().unwrap_or_default().to_string_lossy();
        for view in &VIEWS {
            let found = at(browser, page, view, axe.as_deref())?;
            println!("  {name}, {}: {} faults", view.name, found.len());
            found.iter().for_each(|fault| println!("    {fault}"));
            faults += found.len();
            std::fs::write(folder.join(format!("{name}-{}.png", view.name)), binary(&browser.picture(None)?)?)?;
        }
        std::fs::write(folder.join(format!("{name}.pdf")), binary(&browser.pdf()?)?)?;
    }
    match faults {
        0 => Ok(()),
        _ => Err(format!("{faults} faults").into()),
    }
}

fn binary(base64: &str) -> Res<Vec<u8>> {
    Ok(BASE64_STANDARD.decode(base64)?)
}

/// Finds the faults of a page.
fn at(browser: &mut Browser, page: &Path, view: &View, axe: Option<&str>) -> Res<Vec<String>> {
    let scheme = json!({ "name": "prefers-color-scheme", "value": if view.dark { "dark" } else { "light" } });
    let media = json!({ "media": if view.print { "print" } else { "" }, "features": [scheme] });
    browser.call("Emulation.setEmulatedMedia", media)?;
    browser.resize(view.width, 900)?;
    browser.open(page, "")?;
    let mut faults: Vec<String> = serde_json::from_value(browser.evaluate(FAULTS)?)?;
    if let Some(axe) = axe.filter(|_| !view.print) {
        faults.extend(violations(browser, axe)?);
    }
    if !view.print {
        browser.evaluate(USE)?;
        browser.is_drawn()?;
    }
    faults.extend(browser.console());
    browser.open(page, "")?;
    Ok(faults)
}

/// Violations found by axe-core.
fn violations(browser: &mut Browser, axe: &str) -> Res<Vec<String>> {
    browser.evaluate(axe)?;
    let found = browser.evaluate("axe.run().then(found => found.violations)")?;
    let text = |v: &Value| format!("axe: {}: {}", v["help"].as_str().unwrap_or(""), v["nodes"][0]["html"]);
    Ok(found.as_array().into_iter().flatten().map(text).collect())
}
