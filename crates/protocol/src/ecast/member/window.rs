//! A member's window: numbered messages without an outcome, and all later messages.
//!
//! A router learns a message only as its sender's next (S3). So the member sends the window again from its
//! first message without an outcome, without gaps. One message may stay without an outcome for very long, for
//! instance for an unreachable destination (S14). Later messages proceed, are answered, and would fill the
//! window. So the member puts a message *aside* if it holds back too many answered messages. A message aside
//! still waits, and the member still sends it again, but it holds back nothing. Routers have learned every
//! message between the message aside and the window, because all of these are answered. They also keep
//! outcomes for as long as an earlier message is open. So no message stays aside for longer than
//! [`ASIDE_MAX`] further messages. After that, the member reports its outcome as unknown.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use bytes::Bytes;

use crate::{
    ecast::{Class, entry::RouteBlockBuilder},
    id::ProcessId,
};

/// Maximum size of a route block in bytes.
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Maximum number of answered messages after an open message. If there are more, the open message is put
/// aside.
const ANSWERED_MAX: usize = 65_536;

/// Number of later messages after which the member gives up a message aside.
const ASIDE_MAX: u64 = 1 << 20;

/// A member's control messages that may have to be sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submissions {
    /// All messages up to this number have an outcome, or the member gave them up.
    pub passed: u64,
    /// The messages after `passed` in order, with their tokens.
    pub messages: Vec<(u64, Bytes)>,
}

/// Numbered messages without an outcome, and the messages after them.
#[derive(Default)]
pub(super) struct Window {
    /// The last number that the member gave to a message.
    number: u64,
    /// Every message up to this number is answered or aside.
    answered_through: u64,
    /// The messages after `answered_through`; the first `sent` of them have been sent.
    recent: VecDeque<PendingSubmission>,
    sent: usize,
    bytes: usize,
    /// Number of answered messages in `recent`.
    answered: usize,
    /// Bytes of the answered messages in `recent`.
    answered_bytes: usize,
    /// Unanswered messages at or below `answered_through`.
    aside: BTreeMap<u64, PendingSubmission>,
    aside_unsent: bool,
}

struct PendingSubmission {
    token: u64,
    class: Class,
    body: Bytes,
    answered: bool,
}

impl Window {
    /// Creates an empty window after messages that are all answered.
    pub(super) fn behind(answered_through: u64) -> Window {
        Window { number: answered_through, answered_through, ..Window::default() }
    }

    /// Creates the window of a member that comes back: everything is sent again.
    pub(super) fn recovered(submissions: Submissions) -> Window {
        let mut window = Window::behind(submissions.passed);
        for (token, body) in submissions.messages {
            window.push(token, Class::Control, body);
        }
        window
    }

    /// Returns the messages that may have to be sent again; `None` if a message waits in `aside`, or if one
    /// of the messages is a data message.
    pub(super) fn submissions(&self) -> Option<Submissions> {
        let plain =
            self.aside.is_empty() && self.recent.iter().all(|pending| pending.class == Class::Control);
        let messages = || self.recent.iter().map(|pending| (pending.token, pending.body.clone())).collect();
        plain.then(|| Submissions { passed: self.answered_through, messages: messages() })
    }

    /// Returns the last number that the member gave to a message.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number up to which every message is answered.
    pub(super) fn acknowledged(&self) -> u64 {
        self.aside.first_key_value().map_or(self.answered_through, |(first, _)| first - 1)
    }

    /// Returns the number of messages in the window: messages without an outcome, and all later messages.
    pub(super) fn len(&self) -> usize {
        self.aside.len() + self.recent.len()
    }

    /// Whether the window has no messages.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the messages that are not aside.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message and gives it the next number.
    pub(super) fn push(&mut self, token: u64, class: Class, body: Bytes) {
        self.number += 1;
        self.bytes += body.len();
        self.recent.push_back(PendingSubmission { token, class, body, answered: false });
        assert_eq!(self.number, self.answered_through + self.recent.len() as u64, "numbers run without gaps");
    }

