//! `quorate bench tune`: agreements that neither end of the dial keeps, found and held on cells between three
//! sites.
//!
//! For each agreement clients work on a fresh map and the controller turns their dials. First it measures
//! both ends, all operations weak and all strong: both must break the agreement, or the bench shows nothing.
//! Then the bench measures the time until the controller holds a setting that keeps the agreement for 20 s,
//! judged by the upper ends of the clients' measurements. Twice the world changes: clients send three times
//! as many operations, and then, at the first rate again, one cell after another stands still for 2 s every
//! 20 s. Each time the bench measures the time until a setting is held again, and judges it. For each setting
//! that was tried, it prints the model's prediction and the measurement.
//!
//! Before that, some fixed settings are measured and compared with their predictions, with two distributions
//! of keys ([`Prediction`]).
//!
//! A running store has latencies of its own, so the user gives the agreements for it, unless a forwarder sets
//! the distances between the same sites. Its nodes pause if the user names their processes.
//!
//! **The agreements** are chosen so that one end of the dial breaks each line, in calm and under three times
//! the load, and so that all stages can keep every line. The three sites are 18.5 and 37.5 ms apart: a strong
//! read takes 37 or 75 ms, a strong write twice that time. A pause of 2 s every 20 s makes a third of the
//! clients wait for one second on average in a tenth of the time. So it adds 33 ms to any mean, which the
//! bound allows, and is beyond the 95th percentile (3.3 % of the operations). The agreement on throughput has
//! fewer clients, so that operations at the strong level are too slow for the rate.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use quorate::maps::Level;
use quorate_tune::{
    Agreement, Choice, Controller, Distribution, Estimate, LevelEnds, Line, LineStatus, Load, Measure, Phase,
    PredictionComparison, Setting, Window, WindowResult, Workload, compare, hold,
};
use serde_json::{Value, json};

use super::quorum_rig::{Rig, Running};
use crate::{figures::FAR, store::Replication};

/// Finds and holds agreements that neither the weak nor the strong level keeps.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    running: Running,
    /// The agreements, separated by semicolons. Default: one on the 95th percentile and the proportion of
    /// inconsistent operations, one on the mean and the proportion, one on Γ and throughput; then predictions
    /// of the model are compared with measurements, too.
    #[arg(long, value_delimiter = ';')]
    sla: Vec<String>,
    /// Clients. Default: 96, and 24 for an agreement on throughput.
    #[arg(long)]
    clients: Option<u64>,
    /// Operations per second of all clients together, before they are tripled.
    #[arg(long, default_value_t = 700.0)]
    rate: f64,
    /// Seconds of a window.
    #[arg(long, default_value_t = 2.0)]
    window: f64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns the copies of each key, in the words of `QUORATE CREATE`.
    fn copies(&self) -> String {
        self.running.store.as_ref().map_or_else(|| COPIES.to_owned(), |place| place.copies().to_string())
    }
}

const AGREEMENTS: [&str; 3] =
    ["p95<=60ms,inconsistent<=1%", "mean<=62ms,inconsistent<=4%", "gamma_p99<=15ms,throughput>=600"];

/// Clients under the agreement on throughput. They are so few that at the strong level all of them together
/// do only 400 operations per second, so that level breaks the agreement.
const CLIENTS_FOR_THROUGHPUT: u64 = 24;
const CLIENTS: u64 = 96;

/// The two levels of the dial.
const ENDS: LevelEnds = LevelEnds { weak: Level::One, strong: Level::Quorum, choice: Choice::Heat };

/// Three sites at the source's distances, with a copy of each key at each.
const CELLS: [&str; 8] = ["--storage", "0", "--cells", "3", "--sites", "3", "--distance", FAR];
const COPIES: &str = "0:1,1:1,2:1";
/// The repair of reads, like that of Cassandra's quorum reads.
const REPAIR: &str = "blocking";

/// Longest time until a setting is held for the first time, and until one is held again after a change.
const FOUND_MOST: Duration = Duration::from_secs(60);
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// Time for which a held setting is judged.
const JUDGED: Duration = Duration::from_secs(20);
/// Pause of a cell, and time until the next cell pauses.
const PAUSE: Duration = Duration::from_secs(2);
const BETWEEN_PAUSES: Duration = Duration::from_secs(18);

/// The three parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TunePhase {
    Calm,
    Tripled,
    Pausing,
}

impl TunePhase {
    const ALL: [TunePhase; 3] = [TunePhase::Calm, TunePhase::Tripled, TunePhase::Pausing];

    fn name(self) -> &'static str {
        match self {
            TunePhase::Calm => "calm",
            TunePhase::Tripled => "three times the load",
            TunePhase::Pausing => "a node pauses 2 s every 20 s",
        }
    }

    fn most(self) -> Duration {
        if self == TunePhase::Calm { FOUND_MOST } else { AGAIN_MOST }
    }
}

