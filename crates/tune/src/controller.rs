//! The controller turns the dials until a setting keeps the agreement. It does so again when that setting no
//! longer keeps the agreement.
//!
//! **Promise.** The host gives the controller one window after another, each of a single setting. The
//! controller answers with the next setting. A line of an agreement is one bound, such as `p95<=10ms`. A line
//! counts as kept only if the whole 95 % interval of its measure keeps the bound. If no setting keeps the
//! agreement, the controller reports that the agreement is out of reach. It then stays with the setting that
//! breaks the least important lines by the smallest amount, and tries again later. Only the strong levels
//! keep a line that allows no inconsistency: these levels promise consistency, and no count of operations can
//! prove it.
//!
//! **How.** The controller first measures both ends: all operations weak, then all strong. If neither keeps
//! the agreement, it searches for settings between them along *ways*:
//!
//! | way | quantity that grows from 0 to 1 |
//! |---|---|
//! | levels | the fraction of operations that are strong |
//! | delays | a delay before reads and after writes, up to the room that the lines on latency leave |
//! | write delays | a delay after writes only |
//! | reads, writes | the fraction of the reads, or of the writes, that are strong |
//!
//! The [model](crate::model) *proposes* a setting. It considers some places on each way, and takes the place
//! whose predicted results lie farthest inside the bounds. Windows *decide*. Along a way consistency improves
//! and speed decreases. So a setting that breaks only lines on consistency, or only lines on speed, shows in
//! which direction to continue. A setting that breaks lines of both kinds shows that no place on the way
//! keeps the agreement. Each try thus shortens the *stretch* of its way that is left to search. After two
//! failures on a way, each further failure halves the stretch, so the search ends however wrong the model is.
//! The difference between a window and its prediction also *corrects* later predictions of that line. The
//! controller tries a way last if the model predicts that even the best place on the way is beyond a bound by
//! more than the factor `HOPELESS`. If no client could sound the store, there is no model, and the controller
//! halves one way after another. If the strong end breaks a line on a percentile, the controller tries delays
//! before levels: a few strong operations are enough to break such a line, and 004 (§III.D) found delays
//! better in this case.
//!
//! ```text
//!             ┌── a line broken, or a load at which it will be ──┐
//!             ▼                                                  │
//!  weak ─▶ strong ─▶ search: propose, measure, correct ─▶ hold ──┘
//!   ▲                          │ every way has failed
//!   └── after a while ── out of reach
//! ```
//!
//! **Hysteresis.** The controller judges a held setting by its last [`HELD_WINDOWS`] windows together. With
//! windows of 2 s these are 20 s, in which a pause of 2 s every 20 s occurs once. The controller leaves the
//! setting if these windows together break a line, or if each of the last [`BROKEN_IN_A_ROW`] windows
//! breaks a line. An occasional pause breaks a window or two, and the controller stays. It also leaves the
//! setting if at least [`DRIFT_WINDOWS_MIN`] windows together measure less consistency than a line demands,
//! even if the bound lies inside the confidence interval. When the clients' rate changes, the controller
//! asks the model whether the held setting will keep the agreement. If the model predicts that it will not,
//! the controller leaves the setting at once. The search after a held setting does not return to the ends,
//! because both ends break the agreement. That search begins with the model and the stretches that remain.

use std::collections::VecDeque;

use serde::Serialize;

use crate::{
    agreement::{Agreement, Line, LineStatus, Measure},
    dial::Dials,
    load::Tape,
    model::Model,
    ways::{Way, WayRange},
    window::Window,
};

pub use crate::ways::{LevelEnds, Setting};

/// The phases of a controller's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Measures all operations weak, or all strong.
    Ends,
    /// Searches for a setting that keeps the agreement.
    Search,
    /// Stays with a setting that keeps the agreement.
    Hold,
    /// Stays with the best setting found. No setting keeps the agreement.
    OutOfReach,
}

/// A setting that was tried.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The setting.
    pub setting: Setting,
    /// All windows of this setting, merged.
    pub window: Window,
}

/// Finds a setting that keeps an agreement, and stays with it.
#[derive(Debug)]
pub struct Controller {
    agreement: Agreement,
    ends: LevelEnds,
    at: Setting,
    state: State,
    /// Settings tried since the ends were last measured.
    tried: Vec<Tried>,
    /// All ways that follow from the last measurement of the ends, at full length.
    ways: Vec<WayRange>,
    model: Option<Model>,
    /// The clients' rate in operations a second that the controller received last. Zero means no limit.
    rate: f64,
    /// The model's window for the last observed setting.
    predicted: Option<Window>,
    corrections: Vec<Correction>,
}

