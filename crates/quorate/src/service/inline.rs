//! User code on the protocol thread, for services that declare themselves short.
//!
//! **Promise.** The endpoint executes a replica's orders in the turn in which they arise
//! ([`quorate_roles::services::Inline`]). The promises of an executor's thread hold here, too.
//!
//! **The meter.** A thread that serves links and runs user code does only one of them at a time, and a leader
//! that is silent for long is deposed. So the meter measures the time of each batch of orders to execute or
//! to apply. A batch with more than 50 µs an order adds to an account, the more the longer it took; other
//! batches subtract from the account. A service whose account is full gets a thread of its own, for good. A
//! single batch of two thirds of a second fills the account. The account does not fill if the system merely
//! suspends the thread now and then.

use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use quorate_protocol::{Context, service};
use quorate_roles::services::{Broken, Exported, InlineExecutor};

use super::executor::Performer;

/// A service on the protocol thread, with its meter.
pub(super) struct Metered {
    performer: Box<dyn Performer>,
    /// The beginning of the present batch.
    begun: Instant,
    meter: Meter,
}

impl Metered {
    pub(super) fn new(performer: Box<dyn Performer>) -> Metered {
        Metered { performer, begun: Instant::now(), meter: Meter::default() }
    }

    pub(super) fn into_performer(self) -> Box<dyn Performer> {
        self.performer
    }
}

impl InlineExecutor for Metered {
    type Receiver = Sender<Exported>;

    fn begin_batch(&mut self) {
        self.begun = Instant::now();
    }

    fn perform(
        &mut self,
        _: &mut Context<'_>,
        order: service::Event,
        put: &mut dyn FnMut(service::Command),
    ) -> Result<(), Broken> {
        self.performer.perform(order, put)
    }

    fn end_batch(&mut self, orders: u32) -> bool {
        self.meter.is_full(self.begun.elapsed(), orders)
    }

    fn want_copy(&mut self, receiver: Sender<Exported>) {
        self.performer.want_copy(receiver);
    }

    fn give_copies(&mut self, _: &mut Context<'_>) {
        self.performer.give_copies();
    }
}

/// An account of the batches that took long.
#[derive(Debug, Default)]
pub(super) struct Meter {
    account: u32,
}

impl Meter {
    /// Counts a batch of `orders` orders that took `span`. Returns whether the account is full.
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
/// Time in milliseconds for which a long batch adds one more to the account.
const CHARGE_MILLIS: u128 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_counts_as_long_after_many_long_batches_or_a_very_long_one() {
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
