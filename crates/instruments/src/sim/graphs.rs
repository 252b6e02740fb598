//! `quorate sim graphs`: checks the promise for routers that cannot all talk, for every graph of links.

use std::{collections::BTreeMap, fs, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use quorate_sim::{
    Mutation,
    graphs::{self, Case, Family, Finding},
};

use super::{
    family::FamilySummary,
    page,
    sweep::{FAILURES_MAX, mutation, progress_bar},
};
use quorate_command::{Usage, print_line};

/// Tests partial partitions of routers exhaustively.
///
/// Tries every graph of links between three or five routers, with every leader. Graphs that differ only in
/// the names of the routers count as one. If some router talks in both directions with a majority, clients
/// that can talk with it must make progress within four election timeouts, and the lead must move at most
/// once.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Replays this case.
    #[arg(long, conflicts_with_all = ["sample", "page"])]
    seed: Option<u64>,
    /// Largest number of cases of each kind to run, evenly spread. By default all cases.
    #[arg(long)]
    sample: Option<usize>,
    /// Number of concurrent cases. By default one for each processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Name of a rule that the routers break on purpose, to see whether the cases detect it:
    /// `hears-everybody`, `goes-no-way-round`.
    #[arg(long)]
    mutation: Option<String>,
    /// Writes a page that draws the undirected graphs of five routers, with the clients' waiting times.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mutation = args.mutation.as_deref().map(mutation).transpose()?;
    let cases = graphs::cases();
    if let Some(seed) = args.seed {
        let Some(case) = usize::try_from(seed).ok().and_then(|at| cases.get(at)) else {
            return Err(Usage(format!(
                "there is no case {seed}; the {} cases are numbered from 0",
                cases.len()
            ))
            .into());
        };
        return replay(args, case, mutation);
    }
    let cases = match args.sample {
        Some(cases_max) => graphs::sample(cases, cases_max),
        None => cases,
    };
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let bar = progress_bar(cases.len() as u64, "cases")?;
    let mut failed = 0;
    let findings = graphs::sweep(&cases, mutation, jobs, FAILURES_MAX, |_, finding| {
        failed += usize::from(finding.failure.is_some());
        bar.set_message(failed.to_string());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let pairs = paired(&cases, &findings);
    let kinds: Vec<FamilySummary> = Family::ALL.into_iter().map(|family| summary(family, &pairs)).collect();
    if let Some(path) = &args.page {
        let text = page::render(&pairs, &kinds);
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(args, &kinds, &findings)?;
    if failed > 0 {
        bail!("{failed} of {} cases fail", findings.len());
    }
    Ok(())
}

/// Pairs each finding with its case. A sweep that stopped early has fewer findings than cases.
fn paired<'a>(cases: &'a [Case], findings: &'a [Finding]) -> Vec<(&'a Case, &'a Finding)> {
    let case = |finding: &Finding| cases.binary_search_by_key(&finding.number, |case| case.number);
    findings.iter().filter_map(|finding| Some((&cases[case(finding).ok()?], finding))).collect()
}

fn summary(family: Family, all: &[(&Case, &Finding)]) -> FamilySummary {
    let of_kind = || all.iter().filter(|(case, _)| case.family == family);
    let first = of_kind().filter_map(|(case, finding)| Some((case.shape, finding.phases.first()?.promised)));
    let graphs: BTreeMap<usize, bool> = first.collect();
    let mut kind = FamilySummary {
        family,
        graphs: graphs.len(),
        graphs_promised: graphs.values().filter(|promised| **promised).count(),
        cases: 0,
        promised: 0,
        longest: Duration::ZERO,
        healed: Duration::ZERO,
        failed: 0,
    };
    for (_, finding) in of_kind() {
        kind.cases += 1;
        kind.failed += usize::from(finding.failure.is_some());
        let Some((healed, shapes)) = finding.phases.split_last() else { continue };
        kind.promised += usize::from(shapes.iter().all(|phase| phase.promised));
        kind.longest = shapes.iter().filter_map(|phase| phase.longest()).fold(kind.longest, Duration::max);
        kind.healed = kind.healed.max(healed.longest().unwrap_or_default());
    }
    kind
}

fn command(number: u64, args: &Args) -> String {
    let mutation = args.mutation.as_ref().map_or(String::new(), |name| format!(" --mutation {name}"));
    format!("quorate sim graphs --seed {number}{mutation}")
}

fn print(args: &Args, kinds: &[FamilySummary], findings: &[Finding]) -> Result<()> {
    let failures = || findings.iter().filter(|finding| finding.failure.is_some());
    let steps: u64 = findings.iter().map(|finding| finding.steps).sum();
    if args.json {
        let kinds: Vec<_> = (kinds.iter())
            .map(|kind| {
                serde_json::json!({
                    "kind": kind.family.name(), "graphs": kind.graphs, "graphs_promised": kind.graphs_promised,
                    "cases": kind.cases, "promised": kind.promised, "failed": kind.failed,
                    "longest_ms": kind.longest.as_secs_f64() * 1e3, "healed_ms": kind.healed.as_secs_f64() * 1e3,
                })
            })
            .collect();
        let failures: Vec<_> = failures()
            .map(|it| serde_json::json!({ "seed": it.number, "failure": it.failure, "replay": command(it.number, args) }))
            .collect();
        print_line!(
            "{}",
            serde_json::json!({
                "scenario": "graphs", "cases": findings.len(), "steps": steps, "kinds": kinds, "failures": failures,
                "promised_ms": graphs::PROMISED.as_secs_f64() * 1e3,
            })
        )?;
        return Ok(());
    }
    print_line!(
        "{:>7} {:>9} {:>7} {:>9} {:>8} {:>8} {:>7}",
        "graphs",
        "promised",
        "cases",
        "promised",
        "longest",
        "healed",
        "failed"
    )?;
    for FamilySummary { family, graphs, graphs_promised, cases, promised, longest, healed, failed } in kinds {
        let [longest, healed] = [longest, healed].map(|span| format!("{:.2} s", span.as_secs_f64()));
        print_line!(
            "{graphs:>7} {graphs_promised:>9} {cases:>7} {promised:>9} {longest:>8} {healed:>8} {failed:>7}  {}",
            family.name()
        )?;
    }
    for finding in failures() {
        let failure = finding.failure.as_deref().unwrap_or_default();
        print_line!("\n{}\n  {failure}", command(finding.number, args))?;
    }
    print_line!("\n{} cases, {steps} steps: {} failed", findings.len(), failures().count())?;
    Ok(())
}

fn replay(args: &Args, case: &Case, mutation: Option<Mutation>) -> Result<()> {
    let finding = graphs::run(case, mutation);
    if args.json {
        let phases: Vec<_> = (finding.phases.iter())
            .map(|phase| {
                let served: Vec<_> = (phase.served.iter())
                    .map(|it| {
                        let after = it.after.map(|after| after.as_secs_f64() * 1e3);
                        serde_json::json!({ "promised": it.promised, "after_ms": after })
                    })
                    .collect();
                let links: Vec<_> = phase.graph.links().collect();
                serde_json::json!({ "links": links, "promised": phase.promised, "reigns": phase.reigns, "clients": served })
            })
            .collect();
        print_line!(
            "{}",
            serde_json::json!({
                "scenario": "graphs", "seed": case.number, "kind": case.family.name(), "leader": case.leader,
                "failure": finding.failure, "steps": finding.steps, "trace": format!("{:016x}", finding.trace), "shapes": phases,
            })
        )?;
    } else {
        print_line!("{}, router {} leads", case.family.name(), case.leader)?;
        for phase in &finding.phases {
            let links: Vec<String> = phase.graph.links().map(|(from, to)| format!("{from}→{to}")).collect();
            let promise = if phase.promised { "promised" } else { "not promised" };
            print_line!(
                "\n{}\n  progress is {promise}; routers began to lead {} times",
                links.join(" "),
                phase.reigns
            )?;
            for (client, served) in phase.served.iter().enumerate() {
                let client = if client < phase.graph.routers() {
                    format!("the client of router {client}")
                } else {
                    "the client of all routers".to_owned()
                };
                let answer = served.after.map_or("was not answered".to_owned(), |after| {
                    format!("was answered after {:.3} s", after.as_secs_f64())
                });
                print_line!(
                    "  {client} {answer}{}",
                    if served.promised { "" } else { ", although no answer was promised" }
                )?;
            }
        }
        print_line!("\ncase {}: {} steps, trace {:016x}", case.number, finding.steps, finding.trace)?;
    }
    match finding.failure {
        None => Ok(()),
        Some(failure) => bail!("case {} fails: {failure}", case.number),
    }
}
