//! Multi-Paxos: one log that all routers agree on.
//!
//! **Promise.** A slot learned by anyone is learned the same by everyone, in the order of slots, each exactly once. What
//! one process proposes within one reign and one link session is learned in the order in which it was proposed. As long
//! as a majority of the members lives and is linked, what is proposed is learned. Members can be changed, one at a time,
//! by the log itself.
//!
//! **Source.** Lamport, *Paxos Made Simple*, §2–3; disk-less, pipelined and reconfigurable as 002 §5.6. The unit of
//! agreement is the log rather than the slot, as in Sequence Paxos (Haridi, Kroll and Carbone).
//!
//! **Roles.** Every router is acceptor and learner; one leads. A *learner* that is no member is fed like a follower and
//! votes on nothing. A router that was voted out takes no further part.
//!
//! ```text
//!  candidate               follower      │  leader                  follower
//!      ├── PreVote ──────────▶│           │    ├── Heartbeat ─────────▶│   every interval, and upon a new link
//!      │◀────────── PreVoted ─┤           │    │◀───────── Following ──┤   what it holds
//!      ├── Prepare ──────────▶│  1a       │    ├── CatchUp / Chunk … ─▶│   chosen log, or a snapshot, in parts
//!      │◀─────────── Promise ─┤  1b       │    ├── Sync ──────────────▶│   then the rest, in one step
//!      │  with what may be    │           │    ├── Accept #8, #9 … ───▶│   2a
//!      │  chosen              │           │    │◀───────── Accepted ───┤   2b, cumulative, once per batch
//!      ▼ leads                            │    ├── Chosen ────────────▶│   unless the next Accept says it
//! ```
//!
//! **Invariants.** Each is asserted where it could first break.
//!
//! - *A promise holds*: nothing is accepted below the promised ballot.
//! - *One log per ballot*: what a router holds behind its chosen prefix was accepted in one ballot, `accepted`, and is a
//!   prefix of what that ballot's leader proposed. A log changes ballot in one step (`Sync`), never slot by slot; so the
//!   tail of a dead reign cannot survive behind slots of a later one, and there are never gaps to fill.
//! - *Phase 1 sees what may be chosen*: a majority of promises contains a router that accepted every chosen slot; of the
//!   logs promised, the one of the highest ballot, and among these the longest, is gone on with.
//! - *Members change one at a time, by a stop command*: it is alone in its slot, and nothing is proposed behind it until it
//!   is chosen. Whoever holds it acts on it, chosen or not: it is chosen when a majority of the *new* members holds it, so
//!   that they hold the whole chosen prefix when they begin (rule S2), and elections count them.
//! - *A change stands on firm ground*: it is proposed only once a majority of the members before it holds the log with
//!   which the reign began, in its ballot.
//! - *Votes are counted for the newest members that the log to go on with makes*, by whole process id: a vote of an older
//!   or younger incarnation is nobody's. Promises reveal more of the prefix and better logs, and a candidate counts anew
//!   with each set that it learns so. One that comes with old members is thus led through every later set. So it is with
//!   pre-votes: each tells of the voter's log, if that is the better one.
//! - *Nobody is behind who holds the better log*: of a log that beats the candidate's a promise carries all that the candidate
//!   lacks, or none is made; of another one it carries what is known to be chosen, or nothing.
//!
//! **Why that is safe.** Let a candidate go on with a log of ballot *a*, whose newest members are *X*, promised by a
//! majority of X; let *v* be a ballot below its own in which something was chosen that it lacks, the lowest such.
//!
//! - *v < a*: then a's leader had it, by induction, and a log is taken over in one step.
//! - *v = a*: the log ends too early. All before the first change that it lacks was chosen by a majority of X, and that
//!   change by a majority of a neighbour of X. Both meet ours, in one whose log of ballot a is longer: not the best.
//! - *v > a*: let W be the last members chosen below v. X is W, or what an open change makes of W; and so is the set V under
//!   which v's leader was elected and chose. If either is W, or both are the same, a majority of X meets one of V, and a
//!   promise shows the higher ballot. If they are two different changes of W, both had ground: a majority of W had accepted
//!   in the ballot in which the later of the two was first proposed, and meets every majority of the set of the earlier. So
//!   no candidate under the earlier set goes on with it from then on; it would have seen the later reign.
//!
//! The last point is what single-server changes need in Raft too (Ongaro, *Bug in single-server membership changes*, 2015).
//! It lets a majority of the newest members go on alone, even if the only leader that knew them to be chosen is dead.
//!
//! None of this rests on what a promise says to be chosen: a voter that has not heard it yet says less, and its promise is as
//! good. So one that has forgotten the values may say less, too, as long as its log is not the one to go on with. Nor does it
//! rest on pre-votes, which promise nothing.
//!
//! **Why somebody can be elected.** Let B be the router with the best log of those that live, and X the newest members that
//! this log makes. While a majority of X lives and talks with B, nobody has a log that beats B's, so nobody finds B behind, and
//! the majority that B needs is there. Another candidate may hold a change of a reign that is over, by which it would need the
//! dead. While it talks with a majority of X, one of these answers its pre-vote with a log of the reign that followed, and it
//! counts the members that this one makes. Where not even that is so, nobody can know what was chosen: a majority of a set
//! that may have chosen is gone.
//!
//! **Attacks considered.**
//!
//! - *A candidate with members of long ago.* Majorities of neighbouring sets meet, so some promise shows it the next
//!   change, and so on up to the present; or nobody answers, because it is no member any more.
//! - *A node that lost its memory.* It is another process. Once the old one is suspected, or its link is broken and the new one
//!   listens at its address, where both cannot be, it is voted out at once, and the new one fed as a learner.
//! - *Two living processes of one node.* The one that the leader hears stays. The other one is told who is in its way
//!   (`NodeInUse`), and is not even a learner. Otherwise each would have the other voted out, in turn.
//! - *A link that broke.* Whatever was lost is lost from the end; the next heartbeat asks what the follower holds and
//!   the leader goes on from there. What a follower holds in a ballot never shrinks, so answers from before are harmless.
//! - *A leader that lost its followers.* It steps down when no majority seems well; the pre-vote keeps one that is cut
//!   off from raising ballots, and who sees a living leader helps nobody to its place.
//! - *A leader that dies with a change of the members half told.* Whoever holds it acts on it, a learner that it makes a
//!   member too: it stands for leader, and those that never heard of it answer one whose log is better than theirs.
//! - *A leader that votes itself or another out, and dies.* A majority of the others holds that, and needs nobody else to go
//!   on. Who is voted out stays until a majority has *learned* it all the same, so that a new election is seldom needed.
//! - *A leader that proposes a change and is cut off with it.* The others elect another, and their leader dies, too, before the
//!   first has heard of it. When it comes back it holds a change by which it needs the dead; it may also be the only one to know
//!   all that is chosen, and have collected what the others have not heard to be chosen. They hold that all the same, in the
//!   higher ballot: it promises them (`change_of_a_dead_reign`). If they do not talk with each other but all with it, it hears of
//!   the higher ballot from them, and is elected (`star_around_a_dead_change`). If it is heard and does not hear, or hears and is
//!   not heard, its questions or the answers are lost, and others that talk with a majority are elected as without it.
//! - *Two changes of two dead reigns, each held by one that lives.* The later of the two had ground: a majority of the
//!   members before both had accepted in its ballot, or the earlier one was chosen. A majority that lives has one who tells of
//!   that ballot, or of a later one; the holder of the earlier change hears so, and counts for the later set.
//! - *A change that its leader alone holds, with nothing later.* It may be chosen by those that it would take in, for all that
//!   anybody alive knows; so the votes of its set are needed. That is the price of going on with the new members alone, and
//!   `propose_members` pays it only while a majority of them is in touch.
//! - *A snapshot that is overtaken.* It carries the members of its slot, and takes the place of the chosen prefix only:
//!   what was accepted behind it stays accepted. The log behind a snapshot that is under way is kept longer.
//!
//! **Proposals that rest on a reign.** A user whose proposals rest on what it knew while it led (a change of a state that
//! only the leader has computed) binds them to its ballot ([`Command::ProposeIn`]). They are never forwarded and wait in the
//! reign's own queue, which ends with it. A log that one ballot's leader proposed is taken over from its beginning, so of such
//! proposals a prefix survives the reign, in order, and behind it nothing of that reign. The user is told when a reign begins, when
//! all that it began with is chosen, and when it ends, before anything of a later one is learned. [`Command::Confirm`] is how it
//! finds out whether its reign still stands.
//!
//! **Where we differ, and why.** Ballots belong to logs and not to slots (above): it makes FIFO of proposers, stop
//! commands and gaps a matter of course. The pre-vote is not in the paper: without it every router that returns from a
//! cut deposes the leader. Safety never rests on time (rule S11): the detector says only when to try.
//!
//! **Speed.** Payloads are shared, never copied; an `Accept` is encoded once for all followers. Proposals gather while
//! a batch of inputs is handled, and go into a slot at its end, or when there is a full batch. The window opens while
//! full batches wait for it and closes while slots are small, so that a deep pipeline does not starve batching.
//!
//! **Disk.** What others count on is written first ([`Record`]), and is durable before it is said: promises before any
//! message that rests on them, acceptances before they are told, and a founder's first slot before anybody learns it. A
//! router that is made again from its records ([`Paxos::recover`]) holds all that it ever said it holds; what it had
//! sent besides is as good as lost on the way, which links may always do. So it goes on under its incarnation, as a
//! follower. Pulses and proposals go aside of what waits for the disk: a slow disk is no dead router. Once
//! [`Settings::checkpoint_bytes`] have been written the user gives its state, and one record takes the place of all before it. A
//! user that cannot give it at once says so ([`Command::SnapshotLater`]); the log behind it is kept until it does, and is a part
//! of that record.
//!
//! **Snapshots.** A process that lacks more than the log that is kept is fed the user's state, whole or in parts. A user whose
//! state is large takes a cheap checkpoint and gives its parts over many turns, while the log goes on.
//!
//! **Memory.** Without a disk, a majority that fails at once stops the domain for good (rule S1). Chosen log is kept
//! until every member reports it, and never more of it than [`Settings::log_bytes_kept`].

