//! What stands between a replica or a client and the world, and changes what passes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Destination, ProcessId, Sink,
    paxos::{self, Ballot, Value},
    service::{Batch, Body, Call, Command, Executed, Instance, Kind, Message, Outcome, Replica, SessionId},
    wire::Wire,
};

use super::{
    GROUP,
    party::Party,
    store::{Host, Request, opened, sealed},
};
use crate::mutation::Mutation;

/// The adapter around one process.
pub(crate) struct Tamper {
    mutation: Mutation,
    /// Who made each call, as the service numbers them.
    asked: BTreeMap<u64, (ProcessId, Message)>,
    /// Transactions that have read only, as far as this replica knows.
    readers: BTreeSet<(SessionId, u64)>,
    /// Calls that a client has sent.
    called: BTreeSet<(SessionId, u64)>,
    /// The reign that somebody has said he follows.
    followed: Option<Ballot>,
    /// Reads that came when it was known that the reign had stood once.
    known: BTreeSet<u64>,
    /// Reads that were executed, and wait for anybody's word that the reign stands.
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

    /// What a replica receives instead of a message.
    pub(super) fn received(
        &mut self,
        from: ProcessId,
        message: Message,
        replica: &Replica,
        host: &mut Host,
        out: &mut dyn Sink<Party>,
    ) -> Message {
        let Message { group, body } = message;
        match &body {
            Body::Told { ballot, .. } | Body::Paxos(paxos::Message::Confirmed { ballot, .. })
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
                        // As if it were known that the reign stands.
                        let id = part.map(|part| (session, part.transaction));
                        if self.mutation == Mutation::CommitUnconfirmed
                            && id.is_some_and(|id| self.readers.remove(&id))
                        {
                            out.send(Destination::One(from), answer(Outcome::Done(Bytes::new())), None);
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
                        // Nobody else touches the key of this number.
                        let scope = call.scope.get_or_insert_default();
                        scope.keys = vec![RENAMED + call.number];
                    }
                    let request: Request = opened(&call.request);
                    if early && call.kind.is_read() {
                        let reply = Outcome::Done(host.store.look(request.key()));
                        out.send(Destination::One(from), answer(reply), None);
                    }
                    let before = match self.mutation {
                        Mutation::ConfirmedBefore => call.kind == Kind::Read,
                        Mutation::ToldBefore => call.kind == Kind::ToldRead,
                        _ => false,
                    };
                    if before
                        && replica.is_serving()
                        && self.followed == Some(replica.log().status().promised)
                    {
                        self.known.insert(request.call());
                    }
                    self.asked.insert(request.call(), (from, answer(Outcome::Full)));
                }
                Body::Calls { session, done, calls }
            }
            Body::Paxos(paxos::Message::Accept {
                ballot,
                slot,
                chosen,
                value: Value::Payloads(payloads),
            }) if self.mutation == Mutation::CallsForgotten => {
                let payloads = payloads.iter().map(without_names).collect();
                Body::Paxos(paxos::Message::Accept { ballot, slot, chosen, value: Value::Payloads(payloads) })
            }
            body => body,
        };
        Message { group, body }
    }

    /// The host of a leader has executed this call.
    pub(super) fn executed(&mut self, call: u64, command: &Command, out: &mut dyn Sink<Party>) {
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
            answers[0].1 = Outcome::Done(reply.clone());
        }
        match self.mutation {
            Mutation::ReadUnchosen => self.executed.push((*client, message)),
            _ => out.send(Destination::One(*client), message, None),
        }
    }

    /// A replica that was deposed hands on what it had executed, as if another one could propose it.
    pub(super) fn forward(&self, host: &mut Host, replica: &Replica, out: &mut dyn Sink<Party>) {
        let payloads: Vec<Bytes> = host.lost.drain(..).map(|lost| sealed(&lost)).collect();
        if payloads.is_empty() {
            return;
        }
        let others =
            replica.log().members().iter().map(|peer| peer.id).filter(|id| *id != replica.log().me());
        let forward = paxos::Message::Forward { ballot: replica.log().status().promised, payloads };
        let message = Message { group: GROUP, body: Body::Paxos(forward) };
        out.send(Destination::Many(others.collect()), message, None);
    }

    /// What leaves a client instead of a message.
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

    /// What a client receives instead of a message.
    pub(super) fn answered(&self, mut message: Message) -> Message {
        if let Body::Answers { answers, .. } = &mut message.body
            && self.mutation == Mutation::CalledUnderNewName
        {
            answers.iter_mut().for_each(|(number, _)| *number %= RENAMED);
        }
        message
    }
}

/// The same batch, but that its calls are of a session that there is not: nobody remembers them.
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

/// What a call's number grows by when it is called under another name.
const RENAMED: u64 = 1 << 40;
