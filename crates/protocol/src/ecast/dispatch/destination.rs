//! One destination: what is on its way to a member, in order, and how much of it was sent, confirmed, executed and durable.
//!
//! What is confirmed and not durable is kept, for a process that lost it in a crash: one that comes back confirms less than it
//! did before, and is sent what is behind that once more.

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

/// So many bytes count for a message beside its body.
pub(super) const DELIVERY_HEAD_BYTES: usize = 48;
/// Bytes that may be on their way to one destination, sent and not confirmed.
const UNCONFIRMED_BYTES_MAX: usize = 8 << 20;
/// A destination that catches up counts for nobody's credit until so many bytes wait there to be executed.
const BEHIND_BYTES_MAX: u64 = 256 << 20;
/// Injected reads that wait at one destination; further ones are refused.
const INJECTED_MAX: usize = 16_384;

pub(super) struct Destination {
    pub(super) process: ProcessId,
    pub(super) linked: bool,
    gone: bool,
    /// What it said last that it has; and the most it ever said, which a process that comes back may lack.
    reached: Position,
    confirmed: Position,
    executed: Position,
    durable: Position,
    /// The last position routed here.
    last: Position,
    /// What is destined here and not confirmed, in order; the first `sent` have been sent on the present link.
    queue: VecDeque<Item>,
    /// What it has confirmed, and may lose.
    kept: VecDeque<Ordered>,
    sent: usize,
    sent_bytes: usize,
    injected: usize,
    /// Destined here and not executed, with the bytes of all of it.
    unexecuted: VecDeque<Unexecuted>,
    behind: u64,
    pace: Pace,
    pub(super) dirty: bool,
}

enum Item {
    Ordered(Ordered),
    Injected { at: Position, previous: Position, sender: ProcessId, token: u64, body: Bytes },
}

#[derive(Clone, Copy)]
struct Ordered {
    at: Position,
    previous: Position,
    bytes: u32,
    /// Somebody waits for its confirmation.
    awaited: bool,
}

impl Item {
    /// Its length as a delivery, or a little more.
    fn bytes(&self) -> usize {
        match self {
            Item::Ordered(ordered) => ordered.bytes as usize,
            Item::Injected { body, .. } => body.len() + DELIVERY_HEAD_BYTES,
        }
    }
}

/// How far a member is: all that was destined to it up to these positions.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::ecast) struct Watermarks {
    /// It has been delivered.
    pub(in crate::ecast) through: Position,
    /// It has been executed.
    pub(in crate::ecast) executed: Position,
    /// It need not be sent again, not even after a crash.
    pub(in crate::ecast) durable: Position,
}

/// A message that a member has confirmed for the first time.
pub(super) struct Settled {
    pub(super) at: Position,
    /// It is durable there, too.
    pub(super) durable: bool,
}

struct Unexecuted {
    at: Position,
    bytes: u32,
    /// It counts for its submitter's credit.
    counts: bool,
}

/// What a message that was routed to a destination still waits for there.
pub(super) struct Awaited {
    /// It has been confirmed already.
    pub(super) confirmed: bool,
    pub(super) confirmation: bool,
    pub(super) execution: bool,
    pub(super) durability: bool,
}

/// What is waited for no more because the member's pace has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waived {
    pub(super) unconfirmed: Vec<Position>,
    /// What counted for credit until now.
    pub(super) unexecuted: Vec<Position>,
}

/// What is waited for no more because the member has left.
pub(super) struct Left {
    pub(super) unconfirmed: Vec<Position>,
    /// What counted for credit until now.
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

    /// A message of so many bytes goes here.
    pub(super) fn route(&mut self, at: Position, bytes: u32) -> Awaited {
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
        let item = Ordered { at, previous, bytes, awaited: confirmation };
        if at > self.reached {
            self.queue.push_back(Item::Ordered(item));
        } else if durability {
            self.kept.push_back(item);
        }
        Awaited { confirmed, confirmation, execution: unexecuted && counts, durability }
    }

    /// Whether something without a position of its own may be put behind what goes here.
    pub(super) fn takes_injected(&self) -> bool {
        self.linked && self.injected < INJECTED_MAX
    }

