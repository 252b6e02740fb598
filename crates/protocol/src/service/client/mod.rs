//! The client's end of a replicated service.
//!
//! **Promise.** Every call ends in exactly one [`Fate`], and an answer that is told is the call's own: it took effect once.
//! While a majority of the replicas lives and can be reached, calls are answered, whichever of them lead, die and come back.
//! What cannot be known is not told as if it were: see [`Fate`].
//!
//! **How.** Calls have numbers in a session that the client opens. They are sent to the replica that leads, all that
//! came together in one message, without waiting for answers. When that replica is lost, is silent, or says that another one
//! leads, everything that is not answered is sent anew under the same numbers, to another one; the replicas tell repetitions
//! apart. With each message the client says up to which number it has all answers, so that replies are forgotten.
//!
//! **Reads.** While few are under way, the client tells all replicas of them, which saves a hop; while many are, the leader asks
//! once for all. A read that is sent anew is asked for in any case.
//!
//! **Sessions end**, by agreement of the replicas. A call of which one attempt alone was sent, and which is answered
//! *expired*, has not taken effect and never will. The client opens another session and calls there. A call that was sent
//! more than once may have taken effect before the session ended: nobody can know, and that is told.
//!
//! **Attacks considered.**
//!
//! - *The answer comes from a replica that is asked no more.* It is as good as any: the call is chosen. A later answer of another
//!   one finds no call.
//! - *A replica of long ago names replicas that are dead.* The client goes on knowing those it was told of before
//!   (`guide`).
//! - *All replicas are replaced, one after another, while it asks leaders that stay.* A leader tells its clients which the replicas are,
//!   when they call it first and at every change. A client that has nothing to call for tells a new leader of its session all the same.
//! - *Two replicas name each other as the leader.* It follows a few times at once, then it waits.
//! - *The leader hears the client, and is not heard.* It is silent to the client, which asks another one in time. That one names
//!   the same leader. Then patience grows, and a link that is cut in one direction breaks or is mended.
//! - *The leader stands still, and the others have not found out.* They name it. The client goes from one of them to the next until one
//!   names another leader, and turns to the silent one again only when its patience has ended once more: it may be slow.
//! - *Twice in a row*: a call is sent to a leader that dies, and to the next one, which dies. Both attempts have one id.
//! - *A session is opened twice*, since the opening was sent anew. The client takes the first that it is told of; the
//!   other one is used by nobody, and ends.
//! - *A call is given up, and its number is used again.* It is not: numbers count up, over all sessions of a client.
//! - *A call of a transaction finds no room, and the transaction is aborted before it is sent again.* Only the call with which the
//!   transaction begins says so, each time it is sent; sent as a later one, the call finds that the transaction is over. It would begin
//!   another one otherwise, and half of what was asked for would be committed.
//! - *Two ask under one key at the same time.* If they ask the same, the second is told what the first is. A key is of all clients, so its
//!   call needs no session of this one, and may be called again by any.
//! - *The watermark passes a call whose outcome is open.* It does not, as long as the client may ask for it again
//!   ([`ClientCommand::Again`]); so many calls later it may not.

mod calls;
mod guide;

use std::collections::BTreeMap;

use bytes::Bytes;

use self::{
    calls::{Asked, Calls, Pending},
    guide::Guide,
};
use super::{Abort, Body, Call, CallId, GroupId, Kind, Message, Outcome, Part, Scope, SessionId};
use crate::{
    id::{Peer, ProcessId},
    paxos,
    seam::{CommandId, Context, Destination, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// How a client behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// How long a call may take before its fate is told as far as it is known.
    pub wait: Duration,
    /// How long a replica may be silent before another one is asked. Grows while nobody answers.
    pub patience: Duration,
    /// How long to wait before replicas are asked again of which none leads, or which had no room.
    pub retry_after: Duration,
    /// The pause before the next replica is asked, if the leader that was named has just been silent for too long.
    pub ask_again_after: Duration,
    /// Requests that are sent and not answered; others wait, in bytes.
    pub in_flight_bytes_max: usize,
    /// Requests that are kept; calls beyond are refused, in bytes.
    pub kept_bytes_max: usize,
    /// How often the leader hears of a session at least, so that it does not end.
    pub alive_every: Duration,
    /// While so many reads are under way or fewer, replicas are told of them.
    pub told_reads_max: usize,
    /// A call of unknown fate can be asked for again until so many later ones have been made.
    pub open_max: u64,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            wait: Duration::from_secs(10),
            patience: Duration::from_millis(500),
            retry_after: Duration::from_millis(20),
            ask_again_after: Duration::from_millis(80),
            in_flight_bytes_max: 16 << 20,
            kept_bytes_max: 64 << 20,
            alive_every: Duration::from_secs(60),
            told_reads_max: 4,
            open_max: 4096,
        }
    }
}

