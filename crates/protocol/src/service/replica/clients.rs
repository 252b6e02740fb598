//! The clients of a replica: it handles their requests and sends them answers.

use super::Replica;
use crate::{
    id::ProcessId,
    seam::{Destination, Sink},
    service::{
        Body, CallId, CallOutcome, Message, SessionId,
        request::{ClientRequest, RequestBody},
    },
};

impl Replica {
    /// Handles a client's requests, if this replica leads.
    pub(super) fn asked(
        &mut self,
        client: ProcessId,
        wishes: impl IntoIterator<Item = RequestBody>,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(reign) = &mut self.reign else { return self.redirect([client], out) };
        if reign.callers.insert(client) {
            self.send_members([client], out);
        }
        for wish in wishes {
            let reign = self.reign.as_mut().expect("the reign goes on while requests are asked");
            let Err(asked) = reign.ask(ClientRequest { client, wish }, &self.settings) else { continue };
            match asked.wish {
                RequestBody::Call { session, call, .. } => {
                    self.answer(client, call.id(session), CallOutcome::Full);
                }
                // There is no answer, so the client asks for its session again.
                RequestBody::Open { .. } => self.refused += 1,
            }
        }
        self.handle_waiting_requests(out);
    }

    pub(super) fn redirect(&self, clients: impl IntoIterator<Item = ProcessId>, out: &mut dyn Sink<Self>) {
        let members = self.paxos.members();
        for client in clients {
            let body = Body::Redirect { leader: self.paxos.leader(), members: members.to_vec() };
            self.send(client, body, out);
        }
    }

    /// Sends clients the list of the present replicas.
    pub(super) fn send_members(
        &self,
        clients: impl IntoIterator<Item = ProcessId>,
        out: &mut dyn Sink<Self>,
    ) {
        for client in clients {
            self.send(client, Body::Members { members: self.paxos.members().to_vec() }, out);
        }
    }

    pub(super) fn send(&self, to: ProcessId, body: Body, out: &mut dyn Sink<Self>) {
        out.send(Destination::One(to), Message { group: self.group, body }, None);
    }

    pub(super) fn answer(&mut self, client: ProcessId, id: CallId, outcome: CallOutcome) {
        self.answers.entry((client, id.session)).or_default().push((id.number, outcome));
    }

    /// Queues a message without answers, by which a client learns that its calls are under way.
    pub(super) fn queue_notice(&mut self, client: ProcessId, session: SessionId) {
        self.answers.entry((client, session)).or_default();
    }

    pub(super) fn send_answers(&mut self, out: &mut dyn Sink<Self>) {
        for ((client, session), mut answers) in std::mem::take(&mut self.answers) {
            loop {
                let rest = answers.split_off(fitting(&answers));
                self.send(client, Body::Answers { session, answers }, out);
                if rest.is_empty() {
                    break;
                }
                answers = rest;
            }
        }
    }
}

/// Returns how many of these answers fit into one message: at least one if there is any, and at most
/// [`ANSWERS_BYTES`].
fn fitting(answers: &[(u64, CallOutcome)]) -> usize {
    let mut bytes = 0;
    let fit = answers.iter().take_while(|(_, outcome)| {
        bytes += outcome.bytes();
        bytes <= ANSWERS_BYTES
    });
    fit.count().max(1).min(answers.len())
}

/// The maximum size of the answers in one message, in bytes. A single longer answer is sent alone.
const ANSWERS_BYTES: usize = 256 << 10;
