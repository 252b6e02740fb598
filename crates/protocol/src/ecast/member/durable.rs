//! A member with a disk: its reports about durability, and its recovery.
//!
//! The member itself writes nothing. Its user writes deliveries and reports when they are durable
//! ([`MemberCommand::Durable`](super::MemberCommand)). The user also writes submissions and lets the member
//! send them only once they are durable ([`Member::send_after`]): a number that was used for one message must
//! never be used for another (S3).

use super::{
    Member, MemberSettings,
    window::{Submissions, Window},
};
use crate::{
    ecast::{Position, reform::RecentDeliveries},
    id::{Generation, ProcessId},
    seam::Ticket,
};

impl Member {
    /// Declares that this member has a disk: deliveries may have to be sent again until they are reported
    /// durable.
    pub fn persist(&mut self) {
        self.durable.get_or_insert(Position(0));
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
            window: Window::recovered(submissions),
            delivered,
            durable: Some(delivered),
            generation,
            delivered_in: generation,
            kept: RecentDeliveries::from(delivered),
            ..Member::new(me, settings)
        }
    }

    /// Holds back later submissions until this record is durable.
    pub fn send_after(&mut self, record: Ticket) {
        self.after = Some(record);
    }

    /// Returns the last number that the member gave to a message.
    pub fn numbered(&self) -> u64 {
        self.window.number()
    }

    /// Returns the control messages that may have to be sent again; `None` if they cannot be listed, because
    /// some messages wait out of order.
    pub fn submissions(&self) -> Option<Submissions> {
        let mut submissions = self.window.submissions()?;
        submissions.messages.extend(self.control.iter().cloned());
        Some(submissions)
    }

    /// Returns the position up to which routers need not send messages again.
    pub(super) fn durable(&self) -> Position {
        self.durable.unwrap_or(self.delivered)
    }

    pub(super) fn on_durable(&mut self, through: Position) {
        if through > self.durable() {
            self.durable = Some(through);
            self.confirm_to = self.confirm_to.or(self.leader_or_way());
        }
    }
}
