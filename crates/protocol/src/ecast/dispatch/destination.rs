//! One destination: its queue of messages, and how much of it was sent, confirmed, executed and made durable.
//!
//! Messages that are confirmed but not durable are kept. A process that crashed and came back confirms less
//! than before, and the later messages are sent to it again.

use std::collections::VecDeque;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    ecast::{
        Class, Pace, Position, Routing,
        block::{DeliverBlock, DeliverBlockBuilder, Delivery, DeliveryKind},
        message::Message,
        order::Order,
    },
    id::ProcessId,
};

/// Size of a queued message in addition to its body, in bytes.
pub(super) const DELIVERY_HEAD_BYTES: usize = 48;
/// Maximum number of bytes that are sent to a destination and not confirmed.
const UNCONFIRMED_BYTES_MAX: usize = 8 << 20;
/// Largest number of unexecuted bytes at a destination that catches up. Above this number, further messages
/// to the destination use their submitters' credit.
const BEHIND_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of injected reads that wait for one destination; more reads are refused.
const INJECTED_MAX: usize = 16_384;

pub(super) struct Destination {
    pub(super) process: ProcessId,
    pub(super) linked: bool,
    gone: bool,
    /// The position that the last confirmation named. A process that came back may confirm less than it did
    /// earlier.
    reached: Position,
    /// The highest position confirmed so far, which a process that came back may no longer have.
    confirmed: Position,
    executed: Position,
    durable: Position,
    /// The last position routed to this destination.
    last: Position,
    /// Unconfirmed messages, in order; the first `sent` have been sent on the present link.
    queue: VecDeque<Item>,
    /// Messages that the member has confirmed but may lose.
    kept: VecDeque<QueuedMessage>,
    sent: usize,
    sent_bytes: usize,
    injected: usize,
    /// Messages that the destination has not executed.
    unexecuted: VecDeque<Unexecuted>,
    /// Bytes of all unexecuted messages.
    behind: u64,
    pace: Pace,
    pub(super) dirty: bool,
}

enum Item {
    Ordered(QueuedMessage),
    Injected { at: Position, previous: Position, sender: ProcessId, token: u64, body: Bytes },
}

#[derive(Clone, Copy)]
struct QueuedMessage {
    at: Position,
    previous: Position,
    bytes: u32,
    /// Whether the message's route waits for this destination's confirmation.
    awaited: bool,
}

impl Item {
    /// Returns the item's size as a delivery in bytes, or slightly more.
    fn bytes(&self) -> usize {
        match self {
            Item::Ordered(ordered) => ordered.bytes as usize,
            Item::Injected { body, .. } => body.len() + DELIVERY_HEAD_BYTES,
        }
    }
}

/// A member's progress: the positions up to which it has delivered, executed, and made durable all its
/// messages.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ecast) struct Watermarks {
    /// The last position up to which all messages for the member are delivered.
    pub(in crate::ecast) through: Position,
    /// The last position up to which all messages for the member are executed.
    pub(in crate::ecast) executed: Position,
    /// The last position up to which all messages for the member are durable. They need not be sent again,
    /// even after a crash.
    pub(in crate::ecast) durable: Position,
}

/// A message that a member has confirmed for the first time.
pub(super) struct ConfirmedMessage {
    pub(super) at: Position,
    /// Whether the message is durable at the member, too.
    pub(super) durable: bool,
}

struct Unexecuted {
    at: Position,
    bytes: u32,
    /// Whether the message uses its submitter's credit.
    counts: bool,
}

/// The steps of a message for which its route still waits at this destination.
pub(super) struct AwaitedSteps {
    /// Whether the message was confirmed before it was routed.
    pub(super) confirmed: bool,
    pub(super) confirmation: bool,
    pub(super) execution: bool,
    pub(super) durability: bool,
}

/// Waits that end because the member's [`Pace`] has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WaivedWaits {
    pub(super) unconfirmed: Vec<Position>,
    /// Positions of messages that used credit until the pace changed.
    pub(super) unexecuted: Vec<Position>,
}

/// Waits that end because the member has left.
pub(super) struct DepartedWaits {
    pub(super) unconfirmed: Vec<Position>,
    /// Positions of messages that used credit until the member left.
    pub(super) unexecuted: Vec<Position>,
    pub(super) undurable: Vec<Position>,
}

impl Destination {
    pub(super) fn new(process: ProcessId, linked: bool, pace: Pace) -> Self {
        Destination {
            process,
            linked,
            gone: false,
            reached: Position(0),
            confirmed: Position(0),
            executed: Position(0),
            durable: Position(0),
            last: Position(0),
            queue: VecDeque::new(),
            kept: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            injected: 0,
            unexecuted: VecDeque::new(),
            behind: 0,
            pace,
            dirty: false,
        }
    }

