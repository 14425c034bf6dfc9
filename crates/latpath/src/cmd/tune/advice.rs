//! The settings that the advice of `latpath explain` on a run names.

use super::super::quoted;
use anyhow::{bail, Result};
use latpath_analysis::explain::run_context;
use latpath_analysis::{Explainer, RunCaptures};
use latpath_capture::CaptureKind;
use latpath_run::Run;
use latpath_settings::Setting;
use latpath_tune::Profile;
use std::path::Path;

/// The profile with only the lines about settings that the advice on a run's late packets names.
///
/// # Errors
/// If the run cannot be read, has no captures, or no advice names a setting of the profile.
pub fn restricted(profile: Profile, run: &Path) -> Result<Profile> {
    let opened = Run::open(run)?;
    let mut captures = RunCaptures::new(&opened);
    if captures.files.files.is_empty() {
        bail!("{}: it has no captures of late packets, so there is no advice to take", run.display());
    }
    let mut explainer = Explainer::new(run_context(&opened), 0);
    captures.learn(&mut explainer);
    captures.each(CaptureKind::Spike, |capture| explainer.add(capture));
    let explanation = explainer.explanation();
    let advised = explanation.ranking.iter().flat_map(|ranked| &ranked.advice).flat_map(|advice| &advice.settings);
    let mut advised: Vec<Setting> = advised.copied().collect();
    advised.sort_unstable();
    advised.dedup();
    let restricted = profile.restricted_to(&advised);
    if restricted.lines.is_empty() {
        let names: Vec<&str> = advised.iter().map(|setting| setting.id()).collect();
        let advice = match names.is_empty() {
            true => "names no setting".into(),
            false => format!("names {}, about which profile {} says nothing", names.join(", "), restricted.name),
        };
        bail!("the advice on {} {advice}; latpath explain {} prints it", run.display(), quoted(run));
    }
    Ok(restricted)
}