mod ballot;
mod candidate;
mod change;
mod confirm;
mod contacts;
mod core;
mod election;
mod follower;
mod leader;
mod log;
mod message;
mod pause;
mod record;
mod reform;
mod snapshot;
mod user;

use bytes::Bytes;

pub use self::{
    ballot::{Ballot, Slot},
    contacts::{Contact, Pulse, Way},
    log::Value,
    message::{Better, Change, ChangeRefusal, Message, Prepare, Refusal},
    record::{Corrupt, Record},
    reform::ReformRefusal,
    user::{Command, Event, Settings, StateKind, Status},
};
use self::{
    candidate::{Candidacy, Promise, Stage},
    core::{Chunk, Core},
    leader::Reign,
    log::Log,
    snapshot::Part,
};
use crate::{
    id::{Peer, ProcessId},
    seam::{Context, Input, Protocol, Sink, Ticket},
    time::{Duration, Time},
};

/// A router's part in the log.
#[derive(Debug)]
pub struct Paxos {
    core: Core,
    state: State,
    /// Whether the first input has come.
    started: bool,
    /// Events that a recovered router tells its user first.
    recovered: Option<Vec<Event>>,
    /// A checkpoint on its way to the disk.
    checkpoint: Option<Ticket>,
    /// When signs of life are due.
    tick_at: Time,
    /// When to stand for leader.
    election: Option<Time>,
    /// From when on this process stands as soon as a majority is known that would have it.
    ready_from: Option<Time>,
    /// The candidate that is helped, and how long no other is.
    granted: Option<(ProcessId, Time)>,
    /// Candidacies that came to nothing since somebody led.
    attempts: u32,
    /// Proposals on their way to the leader.
    forward: Vec<Bytes>,
    /// The leader is to be told what was accepted.
    acceptance_due: bool,
    /// The round to be confirmed to the leader.
    confirmation_due: Option<u64>,
    /// The user is to be told the leader again, so that it proposes again.
    tell_again: bool,
    /// While joining: the process of this one's node that is in its way.
    namesake: Option<Peer>,
    /// It is about to stop, and leads no more.
    pausing: bool,
}

