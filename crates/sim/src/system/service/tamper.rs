//! The adapter between a replica or a client and the world that changes messages.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Destination, ProcessId, Protocol, Sink,
    paxos::{self, Ballot, SlotValue},
    service::{
        Batch, Body, Call, CallOutcome, Command, Executed, Instance, Kind, Message, Replica, SessionId,
    },
    wire::Wire,
};

use super::{
    host_tamper::HostTamper,
    settings::GROUP,
    store::{Request, StoreState, opened, sealed},
};
use crate::mutation::Mutation;

/// The adapter around one process.
pub(crate) struct Tamper {
    mutation: Mutation,
    /// The sender and message of each call, by the service's call number.
    asked: BTreeMap<u64, (ProcessId, Message)>,
    /// Transactions that have only read, as far as this replica knows.
    readers: BTreeSet<(SessionId, u64)>,
    /// Calls that a client has sent.
    called: BTreeSet<(SessionId, u64)>,
    /// A reign that some replica reported to follow.
    followed: Option<Ballot>,
    /// Reads that arrived after a replica had confirmed the reign.
    known: BTreeSet<u64>,
    /// Executed reads that wait for any confirmation of the reign.
    executed: Vec<(ProcessId, Message)>,
}

impl Tamper {
    pub(super) fn new(mutation: Mutation) -> Self {
        Tamper {
            mutation,
            asked: BTreeMap::new(),
            readers: BTreeSet::new(),
            called: BTreeSet::new(),
            followed: None,
            known: BTreeSet::new(),
            executed: Vec::new(),
        }
    }

    /// Returns the message that a replica receives instead of `message`.
    pub(super) fn received<P: Protocol<Message = Message>>(
        &mut self,
        from: ProcessId,
        message: Message,
        (replica, store, host): (&Replica, &StoreState, &mut HostTamper),
        out: &mut dyn Sink<P>,
    ) -> Message {
        let Message { group, body } = message;
        match &body {
            Body::ReadsConfirmed { ballot, .. } | Body::Paxos(paxos::Message::Confirmed { ballot, .. })
                if replica.is_serving() && ballot.router == replica.log().me() =>
            {
                self.followed = Some(*ballot);
                for (client, message) in self.executed.drain(..) {
                    out.send(Destination::One(client), message, None);
                }
            }
            Body::Paxos(paxos::Message::Forward { payloads, .. })
                if self.mutation == Mutation::ForwardedDelta =>
            {
                host.forwarded.extend(payloads.iter().map(opened::<(u64, Bytes)>));
            }
            _ => {}
        }
        if !replica.is_serving() {
            self.executed.clear();
        }
        let body = match body {
            Body::Calls { session, done, mut calls } => {
                let early = self.mutation == Mutation::AnsweredUnsettled
                    && replica.log().is_leader()
                    && !replica.is_serving();
                for call in &mut calls {
                    let answer = |outcome| {
                        let answers = vec![(call.number, outcome)];
                        Message { group, body: Body::Answers { session, answers } }
                    };
                    let part = call.scope.as_ref().and_then(|scope| scope.part);
                    if call.kind == Kind::Commit {
                        // The mutation answers the commit as if the reign were confirmed.
                        let id = part.map(|part| (session, part.transaction));
                        if self.mutation == Mutation::CommitUnconfirmed
                            && id.is_some_and(|id| self.readers.remove(&id))
                        {
                            out.send(Destination::One(from), answer(CallOutcome::Done(Bytes::new())), None);
                        }
                        continue;
                    }
                    if let Some(part) = part {
                        let id = (session, part.transaction);
                        if part.first && call.kind == Kind::Read {
                            self.readers.insert(id);
                        } else if call.kind != Kind::Read {
                            self.readers.remove(&id);
                        }
                    }
                    if self.mutation == Mutation::LocksIgnored {
                        // No other call uses the key of this number.
                        let scope = call.scope.get_or_insert_default();
                        scope.keys = vec![RENAMED + call.number];
                    }
                    if self.mutation == Mutation::ExpiredUnconfirmed
                        && replica.is_serving()
                        && call.kind == Kind::Write
                        && session != SessionId::KEYED
                        && !replica.has_session(session)
                    {
                        out.send(Destination::One(from), answer(CallOutcome::Expired), None);
                    }
                    let request: Request = opened(&call.request);
                    if early && call.kind.is_read() {
                        let reply = CallOutcome::Done(store.look(request.key()));
                        out.send(Destination::One(from), answer(reply), None);
                    }
                    let before = match self.mutation {
                        Mutation::ConfirmedBefore => call.kind == Kind::Read,
                        Mutation::ToldBefore => call.kind == Kind::AnnouncedRead,
                        _ => false,
                    };
                    if before
                        && replica.is_serving()
                        && self.followed == Some(replica.log().status().promised)
                    {
                        self.known.insert(request.call());
                    }
                    self.asked.insert(request.call(), (from, answer(CallOutcome::Full)));
                }
                Body::Calls { session, done, calls }
            }
            Body::Paxos(paxos::Message::Accept {
                ballot,
                slot,
                chosen,
                value: SlotValue::Payloads(payloads),
            }) if self.mutation == Mutation::CallsForgotten => {
                let payloads = payloads.iter().map(without_names).collect();
                Body::Paxos(paxos::Message::Accept {
                    ballot,
                    slot,
                    chosen,
                    value: SlotValue::Payloads(payloads),
                })
            }
            body => body,
        };
        Message { group, body }
    }

