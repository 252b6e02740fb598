//! `quorate lab`: runs figures of the sources and judges their claims.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use comfy_table::{Table, presets};
use quorate::maps::Between;
use quorate_lab::{
    Running, Setting,
    figures::{self, Figure},
    forwarder::{Forwarder, Node},
    quorate_program, record, report, source,
};

use quorate_command::{Usage, print_line};

/// Repeats the experiments behind figures of the research papers on which Quorate is based, on real
/// processes, and tells which of the papers' claims hold here.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: LabTask,
}

#[derive(Subcommand)]
enum LabTask {
    List(ListArgs),
    Run(RunArgs),
    Report(ReportArgs),
    Forward(ForwardArgs),
}

/// Lists the figures with their claims and verdicts.
#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    results: ResultsArgs,
    /// Prints one JSON object for each claim, each on a line.
    #[arg(long)]
    json: bool,
}

/// Runs a figure and stores its results.
#[derive(clap::Args)]
struct RunArgs {
    /// Name of a figure, as in `quorate lab list`, or of a source paper to run all of its figures.
    figure: String,
    /// Number of runs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Duration of each phase, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0)]
    phase: f64,
    /// Number of connections that write concurrently.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    #[command(flatten)]
    running: Running,
    /// Operations a second, for figures that have a rate. By default the rate in the paper.
    #[arg(long)]
    rate: Option<f64>,
    #[command(flatten)]
    results: ResultsArgs,
    /// Prints one JSON object for each run.
    #[arg(long)]
    json: bool,
}

/// Writes a page with all figures, claims and curves.
#[derive(clap::Args)]
struct ReportArgs {
    /// File for the page.
    #[arg(long, default_value = "lab.html")]
    page: PathBuf,
    #[command(flatten)]
    results: ResultsArgs,
}

/// Forwards messages between the nodes of a Cassandra cluster on this machine, as if the nodes were at
/// distant sites.
///
/// Each node listens at its own address and announces a different address to the other nodes. The forwarder
/// listens at the announced addresses (`bench/cassandra start DIR --sites` starts both). It runs until it is
/// killed.
#[derive(clap::Args)]
struct ForwardArgs {
    /// A node: its announced address and its listening address, both with ports. The first node is at site 0,
    /// the next at site 1.
    #[arg(long = "node", value_name = "BROADCAST=LISTEN", required = true)]
    nodes: Vec<Node>,
    /// Address at which the forwarder accepts changes of distances: each connection sends one line of
    /// distances, separated by commas.
    #[arg(long, value_name = "HOST:PORT")]
    door: SocketAddr,
    /// Artificial one-way delay between two sites, in milliseconds: `0-1=18.5`, or `0-1=18.5~2` for up to 2
    /// random milliseconds more. Repeat the option, or separate by commas.
    #[arg(long = "distance", value_delimiter = ',')]
    distances: Vec<Between>,
}

#[derive(clap::Args)]
struct ResultsArgs {
    /// File with the results, one JSON object on each line.
    #[arg(long, default_value = "lab.jsonl")]
    results: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.task {
        LabTask::List(args) => list(&args),
        LabTask::Run(args) => run_figure(&args),
        LabTask::Report(args) => {
            let page = report::page(&record::read(&args.results.results)?)?;
            fs::write(&args.page, page).with_context(|| format!("cannot write {}", args.page.display()))?;
            print_line!("{}", args.page.display())?;
            Ok(())
        }
        LabTask::Forward(args) => {
            let forwarder = Forwarder::start(args.nodes)?;
            forwarder.place(&args.distances)?;
            let door = TcpListener::bind(args.door)
                .with_context(|| format!("cannot listen on --door {}", args.door))?;
            forwarder.serve(&door);
            Ok(())
        }
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let records = record::read(&args.results.results)?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["FIGURE", "CLAIM", "SOURCE", "HERE", "VERDICT"]);
    for figure in figures::ALL {
        let values = source::values(figure.id())?;
        let by_store = record::by_store(&records, figure.id());
        let claims = figure.claims();
        for (claim, (store, own)) in
            by_store.iter().flat_map(|results| claims.iter().map(move |claim| (claim, results)))
        {
            let judged = claim.judge(&values, own);
            if args.json {
                let line = serde_json::json!({
                    "figure": figure.id(), "store": store, "claim": claim.says, "theirs": judged.theirs,
                    "ours": judged.ours, "runs": own.len(), "verdict": judged.verdict.to_string(),
                });
                print_line!("{line}")?;
                continue;
            }
            let number = |value: Option<f64>| value.map_or(String::from("-"), |value| format!("{value:.2}"));
            let ours = judged.ours.map(|[_, median, _]| median);
            table.add_row([
                record::titled(figure.id(), store),
                claim.says.to_owned(),
                number(judged.theirs),
                number(ours),
                judged.verdict.to_string(),
            ]);
        }
    }
    if !args.json {
        print_line!("{table}")?;
    }
    Ok(())
}

fn run_figure(args: &RunArgs) -> Result<()> {
    let chosen = figures::named(&args.figure);
    if chosen.is_empty() {
        let known: Vec<&str> = figures::ALL.iter().map(|figure| figure.id()).collect();
        return Err(Usage(format!(
            "no figure is called {}; the figures are {}",
            args.figure,
            known.join(", ")
        ))
        .into());
    }
    if !(args.phase >= 1.0 && args.phase <= 600.0) {
        return Err(Usage(format!("--phase must be from 1 to 600 seconds, not {}", args.phase)).into());
    }
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        return Err(Usage(String::from("--rate must be more than 0")).into());
    }
    let setting = Setting {
        program: quorate_program()?,
        phase_seconds: args.phase,
        clients: args.clients.max(1),
        running: args.running.clone(),
        rate: args.rate,
    };
    let refused = |figure: &dyn Figure| {
        figure.takes(&setting.running).map_err(|why| format!("the figure {} is not run: {why}", figure.id()))
    };
    let (chosen, others): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|figure| refused(*figure).is_ok());
    let refusals: Vec<String> = others.into_iter().filter_map(|figure| refused(figure).err()).collect();
    if chosen.is_empty() {
        return Err(Usage(refusals.join("\n")).into());
    }
    refusals.iter().for_each(quorate_command::log_stderr);
    record::open(&args.results.results)?;
    let mut wrong = 0;
    for figure in chosen {
        for _ in 0..args.runs {
            let record = figure.run(&setting).with_context(|| format!("figure {}", figure.id()))?;
            record::append(&args.results.results, &record)?;
            wrong += u64::from(!record.account.is_complete());
            if args.json {
                print_line!("{}", serde_json::to_string(&record)?)?;
                continue;
            }
            print_line!("{}: {}", figure.id(), figure.title())?;
            for (name, value) in &record.values {
                print_line!("{name:24} {value:.3}")?;
            }
            let account = record.account;
            print_line!(
                "{} writes acknowledged, {} lost, {} stored twice",
                account.acknowledged,
                account.lost,
                account.doubled
            )?;
        }
    }
    ensure!(wrong == 0, "{wrong} runs lost acknowledged rows, or stored them twice");
    Ok(())
}