    /// Returns those numbers of a run of `count` numbers that lie within the window. The result is no longer
    /// than the window, whatever count a peer claims.
    pub(super) fn recent_of(&self, first: u64, count: u64) -> Range<u64> {
        first.max(self.answered_through + 1)..first.saturating_add(count).min(self.number + 1)
    }

    /// Returns those numbers of a run of `count` numbers whose messages are aside.
    pub(super) fn aside_of(&self, first: u64, count: u64) -> Vec<u64> {
        self.aside.range(first..first.saturating_add(count)).map(|(number, _)| *number).collect()
    }

    /// Returns the token of the message of this number, while it is kept.
    pub(super) fn token(&self, number: u64) -> Option<u64> {
        let pending = match number.checked_sub(self.answered_through + 1) {
            Some(index) => self.recent.get(usize::try_from(index).ok()?),
            None => self.aside.get(&number),
        };
        pending.map(|pending| pending.token)
    }

    /// Marks a message as answered. Returns its token, `None` if it was answered before.
    pub(super) fn answer(&mut self, number: u64) -> Option<u64> {
        let Some(index) = number.checked_sub(self.answered_through + 1) else {
            return self.aside.remove(&number).map(|pending| pending.token);
        };
        let pending = self.recent.get_mut(usize::try_from(index).ok()?)?;
        if std::mem::replace(&mut pending.answered, true) {
            return None;
        }
        self.answered += 1;
        self.answered_bytes += pending.body.len();
        Some(pending.token)
    }

