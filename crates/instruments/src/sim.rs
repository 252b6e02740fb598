//! `quorate sim`: simulates a cluster in a virtual world where everything goes wrong. A seed decides each
//! run.

mod family;
mod graphs;
mod latency;
mod page;
mod sweep;

use std::{ops::Range, path::Path, thread};

use anyhow::{Context as _, Result, bail};
use quorate_sim::{Mutation, Report, Scenario, Sweep, run, sweep};

use quorate_command::{Usage, print_line};

use self::sweep::{FAILURES_MAX, mutation, progress_bar};

/// End of the name of a scenario with disks.
const WITH_DISKS: &str = "_disk";

/// Simulates a scenario under faults and judges the result. A seed decides everything, so the same seed gives
/// the same run.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    other: Option<OtherSimulation>,
    #[arg(required = true, help = scenario_help())]
    scenario: Option<String>,
    #[arg(long, help = disk_help())]
    disk: bool,
    /// Replays this seed.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Number of seeds to sweep.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed of the sweep.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of concurrent runs. By default one for each processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Name of a rule that the simulated processes break on purpose, to see whether the runs detect it.
    #[arg(long)]
    mutation: Option<String>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Simulations that are not swept by seeds.
#[derive(clap::Subcommand)]
enum OtherSimulation {
    Graphs(graphs::Args),
    Latency(latency::Args),
}

fn scenario_help() -> String {
    let names: Vec<&str> = Scenario::names().filter(|name| !name.ends_with(WITH_DISKS)).collect();
    format!("Scenario: {}, or the path of a scenario file", names.join(", "))
}

fn disk_help() -> String {
    format!(
        "Adds disks: processes restart from them, power is cut, writes are torn and lost, and bytes rot. For {}",
        scenarios_with_disks().join(", ")
    )
}

/// Returns the names of the scenarios that can be given together with `--disk`.
fn scenarios_with_disks() -> Vec<&'static str> {
    Scenario::names().filter_map(|name| name.strip_suffix(WITH_DISKS)).collect()
}

impl Args {
    fn name(&self) -> &str {
        self.scenario.as_deref().unwrap_or_default()
    }
}

pub(crate) fn run_scenario(args: Args) -> Result<()> {
    match &args.other {
        Some(OtherSimulation::Graphs(args)) => return graphs::run(args),
        Some(OtherSimulation::Latency(args)) => return latency::run(args),
        None => {}
    }
    let scenario = scenario(args.name(), args.disk)?;
    let mutation = args.mutation.as_deref().map(mutation).transpose()?;
    match args.seed {
        Some(seed) => replay(&args, &scenario, seed, mutation),
        None => {
            let end = args.from.saturating_add(args.seeds);
            sweep_seeds(&args, &scenario, args.from..end, mutation)
        }
    }
}

fn scenario(name: &str, disk: bool) -> Result<Scenario> {
    if disk {
        let found = Scenario::named(&format!("{name}{WITH_DISKS}"));
        return found.ok_or_else(|| {
            let known = scenarios_with_disks().join(", ");
            Usage(format!("there is no scenario \"{name}\" with disks; the scenarios with disks are {known}"))
                .into()
        });
    }
    if let Some(scenario) = Scenario::named(name) {
        return Ok(scenario);
    }
    if !Path::new(name).exists() {
        let known: Vec<&str> = Scenario::names().collect();
        let message =
            format!("there is no scenario or file \"{name}\"; the scenarios are {}", known.join(", "));
        return Err(Usage(message).into());
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
    Scenario::parse(&text).map_err(|error| Usage(format!("{name}: {error}")).into())
}

fn replay(args: &Args, scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Result<()> {
    let report = run(scenario, seed, mutation);
    if args.json {
        print_line!(
            "{}",
            serde_json::json!({
                "scenario": args.name(), "seed": seed, "failure": report.failure, "steps": report.steps,
                "virtual_seconds": report.span.as_secs_f64(), "trace": format!("{:016x}", report.trace),
                "counts": report.counts,
            })
        )?;
    } else {
        for (event, count) in &report.counts {
            print_line!("{count:>10}  {event}")?;
        }
        print_line!(
            "seed {seed}: {} steps, {:.1} s of virtual time, trace {:016x}",
            report.steps,
            report.span.as_secs_f64(),
            report.trace
        )?;
    }
    match report.failure {
        None => Ok(()),
        Some(failure) => bail!("seed {seed} fails: {failure}"),
    }
}

fn sweep_seeds(
    args: &Args,
    scenario: &Scenario,
    seeds: Range<u64>,
    mutation: Option<Mutation>,
) -> Result<()> {
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let total = seeds.end - seeds.start;
    let bar = progress_bar(total, "seeds")?;
    let mut failed = 0;
    let progress = |report: &Report| {
        failed += usize::from(report.failure.is_some());
        bar.set_message(failed.to_string());
        bar.inc(1);
    };
    let sweep = sweep(scenario, seeds, mutation, jobs, FAILURES_MAX, progress);
    bar.finish_and_clear();
    let missing = if mutation.is_none() && sweep.failures.is_empty() && sweep.seeds >= SEEDS_TO_SEE_ALL {
        sweep.missing(scenario)
    } else {
        Vec::new()
    };
    print(args, &sweep, &missing)?;
    if !sweep.failures.is_empty() {
        bail!("{} of {} seeds fail", sweep.failures.len(), sweep.seeds);
    }
    if !missing.is_empty() {
        bail!("no run had these events, so the scenario did not test them: {}", missing.join(", "));
    }
    Ok(())
}

fn print(args: &Args, sweep: &Sweep, missing: &[String]) -> Result<()> {
    let mutation = args.mutation.as_ref().map_or(String::new(), |name| format!(" --mutation {name}"));
    let disk = if args.disk { " --disk" } else { "" };
    let replay = |seed: u64| format!("quorate sim {}{disk} --seed {seed}{mutation}", args.name());
    if args.json {
        let failures: Vec<_> = (sweep.failures.iter())
            .map(|report| serde_json::json!({ "seed": report.seed, "failure": report.failure, "replay": replay(report.seed) }))
            .collect();
        let counts: serde_json::Map<_, _> = (sweep.counts.iter())
            .map(|(event, (count, runs))| {
                (event.clone(), serde_json::json!({ "count": count, "runs": runs }))
            })
            .collect();
        print_line!(
            "{}",
            serde_json::json!({
                "scenario": args.name(), "seeds": sweep.seeds, "steps": sweep.steps,
                "virtual_seconds": sweep.span.as_secs_f64(), "failures": failures, "never": missing, "counts": counts,
            })
        )?;
        return Ok(());
    }
    for (event, (count, runs)) in &sweep.counts {
        print_line!("{count:>10} in {runs:>5} runs  {event}")?;
    }
    for report in &sweep.failures {
        print_line!("\n{}\n  {}", replay(report.seed), report.failure.as_deref().unwrap_or_default())?;
    }
    print_line!(
        "\n{} seeds, {} steps, {:.0} s of virtual time: {} failed",
        sweep.seeds,
        sweep.steps,
        sweep.span.as_secs_f64(),
        sweep.failures.len()
    )?;
    Ok(())
}

/// Number of seeds below which a sweep may miss events that a scenario expects.
const SEEDS_TO_SEE_ALL: u64 = 200;