    /// Puts something without a position of its own behind what goes here; `at` is the last position of all.
    pub(super) fn inject(&mut self, at: Position, sender: ProcessId, token: u64, body: Bytes) {
        self.queue.push_back(Item::Injected { at, previous: self.last, sender, token, body });
        self.injected += 1;
    }

    /// The member has what goes here through this position. Tells what it had not confirmed before.
    pub(super) fn confirm(&mut self, through: Position, durable: Position) -> SmallVec<[Settled; 64]> {
        if through < self.reached {
            self.returned(through);
        }
        self.reached = through;
        let before = self.confirmed;
        self.confirmed = before.max(through);
        let mut settled = SmallVec::new();
        while let Some(item) = self.next_confirmed() {
            // What was not sent on this link can not be confirmed by it, but an earlier leader may have sent it.
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= item.bytes as usize;
            }
            let is_durable = item.at <= durable;
            let settles = item.at > before && item.awaited;
            if settles {
                settled.push(Settled { at: item.at, durable: is_durable });
            }
            // What nobody waited for, or what was confirmed before it was lost, is not settled now. `keep` is to tell that it is
            // durable.
            let is_told = settles || item.at <= self.durable;
            if !is_durable || !is_told {
                self.kept.push_back(item);
            }
            self.drop_injected();
        }
        settled
    }

    /// Takes the first ordered item off the queue if the member has it, and whatever was injected in front of it: the member is past
    /// that place, and would not take it.
    fn next_confirmed(&mut self) -> Option<Ordered> {
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

    /// The member has come back with what goes here through this position, and no more: the rest is to be sent again.
    fn returned(&mut self, through: Position) {
        self.rewind();
        while let Some(item) = self.kept.pop_back_if(|item| item.at > through) {
            self.queue.push_front(Item::Ordered(item));
        }
    }

    /// What goes here through this position is durable. Tells what was confirmed before, and is durable since.
    pub(super) fn keep(&mut self, durable: Position) -> SmallVec<[Position; 8]> {
        self.durable = self.durable.max(durable);
        let mut kept = SmallVec::new();
        while let Some(item) = self.kept.pop_front_if(|item| item.at <= self.durable) {
            kept.push(item.at);
        }
        kept
    }

    /// What it said last that it has.
    pub(super) fn reached(&self) -> Position {
        self.reached
    }

    /// Its pace changes. Tells what counted and does not any more; what did not count is not counted later.
    pub(super) fn change_pace(&mut self, pace: Pace) -> Waived {
        self.pace = pace;
        let mut waived = Waived::default();
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

    /// The member has executed what goes here through this position. Tells what counted for credit until now.
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

    /// Injected items that were sent have no confirmation to wait for: they are done with once they reach the front.
    fn drop_injected(&mut self) {
        while self.sent > 0 && matches!(self.queue.front(), Some(Item::Injected { .. })) {
            self.queue.pop_front();
            self.sent -= 1;
            self.injected -= 1;
        }
    }

    /// Whether something is here that was not sent on the present link.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.queue.len()
    }

    /// How much is destined here and not confirmed.
    pub(super) fn lag(&self) -> Option<usize> {
        (!self.gone).then_some(self.queue.len())
    }

    /// Everything unconfirmed is to be sent again, and nothing injected. Says whether anything was sent.
    pub(super) fn rewind(&mut self) -> bool {
        let sent = self.sent > 0;
        self.queue.retain(|item| matches!(item, Item::Ordered(_)));
        (self.sent, self.sent_bytes, self.injected) = (0, 0, 0);
        sent
    }

    /// The member has left. Tells what is waited for no more.
    pub(super) fn leave(&mut self) -> Left {
        self.gone = true;
        (self.sent, self.sent_bytes, self.injected) = (0, 0, 0);
        let queued = std::mem::take(&mut self.queue).into_iter().filter_map(|item| match item {
            Item::Ordered(item) => Some(item),
            Item::Injected { .. } => None,
        });
        let queued: Vec<Ordered> = queued.collect();
        let kept = std::mem::take(&mut self.kept).into_iter().map(|item| item.at);
        let unexecuted = std::mem::take(&mut self.unexecuted).into_iter().filter(|item| item.counts);
        Left {
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

    /// Sends as much as may be on its way.
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
                Item::Ordered(Ordered { at, previous, bytes, .. }) => {
                    let flight = order.flight(*at).expect("what is not confirmed is kept");
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
