//! The state of a process's touch with the routers, as its callers see it.

use std::sync::atomic::{AtomicU64, Ordering};

/// In the two lowest bits the state of touch, and in the upper bits the number of times that touch was lost.
/// One number holds both, so that no thread sees half of a change.
#[derive(Default)]
pub(super) struct Touch(AtomicU64);

const STANDING: u64 = 3;
const IN_TOUCH: u64 = 0;
const LOST: u64 = 1;
const GIVEN_UP: u64 = 2;

/// One loss of touch with the routers, by its number.
#[derive(Clone, Copy)]
pub(super) struct Loss(u64);

impl Touch {
    /// Whether the process is in touch, so that its state counts as current.
    pub(super) fn is_in(&self) -> bool {
        self.0.load(Ordering::Acquire) & STANDING == IN_TOUCH
    }

    /// Whether touch has been lost for so long that callers no longer wait for their requests to end.
    pub(super) fn is_given_up(&self) -> bool {
        self.0.load(Ordering::SeqCst) & STANDING == GIVEN_UP
    }

    /// Notes a loss. Runs on the protocol thread, which alone loses and regains touch.
    pub(super) fn lose(&self) -> Loss {
        let lost = (self.0.load(Ordering::SeqCst) | STANDING) + 1 + LOST;
        self.0.store(lost, Ordering::SeqCst);
        Loss(lost)
    }

    /// Notes that the process is in touch again. Runs on the protocol thread.
    pub(super) fn regain(&self) {
        self.0.fetch_and(!STANDING, Ordering::SeqCst);
    }

    /// Ends the waiting for touch, so that no caller waits for the routers, unless touch was regained after
    /// this loss. Returns whether the waiting was ended.
    pub(super) fn give_up(&self, Loss(lost): Loss) -> bool {
        let given_up = lost & !STANDING | GIVEN_UP;
        self.0.compare_exchange(lost, given_up, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_present_loss_of_touch_is_given_up() {
        let touch = Touch::default();
        assert!(touch.is_in() && !touch.is_given_up());
        let first = touch.lose();
        assert!(!touch.is_in() && !touch.is_given_up());
        touch.regain();
        assert!(touch.is_in() && !touch.give_up(first), "it is back");
        let second = touch.lose();
        assert!(!touch.give_up(first), "lost once more, and not for so long");
        assert!(touch.give_up(second) && touch.is_given_up() && !touch.is_in());
        touch.regain();
        assert!(touch.is_in() && !touch.is_given_up());
    }
}
