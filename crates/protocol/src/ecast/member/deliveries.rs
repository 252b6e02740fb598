//! A member's deliveries: the positions that the member has reached, and the confirmations and repairs that
//! it owes the routers.

use crate::{
    ecast::{Position, reform::RecentDeliveries},
    id::{Generation, ProcessId},
};

/// The positions that a member has reached.
#[derive(Default)]
pub(super) struct DeliveryProgress {
    delivered: Position,
    /// The last position that the user reported as executed.
    executed: Position,
    /// Position up to which routers need not send messages again. `None` for a member without a disk, which
    /// never needs a delivered message again.
    durable: Option<Position>,
    /// The generation of the last delivery.
    delivered_in: Generation,
    /// The last deliveries, which a later generation of routers may not know.
    pub(super) kept: RecentDeliveries,
    /// All messages up to this position are stable, as routers of the generation reported. If `base_is_old`,
    /// routers of an earlier generation made the report.
    base: Position,
    base_is_old: bool,
    /// The router to which to confirm at the end of the batch.
    pub(super) confirm_to: Option<ProcessId>,
    /// The router to ask for repair at the end of the batch.
    pub(super) repair_from: Option<ProcessId>,
    /// Whether the member asked for a repair, and no delivery since then continued the earlier deliveries.
    pub(super) repairing: bool,
}

impl DeliveryProgress {
    /// Makes the progress of a member that comes back with all its deliveries up to `delivered`. Its routers
    /// were of `generation`.
    pub(super) fn recovered(delivered: Position, generation: Generation) -> Self {
        DeliveryProgress {
            delivered,
            durable: Some(delivered),
            delivered_in: generation,
            kept: RecentDeliveries::from(delivered),
            ..DeliveryProgress::default()
        }
    }

    /// Declares that the member has a disk.
    pub(super) fn persist(&mut self) {
        self.durable.get_or_insert(Position(0));
    }

    /// Returns the last position delivered.
    pub(super) fn delivered(&self) -> Position {
        self.delivered
    }

    /// Whether the last delivery was of this generation.
    pub(super) fn is_of(&self, generation: Generation) -> bool {
        self.delivered_in == generation
    }

    /// Returns the last position that the user reported as executed.
    pub(super) fn executed(&self) -> Position {
        self.executed
    }

    /// Notes that the user has executed deliveries. Returns whether that is news.
    pub(super) fn set_executed(&mut self, through: Position) -> bool {
        assert!(
            through <= self.delivered,
            "a message is executed only after its delivery, but {through} was not delivered"
        );
        let news = through > self.executed;
        self.executed = self.executed.max(through);
        news
    }

    /// Returns the position up to which routers need not send messages again.
    pub(super) fn durable(&self) -> Position {
        self.durable.unwrap_or(self.delivered)
    }

    /// Notes that deliveries are durable. Returns whether that is news.
    pub(super) fn set_durable(&mut self, through: Position) -> bool {
        let news = through > self.durable();
        if news {
            self.durable = Some(through);
        }
        news
    }

    /// Returns the position up to which all messages are stable.
    pub(super) fn base(&self) -> Position {
        self.base
    }

    /// Notes that all messages up to this position are stable.
    pub(super) fn set_base(&mut self, base: Position) {
        self.base = self.base.max(base);
    }

    /// Takes a message of a router of `generation`. Returns whether it is the next message to deliver.
    pub(super) fn take(
        &mut self,
        from: ProcessId,
        generation: Generation,
        (previous, at): (Position, Position),
    ) -> bool {
        if at <= self.delivered {
            return false;
        }
        if previous > self.delivered {
            // S4: an earlier message for this process is missing. One request for repair suffices, because
            // the router then sends everything again.
            if !std::mem::replace(&mut self.repairing, true) {
                self.repair_from = Some(from);
            }
            return false;
        }
        self.repairing = false;
        self.delivered_in = generation;
        self.delivered = at;
        true
    }

    /// Enters a later generation, whose routers have not reported yet.
    pub(super) fn enter(&mut self) {
        self.base_is_old = true;
        self.repairing = false;
        self.confirm_to = None;
        self.repair_from = None;
    }

    /// Forgets the position up to which routers of an earlier generation reported all messages as stable.
    pub(super) fn renew_base(&mut self) {
        if std::mem::take(&mut self.base_is_old) {
            self.base = Position(0);
        }
    }
}
