//! The messages that a member submits: messages with a number, and messages that wait for a number.

use std::collections::VecDeque;

use bytes::Bytes;

use super::window::{Submissions, Window};
use crate::{
    ecast::Class,
    id::ProcessId,
    seam::Ticket,
    time::{Duration, Time},
};

/// Time added to the patience for each byte in progress: one second for 2 MiB.
const BYTE_PATIENCE: Duration = Duration::from_nanos(500);

/// The messages that a member submits.
#[derive(Default)]
pub(super) struct SubmissionQueue {
    /// Numbered messages without an outcome, and the messages after them.
    pub(super) window: Window,
    control: VecDeque<(u64, Bytes)>,
    data: VecDeque<(u64, Bytes)>,
    credit: u64,
    /// Record that must be durable before a submission is sent.
    after: Option<Ticket>,
    /// Time at which the window is sent again, unless news comes.
    resend_at: Option<Time>,
    resends: u64,
}

impl SubmissionQueue {
    /// Makes the queue of a member that comes back with these control messages.
    pub(super) fn recovered(submissions: Submissions) -> Self {
        SubmissionQueue { window: Window::recovered(submissions), ..SubmissionQueue::default() }
    }

    /// Adds a message.
    pub(super) fn push(&mut self, token: u64, class: Class, body: Bytes) {
        match class {
            Class::Control => self.control.push_back((token, body)),
            Class::Data => self.data.push_back((token, body)),
        }
    }

    /// Returns the number of messages without a number.
    pub(super) fn waiting(&self) -> usize {
        self.control.len() + self.data.len()
    }

    /// Whether data messages wait for credit.
    pub(super) fn is_starved(&self) -> bool {
        !self.data.is_empty() && self.window.number() >= self.credit
    }

    /// Allows data messages up to this number. Returns whether that is more than before.
    pub(super) fn allow(&mut self, credit: u64) -> bool {
        let more = credit > self.credit;
        self.credit = self.credit.max(credit);
        more
    }

    /// Removes the message with this token, if it has no number. Returns whether it was there.
    pub(super) fn withdraw(&mut self, token: u64) -> bool {
        let before = self.waiting();
        self.control.retain(|(other, _)| *other != token);
        self.data.retain(|(other, _)| *other != token);
        self.waiting() < before
    }

    /// Removes all data messages without a number. Returns their tokens.
    pub(super) fn withdraw_data(&mut self) -> impl Iterator<Item = u64> {
        self.data.drain(..).map(|(token, _)| token)
    }

    /// Removes all messages without a number. Returns their tokens.
    pub(super) fn withdraw_all(&mut self) -> impl Iterator<Item = u64> {
        self.control.drain(..).chain(self.data.drain(..)).map(|(token, _)| token)
    }

    /// Holds back later submissions until this record is durable.
    pub(super) fn send_after(&mut self, record: Ticket) {
        self.after = Some(record);
    }

    /// Returns the control messages that may have to be sent again; `None` if they cannot be listed, because
    /// some of them are data messages or were put aside.
    pub(super) fn submissions(&self) -> Option<Submissions> {
        let mut submissions = self.window.submissions()?;
        submissions.messages.extend(self.control.iter().cloned());
        Some(submissions)
    }

    /// Numbers waiting messages as far as credit and this number of bytes in progress allow. Then passes all
    /// numbered messages that have not been sent to `send`, in blocks, each with the record that must be
    /// durable before the block is sent. Returns whether there were such messages.
    pub(super) fn send(
        &mut self,
        me: ProcessId,
        window_bytes: usize,
        mut send: impl FnMut(Bytes, Option<Ticket>),
    ) -> bool {
        while let Some((token, body)) = self.control.pop_front() {
            self.window.push(token, Class::Control, body);
        }
        while self.window.number() < self.credit
            && self.window.bytes() < window_bytes
            && let Some((token, body)) = self.data.pop_front()
        {
            self.window.push(token, Class::Data, body);
        }
        let (mut sent, after) = (false, self.after);
        self.window.blocks(me, |block| {
            send(block, after);
            sent = true;
        });
        sent
    }

    /// Prepares to send the whole window again, because it may have been lost on the way to the log.
    pub(super) fn resend(&mut self) {
        self.resends += u64::from(self.window.resend());
    }

    /// Returns how often the member has sent its window again.
    pub(super) fn resends(&self) -> u64 {
        self.resends
    }

    /// Returns how long to wait for news of the submitted messages. A large message takes long to copy, order
    /// and deliver, and longest on busy processors. If it were sent again too early, it would take even
    /// longer.
    pub(super) fn patience(&self, resend_after: Duration) -> Duration {
        resend_after + BYTE_PATIENCE * u32::try_from(self.window.bytes()).unwrap_or(u32::MAX)
    }

    /// Returns the time at which the window is sent again, unless news comes.
    pub(super) fn resend_at(&self) -> Option<Time> {
        self.resend_at
    }

    /// Starts to wait for news of the submitted messages, unless the member waits already.
    pub(super) fn expect_news(&mut self, now: Time, resend_after: Duration) {
        let at = now + self.patience(resend_after);
        self.resend_at.get_or_insert(at);
    }

    /// Starts the wait for news again, from this instant.
    pub(super) fn wait_again(&mut self, now: Time, resend_after: Duration) {
        self.resend_at = Some(now + self.patience(resend_after));
    }

    /// Handles the end of a notice. If the notice had news, the time to wait for news starts again. If all
    /// messages have an outcome, the member waits for no news.
    pub(super) fn noticed(&mut self, news: bool, now: Time, resend_after: Duration) {
        // A leader that finds a new way to this process repeats the outcomes that it knows, and the outcomes
        // for which the member waits may not be among them. So only real news restarts the timer.
        if self.window.is_empty() {
            self.resend_at = None;
        } else if news {
            self.wait_again(now, resend_after);
        }
    }

    /// Sends the window again at this instant at the latest, if the member waits for news.
    pub(super) fn hasten(&mut self, at: Time) {
        self.resend_at = self.resend_at.map(|before| before.min(at));
    }
}