/// What a router is at present, and what it needs to know in that.
#[derive(Debug)]
enum State {
    /// Asks for admission and is fed the log; votes on nothing.
    Joining { seeds: Vec<Peer>, ask_at: Time },
    /// Follows a leader, or waits for one.
    Follower,
    /// Would lead.
    Candidate(Candidacy),
    /// Leads.
    Leader(Box<Reign>),
    /// Was a member.
    Removed,
}

impl Paxos {
    /// The first router of a new domain (rule S1): sole member, and leader. To be called once per domain, ever.
    pub fn found(me: Peer, settings: Settings, now: Time) -> Paxos {
        Paxos::new(me, State::Follower, settings, now)
    }

    /// A router that asks `seeds`, and whoever it gets a link to, for admission. It votes on nothing until it is a member.
    pub fn join(me: Peer, seeds: Vec<Peer>, settings: Settings, now: Time) -> Paxos {
        Paxos::new(me, State::Joining { seeds, ask_at: now }, settings, now)
    }

    fn new(me: Peer, state: State, settings: Settings, now: Time) -> Paxos {
        Paxos {
            core: Core::new(me, settings),
            state,
            started: false,
            recovered: None,
            checkpoint: None,
            tick_at: now,
            election: None,
            ready_from: None,
            granted: None,
            attempts: 0,
            forward: Vec::new(),
            acceptance_due: false,
            confirmation_due: None,
            tell_again: false,
            namesake: None,
            pausing: false,
        }
    }

