//! The controller: turns the dials until an agreement is kept, and again when it no longer is.
//!
//! **Promise.** It is told of one window after another, each of a single setting, and answers with the next setting. A line counts as kept
//! only if the upper end of its 95 % interval keeps it. An agreement that no setting keeps is said to be out of reach; then the
//! setting that breaks the least important lines the least stays, and it is tried again later.
//! A line that allows no inconsistency is kept by the strong levels alone, because they promise it: no count shows it.
//!
//! **How.** Both ends are measured first: all operations weak, then all strong. If neither keeps the agreement, settings between them are
//! looked for along *ways*:
//!
//! | way | what grows from 0 to 1 |
//! |---|---|
//! | levels | the part of operations that are strong |
//! | delays | a delay before reads and after writes, up to what the lines on latency leave |
//! | write delays | one after writes alone |
//! | reads, writes | the part of the reads, or of the writes, that are strong |
//!
//! The [model](crate::model) *proposes*: of some places on each way it takes the one that it predicts to be farthest within all bounds. Windows
//! *dispose*: along a way consistency gets better and speed worse, so a setting with too little of the one shows on which side of it to go on, and one
//! with too little of both shows that the way does not lead there. So each try makes the stretch of its way shorter, by half after two that failed, and the search
//! ends however wrong the model is. What a window shows beside its prediction also *corrects* the predictions of that line from then on. A way whose best place is predicted
//! to be beyond a bound by more than `HOPELESS` is tried only if no other is left.
//! Without a model (nobody could sound the store) ways are halved one after another. Where the strong end breaks a line on a percentile,
//! delays come before levels: a few strong operations are enough to break it, and 004 (§III.D) found delays better there.
//!
//! ```text
//!             ┌──── a line broken, or a load at which it will be ────┐
//!             ▼                                                      │
//!  weak ─▶ strong ─▶ search: propose, measure, correct ─▶ hold ──────┘
//!   ▲                          │ no way leads there
//!   └── after a while ── out of reach
//! ```
//!
//! **Hysteresis.** A setting that is held is judged by its last [`HELD`] windows together: 20 s of windows of 2 s, in which a pause of 2 s every 20 s comes once.
//! It is left if together they break a line, or if [`BROKEN_IN_A_ROW`] windows do one after another, each by itself. A pause that comes now and
//! then breaks a window or two, and moves nothing. A line on consistency is also left if [`DRIFTING`] windows together measure more than its bound, surely or not.
//! When the clients' rate changes, the model is asked whether the held setting will do; if not, it is left at once. The search that follows does not go
//! back to the ends, which break the agreement themselves: it begins with the model and the stretches that remain.

use std::collections::VecDeque;

use serde::Serialize;

use crate::{
    agreement::{Agreement, Line, Measure, Standing},
    dial::Dials,
    load::Tape,
    model::Model,
    ways::{Stretch, Way},
    window::Window,
};

pub use crate::ways::{Ends, Setting};

/// The phases of a controller's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Measures what all weak or all strong operations give.
    Ends,
    /// Looks for a setting that keeps the agreement.
    Search,
    /// Keeps it.
    Hold,
    /// No setting keeps it; the best that was found stays.
    OutOfReach,
}

/// A setting that was tried, with all windows of it together.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The setting of the dials.
    pub setting: Setting,
    /// All windows of this setting together.
    pub window: Window,
}

/// Finds a setting that keeps an agreement, and stays with it.
#[derive(Debug)]
pub struct Controller {
    agreement: Agreement,
    ends: Ends,
    at: Setting,
    state: State,
    /// Since the ends were measured last.
    tried: Vec<Tried>,
    /// All ways from the ends that were measured last, whole.
    ways: Vec<Stretch>,
    model: Option<Model>,
    /// The clients' rate that the model was told last.
    rate: f64,
    /// The model's window of the setting that was observed last.
    predicted: Option<Window>,
    corrections: Vec<Correction>,
}

#[derive(Debug)]
enum State {
    Weak,
    Strong,
    Search(Search),
    Hold(Held),
    /// For so many windows, since clients had this rate.
    OutOfReach {
        windows: u32,
        rate: f64,
    },
}

/// A setting that is being tried, and those that are left.
#[derive(Debug)]
struct Search {
    stretches: Vec<Stretch>,
    /// The stretch of the setting, and the place there.
    which: usize,
    x: f64,
    seen: Window,
    windows: u32,
    /// Whether it began at a setting that had been held: before it is given up, everything is looked at again.
    follows: bool,
}