#[derive(Debug)]
enum State {
    Weak,
    Strong,
    Search(SettingSearch),
    Hold(HeldSetting),
    /// Number of windows in this phase, and the clients' rate at the start of the phase.
    OutOfReach {
        windows: u32,
        rate: f64,
    },
}

/// A search: the setting that is being tried, and the stretches of the ways that remain.
#[derive(Debug)]
struct SettingSearch {
    way_ranges: Vec<WayRange>,
    /// Index, in `way_ranges`, of the stretch that contains the setting.
    which: usize,
    /// The place of the setting on its way.
    x: f64,
    seen: Window,
    windows: u32,
    /// Whether the search began when the controller left a setting that it held. If such a search fails, the
    /// ends are measured again before the controller gives up.
    began_at_held_setting: bool,
}

/// A setting that the controller holds.
#[derive(Debug)]
struct HeldSetting {
    way: Way,
    x: f64,
    recent: VecDeque<Window>,
    /// Number of consecutive windows, up to the latest, that each broke a line.
    broken: u32,
    /// The clients' rate when the setting was chosen.
    rate: f64,
}

/// The error of the predictions of a line: the logarithm of the measured value divided by the predicted
/// value. `None` until a window shows the error.
#[derive(Clone, Copy, Debug, Default)]
struct Correction(Option<f64>);

/// The predictions for a setting.
#[derive(Clone, Copy, Debug)]
struct SettingForecast {
    /// Distance of the prediction from the nearest bound, as a logarithm. Negative if the prediction is
    /// beyond the bound.
    worst: f64,
    /// Rank of the setting. A higher number is better.
    score: f64,
}

/// A place with its rank: whether the place is promising, its score, the index of its stretch, and the place
/// on the way.
type Ranked = (bool, f64, usize, f64);

/// Number of ways on which the controller also ranks other places than the middle. They are the ways with the
/// best middles.
const WAYS_RANKED_CLOSELY: usize = 2;
/// Number of windows of one setting after which a line that is still [`LineStatus::Open`] counts as broken.
const WINDOWS_MAX: u32 = 4;
/// Number of latest windows by which the controller judges, together, the setting that it holds.
pub const HELD_WINDOWS: usize = 10;
/// Number of consecutive failing windows after which the controller leaves a setting.
pub const BROKEN_IN_A_ROW: u32 = 4;
/// Number of windows after which the controller leaves a setting if the measured value is beyond a bound on
/// consistency, even if the bound lies inside the confidence interval.
pub const DRIFT_WINDOWS_MIN: usize = 6;
/// Without a model, the search after a held setting goes no farther than this from the held place, on the way
/// of the held setting.
const SEARCH_REACH: f64 = 0.25;
/// Number of windows after which the controller tries again to reach an agreement that was out of reach.
const RETRY_WINDOWS: u32 = 10;
/// A place predicted beyond a bound by more than this factor is tried last.
const HOPELESS: f64 = 4.0;
/// Smallest relative difference at which two rates count as different.
const ANOTHER_RATE: f64 = 0.2;
/// Fraction of a bound below which the difference between a measured and a predicted value counts as chance.
const CHANCE: f64 = 0.05;
/// Largest factor by which predictions are corrected.
const CORRECTION_MOST: f64 = 20.0;
/// Weight of the distance to the nearest bound against the other distances.
const SHARPNESS: f64 = 4.0;
/// When the rate changes, the controller keeps its setting if each prediction for the setting is better than
/// its bound by this factor.
const SAFETY: f64 = 1.1;
/// Factor by which settings must be predicted within their bounds when a measure is to be minimized.
const MARGIN: f64 = 1.15;