/// What a client is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCommand {
    /// Call the service. Ends in one [`ClientEvent`].
    Call {
        /// The asker's name for it.
        command: CommandId,
        /// Whether it changes nothing.
        read: bool,
        /// What it touches ([`Scope::keys`]); none: everything.
        keys: Vec<u64>,
        /// The request; opaque here.
        request: Bytes,
    },
    /// Call the service under a key of the asker's choice: it takes effect once, whoever calls under this key and however often, as long as
    /// the replicas remember it. Ends in one [`ClientEvent`].
    Keyed {
        /// The asker's name for it.
        command: CommandId,
        /// A print of the key.
        key: u64,
        /// What it touches; none: everything.
        keys: Vec<u64>,
        /// The request; opaque here.
        request: Bytes,
    },
    /// Call the service in a transaction, behind the answer to the call before. The first one begins it. Ends in one [`ClientEvent`].
    Part {
        /// The asker's name for it.
        command: CommandId,
        /// The asker's number of the transaction; never used before.
        transaction: u64,
        /// Whether it changes nothing.
        read: bool,
        /// What it touches; none: everything.
        keys: Vec<u64>,
        /// The request; opaque here.
        request: Bytes,
    },
    /// Have a transaction take effect. Ends in one [`ClientEvent`]; the reply is empty.
    Commit {
        /// The asker's name for it.
        command: CommandId,
        /// Which.
        transaction: u64,
    },
    /// Nothing of a transaction is to take effect. It ends with nothing, for nobody can tell it from one that was forgotten.
    Abandon {
        /// Which.
        transaction: u64,
    },
    /// Find out about a call that was told as [`Fate::MaybeApplied`], and have it take effect if it has not. Ends in one
    /// [`ClientEvent`].
    Again {
        /// The asker's name for this attempt.
        command: CommandId,
        /// The call, as it was told.
        id: CallId,
    },
    /// More replicas to ask: those that were found where some should be.
    Seeds(Vec<Peer>),
}

impl ClientCommand {
    /// The asker's name for it, if it ends in an event.
    pub fn command(&self) -> Option<CommandId> {
        match self {
            ClientCommand::Call { command, .. }
            | ClientCommand::Keyed { command, .. }
            | ClientCommand::Part { command, .. }
            | ClientCommand::Commit { command, .. }
            | ClientCommand::Again { command, .. } => Some(*command),
            ClientCommand::Abandon { .. } | ClientCommand::Seeds(_) => None,
        }
    }

    /// About, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            ClientCommand::Call { request, .. }
            | ClientCommand::Keyed { request, .. }
            | ClientCommand::Part { request, .. } => request.len(),
            _ => 0,
        }
    }
}

/// What a client tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEvent {
    /// The command that ends with this.
    pub command: CommandId,
    /// What became of the call.
    pub fate: Fate,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It took effect once, and this is the reply.
    Done(Bytes),
    /// The service refused it. Nothing was changed.
    Rejected(Bytes),
    /// It has changed nothing and never will: no replica was sent it, or had room for it; or it is a read that nobody answered.
    NotSent,
    /// Its transaction is over: nothing of it has taken effect, and nothing ever will.
    Aborted(Abort),
    /// It was sent, and may take effect yet. Ask for it again under this id.
    MaybeApplied {
        /// The call's name.
        id: CallId,
    },
    /// Its key was used for another request. Nothing was changed.
    Reused,
    /// The call that was asked for again is not remembered any more: its session is over, or too many others were made since. It
    /// never takes effect from now on; nobody knows whether it has.
    Expired,
}

