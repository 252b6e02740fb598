//! A member with a disk: its reports about durability, and its recovery.
//!
//! The member itself writes nothing. Its user writes deliveries and reports when they are durable
//! ([`MemberCommand::Durable`](super::MemberCommand)). The user also writes submissions and lets the member
//! send them only once they are durable ([`Member::send_after`]): a number that was used for one message must
//! never be used for another (S3).

use super::{
    Member, MemberSettings, deliveries::DeliveryProgress, history::GenerationHistory, queue::SubmissionQueue,
    window::Submissions,
};
use crate::{
    ecast::Position,
    id::{Generation, ProcessId},
    seam::Ticket,
};

impl Member {
    /// Declares that this member has a disk: deliveries may have to be sent again until they are reported
    /// durable.
    pub fn persist(&mut self) {
        self.deliveries.persist();
    }

    /// Creates a member that comes back with all its deliveries up to `delivered`, and with its submissions,
    /// which are all control messages. Its routers were of `generation`.
    pub fn recovered(
        me: ProcessId,
        settings: MemberSettings,
        delivered: Position,
        submissions: Submissions,
        generation: Generation,
    ) -> Self {
        Member {
            queue: SubmissionQueue::recovered(submissions),
            deliveries: DeliveryProgress::recovered(delivered, generation),
            history: GenerationHistory::recovered(generation),
            ..Member::new(me, settings)
        }
    }

    /// Holds back later submissions until this record is durable.
    pub fn send_after(&mut self, record: Ticket) {
        self.queue.send_after(record);
    }

    /// Returns the last number that the member gave to a message.
    pub fn numbered(&self) -> u64 {
        self.queue.window.number()
    }

    /// Returns the control messages that may have to be sent again; `None` if they cannot be listed, because
    /// some of them are data messages or were put aside.
    pub fn submissions(&self) -> Option<Submissions> {
        self.queue.submissions()
    }

    pub(super) fn on_durable(&mut self, through: Position) {
        if self.deliveries.set_durable(through) {
            self.confirm();
        }
    }
}
