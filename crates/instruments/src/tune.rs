//! `quorate tune`: finds the setting of the dial at which a store keeps an agreement, and holds it.

use std::{io::IsTerminal as _, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use quorate::maps::Level;
use quorate_lab::store::StoreAddress;
use quorate_tune::{
    Agreement, Choice, Controller, Distribution, Estimate, LevelEnds, Line, LineStatus, Load, Phase, Setting,
    Tried, Window, WindowResult, Workload, hold, workload::WORKLOADS,
};
use serde_json::json;

use quorate_command::{Usage, print_line};

/// Finds the setting at which a quorum store keeps an agreement, which is a list of bounds on latency and
/// consistency, and holds this setting.
///
/// Clients work on a map of their own, whose keys are written first. The results of each window of time are
/// judged. The setting is changed until the worse end of the 95 % interval of each measure keeps its bound. A
/// setting lies between the weak and the strong level: it makes the operations on the most read and written
/// keys strong, or it delays operations. A model of the store proposes settings, from the latencies that
/// clients see. At the end the command shows the results of each setting. It exits with 1 if the agreement is
/// not kept at the end.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store. `quorate://HOST:PORT[,HOST:PORT…][/MAP]` names the Redis addresses of cells, over which
    /// clients are spread. `cassandra://HOST:PORT[,HOST:PORT…][/KEYSPACE]` names nodes, where clients work on
    /// a table of their own.
    #[arg(long)]
    store: StoreAddress,
    /// The agreement, with the most important line first: `p95<=10ms,inconsistent<=0.5%`. A line bounds
    /// `pNN`, `mean`, `inconsistent`, `gamma_pNN` or `throughput>=`. `min p99` looks for the fastest setting
    /// that keeps all lines.
    #[arg(long)]
    sla: String,
    /// Workload of the clients: `004`, or `a`, `b`, `c`, `d` or `f` of YCSB.
    #[arg(long, default_value = "004", value_parser = workload)]
    workload: Workload,
    /// Number of keys.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: Option<u64>,
    /// Distribution of the chosen keys: uniform, zipfian or latest.
    #[arg(long, value_parser = distribution)]
    distribution: Option<Distribution>,
    /// Number of clients.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    clients: u64,
    /// Operations a second of all clients together. 0 means as many as they can.
    #[arg(long, default_value_t = 3_000.0)]
    rate: f64,
    /// Level of the operations that are not strong.
    #[arg(long, default_value = "one")]
    weak: Level,
    /// Level of the strong operations.
    #[arg(long, default_value = "quorum")]
    strong: Level,
    /// Chooses the strong operations at random, whatever their key.
    #[arg(long)]
    by_chance: bool,
    /// Length of a window, in seconds.
    #[arg(long, default_value_t = 2.0)]
    window: f64,
    /// Duration in seconds. 0 means until interrupted.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Prints one JSON object for each window, and one at the end.
    #[arg(long)]
    json: bool,
}

fn workload(name: &str) -> Result<Workload, String> {
    let names = WORKLOADS.map(|(name, description)| format!("{name} ({description})")).join(", ");
    Workload::named(name).ok_or_else(|| format!("the workloads are {names}"))
}

fn distribution(name: &str) -> Result<Distribution, String> {
    let names = Distribution::ALL.map(Distribution::name).join(", ");
    Distribution::named(name).ok_or_else(|| format!("the distributions are {names}"))
}

