//! The controller: turns the dials until an agreement is kept, and again when it no longer is.
//!
//! **Promise.** It is told of one window after another, each of a single setting, and answers with the next setting. A line counts as kept
//! only if the upper end of its 95 % interval keeps it. An agreement that no setting keeps is said to be out of reach; then the
//! setting that breaks the least important lines the least stays, and it is tried again later.
//! A line that allows no inconsistency is kept by the strong levels alone, because they promise it: no count shows it.
//!
//! **How.** Both ends are measured first: all operations weak, then all strong. If neither keeps the agreement, settings between them are
//! searched by halving, along one *way* after another:
//!
//! | way | what grows from 0 to 1 |
//! |---|---|
//! | levels | the part of operations that are strong |
//! | delay | a delay before reads and after writes, up to what the lines on latency leave |
//! | one kind | nothing: only reads are strong, or only writes |
//!
//! Along a way consistency gets better and speed worse, so a setting with too little of the one shows on which side to go on, and one with
//! too little of both shows that the way does not lead there. Where the strong end breaks a line on a percentile, delays come before
//! levels: a few strong operations are enough to break it, and 004 (§III.D) found delays better there.
//!
//! ```text
//!            ┌──────────── a line broken: halving, from here ───────────┐
//!  weak ─▶ strong ─▶ search, a way after the other ─▶ hold ─────────────┘
//!   ▲                          │ no way leads there
//!   └── after a while ── out of reach
//! ```
//!
//! **Hysteresis.** A setting that is held is left only if its last [`HELD`] windows together break a line, or
//! [`BROKEN_IN_A_ROW`] of them one after another do. So a pause that comes now and then does not move a percentile that it does not break.

use std::{collections::VecDeque, time::Duration};

use quorate::maps::Level;
use serde::Serialize;

use crate::{
    agreement::{Agreement, Line, Measure, Standing},
    dial::{Choice, Dial, Dials},
    window::Window,
};

/// The two levels between which the dial is.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The faster one.
    pub weak: Level,
    /// The one at which reads and writes meet.
    pub strong: Level,
    /// How it is chosen which operations are strong.
    pub choice: Choice,
}

/// A place between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The part of the reads that are strong.
    pub p_reads: f64,
    /// The part of the writes that are strong.
    pub p_writes: f64,
    /// Seconds before each read and after each write.
    pub delay: f64,
}

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
    /// Ways that have not been searched since.
    ways: VecDeque<Way>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Levels,
    /// Up to so many seconds.
    Delay(f64),
    OneKind {
        reads: bool,
    },
}

#[derive(Debug)]
enum State {
    Weak,
    Strong,
    Search(Search),
    Hold { way: Way, x: f64, recent: VecDeque<Window>, broken: u32 },
    OutOfReach { windows: u32 },
}

/// Halving along a way.
#[derive(Clone, Debug)]
struct Search {
    way: Way,
    /// Too weak, as far as is known.
    low: f64,
    /// Too slow, or kept.
    high: f64,
    x: f64,
    /// The least that was seen to keep the agreement.
    kept: Option<f64>,
    seen: Window,
    windows: u32,
    /// Whether it began at a setting that had been held: it is near, and if not, everything is looked at again.
    local: bool,
}

/// Windows of one setting before what is open counts as broken.
const WINDOWS_MAX: u32 = 4;
/// Windows that a setting that is held is judged by.
pub const HELD: usize = 7;
/// Broken windows, one after another, after which a setting is left.
pub const BROKEN_IN_A_ROW: u32 = 3;
/// Places closer than this are the same.
const NEAR: f64 = 0.02;
/// How far from a setting that was held a better one is looked for.
const REACH: f64 = 0.25;
/// Windows after which what was out of reach is tried again.
const PATIENCE: u32 = 10;

impl Setting {
    /// All operations weak, and none delayed.
    pub const WEAK: Setting = Setting { p_reads: 0.0, p_writes: 0.0, delay: 0.0 };
    /// All operations strong, and none delayed.
    pub const STRONG: Setting = Setting { p_reads: 1.0, p_writes: 1.0, delay: 0.0 };

    /// The dials of it.
    pub fn dials(&self, ends: Ends) -> Dials {
        let delay = Duration::from_secs_f64(self.delay);
        let dial = |p| Dial { weak: ends.weak, strong: ends.strong, p, delay };
        Dials { reads: dial(self.p_reads), writes: dial(self.p_writes), choice: ends.choice }
    }
}

