//! A member with a disk: what it tells of it, and how it comes back.
//!
//! A member keeps nothing itself. Its user writes down what is delivered, says up to where that is durable
//! ([`MemberCommand::Durable`](super::MemberCommand)), and has what it submits sent only once it is written down, too
//! ([`Member::send_after`]): a number that was used for one message must never be used for another (S3).

use bytes::Bytes;

use super::{Class, Member, MemberSettings, window::Window};
use crate::{
    ecast::{Position, reform::Kept},
    id::{Generation, ProcessId},
    seam::Ticket,
};

/// The control messages of a member that may have to be sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submissions {
    /// All messages up to this number have an outcome, or were given up.
    pub passed: u64,
    /// Those behind, in order, with their tokens.
    pub messages: Vec<(u64, Bytes)>,
}

impl Member {
    /// From now on what is delivered may have to be sent again, until it is said to be durable.
    pub fn persist(&mut self) {
        self.durable.get_or_insert(Position(0));
    }

    /// A member that comes back with all that was destined to it up to `delivered`, and with what it had submitted, control
    /// messages alone. Its routers were of this generation.
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
            kept: Kept::from(delivered),
            ..Member::new(me, settings)
        }
    }

    /// What is submitted from now on is not sent before this record is durable.
    pub fn send_after(&mut self, record: Ticket) {
        self.after = Some(record);
    }

    /// The last number that it gave to a message.
    pub fn numbered(&self) -> u64 {
        self.window.number()
    }

    /// The control messages that may have to be sent again; `None` if that can not be said, because some were passed over.
    pub fn submissions(&self) -> Option<Submissions> {
        let mut submissions = self.window.submissions()?;
        submissions.messages.extend(self.control.iter().cloned());
        Some(submissions)
    }

    /// What need not be sent again.
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

impl Window {
    /// The window of a member that comes back: everything is to be sent again.
    fn recovered(submissions: Submissions) -> Window {
        let mut window = Window::behind(submissions.passed);
        for (token, body) in submissions.messages {
            window.push(token, Class::Control, body);
        }
        window
    }
}