/// The client's end.
#[derive(Debug)]
pub struct Client {
    group: GroupId,
    settings: ClientSettings,
    /// Replicas to begin with, until the first input.
    seeds: Vec<Peer>,
    guide: Guide,
    session: Session,
    calls: Calls,
    /// Calls of this session whose fate was left open.
    open: BTreeMap<u64, Asked>,
    /// Transactions that have not ended here.
    transactions: BTreeMap<u64, Stage>,
    /// Those that the replica which is asked should end.
    abandoned: Vec<(SessionId, u64)>,
    /// When the leader is to hear of the session again.
    alive_at: Option<Time>,
    /// Whether the replica that is asked leads and knows this client, so that it will tell of new replicas.
    is_heard: bool,
    /// The last number that was given.
    number: u64,
    /// Requests of calls, and of those left open, in bytes.
    kept_bytes: usize,
    /// Messages that a client should not be sent.
    refused: u64,
}

/// The session of calls that are made from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    None,
    Opening { nonce: u64, sent: bool },
    Open(SessionId),
}

/// How far a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No replica was sent anything of it.
    New,
    /// The replica that is asked knows it in this session.
    Begun(SessionId),
    /// That replica is asked no more, or has said that it is over.
    Lost,
}

impl Client {
    /// A client of a replica set. `seeds` are some of those that may belong to it.
    pub fn new(group: GroupId, seeds: Vec<Peer>, settings: ClientSettings) -> Client {
        Client {
            group,
            settings,
            seeds,
            guide: Guide::default(),
            session: Session::None,
            calls: Calls::default(),
            open: BTreeMap::new(),
            transactions: BTreeMap::new(),
            abandoned: Vec::new(),
            alive_at: None,
            is_heard: false,
            number: 0,
            kept_bytes: 0,
            refused: 0,
        }
    }

    /// How many calls are not answered.
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// The replica that is asked.
    pub fn asked(&self) -> Option<ProcessId> {
        self.guide.asked()
    }

