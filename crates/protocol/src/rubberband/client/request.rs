//! Requests in progress: each request, its attempt, when the client checks on it, and its end, which comes
//! once.
//!
//! The user names a request by a token. Each attempt at it has its own number, so that the client recognises
//! answers to abandoned attempts.

use super::{
    Client, ClientError, ClientEvent,
    progress::{Kind, OpenRequest, TRIES_MAX},
    read::cancel_parts,
};
use crate::{
    ecast::{MemberCommand, Position},
    id::{ProcessId, RequestId},
    rubberband::{Config, StorageState},
    seam::{Context, Input, Sink},
    time::{Duration, Time},
};

impl Client {
    pub(super) fn insert(&mut self, token: u64, request: OpenRequest) {
        let before = self.requests.insert(token, request);
        assert!(before.is_none(), "a token names one request, but {token} names two");
    }

    /// Ends a new request if this process is no longer a member, or if no router in reach knows a leader.
    pub(super) fn refuse_if_out(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        if self.membership.is_wedged() {
            self.fail(cx.now, token, ClientError::NotSent, out);
        } else if self.adrift {
            self.end_unordered(cx, token, out);
        }
    }

    /// Takes a request back if it has not been sent.
    pub(super) fn withdraw(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        if let Some(request) = self.requests.get(&token) {
            let withdraw = MemberCommand::Withdraw { token: request.attempt };
            self.member_input(cx, Input::Command(withdraw), out);
        }
    }

    /// Notes the time until which a new request may wait for a place in the order.
    pub(super) fn await_order(&mut self, now: Time, token: u64) {
        if let Some(wait) = self.settings.write_wait {
            self.unordered.push_back((now + wait, token));
        }
    }

    /// Ends requests that have waited too long for a place in the order.
    pub(super) fn end_overdue(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while self.unordered.front().is_some_and(|(at, _)| *at <= cx.now) {
            let (_, token) = self.unordered.pop_front().expect("just seen");
            self.end_unordered(cx, token, out);
        }
    }

    /// Ends a request that needs a place in the order and has none, because nobody leads the routers. The
    /// ranges answer an ordered request, and a basic read needs no order.
    pub(super) fn end_unordered(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        let Some(request) = self.requests.get(&token) else { return };
        let waits = match &request.kind {
            Kind::Write(write) => !write.stable,
            Kind::Read(read) => read.waits_for_order(),
            Kind::Control => true,
        };
        if waits {
            self.withdraw(cx, token, out);
            self.give_up(cx.now, token, out);
        }
    }

    pub(super) fn new_attempt(&mut self, token: u64) -> u64 {
        self.attempt += 1;
        self.attempts.insert(self.attempt, token);
        self.attempt
    }

    pub(super) fn look_later(&mut self, token: u64, at: Time) {
        let request = self.requests.get_mut(&token).expect("the request is open");
        if let Some(before) = request.look_at.replace(at) {
            self.look.remove(&(before, token));
        }
        self.look.insert((at, token));
    }

    fn remove(&mut self, token: u64) -> Option<OpenRequest> {
        let request = self.requests.remove(&token)?;
        self.attempts.remove(&request.attempt);
        while self.unordered.front().is_some_and(|(_, token)| !self.requests.contains_key(token)) {
            self.unordered.pop_front();
        }
        if let Some(at) = request.look_at {
            self.look.remove(&(at, token));
        }
        if let Kind::Write(write) = &request.kind
            && write.name.request.session == self.session()
        {
            self.writes.remove(&write.name.request.number);
        }
        Some(request)
    }

    pub(super) fn done(&mut self, token: u64, at: Position, out: &mut dyn Sink<Self>) {
        if let Some(mut request) = self.remove(token) {
            if let Kind::Write(write) = &request.kind
                && write.name.request.session == self.session()
            {
                // The outcome of a write that was repeated is now known.
                self.maybe.retain(|(_, number)| *number != write.name.request.number);
            }
            let parts = match &mut request.kind {
                Kind::Write(write) => {
                    self.ended(write.name, at);
                    std::mem::take(&mut write.answers)
                }
                Kind::Read(read) => read.hand_over(),
                Kind::Control => Vec::new(),
            };
            out.emit(ClientEvent::Done { token, at, parts });
        }
    }

