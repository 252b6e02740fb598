//! User code on the protocol thread, for services that say that they are short.
//!
//! **Promise.** A replica's orders are carried out in the turn in which they come up, in their order, and their results are a part of
//! that turn: no other thread is woken. What holds with an executor's thread holds here.
//!
//! **The meter.** A thread that serves the links and runs user code does neither while it does the other, and a leader that is silent for long is
//! deposed. So the time of each batch of orders to execute or to apply is measured. Batches of more than 50 µs an order add to an account, the more the longer
//! they took, and others take from it. A service whose account is full is given a thread of its own, for good. One batch that takes two
//! thirds of a second does that alone; a thread that the system passes over now and then does not.
//!
//! **Attacks considered.**
//!
//! - *Results come of the end of a batch*, or of records that are complete behind it. Then that end is given again, so that what was
//!   executed is proposed.
//! - *The service breaks in the middle of a turn.* Its results are handed over, the replica resigns, and later orders are dropped, as those
//!   for a thread that has ended are.
//! - *It is given a thread in the middle of a turn.* All orders before were carried out, and all results were handed over.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use quorate_protocol::{
    Context, Input, Protocol, Sink,
    service::{self, Replica},
};

use super::{
    executor::{Broken, Performer, Results},
    export::Exported,
    hosted::{Below, Event, Hosted, Set},
};

/// A service that is executed in the turns of its replica.
pub(super) struct Inline {
    performer: Box<dyn Performer>,
    results: Results,
    /// Reused from turn to turn.
    inputs: VecDeque<Input<Replica>>,
    orders: VecDeque<service::Event>,
    /// Nobody knows what its state is.
    broken: bool,
    meter: Meter,
}

/// What a turn came to.
pub(super) enum Upshot {
    Fine,
    /// The service cannot go on, for this reason.
    Broken(String),
    /// It is to be given a thread.
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

    /// Somebody wants a copy of the state.
    pub(super) fn want_copy(&mut self, wanted: Sender<Exported>) {
        if !self.broken {
            self.performer.want_copy(wanted);
            self.performer.give_copies();
        }
    }

    /// Hands an input to the replica, and carries out what that orders. Events that are not for the service alone are told.
    pub(super) fn give(
        &mut self,
        cx: &mut Context<'_>,
        (set, replica, input): (Set, &mut Replica, Input<Replica>),
        out: &mut dyn Sink<Hosted>,
    ) -> Upshot {
        let mut upshot = Upshot::Fine;
        let ends = matches!(input, Input::Drained | Input::Persisted(_));
        let Inline { performer, results, inputs, orders, broken, meter } = self;
        inputs.push_back(input);
        while let Some(input) = inputs.pop_front() {
            let emit = |_: &mut dyn Sink<Hosted>, event| orders.push_back(event);
            replica.handle(cx, input, &mut Below { out, set: Some(set), emit });
            if orders.is_empty() {
                continue;
            }
            let (begun, mut count, was_broken) = (Instant::now(), 0, *broken);
            while let Some(event) = orders.pop_front() {
                if is_news(&event) {
                    out.emit(Event::Replica(event));
                    continue;
                }
                if matches!(event, service::Event::Revert) {
                    out.emit(Event::Replica(service::Event::Revert));
                }
                count += u32::from(is_work(&event));
                if *broken {
                    continue;
                }
                if let Err(Broken(why)) = performer.perform(event, results) {
                    *broken = true;
                    upshot = Upshot::Broken(why);
                }
            }
            if count > 0 && !*broken && meter.is_full(begun.elapsed(), count) {
                upshot = Upshot::Long;
            }
            let before = inputs.len();
            inputs.extend(results.drain().map(Input::Command));
            if *broken && !was_broken {
                inputs.push_back(Input::Command(service::Command::Resign));
            }
            if ends && inputs.len() > before {
                inputs.push_back(Input::Drained);
            }
        }
        if !*broken {
            performer.give_copies();
        }
        upshot
    }
}

/// Whether an order has the user's code do more than to forget what it would have reverted: the meter counts these.
fn is_work(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. } | service::Event::Apply { .. })
}

/// Whether an event is for others than the service.
fn is_news(event: &service::Event) -> bool {
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
struct Meter {
    account: u32,
}

impl Meter {
    /// Counts a batch of so many orders. Says whether the account is full.
    fn is_full(&mut self, span: Duration, orders: u32) -> bool {
        if span > ORDER_MAX * orders {
            let more = 1 + span.as_millis() / CHARGE_MILLIS;
            self.account = self.account.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        } else {
            self.account = self.account.saturating_sub(1);
        }
        self.account >= ACCOUNT_MAX
    }
}

/// An order that takes longer is not short.
const ORDER_MAX: Duration = Duration::from_micros(50);
const ACCOUNT_MAX: u32 = 64;
/// A batch is charged one more for each so many milliseconds.
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