impl Way {
    fn at(self, x: f64) -> Setting {
        match self {
            Way::Levels => Setting { p_reads: x, p_writes: x, delay: 0.0 },
            Way::Delay(longest) => Setting { delay: x * longest, ..Setting::WEAK },
            Way::OneKind { reads: true } => Setting { p_reads: 1.0, ..Setting::WEAK },
            Way::OneKind { reads: false } => Setting { p_writes: 1.0, ..Setting::WEAK },
        }
    }
}

/// How a window stands to the two kinds of lines.
#[derive(Clone, Copy, Debug)]
struct Sides {
    consistency: Standing,
    speed: Standing,
}

impl Controller {
    /// A controller that has been told of no window. It begins with all operations weak.
    pub fn new(agreement: Agreement, ends: Ends) -> Controller {
        Controller {
            agreement,
            ends,
            at: Setting::WEAK,
            state: State::Weak,
            tried: Vec::new(),
            ways: VecDeque::new(),
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
            State::Hold { .. } => Phase::Hold,
            State::OutOfReach { .. } => Phase::OutOfReach,
        }
    }

    /// All settings that were tried since both ends were measured last, in that order.
    pub fn tried(&self) -> &[Tried] {
        &self.tried
    }

    /// Whether a line is kept by a window of a setting.
    pub fn standing(&self, line: &Line, setting: Setting, window: &Window) -> Standing {
        match line.allows_none() {
            false => line.standing(window),
            true if setting == Setting::STRONG && line.measure.of(window).value == 0.0 => Standing::Kept,
            true => Standing::Broken,
        }
    }

    /// Takes a window of the setting that the dials stand at. Afterwards they may have to be turned.
    pub fn observe(&mut self, window: &Window) {
        self.note(window);
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
                let kept = self.is_kept(window).then_some(1.0);
                self.ways = self.ways_between(window);
                self.search_next(kept);
            }
            State::Search(search) => self.search(search, window),
            State::Hold { way, x, recent, broken } => self.held(way, x, recent, broken, window),
            State::OutOfReach { windows: PATIENCE.. } => self.again(),
            State::OutOfReach { .. } if self.is_kept(window) => self.again(),
            State::OutOfReach { windows } => self.state = State::OutOfReach { windows: windows + 1 },
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
    fn ways_between(&self, strong: &Window) -> VecDeque<Way> {
        let weak = self.tried.first().map(|tried| &tried.window);
        let room = |line: &Line| match line.measure {
            Measure::Latency(_) | Measure::Mean => {
                Some(line.bound - weak.map_or(0.0, |window| line.measure.of(window).value))
            }
            _ => None,
        };
        let longest = self.agreement.lines.iter().filter_map(room).reduce(f64::min);
        let longest = longest.unwrap_or_else(|| 2.0 * strong.latency(0.99).value).max(0.0);
        let breaks_percentile = self.agreement.lines.iter().any(|line| {
            matches!(line.measure, Measure::Latency(_)) && line.standing(strong) == Standing::Broken
        });
        let mut ways = VecDeque::from([Way::Levels, Way::Delay(longest)]);
        if breaks_percentile {
            ways.swap(0, 1);
        }
        ways.extend([Way::OneKind { reads: true }, Way::OneKind { reads: false }]);
        ways
    }

    /// Goes on with the next way. `kept` is where the levels are known to keep the agreement.
    fn search_next(&mut self, kept: Option<f64>) {
        let way = match kept {
            Some(_) => Some(Way::Levels),
            None => self.ways.pop_front(),
        };
        match way {
            None => self.give_up(),
            Some(way) => {
                let x = if matches!(way, Way::OneKind { .. }) { 1.0 } else { 0.5 };
                self.begin(Search {
                    way,
                    low: 0.0,
                    high: 1.0,
                    x,
                    kept,
                    seen: Window::default(),
                    windows: 0,
                    local: false,
                });
            }
        }
    }

    fn begin(&mut self, search: Search) {
        self.at = search.way.at(search.x);
        self.state = State::Search(search);
    }

    fn search(&mut self, mut search: Search, window: &Window) {
        search.seen.append(window);
        search.windows += 1;
        let Sides { consistency, speed } = self.sides(&search.seen);
        let is_late = search.windows >= WINDOWS_MAX;
        let fails = |side: Standing| side == Standing::Broken || is_late && side == Standing::Open;
        match (fails(consistency), fails(speed)) {
            (false, false) if consistency == Standing::Kept && speed == Standing::Kept => {
                search.kept = Some(search.x);
                search.high = search.x;
                let wants_less = self.agreement.least.is_some_and(|measure| !measure.is_of_consistency());
                if !wants_less {
                    return self.hold(search.way, search.x);
                }
            }
            (false, false) => return self.state = State::Search(search),
            (true, true) => (search.low, search.high) = (search.x, search.x),
            (true, false) => search.low = search.x,
            (false, true) => search.high = search.x,
        }
        if search.high - search.low < NEAR || matches!(search.way, Way::OneKind { .. }) {
            return match search.kept {
                Some(x) => self.hold(search.way, x),
                None if search.local => self.again(),
                None => self.search_next(None),
            };
        }
        let x = (search.low + search.high) / 2.0;
        self.begin(Search { x, seen: Window::default(), windows: 0, ..search });
    }