    /// Who this is.
    pub fn me(&self) -> ProcessId {
        self.core.me.id
    }

    /// Who leads, as far as this process knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.core.leader.map(|ballot| ballot.router)
    }

    /// The process of this one's node that keeps it from joining, as it was told last.
    pub fn namesake(&self) -> Option<&Peer> {
        self.namesake.as_ref().filter(|_| matches!(self.state, State::Joining { .. }))
    }

    /// Whether this process leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.state, State::Leader(_))
    }

    /// Whether it leads, and proposals wait for the end of the turn to be given slots.
    pub fn has_proposals(&self) -> bool {
        matches!(&self.state, State::Leader(reign) if reign.pending_bytes > 0)
    }

    /// The members behind the last slot learned, in id order.
    pub fn members(&self) -> &[Peer] {
        &self.core.members
    }

    /// The last slot learned.
    pub fn applied(&self) -> Slot {
        self.core.chosen
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let core = &self.core;
        let reign = match &self.state {
            State::Leader(reign) => Some(reign),
            _ => None,
        };
        Status {
            state: match self.state {
                State::Joining { .. } => StateKind::Joining,
                State::Follower => StateKind::Follower,
                State::Candidate(_) => StateKind::Candidate,
                State::Leader(_) => StateKind::Leader,
                State::Removed => StateKind::Removed,
            },
            leader: self.leader(),
            promised: core.promised,
            accepted: core.accepted,
            chosen: core.chosen,
            last: core.log.last(),
            known: core.known(),
            members: core.members.clone(),
            members_open: core.members_open().map(|open| open.to_vec()),
            suspected: reign.map_or_else(Vec::new, |reign| {
                let peers = reign.peers.iter().filter(|(_, peer)| peer.member && peer.suspected.is_some());
                peers.map(|(id, _)| *id).collect()
            }),
            window: reign.map_or(0, |reign| reign.window),
            pending_bytes: reign.map_or(0, |reign| reign.pending_bytes),
        }
    }
}