/// A setting that is kept.
#[derive(Debug)]
struct Held {
    way: Way,
    x: f64,
    recent: VecDeque<Window>,
    /// Windows that broke a line by themselves, up to now without one between them that did not.
    broken: u32,
    /// The clients' rate when it was chosen.
    rate: f64,
}

/// How far the predictions of a line are off: the logarithm of measured by predicted. None as long as nothing showed it.
#[derive(Clone, Copy, Debug, Default)]
struct Correction(Option<f64>);

/// The predictions for a setting.
#[derive(Clone, Copy, Debug)]
struct Outlook {
    /// How far it is within the bound that it is nearest to, as a logarithm; negative if it is beyond.
    worst: f64,
    /// More is better.
    score: f64,
}

/// A place of a stretch: whether it has hope, its score, the stretch, and where on its way it is.
type Ranked = (bool, f64, usize, f64);

/// Ways of which more than the middle is considered.
const CLOSER: usize = 2;
/// Windows of one setting before what is open counts as broken.
const WINDOWS_MAX: u32 = 4;
/// Windows that a setting that is held is judged by.
pub const HELD: usize = 10;
/// Broken windows, one after another, after which a setting is left.
pub const BROKEN_IN_A_ROW: u32 = 4;
/// Windows that together show that consistency is beyond its bound, though not surely.
pub const DRIFTING: usize = 6;
/// How far from a setting that was held a better one on its way is looked for first.
const REACH: f64 = 0.25;
/// Windows after which what was out of reach is tried again.
const PATIENCE: u32 = 10;
/// A prediction beyond its bound by more than this factor has little hope.
const HOPELESS: f64 = 4.0;
/// A rate that differs by more than this part is another one.
const ANOTHER_RATE: f64 = 0.2;
/// Below this part of a bound, differences between measured and predicted are chance.
const CHANCE: f64 = 0.05;
/// Predictions are corrected by no more than this factor.
const CORRECTION_MOST: f64 = 20.0;
/// How much the line that is nearest to its bound counts beside the others.
const SHARPNESS: f64 = 4.0;
/// When the rate changes, a setting is wanted that is within its bounds by this factor.
const SAFETY: f64 = 1.1;
/// With something to make least, settings are wanted that are within their bounds by this factor.
const MARGIN: f64 = 1.15;

impl Correction {
    fn learn(&mut self, line: &Line, measured: f64, predicted: f64) {
        let floor = line.bound * CHANCE;
        if measured.max(predicted) <= 2.0 * floor || !predicted.is_finite() {
            // Both say that there is next to nothing, or nobody was answered in the model.
            return;
        }
        let most = CORRECTION_MOST.ln();
        let off = ((measured + floor) / (predicted + floor)).max(1e-9).ln().clamp(-most, most);
        self.0 = Some(self.0.map_or(off, |before| (before + off) / 2.0));
    }

    fn apply(self, line: &Line, predicted: f64) -> f64 {
        let floor = line.bound * CHANCE;
        ((predicted + floor) * self.0.unwrap_or(0.0).exp() - floor).max(floor)
    }
}

/// How a window stands to the two kinds of lines.
#[derive(Clone, Copy, Debug)]
struct Sides {
    consistency: Standing,
    speed: Standing,
}

impl Sides {
    fn are_broken(self) -> bool {
        self.consistency == Standing::Broken || self.speed == Standing::Broken
    }
}

impl Controller {
    /// A controller that has been told of no window. It begins with all operations weak.
    pub fn new(agreement: Agreement, ends: Ends) -> Controller {
        Controller {
            corrections: vec![Correction::default(); agreement.lines.len()],
            agreement,
            ends,
            at: Setting::WEAK,
            state: State::Weak,
            tried: Vec::new(),
            ways: Vec::new(),
            model: None,
            rate: 0.0,
            predicted: None,
        }
    }

    /// Gives it a model of the store, which proposes settings from then on.
    pub fn equip(&mut self, model: Model) {
        self.model = Some(model);
    }

    /// The levels between which the dial is.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// Takes what clients did, of whatever setting, and the rate that they are asked for, in operations a second (0: as many as they can).
    pub fn learn(&mut self, tape: &Tape, rate: f64) {
        self.rate = rate;
        if let Some(model) = &mut self.model {
            model.learn(&tape.served);
            model.expect(rate);
        }
    }