    /// Messages that a client should not be sent.
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
        self.guide.told(&seeds, out);
        match input {
            Input::Receive { from, message } if message.group == self.group => {
                self.receive(cx, from, message.body, out);
            }
            // Another group's, or a cast, which nobody sends here.
            Input::Receive { .. } | Input::Cast { .. } => self.refused += 1,
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => {
                if self.guide.wake(cx.now) {
                    self.send_anew(cx.now, out);
                }
                self.give_up(cx.now, out);
            }
            Input::Linked { peer, .. } => {
                if self.guide.linked(peer) {
                    self.send_anew(cx.now, out);
                }
            }
            Input::Unlinked { peer } => {
                if self.guide.unlinked(peer) {
                    self.send_anew(cx.now, out);
                }
            }
            Input::Persisted(_) | Input::Progress { .. } => {}
            Input::Drained => self.flush(cx, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let end = self.calls.first_end().map(|(end, _)| end);
        end.into_iter().chain(self.guide.deadline()).chain(self.alive_at).min()
    }
}

impl Client {
    fn receive(&mut self, cx: &Context<'_>, from: ProcessId, body: Body, out: &mut dyn Sink<Self>) {
        match body {
            Body::Opened { nonce, session } => {
                if matches!(self.session, Session::Opening { nonce: asked, .. } if asked == nonce) {
                    self.session = Session::Open(session);
                    self.renew(cx.now);
                    self.guide.answered(from);
                }
            }
            Body::Answers { session, answers } => {
                self.guide.answered(from);
                for (number, outcome) in answers {
                    self.answered(cx, session, number, outcome, out);
                }
            }
            Body::Redirect { leader, members } => {
                self.guide.told(&members, out);
                if self.guide.redirected(&self.settings, from, leader, cx.now) {
                    self.send_anew(cx.now, out);
                }
            }
            Body::Members { members } => {
                self.guide.told(&members, out);
                if self.guide.asked() == Some(from) && !self.is_heard {
                    self.is_heard = true;
                    self.renew(cx.now);
                }
            }
            // Joiners ask everybody they are linked with for admission.
            Body::Paxos(_) => {}
            Body::Open { .. }
            | Body::Calls { .. }
            | Body::Reads { .. }
            | Body::Told { .. }
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
        outcome: Outcome,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(pending) = self.calls.get_mut(number) else { return };
        if pending.session != Some(session) {
            return;
        }
        let transaction = pending.asked.transaction();
        let is_part = transaction.is_some() && pending.asked.kind != Kind::Commit;
        match outcome {
            Outcome::Done(reply) => self.end(number, Fate::Done(reply), out),
            Outcome::Rejected(reason) => self.end(number, Fate::Rejected(reason), out),
            Outcome::Reused => self.end(number, Fate::Reused, out),
            Outcome::Aborted(why) => self.aborted(number, why, out),
            Outcome::Full => {
                pending.attempts -= 1;
                let begins = pending.asked.part_mut().is_some_and(|part| std::mem::take(&mut part.first));
                self.calls.unsend(number);
                // If its transaction was to begin with it, that has not begun.
                if begins && let Some(stage) = transaction.and_then(|it| self.transactions.get_mut(&it)) {
                    *stage = Stage::New;
                }
                self.guide.refused(&self.settings, cx.now);
            }
            Outcome::Expired => {
                if is_part || (transaction.is_some() && pending.attempts == 1) {
                    self.aborted(number, Abort::Gone, out);
                } else if pending.attempts > 1 {
                    let id = CallId { session, number };
                    self.end(number, Fate::MaybeApplied { id }, out);
                } else {
                    (pending.attempts, pending.session) = (0, None);
                    self.calls.unsend(number);
                }
                self.session_is_over(session, out);
            }
        }
    }

    /// A call's transaction is over.
    fn aborted(&mut self, number: u64, why: Abort, out: &mut dyn Sink<Self>) {
        let pending = self.calls.get(number).expect("it is not answered");
        if let Some(stage) =
            pending.asked.transaction().and_then(|transaction| self.transactions.get_mut(&transaction))
        {
            *stage = Stage::Lost;
        }
        self.end(number, Fate::Aborted(why), out);
    }

    /// The replica that knew of transactions is asked no more, or has forgotten them. Commits are asked for elsewhere.
    fn lose_transactions(&mut self, lost: impl Fn(SessionId) -> bool, out: &mut dyn Sink<Self>) {
        for stage in self.transactions.values_mut() {
            if matches!(stage, Stage::Begun(session) if lost(*session)) {
                *stage = Stage::Lost;
            }
        }
        for (number, transaction) in self.calls.parts() {
            if self.transactions.get(&transaction) == Some(&Stage::Lost) {
                self.end(number, Fate::Aborted(Abort::Gone), out);
            }
        }
    }

    /// The replicas know nothing of this session any more: calls that are made from now on need another one.
    fn session_is_over(&mut self, session: SessionId, out: &mut dyn Sink<Self>) {
        self.lose_transactions(|of| of == session, out);
        if self.session == Session::Open(session) {
            self.session = Session::None;
            self.alive_at = None;
            self.forget_open(u64::MAX);
        }
    }

    fn command(&mut self, cx: &Context<'_>, command: ClientCommand, out: &mut dyn Sink<Self>) {
        match command {
            ClientCommand::Call { command, read, keys, request } => {
                let scope = (!keys.is_empty()).then(|| Box::new(Scope { keys, part: None }));
                let kind = if read { Kind::Read } else { Kind::Write };
                self.begin(cx.now, command, Asked { kind, scope, request }, out);
            }
            ClientCommand::Keyed { command, key, keys, request } => {
                self.begin_keyed(cx.now, command, key | KEYED, keys, request, out);
            }
            ClientCommand::Part { command, transaction, read, keys, request } => {
                if *self.transactions.entry(transaction).or_insert(Stage::New) == Stage::Lost {
                    return out.emit(ClientEvent { command, fate: Fate::Aborted(Abort::Gone) });
                }
                let part = Some(Part { transaction, first: false });
                let kind = if read { Kind::Read } else { Kind::Write };
                let asked = Asked { kind, scope: Some(Box::new(Scope { keys, part })), request };
                self.begin(cx.now, command, asked, out);
            }
            ClientCommand::Commit { command, transaction } => {
                let fate = match self.transactions.remove(&transaction) {
                    None | Some(Stage::New) => Fate::Done(Bytes::new()),
                    Some(Stage::Lost) => Fate::Aborted(Abort::Gone),
                    Some(Stage::Begun(_)) => {
                        let part = Some(Part { transaction, first: false });
                        let scope = Some(Box::new(Scope { keys: Vec::new(), part }));
                        let asked = Asked { kind: Kind::Commit, scope, request: Bytes::new() };
                        return self.begin(cx.now, command, asked, out);
                    }
                };
                out.emit(ClientEvent { command, fate });
            }
            ClientCommand::Abandon { transaction } => {
                if let Some(Stage::Begun(session)) = self.transactions.remove(&transaction) {
                    self.abandoned.push((session, transaction));
                }
            }
            ClientCommand::Again { command, id } => {
                let known = match self.session {
                    Session::Open(session) if session == id.session => self.open.remove(&id.number),
                    _ => None,
                };
                let Some(asked) = known else {
                    return out.emit(ClientEvent { command, fate: Fate::Expired });
                };
                let (end, session) = (cx.now + self.settings.wait, Some(id.session));
                let also = Vec::new();
                let pending = Pending { command, asked, end, session, attempts: 1, is_sent: false, also };
                self.calls.begin(id.number, pending);
            }
            ClientCommand::Seeds(replicas) => self.guide.told(&replicas, out),
        }
    }

    /// A call with a key begins, unless one under that key is under way, which tells this one's fate, too.
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
        let asked = Asked { kind: Kind::Write, scope, request };
        match self.calls.get_mut(number) {
            Some(pending) if pending.asked.request == asked.request => pending.also.push(command),
            Some(_) => out.emit(ClientEvent { command, fate: Fate::Reused }),
            None => self.put(now, command, asked, (number, Some(SessionId::KEYED)), out),
        }
    }

