//! Holds an agreement on a running store: clients work, each window is judged, and the dials are turned.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;

use crate::{
    controller::{Controller, LevelEnds, Phase, Setting},
    load::{Load, LoadError, Tape},
    model::Model,
    window::{Judge, Window},
};

/// A window with its result.
#[derive(Debug)]
pub struct WindowResult<'a> {
    /// Time since the clients began.
    pub at: Duration,
    /// Setting of the dials during the window.
    pub setting: Setting,
    /// Phase of the controller during the window.
    pub phase: Phase,
    /// Latencies and consistency of the window.
    pub window: &'a Window,
    /// Number of operations let go since the previous window. They were due before the dials were turned and
    /// had not begun.
    pub let_go: u64,
    /// The controller, which has observed the window.
    pub controller: &'a Controller,
}

/// Time after turning the dials in which earlier operations may end. These operations count for no window.
const SETTLE: Duration = Duration::from_millis(400);

/// Writes all keys, lets the clients sound the store and then work, and turns their dials after each window.
/// A window has the given length. Each window is passed to `round`, and the work ends when `round` returns
/// false.
pub fn hold(
    load: &Load<'_>,
    controller: &mut Controller,
    length: Duration,
    mut round: impl FnMut(&WindowResult<'_>) -> bool,
) -> Result<(), LoadError> {
    let mut judge = Judge::default();
    judge.begin(load.fill()?);
    if let Some(model) = Model::new(load.workload(), controller.ends().choice, &load.sound()?) {
        controller.set_model(model);
    }
    load.turn(controller.dials());
    load.run_while(|tapes| {
        let began = Instant::now();
        let mut from = load.now();
        let mut settles = true;
        let mut let_go = 0;
        loop {
            thread::sleep(if settles { SETTLE } else { length });
            if load.has_stopped() {
                // A client could not begin. `run_while` returns the reason once all clients have ended.
                return;
            }
            let to = load.now();
            let tape = arrived(tapes);
            let_go += tape.let_go;
            controller.learn(&tape, load.rate());
            let window = judge.window(tape, from, to);
            from = to;
            if std::mem::take(&mut settles) {
                continue;
            }
            let (setting, phase) = (controller.setting(), controller.phase());
            controller.observe(&window);
            let turned = controller.setting() != setting;
            if turned {
                load.turn(controller.dials());
                settles = true;
            }
            let at = began.elapsed();
            if !round(&WindowResult { at, setting, phase, window: &window, let_go, controller }) {
                return;
            }
            let_go = 0;
        }
    })
}

/// The measured window of a setting, with the model's prediction.
#[derive(Clone, Debug)]
pub struct PredictionComparison {
    /// Setting of the dials.
    pub setting: Setting,
    /// The window that the clients measured.
    pub measured: Window,
    /// The window that the model predicted from the soundings and the latencies up to that time. The model
    /// has not seen which reads were stale.
    pub predicted: Window,
}

/// Lets clients work at each setting for `length`, and compares their windows with the model's predictions.
/// Returns `None` if no client could sound the store.
pub fn compare(
    load: &Load<'_>,
    ends: LevelEnds,
    settings: &[Setting],
    length: Duration,
) -> Result<Option<Vec<PredictionComparison>>, LoadError> {
    let mut judge = Judge::default();
    judge.begin(load.fill()?);
    let Some(mut model) = Model::new(load.workload(), ends.choice, &load.sound()?) else { return Ok(None) };
    model.expect(load.rate());
    load.turn(Setting::WEAK.dials(ends));
    let compared = load.run_while(|tapes| {
        let mut from = load.now();
        let mut window = |length: Duration| {
            thread::sleep(length);
            let (tape, to) = (arrived(tapes), load.now());
            model.learn(&tape.served);
            let window = judge.window(tape, from, to);
            from = to;
            window
        };
        let compare = |setting: &Setting| {
            load.turn(setting.dials(ends));
            window(SETTLE);
            let measured = window(length);
            (*setting, measured)
        };
        settings.iter().map(compare).collect::<Vec<_>>()
    })?;
    let compared = compared.into_iter().map(|(setting, measured)| {
        let predicted = model.predict(setting);
        PredictionComparison { setting, measured, predicted }
    });
    Ok(Some(compared.collect()))
}

/// Returns all tapes that the clients have handed over, joined.
fn arrived(tapes: &Receiver<Tape>) -> Tape {
    let mut all = Tape::default();
    tapes.try_iter().for_each(|tape| all.append(tape));
    all
}