/// The outcome of a stage.
struct PhaseOutcome {
    stage: TunePhase,
    /// Time from the start of the stage until the final setting was held; `None` if no setting was held.
    held_after: Option<Duration>,
    setting: Setting,
    /// The clients' measurements since the final setting was held.
    window: Window,
    /// Number of operations that were due before the dials were turned, had not begun by then, and were never
    /// done.
    let_go: u64,
}

impl PhaseOutcome {
    fn holds(&self, lines: &[Line]) -> bool {
        self.held_after.is_some_and(|after| after <= self.stage.most()) && are_kept(lines, &self.window)
    }
}

fn are_kept(lines: &[Line], window: &Window) -> bool {
    lines.iter().all(|line| line.status(window) == LineStatus::Kept)
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let slas: Vec<&str> = match args.sla.is_empty() {
        true => AGREEMENTS.to_vec(),
        false => args.sla.iter().map(String::as_str).collect(),
    };
    let agreements = slas.iter().map(|sla| Ok((sla, sla.parse::<Agreement>()?)));
    let agreements = agreements.collect::<Result<Vec<_>>>()?;
    ensure!(
        args.clients != Some(0) && args.rate > 0.0 && args.window > 0.0,
        "--clients, --rate and --window must be more than 0"
    );
    if args.sla.is_empty() {
        args.running.takes_distances().map_err(|why| {
            anyhow!(
                "give --sla: the default agreements are for a store between sites, and this running store \
                 is not ({why})"
            )
        })?;
    }
    let mut rig = Rig::of(&args.running, &CELLS)?;
    if args.sla.is_empty() {
        args.running.place(FAR)?;
    }
    let mut predictions = Vec::new();
    if args.sla.is_empty() {
        for distribution in [Distribution::Zipfian, Distribution::Latest] {
            predictions.extend(predict(args, &mut rig, distribution)?);
        }
    }
    if !args.json {
        predictions.iter().for_each(|it| println!("{it}"));
    }
    let mut results = Vec::new();
    for (sla, agreement) in agreements {
        results.push(one(args, &mut rig, agreement).with_context(|| (*sla).to_owned())?);
    }
    rig.succeeded();
    if args.json {
        let holds = results.iter().all(|it| it["holds"] == true);
        let predictions: Vec<Value> = predictions.iter().map(Prediction::json).collect();
        let rest = json!({
            "bench": "tune", "store": rig.store().0, "rate": args.rate, "predictions": predictions, "agreements": results, "holds": holds,
        });
        println!("{rest}");
    }
    Ok(())
}

/// The model's prediction for a fixed setting, with the measurement.
struct Prediction {
    distribution: Distribution,
    name: &'static str,
    compared: PredictionComparison,
}

/// The fixed settings, by 004's names: reads before writes.
const PREDICTED: [(&str, Setting); 4] = [
    ("one/one", Setting::WEAK),
    ("one/quorum", Setting { p_writes: 1.0, ..Setting::WEAK }),
    ("quorum/one", Setting { p_reads: 1.0, ..Setting::WEAK }),
    ("p = 0.5", Setting { p_reads: 0.5, p_writes: 0.5, ..Setting::WEAK }),
];
/// Time for which each fixed setting is measured.
const PREDICTED_FOR: Duration = Duration::from_secs(5);

impl Prediction {
    /// Returns the predicted proportion divided by the measured one; `None` if no inconsistency was measured.
    fn factor(&self) -> Option<f64> {
        let measured = self.compared.measured.inconsistent();
        (measured > 0.0).then(|| self.compared.predicted.inconsistent() / measured)
    }

    fn json(&self) -> Value {
        let Estimate { value, low, high } = self.compared.measured.proportion();
        json!({
            "distribution": self.distribution, "setting": self.name, "inconsistent": value, "low": low, "high": high,
            "predicted": self.compared.predicted.inconsistent(), "factor": self.factor(),
        })
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value| Measure::Inconsistent.shown(value);
        let Estimate { value, low, high } = self.compared.measured.proportion();
        let predicted = shown(self.compared.predicted.inconsistent());
        write!(out, "{}, {}: inconsistent {} ", self.distribution.name(), self.name, shown(value))?;
        write!(out, "({} to {}), predicted {predicted}", shown(low), shown(high))
    }
}