    fn hold(&mut self, way: Way, x: f64) {
        self.at = way.at(x);
        self.state = State::Hold { way, x, recent: VecDeque::new(), broken: 0 };
    }

    fn held(&mut self, way: Way, x: f64, mut recent: VecDeque<Window>, mut broken: u32, window: &Window) {
        recent.push_back(window.clone());
        if recent.len() > HELD {
            recent.pop_front();
        }
        let mut all = Window::default();
        recent.iter().for_each(|window| all.append(window));
        let (now, lately) = (self.sides(window), self.sides(&all));
        let is_broken =
            |sides: Sides| sides.consistency == Standing::Broken || sides.speed == Standing::Broken;
        broken = if is_broken(now) { broken + 1 } else { 0 };
        let lasting = recent.len() == HELD && is_broken(lately);
        if !lasting && broken < BROKEN_IN_A_ROW {
            return self.state = State::Hold { way, x, recent, broken };
        }
        let sides = if broken >= BROKEN_IN_A_ROW { now } else { lately };
        let (low, high) = match (sides.consistency == Standing::Broken, sides.speed == Standing::Broken) {
            (true, false) if x < 1.0 => (x, (x + REACH).min(1.0)),
            (false, true) if x > 0.0 => ((x - REACH).max(0.0), x),
            _ => return self.again(),
        };
        let x = if high == 1.0 && low == x { 1.0 } else { (low + high) / 2.0 };
        self.begin(Search {
            way,
            low,
            high,
            x,
            kept: None,
            seen: Window::default(),
            windows: 0,
            local: true,
        });
    }

