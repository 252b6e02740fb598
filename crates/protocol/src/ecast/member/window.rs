//! What a member has numbered and has no outcome of, and what stands behind it.
//!
//! A router learns a message only as its sender's next (S3), so the window is sent again from its first message that has
//! no outcome, without gaps. One message may wait for very long: a destination is unreachable (S14). The messages behind
//! it go on, are answered, and would fill the window. So a message that holds back too many answered ones is put *aside*:
//! it still waits, is still sent again, and holds back nothing. Routers have learned everything between it and the
//! window, since that is answered. Routers also keep outcomes for as long as a message before them is open, so nothing
//! stands aside for longer than [`ASIDE_MAX`] messages: its outcome is then given up as not known.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use bytes::Bytes;

use super::Submissions;
use crate::{
    ecast::{Class, entry::RouteBlockBuilder},
    id::ProcessId,
};

/// Bytes of one route block.
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Answered messages behind one that is not: beyond, that one is put aside.
const ANSWERED_MAX: usize = 65_536;

/// A message stands aside until so many more were numbered.
const ASIDE_MAX: u64 = 1 << 20;

/// Numbered messages without an outcome, and those behind them.
#[derive(Default)]
pub(super) struct Window {
    /// The last number given.
    number: u64,
    /// Every message up to this number is answered or stands aside.
    passed: u64,
    /// The messages behind `passed`; the first `sent` are on their way.
    recent: VecDeque<Pending>,
    sent: usize,
    bytes: usize,
    /// Those of `recent` that are answered, and their bytes.
    answered: usize,
    answered_bytes: usize,
    /// Messages at or below `passed` that are not answered.
    aside: BTreeMap<u64, Pending>,
    aside_unsent: bool,
}

struct Pending {
    token: u64,
    class: Class,
    body: Bytes,
    answered: bool,
}

impl Window {
    /// A window behind messages that are answered.
    pub(super) fn behind(passed: u64) -> Window {
        Window { number: passed, passed, ..Window::default() }
    }

    /// What may have to be sent again; `None` if something stands aside, or is no control message.
    pub(super) fn submissions(&self) -> Option<Submissions> {
        let plain =
            self.aside.is_empty() && self.recent.iter().all(|pending| pending.class == Class::Control);
        let messages = || self.recent.iter().map(|pending| (pending.token, pending.body.clone())).collect();
        plain.then(|| Submissions { passed: self.passed, messages: messages() })
    }

    /// The last number given.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Every message up to this number is answered.
    pub(super) fn acknowledged(&self) -> u64 {
        self.aside.first_key_value().map_or(self.passed, |(first, _)| first - 1)
    }

    /// Messages without an outcome, and those behind them.
    pub(super) fn len(&self) -> usize {
        self.aside.len() + self.recent.len()
    }

    /// Whether nothing is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of what is kept, but for what stands aside.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives a message its number.
    pub(super) fn push(&mut self, token: u64, class: Class, body: Bytes) {
        self.number += 1;
        self.bytes += body.len();
        self.recent.push_back(Pending { token, class, body, answered: false });
        assert_eq!(self.number, self.passed + self.recent.len() as u64, "numbers run without gaps");
    }

    /// The numbers of a run that are not behind the window. The run can not be longer than the window, whatever a peer
    /// claims.
    pub(super) fn recent_of(&self, first: u64, count: u64) -> Range<u64> {
        first.max(self.passed + 1)..first.saturating_add(count).min(self.number + 1)
    }

    /// The numbers of a run that stand aside.
    pub(super) fn aside_of(&self, first: u64, count: u64) -> Vec<u64> {
        self.aside.range(first..first.saturating_add(count)).map(|(number, _)| *number).collect()
    }

    /// The message has its outcome: its token, unless it had one before.
    pub(super) fn answer(&mut self, number: u64) -> Option<u64> {
        let Some(index) = number.checked_sub(self.passed + 1) else {
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

    /// Lets go of what is answered, and puts aside what holds back too much. At most `bytes_max` are to be kept. Tells
    /// which messages have stood aside for too long.
    pub(super) fn advance(&mut self, bytes_max: usize) -> Vec<u64> {
        while let Some(front) = self.recent.front() {
            let full = self.answered > ANSWERED_MAX || self.answered_bytes > bytes_max / 2;
            if !front.answered && !full {
                break;
            }
            let pending = self.recent.pop_front().expect("just seen");
            self.passed += 1;
            self.bytes -= pending.body.len();
            self.aside_unsent |= self.sent == 0 && !pending.answered;
            self.sent = self.sent.saturating_sub(1);
            if pending.answered {
                self.answered -= 1;
                self.answered_bytes -= pending.body.len();
            } else {
                self.aside.insert(self.passed, pending);
            }
        }
        self.aside.range(..self.passed.saturating_sub(ASIDE_MAX)).map(|(number, _)| *number).collect()
    }

    /// Everything is to be sent again. Says whether anything was sent.
    pub(super) fn resend(&mut self) -> bool {
        let sent = self.sent > 0 || !self.aside.is_empty() && !self.aside_unsent;
        self.sent = 0;
        self.aside_unsent = true;
        sent
    }

    /// What is to be sent, in blocks.
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
            let first = self.passed + 1 + self.sent as u64;
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

    /// The numbers of what stands aside.
    pub(super) fn aside(&self) -> Vec<u64> {
        self.aside.keys().copied().collect()
    }

    /// The numbers of everything that lacks an outcome.
    pub(super) fn open(&self) -> Vec<u64> {
        let recent = (self.passed + 1..).zip(&self.recent).filter(|(_, pending)| !pending.answered);
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
    fn one_message_that_waits_does_not_fill_the_window() {
        let mut window = Window::default();
        let mut waiting = Vec::new();
        for number in 1..=10_000 {
            window.push(number, Class::Data, Bytes::from_static(&[0; 100]));
            sent(&mut window);
            // Two of them have a destination that does not answer.
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
        // They are sent again, in blocks of their own, and answered as all others.
        assert!(window.resend());
        let blocks = sent(&mut window);
        assert_eq!(blocks[..2], [(0, vec![1, 2]), (0, vec![500])]);
        assert_eq!(window.answer(1), Some(1));
        assert_eq!((window.answer(1), window.answer(3)), (None, None));
        assert_eq!(window.acknowledged(), 1);
        assert_eq!(window.aside_of(1, u64::MAX), [2, 500]);
        assert!(window.recent_of(1, u64::MAX).is_empty() && window.passed == 10_000);
        assert_eq!((window.answer(2), window.answer(500)), (Some(2), Some(500)));
        assert!(window.advance(10_000).is_empty());
        assert_eq!((window.acknowledged(), window.is_empty()), (10_000, true));
    }

    #[test]
    fn what_is_put_aside_is_sent_unless_it_was() {
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
        // One that came back from its disk hears of some before it has sent any again.
        assert_eq!(sent(&mut window_of(false)), [(0, vec![1])]);
    }

    #[test]
    fn a_message_stands_aside_for_a_million_others() {
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