    /// Adds a message of `bytes` bytes.
    pub(super) fn route(&mut self, at: Position, bytes: u32) -> AwaitedSteps {
        let previous = std::mem::replace(&mut self.last, at);
        let counts = match self.pace {
            Pace::Executes => true,
            Pace::Receives => self.behind > BEHIND_BYTES_MAX,
            Pace::Waits | Pace::Away => false,
        };
        let unexecuted = at > self.executed;
        if unexecuted {
            self.behind += u64::from(bytes);
            self.unexecuted.push_back(Unexecuted { at, bytes, counts });
        }
        let (confirmed, durability) = (at <= self.confirmed, at > self.durable);
        let confirmation = !confirmed && self.pace != Pace::Away;
        let item = QueuedMessage { at, previous, bytes, awaited: confirmation };
        if at > self.reached {
            self.queue.push_back(Item::Ordered(item));
        } else if durability {
            self.kept.push_back(item);
        }
        AwaitedSteps { confirmed, confirmation, execution: unexecuted && counts, durability }
    }

    /// Whether an injected message may be added.
    pub(super) fn takes_injected(&self) -> bool {
        self.linked && self.injected < INJECTED_MAX
    }

    /// Adds an injected message after everything routed here; `at` is the last position of the order.
    pub(super) fn inject(&mut self, at: Position, sender: ProcessId, token: u64, body: Bytes) {
        self.queue.push_back(Item::Injected { at, previous: self.last, sender, token, body });
        self.injected += 1;
    }