/// Measures the fixed settings with keys of a distribution. Chance decides which operations are strong, as in
/// 004.
fn predict(args: &Args, rig: &mut Rig, distribution: Distribution) -> Result<Vec<Prediction>> {
    let ends = LevelEnds { choice: Choice::Chance, ..ENDS };
    let workload =
        Workload { distribution, ..Workload::named("004").context("there is no workload named 004")? };
    let clients = args.clients.unwrap_or(CLIENTS);
    let settings = PREDICTED.map(|(_, setting)| setting);
    let compared = rig.on_a_map(&Replication::quorum(args.copies(), REPAIR), |_, connect| {
        let load = Load::new(connect, clients, &workload, Setting::WEAK.dials(ends), args.rate);
        Ok(compare(&load, ends, &settings, PREDICTED_FOR)?)
    })?;
    let compared = compared.context("no client could read a key that the bench had written")?;
    let named = PREDICTED.iter().zip(compared);
    Ok(named.map(|((name, _), compared)| Prediction { distribution, name, compared }).collect())
}

fn one(args: &Args, rig: &mut Rig, agreement: Agreement) -> Result<Value> {
    let lines = agreement.lines.clone();
    let is_of_throughput = lines.iter().any(|line| line.measure == Measure::Throughput);
    let clients = args.clients.unwrap_or(if is_of_throughput { CLIENTS_FOR_THROUGHPUT } else { CLIENTS });
    let mut controller = Controller::new(agreement, ENDS);
    let workload = Workload::named("004").context("there is no workload named 004")?;
    let length = Duration::from_secs_f64(args.window);
    let (pausing, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut tune_run = TuneRun {
        lines: lines.clone(),
        stages: if rig.can_pause() { &TunePhase::ALL } else { &TunePhase::ALL[..2] },
        stage: TunePhase::Calm,
        began: Duration::ZERO,
        held: None,
        outcomes: Vec::new(),
        ends: Vec::new(),
        tried: Vec::new(),
        let_go: 0,
    };
    rig.on_a_map(&Replication::quorum(args.copies(), REPAIR), |rig, connect| {
        let load = Load::new(connect, clients, &workload, controller.dials(), args.rate);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !pausing.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(50));
                }
                rig.pause(PAUSE, BETWEEN_PAUSES, &over);
            });
            let held = hold(&load, &mut controller, length, |round| {
                let goes_on = tune_run.round(round);
                let rate = if tune_run.stage == TunePhase::Tripled { 3.0 * args.rate } else { args.rate };
                load.set_rate(rate);
                pausing.store(tune_run.stage == TunePhase::Pausing, Ordering::Relaxed);
                goes_on
            });
            over.store(true, Ordering::Relaxed);
            Ok(held?)
        })
    })?;
    let broken = |window: &Window| lines.iter().any(|line| line.status(window) == LineStatus::Broken);
    let both_fail = tune_run.ends.len() == 2 && tune_run.ends.iter().all(|(_, window)| broken(window));
    let holds = both_fail && tune_run.outcomes.iter().all(|it| it.holds(&lines));
    if !args.json {
        print(&lines, &tune_run, both_fail, holds);
    }
    let shown = |window: &Window| -> Value { lines.iter().map(|line| figures(line, window)).collect() };
    let ends: Vec<Value> = tune_run
        .ends
        .iter()
        .map(|(setting, window)| json!({ "setting": setting, "lines": shown(window), "broken": broken(window) }))
        .collect();
    let stages: Vec<Value> = tune_run
        .outcomes
        .iter()
        .map(|it| {
            json!({
                "stage": it.stage.name(), "held_after_s": it.held_after.map(|after| after.as_secs_f64()),
                "let_go": it.let_go, "setting": it.setting, "lines": shown(&it.window), "holds": it.holds(&lines),
            })
        })
        .collect();
    let tried: Vec<Value> = tune_run
        .tried
        .iter()
        .map(|it| {
            json!({
                "stage": it.stage.name(), "setting": it.setting, "seconds": it.measured.span.as_secs_f64(),
                "lines": shown(&it.measured),
                "predicted": it.predicted.as_ref().map(|window| predicted(&lines, window)),
            })
        })
        .collect();
    let words: Vec<String> = lines.iter().map(Line::to_string).collect();
    let agreement = words.join(",");
    Ok(json!({
        "agreement": agreement, "clients": clients, "ends": ends, "stages": stages, "tried": tried, "holds": holds,
    }))
}

/// The course of a run.
struct TuneRun {
    /// The lines of the agreement.
    lines: Vec<Line>,
    stages: &'static [TunePhase],
    stage: TunePhase,
    /// The start of the stage.
    began: Duration,
    /// The start of the held setting, with the clients' measurements since then; `None` if no setting is
    /// held.
    held: Option<(Duration, Window)>,
    outcomes: Vec<PhaseOutcome>,
    /// The measurements of all weak and of all strong operations.
    ends: Vec<(Setting, Window)>,
    /// All settings that were tried, in order.
    tried: Vec<TriedSetting>,
    /// Number of operations in this stage that were due before the dials were turned, had not begun by then,
    /// and were never done.
    let_go: u64,
}

