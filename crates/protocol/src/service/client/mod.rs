//! The client's end of a replicated service.
//!
//! **Promise.** Every call ends in exactly one [`Fate`], and an answer belongs to its call: the call took
//! effect once. While a majority of the replicas lives and can be reached, calls are answered, whichever
//! replicas lead, die and come back. The client never reports an unknown fate as known: see [`Fate`].
//!
//! **How.** Calls have numbers in a session that the client opens. The client sends them to the replica that
//! leads, calls of one turn in one message, without waiting for answers. When that replica is lost, is
//! silent, or says that another replica leads, the client sends all unanswered calls to another replica,
//! under the same numbers. The replicas recognize repetitions. With each message the client says up to which
//! number it has all answers, so that replicas forget replies.
//!
//! **Reads.** While few reads are under way, the client announces them to all replicas, which saves a hop.
//! While many reads are under way, the leader asks the replicas once for all of them. For a read that is sent
//! again, the leader asks in any case.
//!
//! **Sessions end**, by agreement of the replicas. Suppose that the client sent a call only once, and the
//! call is answered *expired*. Then the call has not taken effect and never will. The client opens another
//! session and calls there. A call that was sent more than once may have taken effect before the session
//! ended. Nobody can know, and its fate says so.
//!
//! **Attacks considered.**
//!
//! - *The answer comes from a replica that the client no longer asks.* This answer is as good as any: the
//!   call is chosen. When another replica's answer comes later, the call has already ended, so that answer
//!   has no effect.
//! - *An outdated replica names replicas that are dead.* The client still knows the replicas that it learned
//!   of earlier (`selector`).
//! - *All replicas are replaced, one after another, while the client asks leaders that stay.* A leader tells
//!   its clients the replicas at their first call and at every change. Even a client without calls reports
//!   its session to a new leader.
//! - *Two replicas name each other as the leader.* The client follows a few such redirections at once, and
//!   then pauses.
//! - *The leader hears the client, but the client does not hear the leader.* To the client the leader is
//!   silent, so in time the client asks another replica. The new replica names the same leader. Then patience
//!   grows, and a link that is cut in one direction breaks or is mended.
//! - *The leader stands still, and the other replicas have not noticed.* These replicas name the leader that
//!   stands still. The client goes from one of these replicas to the next until a replica names another
//!   leader. It returns to the silent leader only when its patience has ended once more, because that leader
//!   may be slow.
//! - *Two leaders die in a row*: a call is sent to a leader that dies, and then to the next leader, which
//!   dies, too. Both attempts have the same id, so the call takes effect at most once.
//! - *A session is opened twice*, because the client sent the opening again. The client takes the first
//!   answer. No client uses the other session, and it ends.
//! - *A call is given up, and its number is used again.* A client never uses a number twice: numbers count up
//!   over all its sessions.
//! - *A call of a transaction finds no room, and the transaction is aborted before the call is sent again.*
//!   Only the call that begins the transaction is marked as the first call, each time it is sent. A later
//!   call has no mark, so the replica answers that the transaction is over. Otherwise the later call would
//!   begin a second transaction, and half of the user's calls would be committed.
//! - *Two users call under one key at the same time.* If the calls are equal, the second gets the fate of the
//!   first. All clients share keys, so such a call needs no session of this client, and any client may repeat
//!   it.
//! - *The client acknowledges the answers beyond a call of unknown fate.* As long as the user may repeat the
//!   call ([`ClientCommand::Again`]), the client acknowledges no answer of this or a later call. After a
//!   bounded number of later calls the user may not repeat it any longer.