pub(crate) fn run(args: Args) -> Result<()> {
    let agreement: Agreement = args.sla.parse().map_err(|error| Usage(format!("--sla: {error}")))?;
    if !((0.2..=60.0).contains(&args.window) && args.rate >= 0.0 && args.seconds >= 0.0) {
        bail!(Usage(String::from(
            "--window must be from 0.2 to 60 seconds, and --rate and --seconds must not be below 0"
        )));
    }
    let mut workload = args.workload.clone();
    workload.keys = args.keys.unwrap_or(workload.keys);
    workload.distribution = args.distribution.unwrap_or(workload.distribution);
    let choice = if args.by_chance { Choice::Chance } else { Choice::Heat };
    let ends = LevelEnds { weak: args.weak, strong: args.strong, choice };

    let connect = args.store.clients()?;
    let mut controller = Controller::new(agreement.clone(), ends);
    let load = Load::new(&*connect, args.clients, &workload, controller.dials(), args.rate);
    let output = TuneOutput::new(&args, &agreement, ends)?;
    let (mut last, mut printed) = (None, Ok(()));
    hold(&load, &mut controller, Duration::from_secs_f64(args.window), |round| {
        printed = output.round(round);
        last = Some((round.setting, round.window.clone()));
        printed.is_ok() && (args.seconds == 0.0 || round.at.as_secs_f64() < args.seconds)
    })?;
    printed?;
    output.end(&controller)?;
    let (setting, window) =
        last.context("the run ended before the first measurement: give a larger value with --seconds")?;
    let tried_setting = controller.tried().iter().find(|tried| tried.setting == setting);
    let window = tried_setting.map_or(&window, |tried| &tried.window);
    let broken: Vec<String> = agreement
        .lines
        .iter()
        .filter(|line| controller.status(line, setting, window) == LineStatus::Broken)
        .map(|line| measured_line(line, window))
        .collect();
    match controller.phase() {
        Phase::Hold if broken.is_empty() => Ok(()),
        Phase::OutOfReach => {
            Err(anyhow!("no setting keeps the agreement; the best setting breaks it: {}", broken.join(", ")))
        }
        _ if broken.is_empty() => {
            Err(anyhow!("no setting that keeps the agreement was found in {} s", args.seconds))
        }
        _ => Err(anyhow!("the agreement is not kept: {}", broken.join(", "))),
    }
}

/// Formats a line of the agreement with its measured value.
fn measured_line(line: &Line, window: &Window) -> String {
    let Estimate { value, low, high } = line.measure.of(window);
    let shown = |value| line.measure.shown(value);
    format!("{line} is {} ({} to {})", shown(value), shown(low), shown(high))
}

/// The output, for a person or a program.
struct TuneOutput<'a> {
    args: &'a Args,
    agreement: &'a Agreement,
    ends: LevelEnds,
    bar: Option<ProgressBar>,
}

impl<'a> TuneOutput<'a> {
    fn new(args: &'a Args, agreement: &'a Agreement, ends: LevelEnds) -> Result<TuneOutput<'a>> {
        let bar = (!args.json && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_message("writing the keys");
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        if !args.json {
            print_line!("{agreement}: levels {} to {}", ends.weak.name(), ends.strong.name())?;
        }
        Ok(TuneOutput { args, agreement, ends, bar })
    }