    /// Drops answered messages. Puts aside open messages that hold back too many answered messages, so that
    /// at most `bytes_max` bytes remain. Returns the messages that have been aside for too long.
    pub(super) fn advance(&mut self, bytes_max: usize) -> Vec<u64> {
        while let Some(front) = self.recent.front() {
            let full = self.answered > ANSWERED_MAX || self.answered_bytes > bytes_max / 2;
            if !front.answered && !full {
                break;
            }
            let pending = self.recent.pop_front().expect("just seen");
            self.answered_through += 1;
            self.bytes -= pending.body.len();
            self.aside_unsent |= self.sent == 0 && !pending.answered;
            self.sent = self.sent.saturating_sub(1);
            if pending.answered {
                self.answered -= 1;
                self.answered_bytes -= pending.body.len();
            } else {
                self.aside.insert(self.answered_through, pending);
            }
        }
        self.aside
            .range(..self.answered_through.saturating_sub(ASIDE_MAX))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Prepares to send everything again. Returns whether anything had been sent.
    pub(super) fn resend(&mut self) -> bool {
        let sent = self.sent > 0 || !self.aside.is_empty() && !self.aside_unsent;
        self.sent = 0;
        self.aside_unsent = true;
        sent
    }

    /// Sends all unsent messages, in blocks.
    pub(super) fn blocks(&mut self, me: ProcessId, mut send: impl FnMut(Bytes)) {
        let acknowledged = self.acknowledged();
        if std::mem::take(&mut self.aside_unsent) {
            let mut aside = self.aside.iter().peekable();
            while let Some((&first, pending)) = aside.next() {
                let mut block = RouteBlockBuilder::new(me, acknowledged, first);
                block.push(pending.class, &pending.body);
                let mut last = first;
                while block.len() < BLOCK_BYTES_MAX
                    && let Some((_, pending)) = aside.next_if(|(number, _)| **number == last + 1)
                {
                    block.push(pending.class, &pending.body);
                    last += 1;
                }
                send(block.finish());
            }
        }
        while self.sent < self.recent.len() {
            let first = self.answered_through + 1 + self.sent as u64;
            let mut block = RouteBlockBuilder::new(me, acknowledged, first);
            while let Some(pending) = self.recent.get(self.sent) {
                block.push(pending.class, &pending.body);
                self.sent += 1;
                if block.len() >= BLOCK_BYTES_MAX {
                    break;
                }
            }
            send(block.finish());
        }
    }

    /// Returns the numbers of the messages aside.
    pub(super) fn aside(&self) -> Vec<u64> {
        self.aside.keys().copied().collect()
    }

    /// Returns the numbers of all messages without an outcome.
    pub(super) fn open(&self) -> Vec<u64> {
        let recent = (self.answered_through + 1..).zip(&self.recent).filter(|(_, pending)| !pending.answered);
        self.aside.keys().copied().chain(recent.map(|(number, _)| number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ecast::entry::{LogEntry, RouteBlock},
        id::Incarnation,
    };

    fn sent(window: &mut Window) -> Vec<(u64, Vec<u64>)> {
        let mut blocks = Vec::new();
        let me = ProcessId { node: 1, incarnation: Incarnation(1) };
        window.blocks(me, |bytes| match LogEntry::decode(bytes).expect("our own bytes decode") {
            LogEntry::Route(RouteBlock { acknowledged, first, count, .. }) => {
                blocks.push((acknowledged, (first..first + u64::from(count)).collect()));
            }
            _ => panic!("a member sends route blocks"),
        });
        blocks
    }

    #[test]
    fn a_waiting_message_does_not_fill_the_window() {
        let mut window = Window::default();
        let mut waiting = Vec::new();
        for number in 1..=10_000 {
            window.push(number, Class::Data, Bytes::from_static(&[0; 100]));
            sent(&mut window);
            // Messages 1, 2 and 500 have a destination that does not answer.
            if number == 1 || number == 2 || number == 500 {
                waiting.push(number);
            } else {
                assert_eq!(window.answer(number), Some(number));
            }
            assert!(window.advance(10_000).is_empty());
            assert!(window.bytes() <= 5_200, "{} bytes at {number}", window.bytes());
        }
        assert_eq!(window.acknowledged(), 0);
        assert_eq!(window.open(), waiting);
        // The messages aside are sent again in blocks of their own, and answered like other messages.
        assert!(window.resend());
        let blocks = sent(&mut window);
        assert_eq!(blocks[..2], [(0, vec![1, 2]), (0, vec![500])]);
        assert_eq!(window.answer(1), Some(1));
        assert_eq!((window.answer(1), window.answer(3)), (None, None));
        assert_eq!(window.acknowledged(), 1);
        assert_eq!(window.aside_of(1, u64::MAX), [2, 500]);
        assert!(window.recent_of(1, u64::MAX).is_empty() && window.answered_through == 10_000);
        assert_eq!((window.answer(2), window.answer(500)), (Some(2), Some(500)));
        assert!(window.advance(10_000).is_empty());
        assert_eq!((window.acknowledged(), window.is_empty()), (10_000, true));
    }

    #[test]
    fn messages_put_aside_are_sent_if_they_were_not_sent_before() {
        let large = || Bytes::from_static(&[0; 100]);
        let window_of = |before: bool| {
            let mut window = Window::default();
            (1..=3).for_each(|number| window.push(number, Class::Control, large()));
            if before {
                sent(&mut window);
            }
            for number in [2, 3] {
                assert_eq!(window.answer(number), Some(number));
            }
            assert_eq!(window.open(), [1]);
            assert!(window.advance(100).is_empty());
            assert_eq!((window.aside(), window.open()), (vec![1], vec![1]));
            window
        };
        assert_eq!(sent(&mut window_of(true)), []);
        // A member that came back from its disk gets outcomes before it has sent anything again.
        assert_eq!(sent(&mut window_of(false)), [(0, vec![1])]);
    }

    #[test]
    fn a_message_put_aside_survives_a_million_others() {
        let mut window = Window::default();
        let mut over = Vec::new();
        for number in 1..=ASIDE_MAX + 100_000 {
            window.push(number, Class::Data, Bytes::from_static(&[0; 100]));
            if number > 1 {
                window.answer(number);
            }
            over = window.advance(10_000);
            if !over.is_empty() {
                break;
            }
        }
        assert_eq!((over, window.answer(1), window.answer(1)), (vec![1], Some(1), None));
        assert!(window.number() > ASIDE_MAX);
    }
}