    /// Measures the ends again: what was seen of other settings is no longer so.
    fn again(&mut self) {
        self.tried.clear();
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
        self.state = State::OutOfReach { windows: 0 };
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    /// A store whose weak operations take `weak` ms, strong ones `strong`, each up to twice that, and of which the part `stale` is
    /// inconsistent if all are weak: less with strong operations (those on hot keys), and with delays.
    struct Store {
        weak: f64,
        strong: f64,
        stale: f64,
        random: Pcg64Mcg,
    }

    impl Store {
        fn new(weak: f64, strong: f64, stale: f64) -> Store {
            Store { weak, strong, stale, random: Pcg64Mcg::seed_from_u64(5) }
        }

        fn window(&mut self, setting: Setting) -> Window {
            let count = 6_000;
            let p = (setting.p_reads * 4.0 + setting.p_writes) / 5.0;
            let latencies = (0..count).map(|_| {
                let base = if self.random.random::<f64>() < p { self.strong } else { self.weak };
                ((base * (1.0 + self.random.random::<f64>()) + setting.delay * 1e3) * 1e6) as u64
            });
            let latencies: Vec<u64> = latencies.collect();
            let stale = self.stale * (1.0 - p).powi(3) * (-setting.delay * 1e3 / 4.0).exp();
            let inconsistent = (0..count).map(|_| u64::from(self.random.random::<f64>() < stale));
            Window::made(Duration::from_secs(2), latencies, inconsistent.collect())
        }
    }

    fn controller(agreement: &str) -> Controller {
        let ends = Ends { weak: Level::One, strong: Level::Quorum, choice: Choice::Heat };
        Controller::new(agreement.parse().unwrap(), ends)
    }

    /// Lets it work for so many windows, and returns whether the last five are of one setting, and keep the agreement together.
    fn work(controller: &mut Controller, store: &mut Store, windows: usize) -> bool {
        let mut last = Window::default();
        let mut settings = Vec::new();
        for at in 0..windows {
            let window = store.window(controller.setting());
            if at + 5 >= windows {
                last.append(&window);
                settings.push(controller.setting());
            }
            controller.observe(&window);
        }
        controller.is_kept(&last) && settings.iter().all(|setting| *setting == settings[0])
    }

    #[test]
    fn an_end_that_keeps_the_agreement_is_enough() {
        let mut weak = controller("p95<=3ms,inconsistent<=5%");
        assert!(work(&mut weak, &mut Store::new(1.0, 5.0, 0.01), 20));
        assert_eq!((weak.phase(), weak.setting()), (Phase::Hold, Setting::WEAK));
        let mut strong = controller("p95<=12ms,inconsistent<=0.1%");
        assert!(work(&mut strong, &mut Store::new(1.0, 5.0, 0.01), 20));
        assert_eq!(strong.setting(), Setting::STRONG);
    }

    #[test]
    fn between_the_ends_a_setting_is_found_and_held() {
        let mut store = Store::new(1.0, 5.0, 0.04);
        // Both ends fail: 1.5 ms with 4 %, and 7.5 ms with 0.
        let mut mean = controller("mean<=5ms,inconsistent<=1%");
        assert!(work(&mut mean, &mut store, 30));
        assert_eq!(mean.phase(), Phase::Hold);
        let Setting { p_reads, delay, .. } = mean.setting();
        assert!(p_reads > 0.3 && p_reads < 0.6 && delay == 0.0, "{:?}", mean.setting());
        // Strong operations, few as they may be, break the percentile.
        let mut percentile = controller("p95<=9ms,inconsistent<=1%");
        assert!(work(&mut percentile, &mut store, 30));
        assert!(percentile.setting().delay > 0.004, "{:?}", percentile.setting());
    }

    #[test]
    fn the_least_that_keeps_it_is_looked_for() {
        let mut store = Store::new(1.0, 5.0, 0.04);
        let mut controller = controller("mean<=20ms,inconsistent<=1%,min mean");
        work(&mut controller, &mut store, 40);
        assert_eq!(controller.phase(), Phase::Hold);
        assert!(controller.setting().p_reads < 0.5, "{:?}", controller.setting());
    }

    #[test]
    fn a_load_that_changes_is_followed() {
        let mut store = Store::new(1.0, 5.0, 0.04);
        let mut controller = controller("mean<=5ms,inconsistent<=1%");
        work(&mut controller, &mut store, 20);
        let before = controller.setting();
        store.stale = 0.09;
        assert!(work(&mut controller, &mut store, 25), "{:?}", controller.tried());
        assert!(controller.setting().p_reads > before.p_reads);
        (store.stale, store.strong) = (0.02, 9.0);
        assert!(work(&mut controller, &mut store, 30));
        assert!(controller.setting().p_reads < before.p_reads);
    }

    #[test]
    fn one_bad_window_does_not_turn_the_dials() {
        let mut store = Store::new(1.0, 5.0, 0.04);
        let mut controller = controller("mean<=5ms,inconsistent<=1%");
        work(&mut controller, &mut store, 20);
        let before = controller.setting();
        for _ in 0..5 {
            let bad = Store::new(1.8, 6.0, 0.04).window(before);
            controller.observe(&bad);
            work(&mut controller, &mut store, 9);
            assert_eq!(controller.setting(), before);
        }
    }

    #[test]
    fn out_of_reach_is_said_and_the_first_line_counts_most() {
        let mut store = Store::new(1.0, 5.0, 0.04);
        let mut fast = controller("mean<=1.8ms,inconsistent<=0.1%");
        work(&mut fast, &mut store, 25);
        let mut phases = Vec::new();
        for _ in 0..PATIENCE {
            phases.push(fast.phase());
            let window = store.window(fast.setting());
            fast.observe(&window);
        }
        assert!(phases.contains(&Phase::OutOfReach), "{phases:?}");
        let best = |agreement| {
            let mut controller = controller(agreement);
            for _ in 0..60 {
                let window = store.window(controller.setting());
                controller.observe(&window);
                if controller.phase() == Phase::OutOfReach {
                    return controller.setting();
                }
            }
            panic!("it was not said");
        };
        let mut best = best;
        assert!(best("mean<=1.8ms,inconsistent<=0.1%").p_reads < 0.3);
        assert!(best("inconsistent<=0.1%,mean<=1.8ms").p_reads > 0.5);
    }

    #[test]
    fn no_inconsistency_is_kept_by_the_levels_that_promise_it() {
        let mut store = Store::new(1.0, 5.0, 0.0);
        let mut controller = controller("inconsistent<=0");
        assert!(work(&mut controller, &mut store, 20));
        assert_eq!((controller.phase(), controller.setting()), (Phase::Hold, Setting::STRONG));
        // The bound on latency cannot be kept as well.
        let mut both = self::controller("inconsistent<=0,mean<=2ms");
        work(&mut both, &mut store, 5);
        assert_eq!((both.phase(), both.setting()), (Phase::OutOfReach, Setting::STRONG));
    }
}