    pub(super) fn fail(&mut self, now: Time, token: u64, error: ClientError, out: &mut dyn Sink<Self>) {
        let Some(request) = self.remove(token) else { return };
        let (mut error, mut repeated) = (error, false);
        match &request.kind {
            Kind::Read(read) => cancel_parts(request.attempt, read, out),
            Kind::Write(write) => {
                repeated = write.name.repeated;
                if repeated {
                    error = error.of_repetition(write.name.request);
                }
                self.ended(write.name, Position(0));
            }
            Kind::Control => {}
        }
        if let ClientError::MaybeApplied { request } = error
            && request.session == self.session()
            && request.number > 0
            && !(repeated && self.maybe.iter().any(|(_, number)| *number == request.number))
        {
            self.maybe.push_back((now, request.number));
        } else if let (ClientError::Forgotten { .. }, Kind::Write(write)) = (error, &request.kind)
            && write.name.request.session == self.session()
        {
            self.maybe.retain(|(_, number)| *number != write.name.request.number);
        }
        out.emit(ClientEvent::Failed { token, error });
    }

    /// Ends the request without an answer.
    pub(super) fn give_up(&mut self, now: Time, token: u64, out: &mut dyn Sink<Self>) {
        let Some(request) = self.requests.get(&token) else { return };
        let error = match &request.kind {
            Kind::Write(write) => ClientError::MaybeApplied { request: write.name.request },
            Kind::Control => {
                ClientError::MaybeApplied { request: RequestId { session: self.session(), number: 0 } }
            }
            Kind::Read(_) => ClientError::NotSent,
        };
        self.fail(now, token, error, out);
    }

    /// Schedules the next attempt after `attempt` has failed, a little later each time.
    pub(super) fn retry_soon(&mut self, cx: &mut Context<'_>, attempt: u64) {
        let Some(token) = self.attempts.get(&attempt).copied() else { return };
        let request = self.requests.get_mut(&token).expect("every attempt has a request");
        let mut after = self.settings.retry_after;
        if let Kind::Read(read) = &mut request.kind {
            read.void = true;
            after *= 1 << read.tries.saturating_sub(1).min(TRIES_MAX);
        }
        let spread = Duration::from_nanos((cx.random)() % (after.as_nanos() as u64).max(1));
        self.look_later(token, cx.now + after / 2 + spread);
    }

    /// Notes that a storage process, or its link, is gone. The client tries the reads that the process
    /// was to answer at other processes, and asks the other replicas for the results of writes. The process
    /// counts as dead unless it `left` of its own will.
    pub(super) fn lost(&mut self, cx: &mut Context<'_>, process: ProcessId, left: bool) {
        for request in self.requests.values_mut() {
            match &mut request.kind {
                Kind::Write(write) => write.doubted = true,
                Kind::Read(read) => read.lost(process, left),
                Kind::Control => {}
            }
        }
        let concerned: Vec<u64> = self
            .requests
            .values()
            .filter(|request| match &request.kind {
                Kind::Read(read) => read.concerns(process),
                Kind::Write(write) => write.stable,
                Kind::Control => false,
            })
            .map(|request| request.attempt)
            .collect();
        for attempt in concerned {
            self.retry_soon(cx, attempt);
        }
    }

    /// Notes a new link to a storage process. Answers that the process sent before were lost, so the client
    /// asks for them soon. This matters for a gateway that comes back as a new process: its first requests
    /// may be ordered and answered before its links exist.
    pub(super) fn reached(&mut self, now: Time, process: ProcessId) {
        if self.membership.config().is_some_and(|config| !config.storage.contains_key(&process)) {
            return;
        }
        let soon = now + self.settings.retry_after;
        let mut sooner = Vec::new();
        for (&token, request) in &mut self.requests {
            let concerned = match &mut request.kind {
                Kind::Write(write) => {
                    write.doubted = true;
                    true
                }
                Kind::Read(read) => read.may_await(process),
                Kind::Control => false,
            };
            // A request for which no check is scheduled has no place in the order yet.
            if concerned && request.look_at.is_some_and(|at| at > soon) {
                sooner.push(token);
            }
        }
        for token in sooner {
            self.look_later(token, soon);
        }
    }

    /// Stops counting a process as dead if it serves and has a link: only its link had been cut.
    pub(super) fn revive(&mut self, config: &Config) {
        let lives = |process: &ProcessId| {
            let state = config.storage.get(process);
            self.linked.contains(process) && state.is_some_and(|state| *state != StorageState::Unreachable)
        };
        for request in self.requests.values_mut() {
            if let Kind::Read(read) = &mut request.kind {
                read.revive(lives);
            }
        }
    }

    /// Checks on a request, because the time for that has come.
    pub(super) fn look_after(&mut self, cx: &mut Context<'_>, token: u64, out: &mut dyn Sink<Self>) {
        let request = self.requests.get_mut(&token).expect("the request is open");
        request.look_at = None;
        match &request.kind {
            Kind::Read(_) => self.look_after_read(cx, token, out),
            Kind::Write(_) => self.look_after_write(cx, token, out),
            Kind::Control => {}
        }
    }
}
