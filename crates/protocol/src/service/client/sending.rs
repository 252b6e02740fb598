//! The end of a batch of inputs at a client: it sends its unsent calls, and reports its session.

use super::{Client, KEYED, SessionState, TransactionProgress, calls::CallContent};
use crate::{
    seam::{Context, Destination, Sink},
    service::{Body, Call, Kind, Message, SessionId},
};

impl Client {
    /// Sends the gathered messages, and a report of the session if one is due.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.selector.set_waiting(&self.settings, !self.calls.is_empty(), cx.now);
        self.send_calls(cx, out);
        self.send_abandoned(cx, out);
        if let SessionState::Open(session) = self.session
            && self.alive_at.is_some_and(|at| at <= cx.now)
        {
            self.renew(cx.now);
            if let Some(to) = self.selector.target(cx.now) {
                let body = Body::Calls { session, done: self.done(), calls: Vec::new() };
                out.send(Destination::One(to), Message { group: self.group, body }, None);
            }
        }
    }

    fn send_calls(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if self.calls.next_unsent().is_none() {
            return;
        }
        let Some(to) = self.selector.target(cx.now) else { return };
        if self.session == SessionState::None {
            self.session = SessionState::Opening { nonce: (cx.random)(), sent: false };
        }
        if let SessionState::Opening { nonce, sent: sent @ false } = &mut self.session {
            *sent = true;
            let body = Body::Open { nonce: *nonce };
            out.send(Destination::One(to), Message { group: self.group, body }, None);
        }
        while let Some((session, body, announced)) = self.next_calls() {
            self.renew(cx.now);
            if !announced.is_empty() {
                let others = Destination::Many(self.selector.others().collect());
                let body = Body::Reads { session, numbers: announced };
                out.send(others, Message { group: self.group, body }, None);
            }
            out.send(Destination::One(to), Message { group: self.group, body }, None);
        }
    }

    /// Names to the asked replica the transactions that the replica may end.
    fn send_abandoned(&mut self, cx: &Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(to) = self.selector.target(cx.now) else { return };
        for (session, transaction) in self.abandoned.drain(..) {
            let body = Body::Abandon { session, transactions: vec![transaction] };
            out.send(Destination::One(to), Message { group: self.group, body }, None);
        }
    }

    /// Returns the lowest number whose answer the client still wants.
    fn done(&self) -> u64 {
        let first = |number: Option<u64>| number.unwrap_or(self.number + 1);
        let oldest = first(self.calls.oldest().filter(|number| *number < KEYED));
        first(self.open.first_key_value().map(|(number, _)| *number)).min(oldest)
    }

    /// Returns the next message of unsent calls, if there is room for one, and the reads in it that the
    /// client also announces to the other replicas.
    fn next_calls(&mut self) -> Option<(SessionId, Body, Vec<u64>)> {
        let announces = self.calls.reads() <= self.settings.announced_reads_max
            && self.selector.others().next().is_some();
        let mut announced = Vec::new();
        let done = self.done();
        let (mut session, mut calls, mut bytes) = (None, Vec::new(), 0);
        let mut in_flight = self.calls.in_flight_bytes();
        while let Some((number, pending)) = self.calls.next_unsent() {
            let length = pending.asked.bytes();
            let crowded = in_flight > 0 && in_flight + length > self.settings.in_flight_bytes_max;
            let own = pending.session.or(match self.session {
                SessionState::Open(session) => Some(session),
                SessionState::None | SessionState::Opening { .. } => None,
            });
            let full = bytes > 0 && bytes + length > MESSAGE_BYTES;
            if own.is_none() || crowded || full || session.is_some_and(|session| Some(session) != own) {
                break;
            }
            (session, pending.session) = (own, own);
            let may_be_announced = pending.asked.may_be_announced() && announces && pending.attempts == 0;
            if let (Some(own), Some(part)) = (own, pending.asked.part_mut())
                && let Some(stage @ TransactionProgress::New) = self.transactions.get_mut(&part.transaction)
            {
                (*stage, part.first) = (TransactionProgress::Begun(own), true);
            }
            let CallContent { mut kind, scope, request } = pending.asked.clone();
            if may_be_announced {
                kind = Kind::AnnouncedRead;
                announced.push(number);
            }
            pending.attempts += 1;
            bytes += length + 1;
            in_flight += length;
            calls.push(Call { number, kind, scope, request });
            self.calls.sent();
        }
        session.map(|session| (session, Body::Calls { session, done, calls }, announced))
    }
}

/// The approximate size of the requests in one message, in bytes.
const MESSAGE_BYTES: usize = 256 << 10;