impl Protocol for Paxos {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        assert!(cx.me == self.core.me.id, "a protocol stays with its process");
        if !self.started {
            self.started = true;
            self.start(cx, out);
        }
        if matches!(self.state, State::Removed) {
            return;
        }
        match input {
            Input::Receive { from, message } => self.receive(cx, from, message, out),
            // Nobody casts here.
            Input::Cast { .. } => {}
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => self.wake(cx, out),
            Input::Persisted(ticket) => {
                self.core.durable = Some(ticket);
                if let Some(checkpoint) = self.checkpoint.take_if(|checkpoint| *checkpoint <= ticket) {
                    out.collect(checkpoint, &[]);
                }
                if let State::Leader(reign) = &mut self.state {
                    reign.persisted(ticket);
                    reign.advance(&mut self.core, out);
                }
            }
            Input::Linked { peer, .. } => self.linked(cx, peer, out),
            Input::Unlinked { peer } => self.unlinked(cx, peer, out),
            Input::Progress { peer } => self.core.heard(peer, cx.now),
            Input::Drained => self.flush(cx, out),
        }
        while self.core.members_changed {
            self.core.members_changed = false;
            self.members_changed(cx, out);
        }
        if let State::Leader(reign) = &mut self.state {
            reign.settle(&self.core, out);
        }
        if matches!(self.state, State::Follower | State::Candidate(_)) && !self.core.concerns(cx.me) {
            self.be_removed(out);
        }
    }

    fn deadline(&self) -> Option<Time> {
        if matches!(self.state, State::Removed) {
            return None;
        }
        let until = match &self.state {
            State::Candidate(candidacy) => Some(candidacy.until),
            // To the very instant of suspicion: failing over fast must not wait for a tick.
            State::Follower => self.leader().and_then(|leader| self.core.detector.suspected_from(leader)),
            _ => None,
        };
        [Some(self.tick_at), self.election, until].into_iter().flatten().min()
    }
}

impl Paxos {
    fn start(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if let Some(events) = self.recovered.take() {
            events.into_iter().for_each(|event| out.emit(event));
            if matches!(self.state, State::Follower) {
                self.core.watch_members([], cx.now);
                self.reach_members(out);
                // The others may have a leader, and it needs a moment to be heard.
                self.stand_after(cx, self.interval() * 4);
                return;
            }
        }
        match &self.state {
            State::Joining { seeds, .. } => {
                for seed in seeds {
                    self.core.reach(seed, out);
                }
            }
            State::Follower => self.begin(cx, false, out),
            _ => unreachable!("a router begins by founding or joining"),
        }
    }

    /// The founder's first slot is decided by founding itself: from then on it is an ordinary sole member.
    fn begin(&mut self, cx: &mut Context<'_>, again: bool, out: &mut dyn Sink<Self>) {
        let ballot = Ballot { round: self.core.round.max(self.core.promised.round) + 1, router: cx.me };
        let first = Value::Members([self.core.me.clone()].into());
        self.core.promise(ballot, out);
        let ticket = self.core.replace(ballot, Slot::ZERO, &[first], out);
        if again {
            // As when a survivor goes on: what the generation begins with is proposed in the same turn.
            self.core.learn(Slot(1), out);
        }
        self.core.leader = Some(ballot);
        self.state = State::Leader(Box::new(Reign::begin(&self.core, ballot, ticket, out)));
        self.core.tell_leader(again, out);
    }

