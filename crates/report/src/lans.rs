//! Copies of packets on the LANs of redundant networks (PRP, HSR), if any.

use crate::page::Page;
use latpath_stats::text::Table;
use latpath_stats::units::share;
use latpath_stats::Summary;

/// Writes a row for each place and LAN.
pub(crate) fn write(page: &mut Page, summary: &Summary) {
    if summary.lans.is_empty() {
        return;
    }
    page.heading("Redundant networks, by LAN");
    let mut table = Table::new(&["<place", "<LAN", "<seen at", "packets", "lost", "of all", "first", "of all"]);
    for lan in &summary.lans {
        let all = lan.packets.saturating_add(lan.lost);
        table.row(vec![
            page.clean(&lan.place),
            lan.lan.clone(),
            if lan.points.is_empty() { "-".into() } else { page.clean(&lan.points.join(", ")) },
            page.count(lan.packets),
            page.count(lan.lost),
            share(lan.lost, all),
            page.count(lan.first),
            share(lan.first, all),
        ]);
    }
    page.table(&table);
}

/// Returns the line for a live view, e.g. `LAN A lost 3  LAN B lost 0`; `None` if there are no redundant networks.
pub(crate) fn line(page: &Page, summary: &Summary) -> Option<String> {
    use latpath_model::point::Lan;
    let of = |lan: Lan| {
        let lost = latpath_stats::lans::lost_on(&summary.lans, lan)?;
        Some(format!("LAN {} lost {}", lan.name(), page.count(lost)))
    };
    let all: Vec<String> = Lan::ALL.into_iter().filter_map(of).collect();
    (!all.is_empty()).then(|| all.join("  "))
}
