//! `quorate bench tune`: agreements that neither end of the dial keeps, found and held on cells between three sites.
//!
//! For each agreement clients work on a fresh map and the controller turns their dials. First it measures both ends, all operations weak
//! and all strong: both must break the agreement, or there is nothing to show. Then it is timed until it holds a setting, and what
//! clients get from there on is judged by the upper ends of its intervals. Twice the world changes under it: clients ask for three
//! times as much, and then, at the first rate again, one cell after another stands still for 2 s every 20 s. It is timed until
//! it holds again, and judged anew.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use quorate::maps::Level;
use quorate_tune::{
    Agreement, Choice, Controller, Ends, Estimate, Line, Load, Phase, Round, Setting, Standing, Window,
    Workload, hold,
};
use serde_json::{Value, json};

use super::quorum_rig::Rig;

/// Finds and holds agreements that neither the weak nor the strong level keeps.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The agreements, separated by semicolons. As long as none are given: one on the 95th percentile and the proportion of inconsistent
    /// operations, one on the mean and the proportion, one on Γ and throughput.
    #[arg(long, value_delimiter = ';', default_values = AGREEMENTS)]
    sla: Vec<String>,
    /// Clients.
    #[arg(long, default_value_t = 96)]
    clients: u64,
    /// Operations a second of all clients together, before they are tripled.
    #[arg(long, default_value_t = 700.0)]
    rate: f64,
    /// Seconds of a window.
    #[arg(long, default_value_t = 2.0)]
    window: f64,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// At level one some percent are inconsistent; at quorum half of the operations take 37 ms and a third 75.
const AGREEMENTS: [&str; 3] =
    ["p95<=60ms,inconsistent<=1%", "mean<=25ms,inconsistent<=2%", "gamma_p99<=15ms,throughput>=1500"];

/// Three sites as far apart as those of the source.
const CELLS: [&str; 6] = ["--cells", "3", "--sites", "3", "--distance", "0-1=18.5,0-2=37.5,1-2=37.5"];

/// Until a setting is held for the first time, and again after the world has changed.
const FOUND_MOST: Duration = Duration::from_secs(60);
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// So long what it holds is judged.
const JUDGED: Duration = Duration::from_secs(20);
/// A cell stands still so long, and so long passes until the next one does.
const PAUSE: Duration = Duration::from_secs(2);
const BETWEEN_PAUSES: Duration = Duration::from_secs(18);

/// The three parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Calm,
    Tripled,
    Pausing,
}

impl Stage {
    const ALL: [Stage; 3] = [Stage::Calm, Stage::Tripled, Stage::Pausing];

    fn name(self) -> &'static str {
        match self {
            Stage::Calm => "calm",
            Stage::Tripled => "three times the load",
            Stage::Pausing => "a cell pauses 2 s every 20 s",
        }
    }

    fn most(self) -> Duration {
        if self == Stage::Calm { FOUND_MOST } else { AGAIN_MOST }
    }
}

/// The outcome of a stage.
struct Outcome {
    stage: Stage,
    /// From its beginning until the setting was held that still was at the end; none: none was.
    held_after: Option<Duration>,
    setting: Setting,
    /// The clients' figures from there on.
    window: Window,
}