impl Correction {
    fn learn(&mut self, line: &Line, measured: f64, predicted: f64) {
        let floor = line.bound * CHANCE;
        if measured.max(predicted) <= 2.0 * floor || !predicted.is_finite() {
            // Both values are near zero, or the model answered no operation.
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

/// For each kind of line, whether a window keeps the lines of this kind.
#[derive(Clone, Copy, Debug)]
struct KindsStatus {
    consistency: LineStatus,
    speed: LineStatus,
}

impl KindsStatus {
    fn are_broken(self) -> bool {
        self.consistency == LineStatus::Broken || self.speed == LineStatus::Broken
    }
}

impl Controller {
    /// Creates a controller that has observed no window. It begins with all operations weak.
    pub fn new(agreement: Agreement, ends: LevelEnds) -> Controller {
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

    /// Sets the model of the store, which proposes settings from now on.
    pub fn set_model(&mut self, model: Model) {
        self.model = Some(model);
    }

    /// Returns the levels between which the dials turn.
    pub fn ends(&self) -> LevelEnds {
        self.ends
    }

    /// Gives the model the latest operations of the clients, of whatever setting, and their rate in
    /// operations a second. A rate of 0 means no limit.
    pub fn learn(&mut self, tape: &Tape, rate: f64) {
        self.rate = rate;
        if let Some(model) = &mut self.model {
            model.learn(&tape.served);
            model.expect(rate);
        }
    }

    /// Returns the setting that the dials must have now.
    pub fn setting(&self) -> Setting {
        self.at
    }

    /// Returns the dials of the current setting.
    pub fn dials(&self) -> Dials {
        self.at.dials(self.ends)
    }

    /// Returns the present phase.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Weak | State::Strong => Phase::Ends,
            State::Search(_) => Phase::Search,
            State::Hold(_) => Phase::Hold,
            State::OutOfReach { .. } => Phase::OutOfReach,
        }
    }

    /// Returns all settings tried since both ends were last measured, in order.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// Returns the model's window for the last observed setting, without corrections.
    pub fn predicted(&self) -> Option<&Window> {
        self.predicted.as_ref()
    }

    /// Whether a window of a setting keeps a line.
    pub fn status(&self, line: &Line, setting: Setting, window: &Window) -> LineStatus {
        match line.allows_none() {
            false => line.status(window),
            true if setting == Setting::STRONG && line.measure.value(window) == 0.0 => LineStatus::Kept,
            true => LineStatus::Broken,
        }
    }

    /// Observes a window of the current setting and decides on the next. The host must then turn the dials to
    /// [`Self::setting`].
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
                let mut way_ranges = self.ways.clone();
                if self.is_kept(window) {
                    way_ranges.retain(|way_range| way_range.way == Way::Levels);
                    way_ranges.iter_mut().for_each(|levels| levels.kept = Some(1.0));
                }
                self.propose(way_ranges, false);
            }
            State::Search(search) => self.search(search, window),
            State::Hold(held) => self.held(held, window),
            State::OutOfReach { windows: RETRY_WINDOWS.., .. } => self.measure_ends_again(),
            State::OutOfReach { rate, .. } if self.is_kept(window) || self.is_another_rate(rate) => {
                self.measure_ends_again()
            }
            State::OutOfReach { windows, rate } => {
                self.state = State::OutOfReach { windows: windows + 1, rate };
            }
        }
    }

    fn note(&mut self, window: &Window) {
        match self.tried.iter_mut().find(|tried| tried.setting == self.at) {
            Some(tried) if tried.window.span < window.span * HELD_WINDOWS as u32 => {
                tried.window.append(window)
            }
            // Old windows no longer describe the store.
            Some(tried) => tried.window = window.clone(),
            None => self.tried.push(Tried { setting: self.at, window: window.clone() }),
        }
    }

    /// Compares a window with the model's prediction for its setting, to correct later predictions.
    fn correct(&mut self, window: &Window) {
        self.predicted = self.model.as_ref().map(|model| model.predict(self.at));
        let Some(predicted) = &self.predicted else { return };
        for (line, correction) in self.agreement.lines.iter().zip(&mut self.corrections) {
            correction.learn(line, line.measure.value(window), line.measure.value(predicted));
        }
    }

    fn sides(&self, window: &Window) -> KindsStatus {
        let worst = |of_consistency: bool| {
            let lines = self.agreement.lines.iter();
            let lines = lines.filter(|line| line.measure.is_of_consistency() == of_consistency);
            lines.map(|line| self.status(line, self.at, window)).max().unwrap_or(LineStatus::Kept)
        };
        KindsStatus { consistency: worst(true), speed: worst(false) }
    }

    fn is_kept(&self, window: &Window) -> bool {
        let KindsStatus { consistency, speed } = self.sides(window);
        consistency == LineStatus::Kept && speed == LineStatus::Kept
    }

    /// Returns the ways on which some setting may keep the agreement. `strong` is the window of the strong
    /// end.
    fn ways_between(&self, strong: &Window) -> Vec<WayRange> {
        let weak = self.tried.first().map(|tried| &tried.window);
        // The usual latency is the median, because one bad window must not rule out a way.
        let usual = weak.map_or(0.0, |window| window.latency(0.5).value);
        let room = |line: &Line| match line.measure {
            Measure::Latency(_) | Measure::Mean => Some(line.bound - usual),
            _ => None,
        };
        let room = self.agreement.lines.iter().filter_map(room).reduce(f64::min);
        // The longest useful delay is longer than the time of the slowest message and of most operations.
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
            .any(|line| bounds_percentile(line) && line.status(strong) == LineStatus::Broken);
        let longest = room.map_or(far, |room| room.min(2.0 * far).max(0.0));
        // A bound on the mean allows longer delays of writes, because only some operations are writes.
        let of_writes = if bounded { longest } else { 2.0 * far };
        let mut ways = vec![Way::Levels, Way::Delays(longest)];
        if breaks_percentile {
            ways.swap(0, 1);
        }
        ways.extend([Way::WriteDelays(of_writes), Way::Reads, Way::Writes]);
        ways.into_iter().map(WayRange::whole).collect()
    }

    /// Returns the model's corrected prediction for a setting, or `None` without a model.
    fn outlook(&self, setting: Setting) -> Option<SettingForecast> {
        let window = self.model.as_ref()?.predict(setting);
        let slack = |(line, correction): (&Line, &Correction)| match line.allows_none() {
            true if setting != Setting::STRONG => f64::NEG_INFINITY,
            true => f64::INFINITY,
            false => line.slack(correction.apply(line, line.measure.value(&window))),
        };
        let slacks: Vec<f64> = self.agreement.lines.iter().zip(&self.corrections).map(slack).collect();
        let worst = slacks.iter().copied().fold(f64::INFINITY, f64::min);
        let score = match self.agreement.least {
            // Settings well within their bounds rank before all others.
            Some(measure) if worst >= MARGIN.ln() => 1e3 - measure.value(&window).max(1e-9).ln(),
            _ => -slacks.iter().map(|slack| (-SHARPNESS * slack).exp()).sum::<f64>().max(1e-300).ln(),
        };
        Some(SettingForecast { worst, score })
    }

    /// Chooses the most promising place of these stretches as the next setting, or ends the search.
    fn propose(&mut self, way_ranges: Vec<WayRange>, began_at_held_setting: bool) {
        let kept = way_ranges.iter().find(|way_range| way_range.kept.is_some());
        let left =
            |way_range: &&WayRange| !way_range.is_over() && (kept.is_none() || way_range.kept.is_some());
        let open: Vec<usize> = (0..way_ranges.len()).filter(|at| left(&&way_ranges[*at])).collect();
        let Some(first) = open.first() else {
            return match kept {
                Some(&WayRange { way, kept: Some(x), .. }) => self.hold(way, x),
                _ if began_at_held_setting => self.measure_ends_again(),
                _ => self.give_up(),
            };
        };
        // The forecast at the middle of each way's range shows which ways deserve a closer look.
        let rank = |at: usize, x: f64| {
            let SettingForecast { worst, score } = self.outlook(way_ranges[at].way.at(x))?;
            Some((worst > -HOPELESS.ln(), score, at, x))
        };
        let better = |a: &Ranked, b: &Ranked| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1));
        let mut ranked: Vec<Ranked> =
            open.iter().filter_map(|at| rank(*at, way_ranges[*at].middle())).collect();
        ranked.sort_by(better);
        let closer: Vec<usize> = ranked.iter().take(WAYS_RANKED_CLOSELY).map(|it| it.2).collect();
        for at in closer {
            let places = way_ranges[at].places().filter(|x| *x != way_ranges[at].middle());
            ranked.extend(places.filter_map(|x| rank(at, x)));
        }
        ranked.sort_by(better);
        let best = ranked.first().copied();
        let (which, x) = best.map_or((*first, way_ranges[*first].middle()), |(_, _, at, x)| (at, x));
        self.at = way_ranges[which].way.at(x);
        self.state = State::Search(SettingSearch {
            way_ranges,
            which,
            x,
            seen: Window::default(),
            windows: 0,
            began_at_held_setting,
        });
    }

    fn search(&mut self, mut search: SettingSearch, window: &Window) {
        search.seen.append(window);
        search.windows += 1;
        let KindsStatus { consistency, speed } = self.sides(&search.seen);
        let is_late = search.windows >= WINDOWS_MAX;
        let fails = |side: LineStatus| side == LineStatus::Broken || is_late && side == LineStatus::Open;
        let way_range = &mut search.way_ranges[search.which];
        match (fails(consistency), fails(speed)) {
            (false, false) if consistency == LineStatus::Kept && speed == LineStatus::Kept => {
                let wants_less = self.agreement.least.is_some_and(|measure| !measure.is_of_consistency());
                if !wants_less {
                    let way = way_range.way;
                    return self.hold(way, search.x);
                }
                way_range.kept = Some(search.x);
                way_range.high = search.x;
            }
            (false, false) => return self.state = State::Search(search),
            (is_weak, is_slow) => way_range.fails(search.x, is_weak, is_slow),
        }
        self.propose(search.way_ranges, search.began_at_held_setting);
    }

    fn is_another_rate(&self, than: f64) -> bool {
        (self.rate - than).abs() > ANOTHER_RATE * than.max(1.0)
    }

    fn hold(&mut self, way: Way, x: f64) {
        self.at = way.at(x);
        self.state = State::Hold(HeldSetting { way, x, recent: VecDeque::new(), broken: 0, rate: self.rate });
    }

    fn held(&mut self, mut held: HeldSetting, window: &Window) {
        if self.is_another_rate(held.rate) {
            // Windows that were measured at the former rate no longer describe the load.
            (held.rate, held.broken) = (self.rate, 0);
            held.recent.clear();
            if self.outlook(self.at).is_some_and(|outlook| outlook.worst < SAFETY.ln()) {
                return self.leave(&held, self.sides(window));
            }
        }
        held.recent.push_back(window.clone());
        if held.recent.len() > HELD_WINDOWS {
            held.recent.pop_front();
        }
        let mut all = Window::default();
        held.recent.iter().for_each(|window| all.append(window));
        let (now, mut lately) = (self.sides(window), self.sides(&all));
        held.broken = if now.are_broken() { held.broken + 1 } else { 0 };
        let exceeds = |line: &Line| line.measure.is_of_consistency() && line.excess(&all) > 0.0;
        if held.recent.len() >= DRIFT_WINDOWS_MIN && self.agreement.lines.iter().any(exceeds) {
            lately.consistency = LineStatus::Broken;
        } else if held.recent.len() < HELD_WINDOWS {
            lately = KindsStatus { consistency: LineStatus::Open, speed: LineStatus::Open };
        }
        match held.broken >= BROKEN_IN_A_ROW {
            true => self.leave(&held, now),
            false if lately.are_broken() => self.leave(&held, lately),
            false => self.state = State::Hold(held),
        }
    }

    /// Leaves the setting that the controller holds, and searches for another setting. `sides` tells which
    /// kinds of lines the held setting broke.
    fn leave(&mut self, held: &HeldSetting, sides: KindsStatus) {
        let (is_weak, is_slow) = (sides.consistency == LineStatus::Broken, sides.speed == LineStatus::Broken);
        let is_end = self.at == Setting::WEAK || self.at == Setting::STRONG;
        if self.ways.is_empty() || is_end && self.model.is_none() {
            return self.measure_ends_again();
        }
        let mut way_ranges = self.ways.clone();
        if let Some(at) = way_ranges.iter().position(|way_range| way_range.way == held.way) {
            let own = &mut way_ranges[at];
            if is_weak || is_slow {
                own.fails(held.x, is_weak, is_slow);
            }
            if self.model.is_none() {
                // Without a model, the search begins near the place of the held setting.
                let (low, high) = (own.low.max(held.x - SEARCH_REACH), own.high.min(held.x + SEARCH_REACH));
                (own.low, own.high) = (low, high);
                way_ranges.swap(0, at);
            }
        }
        self.tried.retain(|tried| tried.setting == self.at);
        self.propose(way_ranges, true);
    }

    /// Measures the ends again, because earlier results are out of date.
    fn measure_ends_again(&mut self) {
        self.tried.clear();
        self.corrections.fill(Correction::default());
        (self.state, self.at) = (State::Weak, Setting::WEAK);
    }

    /// Stays with the best setting tried.
    fn give_up(&mut self) {
        let badness = |tried: &Tried| -> Vec<u64> {
            // Excess is counted in twentieths of a bound, because smaller differences are chance.
            let excess = |line: &Line| match self.status(line, tried.setting, &tried.window) {
                LineStatus::Broken if line.allows_none() => u64::MAX,
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