    fn begin(&mut self, now: Time, command: CommandId, asked: Asked, out: &mut dyn Sink<Self>) {
        self.number += 1;
        self.put(now, command, asked, (self.number, None), out);
        if self.number > self.settings.open_max {
            self.forget_open(self.number - self.settings.open_max);
        }
    }

    /// A call is to be sent, if there is room for it.
    fn put(
        &mut self,
        now: Time,
        command: CommandId,
        asked: Asked,
        (number, session): (u64, Option<SessionId>),
        out: &mut dyn Sink<Self>,
    ) {
        if self.kept_bytes + asked.bytes() > self.settings.kept_bytes_max {
            return out.emit(ClientEvent { command, fate: Fate::NotSent });
        }
        self.kept_bytes += asked.bytes();
        let (end, also) = (now + self.settings.wait, Vec::new());
        let pending = Pending { command, asked, end, session, attempts: 0, is_sent: false, also };
        self.calls.begin(number, pending);
    }

    /// A call ends.
    fn end(&mut self, number: u64, fate: Fate, out: &mut dyn Sink<Self>) {
        let pending = self.calls.end(number).expect("a call ends once");
        self.kept_bytes -= pending.asked.bytes();
        if let Fate::MaybeApplied { id } = fate
            && self.session == Session::Open(id.session)
        {
            self.kept_bytes += pending.asked.bytes();
            self.open.insert(number, pending.asked);
        }
        for command in pending.also {
            out.emit(ClientEvent { command, fate: fate.clone() });
        }
        out.emit(ClientEvent { command: pending.command, fate });
    }

    /// Calls whose fate was left open, with numbers below this one, cannot be asked for again.
    fn forget_open(&mut self, below: u64) {
        while let Some(first) = self.open.first_entry()
            && *first.key() < below
        {
            self.kept_bytes -= first.remove().bytes();
        }
    }

