//! Holding an agreement on a store that runs: clients work, each window is judged, and the dials are turned.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;

use crate::{
    controller::{Controller, Ends, Phase, Setting},
    load::{Load, LoadError, Tape},
    model::Model,
    window::{Judge, Window},
};

/// A window, and what followed from it.
#[derive(Debug)]
pub struct Round<'a> {
    /// Since clients began.
    pub at: Duration,
    /// The setting of the dials.
    pub setting: Setting,
    /// The controller's phase during the window.
    pub phase: Phase,
    /// Latencies and consistency of the window.
    pub window: &'a Window,
    /// Operations that were let go since the window before, because they were due before the dials were turned and had not begun.
    pub let_go: u64,
    /// The controller, which has been told of the window.
    pub controller: &'a Controller,
}

/// After the dials were turned, operations that had begun before are let end for so long. They count for no window.
const SETTLE: Duration = Duration::from_millis(400);

/// Writes all keys, has clients sound the store and then work, and lets the controller turn their dials after each window of this length. Goes on until `round`,
/// which is told of each, returns false.
pub fn hold(
    load: &Load<'_>,
    controller: &mut Controller,
    length: Duration,
    mut round: impl FnMut(&Round<'_>) -> bool,
) -> Result<(), LoadError> {
    let mut judge = Judge::default();
    judge.begin(load.fill()?);
    if let Some(model) = Model::new(load.workload(), controller.ends().choice, &load.sound()?) {
        controller.equip(model);
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
                // A client could not begin; why is told once all have ended.
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
            if !round(&Round { at, setting, phase, window: &window, let_go, controller }) {
                return;
            }
            let_go = 0;
        }
    })
}

/// The clients' figures at a setting, beside what the model predicted.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The setting of the dials.
    pub setting: Setting,
    /// The clients' window.
    pub measured: Window,
    /// The model's window, of the soundings and the latencies until then. It knows nothing of what was stale.
    pub predicted: Window,
}

/// Has clients work at each of these settings for so long, and compares what they get with what a model predicts. None if nobody could sound
/// the store.
pub fn compare(
    load: &Load<'_>,
    ends: Ends,
    settings: &[Setting],
    length: Duration,
) -> Result<Option<Vec<Compared>>, LoadError> {
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
        Compared { setting, measured, predicted }
    });
    Ok(Some(compared.collect()))
}

/// The tapes that clients have handed over.
fn arrived(tapes: &Receiver<Tape>) -> Tape {
    let mut all = Tape::default();
    tapes.try_iter().for_each(|tape| all.append(tape));
    all
}
