//! A run fails if a promise is broken, or if an assertion of the simulated code fails. The simulator keeps
//! the text of the assertion, and the other runs continue.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

use quorate_world::Violation;

/// Returns the failure of `run`: a broken promise, or an assertion of the code itself.
pub(crate) fn failure_of(run: impl FnOnce() -> Result<(), Violation>) -> Option<String> {
    keep_panics_quiet();
    SIMULATING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    SIMULATING.set(false);
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.to_string()),
        Err(_) => Some(format!(
            "an assertion of the simulated code failed: {}",
            PANIC.with_borrow(|message| message.clone())
        )),
    }
}

thread_local! {
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Turns assertions of simulated code into failures of their run: keeps their text instead of printing it.
fn keep_panics_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if SIMULATING.get() {
                PANIC.set(info.to_string().replace('\n', " "));
            } else {
                before(info);
            }
        }));
    });
}