    /// Ends the calls that have waited for too long.
    fn give_up(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        while let Some((end, number)) = self.calls.first_end()
            && end <= now
        {
            let pending = self.calls.get(number).expect("what ends is under way");
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

    /// Another replica is asked, or the link to it is new: it has been sent nothing.
    fn send_anew(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        self.lose_transactions(|_| true, out);
        self.abandoned.clear();
        self.calls.unsend_all();
        self.is_heard = false;
        self.alive_at = self.alive_at.map(|_| now);
        if let Session::Opening { sent, .. } = &mut self.session {
            *sent = false;
        }
    }

    /// The session was told of just now, if there is one: when it is to be told of again.
    fn renew(&mut self, now: Time) {
        let every = if self.is_heard { self.settings.alive_every } else { UNHEARD_PAUSE };
        let open = matches!(self.session, Session::Open(_));
        self.alive_at = open.then(|| now + every.min(self.settings.alive_every));
    }

    /// Sends what has gathered, and a word if there was none for long.
    fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.guide.expects(&self.settings, !self.calls.is_empty(), cx.now);
        self.send_calls(cx, out);
        self.send_abandoned(cx, out);
        if let Session::Open(session) = self.session
            && self.alive_at.is_some_and(|at| at <= cx.now)
        {
            self.renew(cx.now);
            if let Some(to) = self.guide.whom(cx.now) {
                let body = Body::Calls { session, done: self.done(), calls: Vec::new() };
                out.send(Destination::One(to), Message { group: self.group, body }, None);
            }
        }
    }

    fn send_calls(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if self.calls.next_unsent().is_none() {
            return;
        }
        let Some(to) = self.guide.whom(cx.now) else { return };
        if self.session == Session::None {
            self.session = Session::Opening { nonce: (cx.random)(), sent: false };
        }
        if let Session::Opening { nonce, sent: sent @ false } = &mut self.session {
            *sent = true;
            let body = Body::Open { nonce: *nonce };
            out.send(Destination::One(to), Message { group: self.group, body }, None);
        }
        while let Some((session, body, told)) = self.next_calls() {
            self.renew(cx.now);
            if !told.is_empty() {
                let others = Destination::Many(self.guide.others().collect());
                let body = Body::Reads { session, numbers: told };
                out.send(others, Message { group: self.group, body }, None);
            }
            out.send(Destination::One(to), Message { group: self.group, body }, None);
        }
    }

    /// Tells the replica that is asked of transactions which it need not keep.
    fn send_abandoned(&mut self, cx: &Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(to) = self.guide.whom(cx.now) else { return };
        for (session, transaction) in self.abandoned.drain(..) {
            let body = Body::Abandon { session, transactions: vec![transaction] };
            out.send(Destination::One(to), Message { group: self.group, body }, None);
        }
    }

    /// The lowest number whose answer is wanted.
    fn done(&self) -> u64 {
        let first = |number: Option<u64>| number.unwrap_or(self.number + 1);
        let oldest = first(self.calls.oldest().filter(|number| *number < KEYED));
        first(self.open.first_key_value().map(|(number, _)| *number)).min(oldest)
    }

    /// The next message of calls that have not been sent, if there is room for it, and the reads in it that replicas are to be
    /// told of.
    fn next_calls(&mut self) -> Option<(SessionId, Body, Vec<u64>)> {
        let tells =
            self.calls.reads() <= self.settings.told_reads_max && self.guide.others().next().is_some();
        let mut told = Vec::new();
        let done = self.done();
        let (mut session, mut calls, mut bytes) = (None, Vec::new(), 0);
        let mut in_flight = self.calls.in_flight_bytes();
        while let Some((number, pending)) = self.calls.next_unsent() {
            let length = pending.asked.bytes();
            let crowded = in_flight > 0 && in_flight + length > self.settings.in_flight_bytes_max;
            let own = pending.session.or(match self.session {
                Session::Open(session) => Some(session),
                Session::None | Session::Opening { .. } => None,
            });
            let full = bytes > 0 && bytes + length > MESSAGE_BYTES;
            if own.is_none() || crowded || full || session.is_some_and(|session| Some(session) != own) {
                break;
            }
            (session, pending.session) = (own, own);
            let may_be_told = pending.asked.may_be_told() && tells && pending.attempts == 0;
            if let (Some(own), Some(part)) = (own, pending.asked.part_mut())
                && let Some(stage @ Stage::New) = self.transactions.get_mut(&part.transaction)
            {
                (*stage, part.first) = (Stage::Begun(own), true);
            }
            let Asked { mut kind, scope, request } = pending.asked.clone();
            if may_be_told {
                kind = Kind::ToldRead;
                told.push(number);
            }
            pending.attempts += 1;
            bytes += length + 1;
            in_flight += length;
            calls.push(Call { number, kind, scope, request });
            self.calls.sent();
        }
        session.map(|session| (session, Body::Calls { session, done, calls }, told))
    }
}

/// Numbers of calls with keys have this bit: they come behind all others, which count up from one.
const KEYED: u64 = 1 << 63;
/// Requests in one message, about, in bytes.
const MESSAGE_BYTES: usize = 256 << 10;
/// So often a client tells of its session while it does not know whether a leader has heard of it.
const UNHEARD_PAUSE: Duration = Duration::from_secs(1);