    fn receive(&mut self, cx: &mut Context<'_>, from: ProcessId, message: Message, out: &mut dyn Sink<Self>) {
        self.core.heard(from, cx.now);
        match message {
            // From a leader. Following it comes first, whatever it says.
            Message::Heartbeat { ballot, chosen, collect, sent } => {
                if self.follow(cx, from, ballot, out) {
                    self.heartbeat(ballot, chosen, collect, sent, out);
                }
            }
            Message::Accept { ballot, slot, chosen, value } => {
                if self.follow(cx, from, ballot, out) {
                    self.accept(ballot, slot, chosen, value, out);
                }
            }
            Message::Chosen { ballot, through } => {
                if self.follow(cx, from, ballot, out) {
                    self.learn_in(ballot, through, out);
                }
            }
            Message::Sync { ballot, start, chosen, values } => {
                if self.follow(cx, from, ballot, out) {
                    self.sync(ballot, start, chosen, values, out);
                }
            }
            Message::CatchUp { ballot, start, values } => {
                if self.follow(cx, from, ballot, out) {
                    self.catch_up(ballot, start, values, out);
                }
            }
            Message::Chunk { ballot, slot, members, total, offset, bytes } => {
                if self.follow(cx, from, ballot, out) {
                    let chunk = Chunk { slot, members, total, offset, bytes };
                    self.chunk(ballot, chunk, out);
                }
            }
            Message::Confirm { ballot, round } => {
                if self.follow(cx, from, ballot, out) {
                    self.confirmation_due = self.confirmation_due.max(Some(round));
                }
            }
            Message::Part { ballot, slot, members, number, last, bytes } => {
                if self.follow(cx, from, ballot, out) {
                    let part = Part { slot, members, number, last, bytes };
                    self.part(ballot, part, out);
                }
            }
            Message::Resign { ballot } => {
                if self.core.leader == Some(ballot) && from == ballot.router {
                    self.lose_leader(cx, Duration::ZERO, out);
                }
            }
            Message::HandOver { ballot, successor } => self.succeed(cx, from, ballot, successor, out),
            Message::Away => self.others_pause(from, cx.now),
            Message::Dropped { ballot } => {
                self.tell_again |= self.core.leader == Some(ballot) && from == ballot.router;
            }

            // To a leader.
            Message::Forward { ballot, payloads } => {
                // A member that this leader does not know yet for one is asked to try again, like one too many.
                if let State::Leader(reign) = &mut self.state
                    && reign.ballot == ballot
                    && !(self.core.is_member(from) && reign.propose(&mut self.core, payloads, out))
                {
                    self.core.send(from, Message::Dropped { ballot }, out);
                    reign.tell_departed(&self.core, from, out);
                }
            }
            Message::Accepted { ballot, through } => {
                if let State::Leader(reign) = &mut self.state
                    && reign.ballot == ballot
                {
                    reign.accepted(&self.core, from, through);
                    reign.advance(&mut self.core, out);
                }
            }
            Message::Confirmed { ballot, round } => {
                if let State::Leader(reign) = &mut self.state
                    && reign.ballot == ballot
                {
                    reign.confirmed(&self.core, from, round, out);
                }
            }
            Message::Following { ballot, through, chosen, lacks } => {
                if let State::Leader(reign) = &mut self.state
                    && reign.ballot == ballot
                {
                    reign.following(&mut self.core, from, through, chosen, lacks, out);
                    reign.advance(&mut self.core, out);
                    if reign.let_go(&self.core, out) {
                        self.core.send_all(self.core.others(), Message::Resign { ballot }, out);
                        self.be_removed(out);
                    }
                }
            }
            Message::ChunkTaken { ballot, slot, offset } => {
                if let State::Leader(reign) = &mut self.state
                    && reign.ballot == ballot
                {
                    reign.chunk_taken(&mut self.core, from, slot, offset, out);
                }
            }

            // About who leads.
            Message::PreVote(prepare) => self.pre_vote(cx, from, prepare, out),
            Message::Prepare(prepare) => self.prepare(cx, from, prepare, out),
            Message::PreVoted { ballot, better } => self.pre_voted(cx, from, ballot, better, out),
            Message::Promise { ballot, accepted, last, chosen, start, values } => {
                let promise = Promise { accepted, last, chosen, start, values };
                self.promised(cx, from, ballot, promise, out);
            }
            Message::Refused { ballot, promised, refusal } => {
                self.refused(cx, from, ballot, promised, refusal, out);
            }
            Message::Pulse(pulse) => self.pulsed(cx, from, pulse, out),

            // About who is a member.
            Message::Join { peer } => self.asked_to_admit(cx, from, peer, out),
            Message::Refer { leader, members } => self.referred(cx, from, leader, members, out),
            Message::Change(change) => self.change(cx, from, change, out),
            Message::ChangeRefused { change, reason } => out.emit(Event::ChangeRefused { change, reason }),
            Message::NodeInUse { by } => {
                if by.id.node == cx.me.node && by.id != cx.me {
                    self.namesake = Some(by);
                }
            }
            Message::NotMember { chosen, members } => {
                // A learner may have been voted in and out again without knowing of either. One that an open change named
                // is told so by somebody with a newer log, who knows as much and of no such change: it is dead.
                if chosen >= self.core.chosen && members.iter().all(|peer| peer.id != cx.me) {
                    self.be_removed(out);
                }
            }
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command, out: &mut dyn Sink<Self>) {
        match (command, &mut self.state) {
            (Command::Propose { payload }, State::Leader(reign)) => {
                self.tell_again |= !reign.propose(&mut self.core, [payload], out);
            }
            (Command::Propose { payload }, State::Follower) if self.core.leader.is_some() => {
                self.forward.push(payload);
            }
            // Nobody is known to lead: the attempt ends here, and `Event::Leader` will call for the next.
            (Command::Propose { .. }, _) => {}
            (Command::ProposeIn { ballot, payload }, State::Leader(reign)) if reign.ballot == ballot => {
                if !reign.propose(&mut self.core, [payload.clone()], out) {
                    out.emit(Event::Refused { ballot, payload });
                }
            }
            (Command::ProposeIn { ballot, payload }, _) => out.emit(Event::Refused { ballot, payload }),
            (Command::Confirm { ballot, through }, State::Leader(reign)) if reign.ballot == ballot => {
                reign.ask(through);
            }
            (Command::Confirm { ballot, .. }, _) => out.emit(Event::Deposed { ballot }),
            (Command::AddRouter(peer), _) => self.change(cx, cx.me, Change::Add(peer), out),
            (Command::RemoveRouter(process), _) => self.change(cx, cx.me, Change::Remove(process), out),
            (Command::Pause, _) => self.pause(cx, out),
            (Command::Reform, _) => self.reform(cx, out),
            (Command::Found, _) => self.found_anew(cx, out),
            (Command::Snapshot { slot, state }, _) => self.snapshot(slot, state, out),
            (Command::SnapshotLater { slot }, _) => self.gather(slot, out),
            (Command::SnapshotBegins { slot }, State::Leader(reign)) => {
                reign.snapshot_begins(&mut self.core, slot, out);
            }
            (Command::SnapshotBegins { slot }, _) => out.emit(Event::SnapshotUnwanted { slot }),
            (Command::SnapshotPart { slot, bytes, last }, State::Leader(reign)) => {
                reign.snapshot_part(&mut self.core, slot, bytes, last, out);
            }
            // The snapshot ended with the reign.
            (Command::SnapshotPart { .. }, _) => {}
            (Command::Seeds(peers), State::Joining { .. }) => self.look_for(peers, out),
            (Command::Seeds(peers), _) => self.meet(&peers, out),
        }
    }

    fn linked(&mut self, cx: &mut Context<'_>, peer: ProcessId, out: &mut dyn Sink<Self>) {
        self.core.links.insert(peer);
        self.core.detector.linked(peer, cx.now);
        self.returned(peer);
        let leads = self.leader() == Some(peer);
        match &mut self.state {
            State::Leader(reign) => {
                reign.probe(&self.core, peer, out);
                reign.tell_departed(&self.core, peer, out);
                reign.ask_again(&self.core, peer, out);
            }
            State::Candidate(candidacy) if self.core.concerns(peer) || candidacy.asks(peer) => {
                let question = candidacy.question();
                self.core.send_all(vec![peer], question, out);
            }
            State::Candidate(_) | State::Follower
                if self.core.leader.is_none()
                    && self.core.reached.contains_key(&peer)
                    && !self.core.concerns(peer) =>
            {
                self.ask_stranger(cx, peer, out);
            }
            State::Follower if leads => {
                // What was forwarded over the old link may be lost, and nothing may overtake it.
                self.forward.clear();
                self.core.tell_leader(true, out);
            }
            State::Joining { .. } => self.core.send(peer, Message::Join { peer: self.core.me.clone() }, out),
            _ => {}
        }
    }

    fn unlinked(&mut self, cx: &mut Context<'_>, peer: ProcessId, out: &mut dyn Sink<Self>) {
        self.core.links.remove(&peer);
        self.core.detector.unlinked(peer, cx.now);
        let leads = self.leader() == Some(peer);
        match &mut self.state {
            State::Leader(reign) => reign.probe(&self.core, peer, out),
            _ if leads => self.forward.clear(),
            _ => {}
        }
    }

    fn wake(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if cx.now >= self.tick_at {
            self.tick_at = cx.now + self.interval();
            self.core.detector.tick(cx.now);
            self.tick(cx, out);
        }
        match &self.state {
            State::Candidate(candidacy) if cx.now >= candidacy.until => {
                self.abandon(cx, Duration::ZERO, out);
            }
            State::Follower | State::Joining { .. }
                if self.leader().is_some_and(|leader| self.core.detector.suspects(leader, cx.now)) =>
            {
                self.lose_leader(cx, Duration::ZERO, out);
            }
            State::Follower | State::Joining { .. }
                if self.election.is_some_and(|election| cx.now >= election) =>
            {
                self.stand(cx, out);
            }
            _ => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if let State::Leader(reign) = &mut self.state {
            reign.suspect(&mut self.core, cx.now, out);
            if self.core.is_connected(cx.now) {
                reign.release_snapshot(&mut self.core, out);
                reign.heartbeat(&self.core, out);
                reign.repeat_round(&self.core, out);
                self.core.collect(reign.everybody(&self.core));
                self.reach_members(out);
            } else {
                // A leader that does not talk with a majority chooses nothing, and those that hear it wait for it in vain.
                let ballot = reign.ballot;
                self.core.send_all(self.core.others(), Message::Resign { ballot }, out);
                self.lose_leader(cx, self.interval() * 2, out);
            }
        }
        self.pulse(cx, out);
        self.ask(cx, out);
        if std::mem::take(&mut self.tell_again) && self.is_voter() {
            self.forward.clear();
            self.core.tell_leader(true, out);
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        match &mut self.state {
            State::Leader(reign) => {
                reign.open_slots(&mut self.core, out, false);
                reign.consider_change(&mut self.core, cx.now, out);
                reign.tell_chosen(&self.core, out);
                reign.open_rounds(&self.core, out);
            }
            _ => self.flush_follower(out),
        }
        let asked = matches!(&self.state, State::Leader(reign) if reign.asks_for_snapshot());
        let gathered = self.core.gathered.is_some();
        if self.core.wants_checkpoint() && self.checkpoint.is_none() && !asked && !gathered {
            out.emit(Event::SnapshotWanted { slot: self.core.chosen });
        }
    }

    fn is_voter(&self) -> bool {
        !matches!(self.state, State::Joining { .. } | State::Removed)
    }

    fn interval(&self) -> Duration {
        self.core.settings.detector.interval
    }

    /// A random span below `limit`.
    fn chance(&self, cx: &mut Context<'_>, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos((cx.random)() % limit)
    }
}
