//! User code on the protocol thread, for services that declare themselves short.
//!
//! **Promise.** A replica's orders are executed in the turn in which they arise, in their order, and their
//! results are a part of that turn: no other thread is woken. The promises of an executor's thread hold here,
//! too.
//!
//! **The meter.** A thread that serves links and runs user code does only one of them at a time, and a leader
//! that is silent for long is deposed. So the time of each batch of orders to execute or to apply is
//! measured. A batch with more than 50 µs an order adds to an account, the more the longer it took; other
//! batches subtract from it. A service whose account is full gets a thread of its own, for good. A single
//! batch of two thirds of a second fills the account. A thread that the system suspends now and then does
//! not.
//!
//! **Attacks considered.**
//!
//! - *Results are longer than the log has room for.* Results of a quarter of a MiB go to the replica before
//!   more is executed. While the replica holds as many results as it may ([`Replica::holds_too_much`]),
//!   requests wait for a later turn. The log goes on by messages, which are turns.
//! - *Results follow the end of a batch*, or records that become complete after it. Then the end is given
//!   again, so that the executed requests are proposed.
//! - *The service breaks in the middle of a turn.* Its results are passed on, the replica resigns, and later
//!   orders are dropped, like those for a thread that has ended.
//! - *The service gets a thread in the middle of a turn.* All earlier orders were executed, and all results
//!   were passed on.

use std::{collections::VecDeque, time::Duration};

use crossbeam_channel::Sender;
use quorate_protocol::{
    Input,
    service::{self, Replica},
};

use super::{
    executor::{Performer, Results},
    export::Exported,
};

/// A service that is executed in the turns of its replica.
pub(super) struct Inline {
    pub(super) performer: Box<dyn Performer>,
    pub(super) results: Results,
    /// A buffer that is reused from turn to turn.
    pub(super) inputs: VecDeque<Input<Replica>>,
    pub(super) orders: VecDeque<service::Event>,
    /// Whether the service's state is unknown.
    pub(super) broken: bool,
    pub(super) meter: Meter,
}

/// The result of a turn.
pub(super) enum Upshot {
    Fine,
    /// The service cannot continue, for this reason.
    Broken(String),
    /// The service has to get a thread.
    Long,
}

impl Inline {
    pub(super) fn new(performer: Box<dyn Performer>) -> Inline {
        Inline {
            performer,
            results: Results::default(),
            inputs: VecDeque::new(),
            orders: VecDeque::new(),
            broken: false,
            meter: Meter::default(),
        }
    }

    pub(super) fn into_performer(self) -> Box<dyn Performer> {
        self.performer
    }

    /// Notes a request for a copy of the state.
    pub(super) fn want_copy(&mut self, wanted: Sender<Exported>) {
        if !self.broken {
            self.performer.want_copy(wanted);
            self.performer.give_copies();
        }
    }
}

/// Whether an order makes the user's code do more than forget data for a revert. The meter counts such
/// orders.
pub(super) fn is_work(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. } | service::Event::Apply { .. })
}

/// Whether an order may wait for a later turn, because its result adds to those that the replica holds.
pub(super) fn may_wait(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. })
}

/// Whether an event concerns the host and not the service's code.
pub(super) fn is_news(event: &service::Event) -> bool {
    use service::Event;
    matches!(
        event,
        Event::Leader(_)
            | Event::Serving
            | Event::Members(_)
            | Event::Removed
            | Event::ChangeRefused { .. }
            | Event::Corrupt(_)
            | Event::Resigned
    )
}

/// An account of long batches.
#[derive(Debug, Default)]
pub(super) struct Meter {
    account: u32,
}

impl Meter {
    /// Counts a batch of `orders` orders. Returns whether the account is full.
    pub(super) fn is_full(&mut self, span: Duration, orders: u32) -> bool {
        if span > ORDER_MAX * orders {
            let more = 1 + span.as_millis() / CHARGE_MILLIS;
            self.account = self.account.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        } else {
            self.account = self.account.saturating_sub(1);
        }
        self.account >= ACCOUNT_MAX
    }
}

/// Upper bound of the time of a short order.
const ORDER_MAX: Duration = Duration::from_micros(50);
const ACCOUNT_MAX: u32 = 64;
/// Milliseconds for each of which a long batch is charged one more.
const CHARGE_MILLIS: u128 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_long_if_most_of_its_batches_are_or_one_is_very_long() {
        let mut meter = Meter::default();
        let [short, long] = [3, 60].map(Duration::from_micros);
        let mixed = (0..10_000).map(|turn| if turn % 2 == 0 { short } else { long });
        assert!(!mixed.into_iter().any(|span| meter.is_full(span, 1)), "half of them are short");
        assert_eq!((0..).take_while(|_| !meter.is_full(long, 1)).count(), 62);
        let mut meter = Meter::default();
        assert!(!meter.is_full(Duration::from_micros(5000), 256), "many orders may take their time together");
        assert!(!meter.is_full(Duration::from_millis(200), 1), "the system may have passed the thread over");
        assert!(meter.is_full(Duration::from_millis(640), 1));
    }
}