    fn round(&self, round: &WindowResult<'_>) -> Result<()> {
        let window = round.window;
        if self.args.json {
            let mut object = json!({
                "tune": "window", "at": round.at.as_secs_f64(), "phase": round.phase, "setting": round.setting,
                "let_go": round.let_go, "predicted": self.predicted(round),
            });
            add(&mut object, self.figures(round.controller, round.setting, window));
            print_line!("{object}")?;
            return Ok(());
        }
        let lines = self.agreement.lines.iter().map(|line| {
            let sign = match round.controller.status(line, round.setting, window) {
                LineStatus::Kept => "✓",
                LineStatus::Open => "?",
                LineStatus::Broken => "✗",
            };
            let predicted = match round.controller.predicted() {
                Some(window) => format!(" (predicted {})", line.measure.shown(line.measure.value(window))),
                None => String::new(),
            };
            format!("{} {} {sign}{predicted}", line.measure, line.measure.shown(line.measure.value(window)))
        });
        let mut lines: Vec<String> = lines.collect();
        if round.let_go > 0 {
            lines.push(format!(
                "{} operations were due before the setting changed, and were left out",
                round.let_go
            ));
        }
        let (phase, dials) = (phase(round.phase), round.setting.dials(self.ends).spelt());
        let text = format!("{:>4.0} s  {phase:<12}  {dials}: {}", round.at.as_secs_f64(), lines.join(", "));
        match &self.bar {
            Some(bar) => bar.println(&text),
            None => print_line!("{text}")?,
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!(
                "{}: {}",
                self::phase(round.controller.phase()),
                round.controller.dials().spelt()
            ));
        }
        Ok(())
    }

    /// Returns the model's prediction for each line, in the order of the lines, or `None` without a model.
    fn predicted(&self, round: &WindowResult<'_>) -> Option<Vec<f64>> {
        let window = round.controller.predicted()?;
        Some(self.agreement.lines.iter().map(|line| line.measure.value(window)).collect())
    }

    fn figures(&self, controller: &Controller, setting: Setting, window: &Window) -> serde_json::Value {
        let lines = self.agreement.lines.iter().map(|line| {
            let Estimate { value, low, high } = line.measure.of(window);
            let status = format!("{:?}", controller.status(line, setting, window)).to_lowercase();
            json!({ "line": line.to_string(), "value": value, "low": low, "high": high, "standing": status })
        });
        json!({
            "lines": lines.collect::<Vec<_>>(), "operations": window.operations(), "failed": window.failed,
            "mean_us": window.mean().value * 1e6, "p50_us": window.latency(0.5).value * 1e6,
            "p95_us": window.latency(0.95).value * 1e6, "p99_us": window.latency(0.99).value * 1e6,
            "inconsistent": window.proportion().value, "inconsistent_high": window.proportion().high,
            "gamma_p99_ms": window.gamma(0.99).value * 1e3, "per_second": window.throughput().value,
        })
    }

    /// Prints all settings tried since the ends were last measured, the fastest first. Together the settings
    /// show the store's trade-off between speed and consistency.
    fn end(&self, controller: &Controller) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let mut tried: Vec<&Tried> = controller.tried().iter().collect();
        tried.sort_by(|a, b| a.window.mean().value.total_cmp(&b.window.mean().value));
        let knee = knee(&tried);
        if self.args.json {
            let settings = tried.iter().map(|tried| {
                let mut object = json!({ "setting": tried.setting });
                add(&mut object, self.figures(controller, tried.setting, &tried.window));
                object
            });
            let held = controller.phase() == Phase::Hold;
            print_line!(
                "{}",
                json!({
                    "tune": "end", "agreement": self.agreement.to_string(), "held": held, "phase": controller.phase(),
                    "setting": controller.setting(), "knee": knee, "tried": settings.collect::<Vec<_>>(),
                })
            )?;
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["setting", "mean", "p95", "p99", "inconsistent", "at most", "Γ p99", "ops/s", ""]);
        for tried in &tried {
            let window = &tried.window;
            let latency = |value: f64| quorate_tune::Measure::Mean.shown(value);
            let part = |value: f64| quorate_tune::Measure::Inconsistent.shown(value);
            let is_held = controller.phase() == Phase::Hold && tried.setting == controller.setting();
            let note = match (is_held, knee == Some(tried.setting)) {
                (true, _) => "held",
                (_, true) => "knee",
                _ => "",
            };
            table.add_row([
                tried.setting.dials(self.ends).spelt(),
                latency(window.mean().value),
                latency(window.latency(0.95).value),
                latency(window.latency(0.99).value),
                part(window.proportion().value),
                part(window.proportion().high),
                latency(window.gamma(0.99).value),
                format!("{:.0}", window.throughput().value),
                note.to_owned(),
            ]);
        }
        print_line!("\n{table}")?;
        Ok(())
    }
}

fn add(object: &mut serde_json::Value, more: serde_json::Value) {
    if let (Some(object), serde_json::Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Ends => "ends",
        Phase::Search => "search",
        Phase::Hold => "hold",
        Phase::OutOfReach => "out of reach",
    }
}

/// Returns the setting farthest below the straight line from the fastest setting to the most consistent one.
fn knee(tried: &[&Tried]) -> Option<Setting> {
    let point = |tried: &Tried| (tried.window.mean().value, tried.window.proportion().value);
    let fastest = point(tried.first()?);
    let strictest =
        tried.iter().map(|it| point(it)).min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.total_cmp(&b.0)))?;
    let (wide, high) = (strictest.0 - fastest.0, fastest.1 - strictest.1);
    if wide <= 0.0 || high <= 0.0 {
        return None;
    }
    let below = |tried: &&&Tried| {
        let (mean, proportion) = point(tried);
        1.0 - (mean - fastest.0) / wide - (proportion - strictest.1) / high
    };
    let lowest = tried.iter().max_by(|a, b| below(a).total_cmp(&below(b)))?;
    (below(&lowest) > 0.0).then_some(lowest.setting)
}
