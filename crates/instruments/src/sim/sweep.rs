//! The common parts of sweeps over seeds and over graphs: the mutation by its name, the progress bar and the
//! limit of failures.

use std::io::IsTerminal;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use quorate_sim::Mutation;

use quorate_command::Usage;

/// Failures after which a sweep stops.
pub(super) const FAILURES_MAX: usize = 10;

pub(super) fn mutation(name: &str) -> Result<Mutation> {
    Mutation::named(name).ok_or_else(|| {
        let known: Vec<String> = Mutation::ALL.into_iter().map(Mutation::name).collect();
        Usage(format!("there is no mutation \"{name}\"; the mutations are {}", known.join(", "))).into()
    })
}

/// Returns a bar that shows finished and failed runs. It is hidden unless standard error is a terminal.
pub(super) fn progress_bar(total: u64, unit: &str) -> Result<ProgressBar> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let style = format!("{{bar:40}} {{pos}}/{{len}} {unit}, {{msg}} failed, {{eta}} left");
    bar.set_style(ProgressStyle::with_template(&style).context("the template of the progress bar is wrong")?);
    bar.set_message("0");
    Ok(bar)
}