    /// The setting that the dials are to have now.
    pub fn setting(&self) -> Setting {
        self.at
    }

    /// The dials of that.
    pub fn dials(&self) -> Dials {
        self.at.dials(self.ends)
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Weak | State::Strong => Phase::Ends,
            State::Search(_) => Phase::Search,
            State::Hold(_) => Phase::Hold,
            State::OutOfReach { .. } => Phase::OutOfReach,
        }
    }

    /// All settings that were tried since both ends were measured last, in that order.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// The window that the model predicted for the setting that was observed last, without corrections.
    pub fn predicted(&self) -> Option<&Window> {
        self.predicted.as_ref()
    }

    /// Whether a line is kept by a window of a setting.
    pub fn standing(&self, line: &Line, setting: Setting, window: &Window) -> Standing {
        match line.allows_none() {
            false => line.standing(window),
            true if setting == Setting::STRONG && line.measure.value(window) == 0.0 => Standing::Kept,
            true => Standing::Broken,
        }
    }

    /// Takes a window of the setting that the dials stand at. Afterwards they may have to be turned.
    pub fn observe(&mut self, window: &Window) {
        self.note(window);
        self.correct(window);
        match std::mem::replace(&mut self.state, State::Weak) {
            State::Weak if self.is_kept(window) => self.hold(Way::Levels, 0.0),
            State::Weak => (self.state, self.at) = (State::Strong, Setting::STRONG),
            State::Strong if self.is_kept(window) && self.agreement.least.is_none() => {
                self.hold(Way::Levels, 1.0)
            }
            State::Strong if self.agreement.wants_atomic() => {
                if self.is_kept(window) {
                    self.hold(Way::Levels, 1.0)
                } else {
                    self.give_up()
                }
            }
            State::Strong => {
                self.ways = self.ways_between(window);
                let mut stretches = self.ways.clone();
                if self.is_kept(window) {
                    stretches.retain(|stretch| stretch.way == Way::Levels);
                    stretches.iter_mut().for_each(|levels| levels.kept = Some(1.0));
                }
                self.propose(stretches, false);
            }
            State::Search(search) => self.search(search, window),
            State::Hold(held) => self.held(held, window),
            State::OutOfReach { windows: PATIENCE.., .. } => self.again(),
            State::OutOfReach { rate, .. } if self.is_kept(window) || self.is_another_rate(rate) => {
                self.again()
            }
            State::OutOfReach { windows, rate } => {
                self.state = State::OutOfReach { windows: windows + 1, rate };
            }
        }
    }

    fn note(&mut self, window: &Window) {
        match self.tried.iter_mut().find(|tried| tried.setting == self.at) {
            Some(tried) if tried.window.span < window.span * HELD as u32 => tried.window.append(window),
            // Old windows say little of the present.
            Some(tried) => tried.window = window.clone(),
            None => self.tried.push(Tried { setting: self.at, window: window.clone() }),
        }
    }

    /// Compares a window with what the model has of its setting.
    fn correct(&mut self, window: &Window) {
        self.predicted = self.model.as_ref().map(|model| model.predict(self.at));
        let Some(predicted) = &self.predicted else { return };
        for (line, correction) in self.agreement.lines.iter().zip(&mut self.corrections) {
            correction.learn(line, line.measure.value(window), line.measure.value(predicted));
        }
    }

    fn sides(&self, window: &Window) -> Sides {
        let worst = |of_consistency: bool| {
            let lines = self.agreement.lines.iter();
            let lines = lines.filter(|line| line.measure.is_of_consistency() == of_consistency);
            lines.map(|line| self.standing(line, self.at, window)).max().unwrap_or(Standing::Kept)
        };
        Sides { consistency: worst(true), speed: worst(false) }
    }

    fn is_kept(&self, window: &Window) -> bool {
        let Sides { consistency, speed } = self.sides(window);
        consistency == Standing::Kept && speed == Standing::Kept
    }

    /// The ways that may lead to a setting that keeps the agreement. `strong` is the window of the strong end.
    fn ways_between(&self, strong: &Window) -> Vec<Stretch> {
        let weak = self.tried.first().map(|tried| &tried.window);
        // Medians, because one bad window must not close a way.
        let usual = weak.map_or(0.0, |window| window.latency(0.5).value);
        let room = |line: &Line| match line.measure {
            Measure::Latency(_) | Measure::Mean => Some(line.bound - usual),
            _ => None,
        };
        let room = self.agreement.lines.iter().filter_map(room).reduce(f64::min);
        // A little more than what the farthest message takes, and what most operations take, is enough for all.
        let far = match &self.model {
            Some(model) => {
                1.5 * model.farthest().as_secs_f64() + weak.map_or(0.0, |it| 2.0 * it.latency(0.9).value)
            }
            None => 2.0 * strong.latency(0.99).value,
        };
        let bounds_percentile = |line: &Line| matches!(line.measure, Measure::Latency(_));
        let bounded = self.agreement.lines.iter().any(bounds_percentile);
        let breaks_percentile = self
            .agreement
            .lines
            .iter()
            .any(|line| bounds_percentile(line) && line.standing(strong) == Standing::Broken);
        let longest = room.map_or(far, |room| room.min(2.0 * far).max(0.0));
        // A mean has more room for what only some operations do.
        let of_writes = if bounded { longest } else { 2.0 * far };
        let mut ways = vec![Way::Levels, Way::Delays(longest)];
        if breaks_percentile {
            ways.swap(0, 1);
        }
        ways.extend([Way::WriteDelays(of_writes), Way::Reads, Way::Writes]);
        ways.into_iter().map(Stretch::whole).collect()
    }

    /// The model's word on a setting, corrected; none without a model.
    fn outlook(&self, setting: Setting) -> Option<Outlook> {
        let window = self.model.as_ref()?.predict(setting);
        let slack = |(line, correction): (&Line, &Correction)| match line.allows_none() {
            true if setting != Setting::STRONG => f64::NEG_INFINITY,
            true => f64::INFINITY,
            false => line.slack(correction.apply(line, line.measure.value(&window))),
        };
        let slacks: Vec<f64> = self.agreement.lines.iter().zip(&self.corrections).map(slack).collect();
        let worst = slacks.iter().copied().fold(f64::INFINITY, f64::min);
        let score = match self.agreement.least {
            // All that is well within its bounds comes before all that is not.
            Some(measure) if worst >= MARGIN.ln() => 1e3 - measure.value(&window).max(1e-9).ln(),
            _ => -slacks.iter().map(|slack| (-SHARPNESS * slack).exp()).sum::<f64>().max(1e-300).ln(),
        };
        Some(Outlook { worst, score })
    }

    /// Turns to the most promising place of these stretches.
    fn propose(&mut self, stretches: Vec<Stretch>, follows: bool) {
        let kept = stretches.iter().find(|stretch| stretch.kept.is_some());
        let left = |stretch: &&Stretch| !stretch.is_over() && (kept.is_none() || stretch.kept.is_some());
        let open: Vec<usize> = (0..stretches.len()).filter(|at| left(&&stretches[*at])).collect();
        let Some(first) = open.first() else {
            return match kept {
                Some(&Stretch { way, kept: Some(x), .. }) => self.hold(way, x),
                _ if follows => self.again(),
                _ => self.give_up(),
            };
        };
        // The middles show which ways are worth a closer look.
        let rank = |at: usize, x: f64| {
            let Outlook { worst, score } = self.outlook(stretches[at].way.at(x))?;
            Some((worst > -HOPELESS.ln(), score, at, x))
        };
        let better = |a: &Ranked, b: &Ranked| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1));
        let mut ranked: Vec<Ranked> =
            open.iter().filter_map(|at| rank(*at, stretches[*at].middle())).collect();
        ranked.sort_by(better);
        let closer: Vec<usize> = ranked.iter().take(CLOSER).map(|it| it.2).collect();
        for at in closer {
            let places = stretches[at].places().filter(|x| *x != stretches[at].middle());
            ranked.extend(places.filter_map(|x| rank(at, x)));
        }
        ranked.sort_by(better);
        let best = ranked.first().copied();
        let (which, x) = best.map_or((*first, stretches[*first].middle()), |(_, _, at, x)| (at, x));
        self.at = stretches[which].way.at(x);
        self.state =
            State::Search(Search { stretches, which, x, seen: Window::default(), windows: 0, follows });
    }

    fn search(&mut self, mut search: Search, window: &Window) {
        search.seen.append(window);
        search.windows += 1;
        let Sides { consistency, speed } = self.sides(&search.seen);
        let is_late = search.windows >= WINDOWS_MAX;
        let fails = |side: Standing| side == Standing::Broken || is_late && side == Standing::Open;
        let stretch = &mut search.stretches[search.which];
        match (fails(consistency), fails(speed)) {
            (false, false) if consistency == Standing::Kept && speed == Standing::Kept => {
                let wants_less = self.agreement.least.is_some_and(|measure| !measure.is_of_consistency());
                if !wants_less {
                    let way = stretch.way;
                    return self.hold(way, search.x);
                }
                stretch.kept = Some(search.x);
                stretch.high = search.x;
            }
            (false, false) => return self.state = State::Search(search),
            (is_weak, is_slow) => stretch.fails(search.x, is_weak, is_slow),
        }
        self.propose(search.stretches, search.follows);
    }

    fn is_another_rate(&self, than: f64) -> bool {
        (self.rate - than).abs() > ANOTHER_RATE * than.max(1.0)
    }

    fn hold(&mut self, way: Way, x: f64) {
        self.at = way.at(x);
        self.state = State::Hold(Held { way, x, recent: VecDeque::new(), broken: 0, rate: self.rate });
    }

    fn held(&mut self, mut held: Held, window: &Window) {
        if self.is_another_rate(held.rate) {
            // The windows of another rate say nothing any more.
            (held.rate, held.broken) = (self.rate, 0);
            held.recent.clear();
            if self.outlook(self.at).is_some_and(|outlook| outlook.worst < SAFETY.ln()) {
                return self.leave(&held, self.sides(window));
            }
        }
        held.recent.push_back(window.clone());
        if held.recent.len() > HELD {
            held.recent.pop_front();
        }
        let mut all = Window::default();
        held.recent.iter().for_each(|window| all.append(window));
        let (now, mut lately) = (self.sides(window), self.sides(&all));
        held.broken = if now.are_broken() { held.broken + 1 } else { 0 };
        let exceeds = |line: &Line| line.measure.is_of_consistency() && line.excess(&all) > 0.0;
        if held.recent.len() >= DRIFTING && self.agreement.lines.iter().any(exceeds) {
            lately.consistency = Standing::Broken;
        } else if held.recent.len() < HELD {
            lately = Sides { consistency: Standing::Open, speed: Standing::Open };
        }
        match held.broken >= BROKEN_IN_A_ROW {
            true => self.leave(&held, now),
            false if lately.are_broken() => self.leave(&held, lately),
            false => self.state = State::Hold(held),
        }
    }

    /// Looks for another setting than the one that was held. `sides` are the reason.
    fn leave(&mut self, held: &Held, sides: Sides) {
        let (is_weak, is_slow) = (sides.consistency == Standing::Broken, sides.speed == Standing::Broken);
        let is_end = self.at == Setting::WEAK || self.at == Setting::STRONG;
        if self.ways.is_empty() || is_end && self.model.is_none() {
            return self.again();
        }
        let mut stretches = self.ways.clone();
        if let Some(at) = stretches.iter().position(|stretch| stretch.way == held.way) {
            let own = &mut stretches[at];
            if is_weak || is_slow {
                own.fails(held.x, is_weak, is_slow);
            }
            if self.model.is_none() {
                // Nothing but nearness says where to begin.
                let (low, high) = (own.low.max(held.x - REACH), own.high.min(held.x + REACH));
                (own.low, own.high) = (low, high);
                stretches.swap(0, at);
            }
        }
        self.tried.retain(|tried| tried.setting == self.at);
        self.propose(stretches, true);
    }

    /// Measures the ends again: what was seen of other settings is no longer so.
    fn again(&mut self) {
        self.tried.clear();
        self.corrections.fill(Correction::default());
        (self.state, self.at) = (State::Weak, Setting::WEAK);
    }

    /// Stays with the best of what was tried.
    fn give_up(&mut self) {
        let badness = |tried: &Tried| -> Vec<u64> {
            // Twentieths of a bound: smaller differences are chance.
            let excess = |line: &Line| match self.standing(line, tried.setting, &tried.window) {
                Standing::Broken if line.allows_none() => u64::MAX,
                _ => (line.excess(&tried.window).min(1e6) * 20.0).round() as u64,
            };
            self.agreement.lines.iter().map(excess).collect()
        };
        let best = self.tried.iter().min_by_key(|tried| badness(tried)).map(|tried| tried.setting);
        self.at = best.unwrap_or(Setting::STRONG);
        self.state = State::OutOfReach { windows: 0, rate: self.rate };
    }
}

#[cfg(test)]
mod tests;