impl Outcome {
    fn holds(&self, lines: &[Line]) -> bool {
        self.held_after.is_some_and(|after| after <= self.stage.most())
            && lines.iter().all(|line| line.standing(&self.window) == Standing::Kept)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let agreements = args.sla.iter().map(|sla| Ok((sla, sla.parse::<Agreement>()?)));
    let agreements = agreements.collect::<Result<Vec<_>>>()?;
    ensure!(
        args.clients > 0 && args.rate > 0.0 && args.window > 0.0,
        "--clients, --rate, --window: more than 0"
    );
    let mut rig = Rig::start(&CELLS)?;
    let mut told = Vec::new();
    for (sla, agreement) in agreements {
        told.push(one(args, &mut rig, agreement).with_context(|| sla.clone())?);
    }
    rig.passed();
    if args.json {
        let holds = told.iter().all(|it| it["holds"] == true);
        let rest = json!({ "bench": "tune", "clients": args.clients, "rate": args.rate, "agreements": told, "holds": holds });
        println!("{rest}");
    }
    Ok(())
}

fn one(args: &Args, rig: &mut Rig, agreement: Agreement) -> Result<Value> {
    let ends = Ends { weak: Level::One, strong: Level::Quorum, choice: Choice::Heat };
    let lines = agreement.lines.clone();
    let mut controller = Controller::new(agreement, ends);
    let workload = Workload::named("004").context("it is among the workloads")?;
    let length = Duration::from_secs_f64(args.window);
    let (pausing, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut course = Course {
        stage: Stage::Calm,
        began: Duration::ZERO,
        held: None,
        outcomes: Vec::new(),
        ends: Vec::new(),
    };
    rig.on_a_map("0:1,1:1,2:1", "blocking", |rig, connect| {
        let load = Load::new(connect, args.clients, &workload, controller.dials(), args.rate);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !pausing.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(50));
                }
                rig.pause(PAUSE, BETWEEN_PAUSES, &over);
            });
            let held = hold(&load, &mut controller, length, |round| {
                let goes_on = course.round(round);
                let rate = if course.stage == Stage::Tripled { 3.0 * args.rate } else { args.rate };
                load.set_rate(rate);
                pausing.store(course.stage == Stage::Pausing, Ordering::Relaxed);
                goes_on
            });
            over.store(true, Ordering::Relaxed);
            Ok(held?)
        })
    })?;
    let broken = |window: &Window| lines.iter().any(|line| line.standing(window) == Standing::Broken);
    let both_fail = course.ends.len() == 2 && course.ends.iter().all(|(_, window)| broken(window));
    let holds = both_fail && course.outcomes.iter().all(|it| it.holds(&lines));
    if !args.json {
        print(&lines, &course, both_fail, holds);
    }
    let shown = |window: &Window| -> Value { lines.iter().map(|line| figures(line, window)).collect() };
    let ends: Vec<Value> = course
        .ends
        .iter()
        .map(|(setting, window)| json!({ "setting": setting, "lines": shown(window), "broken": broken(window) }))
        .collect();
    let stages: Vec<Value> = course
        .outcomes
        .iter()
        .map(|it| {
            json!({
                "stage": it.stage.name(), "held_after_s": it.held_after.map(|after| after.as_secs_f64()),
                "setting": it.setting, "lines": shown(&it.window), "holds": it.holds(&lines),
            })
        })
        .collect();
    let words: Vec<String> = lines.iter().map(Line::to_string).collect();
    Ok(json!({ "agreement": words.join(","), "ends": ends, "stages": stages, "holds": holds }))
}

/// The course of a run.
struct Course {
    stage: Stage,
    /// When the stage began, and since when a setting has been held in it, with what clients got of it.
    began: Duration,
    held: Option<(Duration, Window)>,
    outcomes: Vec<Outcome>,
    /// The figures of all weak and of all strong operations.
    ends: Vec<(Setting, Window)>,
}

impl Course {
    /// Takes a window; says whether the run goes on.
    fn round(&mut self, round: &Round<'_>) -> bool {
        if self.stage == Stage::Calm && round.phase == Phase::Ends && self.ends.len() < 2 {
            self.ends.push((round.setting, round.window.clone()));
        }
        match &mut self.held {
            Some((_, window)) if round.phase == Phase::Hold => window.append(round.window),
            // It was left again, and another one is looked for.
            Some(_) => self.held = None,
            None if round.phase == Phase::Hold && round.controller.phase() == Phase::Hold => {
                self.held = Some((round.at.saturating_sub(self.began), round.window.clone()));
            }
            None => {}
        }
        let spent = round.at.saturating_sub(self.began);
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
        self.outcomes.push(Outcome { stage: self.stage, held_after, setting: round.setting, window });
        self.began = round.at;
        match Stage::ALL.get(self.outcomes.len()) {
            Some(next) => self.stage = *next,
            None => return false,
        }
        true
    }
}

fn figures(line: &Line, window: &Window) -> Value {
    let Estimate { value, low, high } = line.measure.of(window);
    json!({ "line": line.to_string(), "value": value, "low": low, "high": high })
}

fn print(lines: &[Line], course: &Course, both_fail: bool, holds: bool) {
    let told = |window: &Window| -> String {
        let of = |line: &Line| {
            let Estimate { value, low, high } = line.measure.of(window);
            let shown = |value| line.measure.shown(value);
            format!("{} {} ({} to {})", line.measure, shown(value), shown(low), shown(high))
        };
        lines.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let words: Vec<String> = lines.iter().map(Line::to_string).collect();
    println!("{}: {}", words.join(","), if holds { "holds" } else { "misses" });
    for (name, (_, window)) in ["weak", "strong"].iter().zip(&course.ends) {
        println!("  all {name}: {}", told(window));
    }
    if !both_fail {
        println!("  one of the ends keeps it: there is nothing to look for");
    }
    for it in &course.outcomes {
        let after = match it.held_after {
            Some(after) => format!("held after {:.0} s", after.as_secs_f64()),
            None => String::from("not held"),
        };
        println!("  {}: {after}, {:?}: {}", it.stage.name(), it.setting, told(&it.window));
    }
}