    /// Notes that the member has confirmed everything through this position. Returns the messages that it had
    /// not confirmed before.
    pub(super) fn confirm(
        &mut self,
        through: Position,
        durable: Position,
    ) -> SmallVec<[ConfirmedMessage; 64]> {
        if through < self.reached {
            self.returned(through);
        }
        self.reached = through;
        let before = self.confirmed;
        self.confirmed = before.max(through);
        let mut settled = SmallVec::new();
        while let Some(item) = self.next_confirmed() {
            // A message that this leader has not sent on this link may be confirmed nevertheless, because an
            // earlier leader sent it.
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= item.bytes as usize;
            }
            let is_durable = item.at <= durable;
            let settles = item.at > before && item.awaited;
            if settles {
                settled.push(ConfirmedMessage { at: item.at, durable: is_durable });
            }
            // If no route waits for this confirmation, or if the member had confirmed the message and then
            // lost it, the confirmation settles nothing now. `keep` will report when the message is durable.
            let is_reported = settles || item.at <= self.durable;
            if !is_durable || !is_reported {
                self.kept.push_back(item);
            }
            self.drop_injected();
        }
        settled
    }

    /// Takes the first ordered item off the queue if the member has reached it. Drops the injected items
    /// before it, because the member is past their place and would not take them.
    fn next_confirmed(&mut self) -> Option<QueuedMessage> {
        let is_ordered = |item: &Item| matches!(item, Item::Ordered(_));
        let place = self.queue.iter().position(is_ordered)?;
        let &Item::Ordered(item) = &self.queue[place] else { unreachable!("just seen") };
        if item.at > self.reached {
            return None;
        }
        (0..=place).for_each(|_| drop(self.queue.pop_front()));
        self.injected -= place;
        self.sent -= place.min(self.sent);
        Some(item)
    }

    /// Notes that the member has come back with messages only through this position: the leader sends later
    /// messages again.
    fn returned(&mut self, through: Position) {
        self.rewind();
        while let Some(item) = self.kept.pop_back_if(|item| item.at > through) {
            self.queue.push_front(Item::Ordered(item));
        }
    }

    /// Notes that everything through this position is durable. Returns the confirmed messages that have
    /// become durable.
    pub(super) fn keep(&mut self, durable: Position) -> SmallVec<[Position; 8]> {
        self.durable = self.durable.max(durable);
        let mut kept = SmallVec::new();
        while let Some(item) = self.kept.pop_front_if(|item| item.at <= self.durable) {
            kept.push(item.at);
        }
        kept
    }

    /// Returns the last confirmed position.
    pub(super) fn reached(&self) -> Position {
        self.reached
    }

    /// Changes the pace. Returns the waits that end. A message that uses no credit under the new pace never
    /// uses credit again.
    pub(super) fn change_pace(&mut self, pace: Pace) -> WaivedWaits {
        self.pace = pace;
        let mut waived = WaivedWaits::default();
        if pace == Pace::Executes {
            return waived;
        }
        if pace == Pace::Away {
            for item in &mut self.queue {
                if let Item::Ordered(item) = item
                    && std::mem::take(&mut item.awaited)
                    && item.at > self.confirmed
                {
                    waived.unconfirmed.push(item.at);
                }
            }
        }
        let counted = |item: &mut Unexecuted| std::mem::take(&mut item.counts).then_some(item.at);
        waived.unexecuted = self.unexecuted.iter_mut().filter_map(counted).collect();
        waived
    }

    pub(super) fn pace(&self) -> Pace {
        self.pace
    }

    /// Notes that the member has executed everything through this position. Returns the messages that used
    /// credit until then.
    pub(super) fn execute(&mut self, through: Position) -> SmallVec<[Position; 64]> {
        self.executed = self.executed.max(through);
        let mut done = SmallVec::new();
        while let Some(item) = self.unexecuted.front().filter(|item| item.at <= self.executed) {
            self.behind -= u64::from(item.bytes);
            done.extend(item.counts.then_some(item.at));
            self.unexecuted.pop_front();
        }
        done
    }

    /// Drops sent injected items at the front: they get no confirmation.
    fn drop_injected(&mut self) {
        while self.sent > 0 && matches!(self.queue.front(), Some(Item::Injected { .. })) {
            self.queue.pop_front();
            self.sent -= 1;
            self.injected -= 1;
        }
    }

    /// Whether some item was not sent on the present link.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.queue.len()
    }

    /// Returns the number of unconfirmed items, `None` if the member has left.
    pub(super) fn lag(&self) -> Option<usize> {
        (!self.gone).then_some(self.queue.len())
    }

    /// Prepares to send everything unconfirmed again, without injected items. Returns whether anything had
    /// been sent.
    pub(super) fn rewind(&mut self) -> bool {
        let sent = self.sent > 0;
        self.queue.retain(|item| matches!(item, Item::Ordered(_)));
        (self.sent, self.sent_bytes, self.injected) = (0, 0, 0);
        sent
    }

    /// Notes that the member has left. Returns the waits that end.
    pub(super) fn leave(&mut self) -> DepartedWaits {
        self.gone = true;
        (self.sent, self.sent_bytes, self.injected) = (0, 0, 0);
        let queued = std::mem::take(&mut self.queue).into_iter().filter_map(|item| match item {
            Item::Ordered(item) => Some(item),
            Item::Injected { .. } => None,
        });
        let queued: Vec<QueuedMessage> = queued.collect();
        let kept = std::mem::take(&mut self.kept).into_iter().map(|item| item.at);
        let unexecuted = std::mem::take(&mut self.unexecuted).into_iter().filter(|item| item.counts);
        DepartedWaits {
            unexecuted: unexecuted.map(|item| item.at).collect(),
            unconfirmed: queued
                .iter()
                .filter(|item| item.at > self.confirmed && item.awaited)
                .map(|item| item.at)
                .collect(),
            undurable: kept
                .chain(queued.iter().map(|item| item.at))
                .filter(|at| *at > self.durable)
                .collect(),
        }
    }

    /// Sends as much as the limit of unconfirmed bytes allows.
    pub(super) fn flush<R: Routing>(&mut self, order: &Order<R>, send: &mut impl FnMut(ProcessId, Message)) {
        self.dirty = false;
        if !self.linked || self.gone {
            return;
        }
        let (mut block, base) = (DeliverBlockBuilder::default(), order.base());
        while self.sent < self.queue.len() && self.sent_bytes < UNCONFIRMED_BYTES_MAX {
            if block.is_empty() {
                let unsent = self.queue.range(self.sent..).map(Item::bytes);
                block.reserve(unsent, UNCONFIRMED_BYTES_MAX - self.sent_bytes);
            }
            match &self.queue[self.sent] {
                Item::Ordered(QueuedMessage { at, previous, bytes, .. }) => {
                    let flight = order.flight(*at).expect("an unconfirmed message is kept");
                    let kind = match flight.class {
                        Class::Data => DeliveryKind::Data,
                        Class::Control => DeliveryKind::Control,
                    };
                    let attachment = match flight.class {
                        Class::Data => None,
                        Class::Control => {
                            R::attachment(order.config_at(*at), flight.id, &flight.body, self.process)
                        }
                    };
                    block.push(&Delivery {
                        kind,
                        at: *at,
                        previous: *previous,
                        sender: flight.id.sender,
                        number: flight.id.number,
                        body: flight.body.clone(),
                        attachment,
                    });
                    self.sent_bytes += *bytes as usize;
                }
                Item::Injected { at, previous, sender, token, body } => block.push(&Delivery {
                    kind: DeliveryKind::Injected,
                    at: *at,
                    previous: *previous,
                    sender: *sender,
                    number: *token,
                    body: body.clone(),
                    attachment: None,
                }),
            }
            self.sent += 1;
            if block.is_full() {
                send(self.process, Message::Deliver(block.finish(base)));
            }
        }
        self.drop_injected();
        if !block.is_empty() {
            let block: DeliverBlock = block.finish(base);
            send(self.process, Message::Deliver(block));
        }
    }
}
