//! The settings table in the form of docs/settings.md.

use crate::setting::{Scope, Setting};

/// The page's tables: one for each scope, with a row for each setting.
pub fn page() -> String {
    let mut page = String::new();
    for scope in Scope::ALL {
        page += &format!("\n### {}\n\n", heading(scope));
        page += "| setting | meaning | read from | written to | by latpath | disturbs | lasts |\n";
        page += "|---|---|---|---|---|---|---|\n";
        for setting in Setting::ALL.iter().filter(|setting| setting.info().scope == scope) {
            let info = setting.info();
            // An unescaped bar would end the cell.
            let code = |text: String| text.replace('|', "\\|");
            page += &format!(
                "| `{setting}` | {} | {} | {} | {} | {} | {} |\n",
                info.meaning,
                code(info.read.text()),
                code(info.write.text(info.read)),
                setting.writable().name(),
                info.disturbs.name(),
                info.lasts.name()
            );
        }
    }
    page
}

fn heading(scope: Scope) -> &'static str {
    match scope {
        Scope::Machine => "Machine",
        Scope::Cpu => "CPUs",
        Scope::Interrupt => "Interrupts",
        Scope::Device => "Network devices",
        Scope::Thread => "Threads",
        Scope::ControlGroup => "Control groups",
        Scope::Vm => "Virtual machines",
        Scope::BootParameter => "Kernel command line",
    }
}