    /// Notes that the host of a leader has executed this call.
    pub(super) fn executed<P: Protocol<Message = Message>>(
        &mut self,
        call: u64,
        command: &Command,
        out: &mut dyn Sink<P>,
    ) {
        let (Command::Executed { result, .. }, Some((client, message))) = (command, self.asked.get(&call))
        else {
            return;
        };
        let reply = match (self.mutation, result) {
            (Mutation::AnsweredUnchosen, Executed::Changed { reply, .. })
            | (Mutation::ReadUnconfirmed | Mutation::ReadUnchosen, Executed::Unchanged { reply }) => reply,
            (Mutation::ConfirmedBefore | Mutation::ToldBefore, Executed::Unchanged { reply })
                if self.known.remove(&call) =>
            {
                reply
            }
            _ => return,
        };
        let mut message = message.clone();
        if let Body::Answers { answers, .. } = &mut message.body {
            answers[0].1 = CallOutcome::Done(reply.clone());
        }
        match self.mutation {
            Mutation::ReadUnchosen => self.executed.push((*client, message)),
            _ => out.send(Destination::One(*client), message, None),
        }
    }

    /// Whether this result is lost between the host and the log, as if a full log had refused it and the
    /// reign continued.
    pub(super) fn loses(&self, command: &Command, replica: &Replica) -> bool {
        let is_change = matches!(command, Command::Executed { result: Executed::Changed { .. }, .. });
        self.mutation == Mutation::ResultLost && is_change && replica.results_held() > LOST_ABOVE
    }

    /// Makes a deposed replica forward its executed changes, as if another replica could propose them.
    pub(super) fn forward<P: Protocol<Message = Message>>(
        &self,
        host: &mut HostTamper,
        replica: &Replica,
        out: &mut dyn Sink<P>,
    ) {
        let payloads: Vec<Bytes> = host.reverted.drain(..).map(|reverted| sealed(&reverted)).collect();
        if payloads.is_empty() {
            return;
        }
        let others =
            replica.log().members().iter().map(|peer| peer.id).filter(|id| *id != replica.log().me());
        let forward = paxos::Message::Forward { ballot: replica.log().status().promised, payloads };
        let message = Message { group: GROUP, body: Body::Paxos(forward) };
        out.send(Destination::Many(others.collect()), message, None);
    }

    /// Returns the message that leaves a client instead of `message`.
    pub(super) fn called(&mut self, message: Message) -> Message {
        match message {
            Message { group, body: Body::Calls { session, done, mut calls } }
                if self.mutation == Mutation::CalledUnderNewName =>
            {
                for Call { number, .. } in &mut calls {
                    if !self.called.insert((session, *number)) {
                        *number += RENAMED;
                    }
                }
                Message { group, body: Body::Calls { session, done, calls } }
            }
            message => message,
        }
    }

    /// Returns the message that a client receives instead of `message`.
    pub(super) fn answered(&self, mut message: Message) -> Message {
        if let Body::Answers { answers, .. } = &mut message.body
            && self.mutation == Mutation::CalledUnderNewName
        {
            answers.iter_mut().for_each(|(number, _)| *number %= RENAMED);
        }
        message
    }
}

/// Returns the same batch with its calls in a session that does not exist, so that no replica remembers them.
fn without_names(payload: &Bytes) -> Bytes {
    let mut batch = Batch::decode(&mut payload.clone()).expect("a batch arrives as it was made");
    for instance in &mut batch.instances {
        if let Instance::Call { id, .. } | Instance::Transaction { id, .. } = instance {
            id.session = SessionId(u64::MAX);
        }
    }
    let mut bytes = BytesMut::new();
    batch.encode(&mut bytes);
    bytes.freeze()
}

/// Bytes of held results above which a replica's log counts as full.
const LOST_ABOVE: usize = 2 << 10;

/// The amount added to a call's number to make another name.
const RENAMED: u64 = 1 << 40;
