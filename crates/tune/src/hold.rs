//! Holding an agreement on a store that runs: clients work, each window is judged, and the dials are turned.

use std::{
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;

use crate::{
    controller::{Controller, Phase, Setting},
    load::{Load, LoadError, Tape},
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
    /// The controller, which has been told of the window.
    pub controller: &'a Controller,
}

/// After the dials were turned, operations that had begun before are let end for so long. They count for no window.
const SETTLE: Duration = Duration::from_millis(400);

/// Writes all keys, has clients work, and lets the controller turn their dials after each window of this length. Goes on until `round`,
/// which is told of each, returns false.
pub fn hold(
    load: &Load<'_>,
    controller: &mut Controller,
    length: Duration,
    mut round: impl FnMut(&Round<'_>) -> bool,
) -> Result<(), LoadError> {
    let mut judge = Judge::default();
    judge.begin(load.fill()?);
    load.turn(controller.dials());
    load.run_while(|tapes| {
        let began = Instant::now();
        let mut from = load.now();
        let mut settles = true;
        loop {
            thread::sleep(if settles { SETTLE } else { length });
            if load.has_stopped() {
                // A client could not begin; why is told once all have ended.
                return;
            }
            let to = load.now();
            let window = judge.window(arrived(tapes), from, to);
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
            if !round(&Round { at: began.elapsed(), setting, phase, window: &window, controller }) {
                return;
            }
        }
    })
}

/// The tapes that clients have handed over.
fn arrived(tapes: &Receiver<Tape>) -> Tape {
    let mut all = Tape::default();
    tapes.try_iter().for_each(|tape| all.append(tape));
    all
}