mod calls;
mod command;
mod selector;
mod sending;
mod settings;
mod unknown_fate;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use self::{
    calls::{CallContent, ClientCall, OpenCalls},
    selector::ReplicaSelector,
};
pub use self::{
    command::{ClientCommand, ClientEvent, Fate},
    settings::ClientSettings,
};
use super::{Abort, Body, CallId, CallOutcome, GroupId, Kind, Message, Part, Scope, SessionId};
use crate::{
    id::{Peer, ProcessId},
    paxos,
    seam::{CommandId, Context, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// The client's end of a service.
#[derive(Debug)]
pub struct Client {
    group: GroupId,
    settings: ClientSettings,
    /// Replicas to reach at the first input.
    seeds: Vec<Peer>,
    selector: ReplicaSelector,
    session: SessionState,
    calls: OpenCalls,
    /// Calls of the present session with an unknown fate, by number.
    open: BTreeMap<u64, CallContent>,
    /// Calls with keys and an unknown fate, oldest first. At most [`ClientSettings::open_max`].
    open_keyed: VecDeque<(u64, CallContent)>,
    /// Transactions that have not ended at this client.
    transactions: BTreeMap<u64, TransactionProgress>,
    /// Abandoned transactions that the client has not yet named to the replica that it asks, so that the
    /// replica ends them.
    abandoned: Vec<(SessionId, u64)>,
    /// The time at which the client next reports its session to the leader.
    alive_at: Option<Time>,
    /// Whether the asked replica leads and knows this client, so that it will send changes of the replica
    /// set.
    leader_knows_client: bool,
    /// The number of the last call.
    number: u64,
    /// The memory of requests, including those of calls with an unknown fate, in bytes.
    kept_bytes: usize,
    /// The number of refused messages, which no correct process sends to a client.
    refused: u64,
}

/// The state of the session in which later calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    None,
    Opening { nonce: u64, sent: bool },
    Open(SessionId),
}

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransactionProgress {
    /// The client has sent no call of the transaction to any replica.
    New,
    /// The replica that the client asks knows the transaction, in this session.
    Begun(SessionId),
    /// The client no longer asks the replica that knew the transaction, or that replica has said that the
    /// transaction is over.
    Lost,
}

impl Client {
    /// Returns a client of a replica set. `seeds` are processes that may belong to the set.
    pub fn new(group: GroupId, seeds: Vec<Peer>, settings: ClientSettings) -> Client {
        Client {
            group,
            settings,
            seeds,
            selector: ReplicaSelector::default(),
            session: SessionState::None,
            calls: OpenCalls::default(),
            open: BTreeMap::new(),
            open_keyed: VecDeque::new(),
            transactions: BTreeMap::new(),
            abandoned: Vec::new(),
            alive_at: None,
            leader_knows_client: false,
            number: 0,
            kept_bytes: 0,
            refused: 0,
        }
    }

    /// Returns the number of unanswered calls.
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Returns the replica to which the client sends its calls.
    pub fn asked(&self) -> Option<ProcessId> {
        self.selector.asked()
    }

    /// Returns the number of refused messages.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Protocol for Client {
    type Message = Message;
    type Record = paxos::Record;
    type Command = ClientCommand;
    type Event = ClientEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let seeds = std::mem::take(&mut self.seeds);
        self.selector.learn(&seeds, out);
        match input {
            Input::Receive { from, message } if message.group == self.group => {
                self.receive(cx, from, message.body, out);
            }
            // The message belongs to another replica set, or is a cast, which no replica sends.
            Input::Receive { .. } | Input::Cast { .. } => self.refused += 1,
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => {
                if self.selector.on_deadline(cx.now) {
                    self.mark_calls_unsent(cx.now, out);
                }
                self.give_up(cx.now, out);
            }
            Input::Linked { peer, .. } => {
                if self.selector.linked(peer) {
                    self.mark_calls_unsent(cx.now, out);
                }
            }
            Input::Unlinked { peer } => {
                if self.selector.unlinked(peer) {
                    self.mark_calls_unsent(cx.now, out);
                }
            }
            Input::Persisted(_) | Input::Progress { .. } => {}
            Input::Drained => self.flush(cx, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let end = self.calls.first_end().map(|(end, _)| end);
        end.into_iter().chain(self.selector.deadline()).chain(self.alive_at).min()
    }
}

impl Client {
    fn receive(&mut self, cx: &Context<'_>, from: ProcessId, body: Body, out: &mut dyn Sink<Self>) {
        match body {
            Body::Opened { nonce, session } => {
                if matches!(self.session, SessionState::Opening { nonce: asked, .. } if asked == nonce) {
                    self.session = SessionState::Open(session);
                    self.renew(cx.now);
                    self.selector.answered(from);
                }
            }
            Body::Answers { session, answers } => {
                self.selector.answered(from);
                for (number, outcome) in answers {
                    self.answered(cx, session, number, outcome, out);
                }
            }
            Body::Redirect { leader, members } => {
                self.selector.learn(&members, out);
                if self.selector.redirected(&self.settings, from, leader, cx.now) {
                    self.mark_calls_unsent(cx.now, out);
                }
            }
            Body::Members { members } => {
                self.selector.learn(&members, out);
                if self.selector.asked() == Some(from) && !self.leader_knows_client {
                    self.leader_knows_client = true;
                    self.renew(cx.now);
                }
            }
            // Joining replicas ask every linked process for admission, even clients.
            Body::Paxos(_) => {}
            Body::Open { .. }
            | Body::Calls { .. }
            | Body::Reads { .. }
            | Body::ReadsConfirmed { .. }
            | Body::Abandon { .. } => {
                self.refused += 1;
            }
        }
    }

    fn answered(
        &mut self,
        cx: &Context<'_>,
        session: SessionId,
        number: u64,
        outcome: CallOutcome,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(pending) = self.calls.get_mut(number) else { return };
        if pending.session != Some(session) {
            return;
        }
        let transaction = pending.asked.transaction();
        let is_part = transaction.is_some() && pending.asked.kind != Kind::Commit;
        match outcome {
            CallOutcome::Done(reply) => self.end(number, Fate::Done(reply), out),
            CallOutcome::Rejected(reason) => self.end(number, Fate::Rejected(reason), out),
            CallOutcome::Reused => self.end(number, Fate::Reused, out),
            CallOutcome::Aborted(why) => self.aborted(number, why, out),
            // Several replicas refused the same read. The call already waits to be sent again.
            CallOutcome::Full if !pending.is_sent => {}
            CallOutcome::Full => {
                pending.attempts -= 1;
                let begins = pending.asked.part_mut().is_some_and(|part| std::mem::take(&mut part.first));
                self.calls.mark_unsent(number);
                // If the call was to begin its transaction, the transaction has not begun.
                if begins && let Some(stage) = transaction.and_then(|it| self.transactions.get_mut(&it)) {
                    *stage = TransactionProgress::New;
                }
                self.selector.refused(&self.settings, cx.now);
            }
            CallOutcome::Expired => {
                if is_part || (transaction.is_some() && pending.attempts == 1) {
                    self.aborted(number, Abort::Gone, out);
                } else if pending.attempts > 1 {
                    let id = CallId { session, number };
                    self.end(number, Fate::MaybeApplied { id }, out);
                } else {
                    (pending.attempts, pending.session) = (0, None);
                    self.calls.mark_unsent(number);
                }
                self.session_is_over(session, out);
            }
        }
    }

    /// Ends a call whose transaction was aborted.
    fn aborted(&mut self, number: u64, why: Abort, out: &mut dyn Sink<Self>) {
        let pending = self.calls.get(number).expect("the call is not answered");
        if let Some(stage) =
            pending.asked.transaction().and_then(|transaction| self.transactions.get_mut(&transaction))
        {
            *stage = TransactionProgress::Lost;
        }
        self.end(number, Fate::Aborted(why), out);
    }

    /// Gives up the transactions of these sessions, because the asked replica no longer knows them. Ends
    /// their calls, except commits, which the client repeats at other replicas.
    fn lose_transactions(&mut self, lost: impl Fn(SessionId) -> bool, out: &mut dyn Sink<Self>) {
        for stage in self.transactions.values_mut() {
            if matches!(stage, TransactionProgress::Begun(session) if lost(*session)) {
                *stage = TransactionProgress::Lost;
            }
        }
        for (number, transaction) in self.calls.parts() {
            if self.transactions.get(&transaction) == Some(&TransactionProgress::Lost) {
                self.end(number, Fate::Aborted(Abort::Gone), out);
            }
        }
    }

    /// Drops a session that the replicas no longer know. Later calls need a new session.
    fn session_is_over(&mut self, session: SessionId, out: &mut dyn Sink<Self>) {
        self.lose_transactions(|of| of == session, out);
        if self.session == SessionState::Open(session) {
            self.session = SessionState::None;
            self.alive_at = None;
            self.forget_open(u64::MAX);
        }
    }

    fn command(&mut self, cx: &Context<'_>, command: ClientCommand, out: &mut dyn Sink<Self>) {
        match command {
            ClientCommand::Call { command, read, keys, request } => {
                let scope = (!keys.is_empty()).then(|| Box::new(Scope { keys, part: None }));
                let kind = if read { Kind::Read } else { Kind::Write };
                self.begin(cx.now, command, CallContent { kind, scope, request }, out);
            }
            ClientCommand::Keyed { command, key, keys, request } => {
                self.begin_keyed(cx.now, command, key | KEYED, keys, request, out);
            }
            ClientCommand::Part { command, transaction, read, keys, request } => {
                if *self.transactions.entry(transaction).or_insert(TransactionProgress::New)
                    == TransactionProgress::Lost
                {
                    return out.emit(ClientEvent { command, fate: Fate::Aborted(Abort::Gone) });
                }
                let part = Some(Part { transaction, first: false });
                let kind = if read { Kind::Read } else { Kind::Write };
                let asked = CallContent { kind, scope: Some(Box::new(Scope { keys, part })), request };
                self.begin(cx.now, command, asked, out);
            }
            ClientCommand::Commit { command, transaction } => {
                let fate = match self.transactions.remove(&transaction) {
                    None | Some(TransactionProgress::New) => Fate::Done(Bytes::new()),
                    Some(TransactionProgress::Lost) => Fate::Aborted(Abort::Gone),
                    Some(TransactionProgress::Begun(_)) => {
                        let part = Some(Part { transaction, first: false });
                        let scope = Some(Box::new(Scope { keys: Vec::new(), part }));
                        let asked = CallContent { kind: Kind::Commit, scope, request: Bytes::new() };
                        return self.begin(cx.now, command, asked, out);
                    }
                };
                out.emit(ClientEvent { command, fate });
            }
            ClientCommand::Abandon { transaction } => {
                if let Some(TransactionProgress::Begun(session)) = self.transactions.remove(&transaction) {
                    self.abandoned.push((session, transaction));
                }
            }
            ClientCommand::Again { command, id } => {
                let open = match self.session {
                    _ if id.session == SessionId::KEYED => self.open_keyed(id.number),
                    SessionState::Open(session) if session == id.session => self.open.get(&id.number),
                    _ => None,
                };
                let Some(asked) = open.cloned() else {
                    return out.emit(ClientEvent { command, fate: Fate::Expired });
                };
                match self.calls.get_mut(id.number) {
                    // The call is already under way. A call under way with the same key may have begun after
                    // the call of this id.
                    Some(pending) if pending.asked.request == asked.request => pending.also.push(command),
                    Some(_) => out.emit(ClientEvent { command, fate: Fate::Reused }),
                    None => {
                        self.kept_bytes += asked.bytes();
                        let (end, session, also) =
                            (cx.now + self.settings.wait, Some(id.session), Vec::new());
                        let pending =
                            ClientCall { command, asked, end, session, attempts: 1, is_sent: false, also };
                        self.calls.begin(id.number, pending);
                    }
                }
            }
            ClientCommand::Seeds(replicas) => self.selector.learn(&replicas, out),
        }
    }

    /// Begins a call with a key. If a call with the same key and request is under way, the new call gets the
    /// same fate.
    fn begin_keyed(
        &mut self,
        now: Time,
        command: CommandId,
        number: u64,
        keys: Vec<u64>,
        request: Bytes,
        out: &mut dyn Sink<Self>,
    ) {
        let scope = (!keys.is_empty()).then(|| Box::new(Scope { keys, part: None }));
        let asked = CallContent { kind: Kind::Write, scope, request };
        match self.calls.get_mut(number) {
            Some(pending) if pending.asked.request == asked.request => pending.also.push(command),
            Some(_) => out.emit(ClientEvent { command, fate: Fate::Reused }),
            None => self.put(now, command, asked, (number, Some(SessionId::KEYED)), out),
        }
    }

    fn begin(&mut self, now: Time, command: CommandId, asked: CallContent, out: &mut dyn Sink<Self>) {
        self.number += 1;
        self.put(now, command, asked, (self.number, None), out);
        if self.number > self.settings.open_max {
            self.forget_open(self.number - self.settings.open_max);
        }
    }

    /// Queues a call, if there is room for it.
    fn put(
        &mut self,
        now: Time,
        command: CommandId,
        asked: CallContent,
        (number, session): (u64, Option<SessionId>),
        out: &mut dyn Sink<Self>,
    ) {
        // Calls with an unknown fate are forgotten first to make room, because it may be that no user ever
        // repeats them.
        while self.kept_bytes + asked.bytes() > self.settings.kept_bytes_max && self.forget_one_open() {}
        if self.kept_bytes + asked.bytes() > self.settings.kept_bytes_max {
            return out.emit(ClientEvent { command, fate: Fate::NotSent });
        }
        self.kept_bytes += asked.bytes();
        let (end, also) = (now + self.settings.wait, Vec::new());
        let pending = ClientCall { command, asked, end, session, attempts: 0, is_sent: false, also };
        self.calls.begin(number, pending);
    }

    /// Ends a call with this fate.
    fn end(&mut self, number: u64, fate: Fate, out: &mut dyn Sink<Self>) {
        let pending = self.calls.end(number).expect("a call ends once");
        self.kept_bytes -= pending.asked.bytes();
        self.close(number, &pending.asked);
        if let Fate::MaybeApplied { id } = fate {
            self.leave_open(id, pending.asked);
        }
        for command in pending.also {
            out.emit(ClientEvent { command, fate: fate.clone() });
        }
        out.emit(ClientEvent { command: pending.command, fate });
    }

    /// Ends the calls that have waited for too long.
    fn give_up(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        while let Some((end, number)) = self.calls.first_end()
            && end <= now
        {
            let pending = self.calls.get(number).expect("a call that ends is under way");
            let transaction = pending.asked.transaction();
            let fate = match (pending.session, pending.asked.kind) {
                (Some(session), Kind::Write | Kind::Read)
                    if pending.attempts > 0
                        && let Some(transaction) = transaction =>
                {
                    self.abandoned.push((session, transaction));
                    self.aborted(number, Abort::Gone, out);
                    continue;
                }
                (Some(session), Kind::Write | Kind::Commit) if pending.attempts > 0 => {
                    Fate::MaybeApplied { id: CallId { session, number } }
                }
                _ => Fate::NotSent,
            };
            self.end(number, fate, out);
        }
    }

    /// Marks all calls as unsent, because the client now asks another replica or has a new link.
    fn mark_calls_unsent(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        self.lose_transactions(|_| true, out);
        self.abandoned.clear();
        self.calls.unsend_all();
        self.leader_knows_client = false;
        self.alive_at = self.alive_at.map(|_| now);
        if let SessionState::Opening { sent, .. } = &mut self.session {
            *sent = false;
        }
    }

    /// Sets the time of the client's next report of its session, after a report was sent.
    fn renew(&mut self, now: Time) {
        let every = if self.leader_knows_client { self.settings.alive_every } else { SESSION_RETRY_PAUSE };
        let open = matches!(self.session, SessionState::Open(_));
        self.alive_at = open.then(|| now + every.min(self.settings.alive_every));
    }
}

/// The bit that is set in the numbers of calls with keys. So these numbers are above the numbers of all other
/// calls, which count up from one.
const KEYED: u64 = 1 << 63;
/// The pause between two reports of a session while no leader is known to have got a report.
const SESSION_RETRY_PAUSE: Duration = Duration::from_secs(1);
