//! One destination: what is on its way to a member, in order, and how much of it was sent, confirmed and executed.

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
    confirmed: Position,
    executed: Position,
    /// The last position routed here.
    last: Position,
    /// What is destined here and not confirmed, in order; the first `sent` have been sent on the present link.
    queue: VecDeque<Item>,
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
    Ordered { at: Position, previous: Position, bytes: u32 },
    Injected { at: Position, previous: Position, sender: ProcessId, token: u64, body: Bytes },
}

struct Unexecuted {
    at: Position,
    bytes: u32,
    /// It counts for its submitter's credit.
    counts: bool,
}

/// What a message that was routed to a destination still waits for there.
pub(super) struct Awaited {
    pub(super) confirmation: bool,
    pub(super) execution: bool,
}

impl Destination {
    pub(super) fn new(process: ProcessId, linked: bool, pace: Pace) -> Self {
        Destination {
            process,
            linked,
            gone: false,
            confirmed: Position(0),
            executed: Position(0),
            last: Position(0),
            queue: VecDeque::new(),
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
            Pace::Waits => false,
        };
        let unexecuted = at > self.executed;
        if unexecuted {
            self.behind += u64::from(bytes);
            self.unexecuted.push_back(Unexecuted { at, bytes, counts });
        }
        let awaited = Awaited { confirmation: at > self.confirmed, execution: unexecuted && counts };
        if awaited.confirmation {
            self.queue.push_back(Item::Ordered { at, previous, bytes });
        }
        awaited
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
    pub(super) fn confirm(&mut self, through: Position) -> SmallVec<[Position; 64]> {
        self.confirmed = self.confirmed.max(through);
        let mut settled = SmallVec::new();
        while let Some(&Item::Ordered { at, bytes, .. }) = self.queue.front() {
            // What was not sent on this link can not be confirmed by it, but an earlier leader may have sent it.
            if at > self.confirmed {
                break;
            }
            self.queue.pop_front();
            if self.sent > 0 {
                self.sent -= 1;
                self.sent_bytes -= bytes as usize;
            }
            settled.push(at);
            self.drop_injected();
        }
        settled
    }

    /// Its pace changes. Tells what counted for credit and does not any more; what did not count is not counted later.
    pub(super) fn change_pace(&mut self, pace: Pace) -> Vec<Position> {
        self.pace = pace;
        if pace == Pace::Executes {
            return Vec::new();
        }
        let counted = |item: &mut Unexecuted| std::mem::take(&mut item.counts).then_some(item.at);
        self.unexecuted.iter_mut().filter_map(counted).collect()
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
        self.queue.retain(|item| matches!(item, Item::Ordered { .. }));
        (self.sent, self.sent_bytes, self.injected) = (0, 0, 0);
        sent
    }

    /// The member has left. Tells what it had not confirmed, and what counted for credit until now.
    pub(super) fn leave(&mut self) -> (Vec<Position>, Vec<Position>) {
        self.gone = true;
        (self.sent, self.sent_bytes, self.injected) = (0, 0, 0);
        let unconfirmed = std::mem::take(&mut self.queue).into_iter().filter_map(|item| match item {
            Item::Ordered { at, .. } => Some(at),
            Item::Injected { .. } => None,
        });
        let counted = std::mem::take(&mut self.unexecuted).into_iter().filter(|item| item.counts);
        (unconfirmed.collect(), counted.map(|item| item.at).collect())
    }

    /// Sends as much as may be on its way.
    pub(super) fn flush<R: Routing>(&mut self, order: &Order<R>, send: &mut impl FnMut(ProcessId, Message)) {
        self.dirty = false;
        if !self.linked || self.gone {
            return;
        }
        let (mut block, base) = (DeliverBlockBuilder::default(), order.base());
        while self.sent < self.queue.len() && (self.sent_bytes < UNCONFIRMED_BYTES_MAX || self.sent == 0) {
            match &self.queue[self.sent] {
                Item::Ordered { at, previous, bytes } => {
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
