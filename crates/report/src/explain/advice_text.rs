//! Advice as text.

use crate::page::Page;
use latpath_cause::Advice;
use latpath_model::HOST;

/// Prefix with the advice's machine: `on guest0: `; empty for the host.
pub(super) fn on_machine(advice: &Advice) -> String {
    match advice.machine.as_str() {
        "" | HOST => String::new(),
        machine => format!("on {machine}: "),
    }
}

/// Writes a piece of advice, with its purpose `is_for`, and the commands below it. Commands are not wrapped.
pub(super) fn fix(page: &mut Page, advice: &Advice, is_for: &str, before: &str, indent: usize) {
    let what = page.clean(&(on_machine(advice) + &advice.what + is_for));
    page.wrapped(before.into(), indent, &what);
    for command in &advice.commands {
        page.code(indent + 2, command);
    }
}