/// A setting, for the time that the dials kept it in one stage.
struct TriedSetting {
    stage: TunePhase,
    setting: Setting,
    measured: Window,
    /// The model's prediction, from the latencies of its first window.
    predicted: Option<Window>,
}

impl TuneRun {
    /// Takes a window. Returns whether the run continues.
    fn round(&mut self, round: &WindowResult<'_>) -> bool {
        if self.stage == TunePhase::Calm && round.phase == Phase::Ends && self.ends.len() < 2 {
            self.ends.push((round.setting, round.window.clone()));
        }
        self.let_go += round.let_go;
        match self.tried.last_mut().filter(|it| it.stage == self.stage && it.setting == round.setting) {
            Some(tried) => tried.measured.append(round.window),
            None => self.tried.push(TriedSetting {
                stage: self.stage,
                setting: round.setting,
                measured: round.window.clone(),
                predicted: round.controller.predicted().cloned(),
            }),
        }
        match &mut self.held {
            Some((_, window)) if round.phase == Phase::Hold => window.append(round.window),
            // The setting was left, and the controller looks for another setting.
            Some(_) => self.held = None,
            None if round.phase == Phase::Hold && round.controller.phase() == Phase::Hold => {
                self.held = Some((round.at.saturating_sub(self.began), round.window.clone()));
            }
            None => {}
        }
        let spent = round.at.saturating_sub(self.began);
        let lines = &self.lines;
        let fails =
            |(after, window): &mut (Duration, Window)| spent >= *after + JUDGED && !are_kept(lines, window);
        if spent < self.stage.most() && self.held.take_if(fails).is_some() {
            // The time is not over, so a later setting may keep the agreement.
            return true;
        }
        let until = match &self.held {
            Some((after, _)) => *after + JUDGED,
            None => self.stage.most() + JUDGED,
        };
        if spent < until {
            return true;
        }
        let (held_after, window) = match self.held.take() {
            Some((after, window)) => (Some(after), window),
            None => (None, round.window.clone()),
        };
        let let_go = std::mem::take(&mut self.let_go);
        self.outcomes.push(PhaseOutcome {
            stage: self.stage,
            held_after,
            setting: round.setting,
            window,
            let_go,
        });
        self.began = round.at;
        match self.stages.get(self.outcomes.len()) {
            Some(next) => self.stage = *next,
            None => return false,
        }
        true
    }
}

fn spelt(setting: Setting) -> String {
    setting.dials(ENDS).spelt()
}

fn figures(line: &Line, window: &Window) -> Value {
    let Estimate { value, low, high } = line.measure.of(window);
    json!({ "line": line.to_string(), "value": value, "low": low, "high": high })
}

fn predicted(lines: &[Line], window: &Window) -> Vec<f64> {
    lines.iter().map(|line| line.measure.value(window)).collect()
}

fn print(lines: &[Line], tune_run: &TuneRun, both_fail: bool, holds: bool) {
    let summary = |window: &Window| -> String {
        let of = |line: &Line| {
            let Estimate { value, low, high } = line.measure.of(window);
            let shown = |value| line.measure.shown(value);
            format!("{} {} ({} to {})", line.measure, shown(value), shown(low), shown(high))
        };
        lines.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let words: Vec<String> = lines.iter().map(Line::to_string).collect();
    println!("{}: {}", words.join(","), if holds { "holds" } else { "misses" });
    for (name, (_, window)) in ["weak", "strong"].iter().zip(&tune_run.ends) {
        println!("  all {name}: {}", summary(window));
    }
    if !both_fail {
        println!(
            "  the weakest or the strongest setting alone keeps this agreement, so there is nothing to \
             find"
        );
    }
    for it in &tune_run.outcomes {
        let after = match it.held_after {
            Some(after) => format!("held after {:.0} s", after.as_secs_f64()),
            None => String::from("not held"),
        };
        println!("  {}: {after}, {}: {}", it.stage.name(), spelt(it.setting), summary(&it.window));
        if it.let_go > 0 {
            println!(
                "    {} operations were due and not begun when the dials were turned, and were dropped",
                it.let_go
            );
        }
    }
    for it in &tune_run.tried {
        let pairs = lines.iter().map(|line| {
            let shown = |window: &Window| line.measure.shown(line.measure.value(window));
            let predicted = it.predicted.as_ref().map_or_else(|| String::from("nothing"), shown);
            format!("{} {}, predicted {predicted}", line.measure, shown(&it.measured))
        });
        let pairs: Vec<String> = pairs.collect();
        let seconds = it.measured.span.as_secs_f64();
        println!("  tried, {}, {seconds:.0} s, {}: {}", it.stage.name(), spelt(it.setting), pairs.join("; "));
    }
}
