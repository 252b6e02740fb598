//! Multi-Paxos: one log that all routers agree on.
//!
//! **Promise.** Everybody who learns a slot learns the same value, in the order of slots, each slot exactly
//! once. Proposals of one process within one reign and one link session are learned in the order of
//! proposing. As long as a majority of the members lives and is linked, proposals are learned. The log itself
//! changes the members, one at a time.
//!
//! **Source.** Lamport, *Paxos Made Simple*, §2–3; without disks, pipelined and reconfigurable as in 002
//! §5.6. The unit of agreement is the log rather than the slot, as in Sequence Paxos (Haridi, Kroll and
//! Carbone).
//!
//! **Roles.** Every router is acceptor and learner; one leads. A *learner* that is no member is fed like a
//! follower and has no vote. A router that was voted out takes no further part.
//!
//! ```text
//!  candidate               follower      │  leader                  follower
//!      ├── PreVote ──────────▶│           │    ├── Heartbeat ─────────▶│  every interval, and on a new link
//!      │◀────────── PreVoted ─┤           │    │◀───────── Following ──┤   what it holds
//!      ├── Prepare ──────────▶│  1a       │    ├── CatchUp / Chunk … ─▶│  chosen log or a snapshot, in parts
//!      │◀─────────── Promise ─┤  1b       │    ├── Sync ──────────────▶│   then the rest, in one step
//!      │  with what may be    │           │    ├── Accept #8, #9 … ───▶│   2a
//!      │  chosen              │           │    │◀───────── Accepted ───┤   2b, cumulative, once per batch
//!      ▼ leads                            │    ├── Chosen ────────────▶│   unless the next Accept says it
//! ```
//!
//! **Invariants.** Each is asserted at the place where it could first break.
//!
//! - *A promise holds*: nothing is accepted below the promised ballot.
//! - *One log per ballot*: the log after a router's chosen prefix was accepted in a single ballot,
//!   `accepted`, and is a prefix of that leader's proposals. A log changes its ballot in one step (`Sync`),
//!   never slot by slot. So the tail of a dead reign cannot survive after slots of a later reign, and there
//!   are never gaps to fill.
//! - *Phase 1 sees everything that may be chosen*: a majority of promises contains a router that accepted
//!   every chosen slot. The candidate continues with the promised log of the highest ballot, and with the
//!   longest among these.
//! - *Members change one at a time, by a stop command*: the command is alone in its slot, and nothing is
//!   proposed after it until it is chosen. A router that holds the command acts on it, chosen or not. The
//!   command is chosen when a majority of the *new* members holds it. So that majority holds the whole chosen
//!   prefix when the new members begin (rule S2), and elections count the new members.
//! - *A change stands on firm ground*: it is proposed only once a majority of the previous members holds the
//!   reign's initial log, accepted in the reign's ballot.
//! - *Votes are counted for the newest members in the log of the candidate's choice*, by whole process id: a
//!   vote of an older or younger incarnation counts for nobody. Promises reveal more of the prefix, and
//!   better logs. A candidate counts its votes again with each set of members that it learns in this way. So
//!   a candidate that knows only old members learns every later set, one after the other. The same holds for
//!   pre-votes: each describes the voter's log, if that log is better.
//! - *A promise of a better log is complete*: if the voter's log beats the candidate's, the promise carries
//!   everything that the candidate lacks, or the voter makes no promise. If the candidate's log is better,
//!   the promise carries slots known to be chosen, or nothing.
//!
//! **Why that is safe.** Let a candidate continue with a log of ballot *a* whose newest members are *X*,
//! promised by a majority of X. Let *v* be the lowest ballot below its own in which a value was chosen that
//! the candidate lacks.
//!
//! - *v < a*: the leader of a had the value, by induction, and a log is taken over in one step.
//! - *v = a*: the log ends too early. All slots before the first change that it lacks were chosen by a
//!   majority of X, and that change by a majority of a neighbour of X. Both meet our majority in a router
//!   whose log of ballot a is longer, so ours was not the best.
//! - *v > a*: let W be the last members chosen below v. X is W, or the result of an open change of W. The
//!   same holds for the set V under which the leader of v was elected and chose. If X or V is W, or if X and
//!   V are equal, each majority of X meets each majority of V, and a promise shows the higher ballot. If X
//!   and V result from two different changes of W, both changes had ground: a majority of W had accepted in
//!   the ballot in which the later of the two was first proposed. This majority meets every majority of the
//!   set of the earlier change. So from then on no candidate continues with the earlier set, because it would
//!   have seen the later reign.
//!
//! The last point is what single-server changes need in Raft too (Ongaro, *Bug in single-server membership
//! changes*, 2015). It lets a majority of the newest members continue alone, even if the only leader that
//! knew them to be chosen is dead.
//!
//! Safety does not rest on the slots that a promise reports as chosen: a voter that has not learned them yet
//! reports fewer, and its promise is equally good. So a voter that has forgotten the values may also report
//! fewer, as long as its log is not the best one. Nor does safety rest on pre-votes, which promise nothing.
//!
//! **Why somebody can be elected.** Let B be the live router with the best log, and X the newest members in
//! this log. While a majority of X lives and talks with B, no live log beats B's. So nobody finds B behind,
//! and the majority that B needs exists. Another candidate may hold a change of a reign that is over, and
//! would need dead routers because of it. While that candidate talks with a majority of X, a member of X
//! answers its pre-vote with a log of the following reign, and the candidate counts that log's members. If
//! the candidate does not even talk with a majority of X, nobody can know which values were chosen: a
//! majority of a set that may have chosen values is gone.
//!
//! **Attacks considered.**
//!
//! - *A candidate has very old members.* Majorities of neighbouring sets meet, so some promise shows it the
//!   next change, and so on up to the present. Or nobody answers, because the candidate is no longer a
//!   member.
//! - *A node lost its memory.* It comes back as another process. The old process is voted out once it is
//!   suspected. It is also voted out once its link is broken while the new process listens at its address,
//!   where two live processes cannot listen. The new process is fed as a learner.
//! - *Two live processes belong to one node.* The process that the leader hears stays. The other process
//!   learns of it (`NodeInUse`), and is not even a learner. Otherwise each would have the other voted out, in
//!   turn.
//! - *A link broke.* Messages were lost only from the end. The next heartbeat asks the follower what it
//!   holds, and the leader continues from there. A follower's log of one ballot never shrinks, so late
//!   answers are harmless.
//! - *A leader lost its followers.* It steps down when no majority seems well. The pre-vote keeps a router
//!   that is cut off from raising ballots, and nobody who hears a live leader helps another candidate.
//! - *A leader dies after it sent some routers a change of the members.* A router that holds the change acts
//!   on it and stands for election, even a learner that becomes a member by it. Routers that never heard of
//!   the change answer a candidate whose log is better than theirs.
//! - *A leader votes itself or another out, and dies.* A majority of the other routers holds the change, and
//!   needs nobody else to continue. Nevertheless the voted-out router goes on voting until a majority has
//!   *learned* the change, so that a new election is rarely needed.
//! - *A leader proposes a change and is cut off with it.* The other routers elect another leader, which dies
//!   too, before the first leader has heard of it. When the first leader comes back, it holds a change by
//!   which it needs dead routers. It may also be the only router that knows all chosen slots, and may have
//!   forgotten slots that the other routers do not know to be chosen. The other routers hold those slots all
//!   the same, in the higher ballot. If they can talk with each other, the first leader gives them its
//!   promise (`change_of_a_dead_reign`). If they talk only with the first leader, it hears of the higher
//!   ballot from them, and is elected (`star_around_a_dead_change`). The first leader may be heard and hear
//!   nothing, or the reverse. Then its questions or the answers are lost, and other routers that talk with a
//!   majority are elected without it.
//! - *Two live routers each hold a change of a dead reign.* The later change had ground: a majority of the
//!   common previous members had accepted in its ballot, or the earlier change was chosen. A live majority
//!   includes a router that reports that ballot, or a later one. The holder of the earlier change learns of
//!   it, and counts for the later set.
//! - *Only the leader that proposed a change holds it, and no later reign is known.* For all that live
//!   routers know, the processes that the change adds may have chosen it; so the votes of its set are needed.
//!   That is the price of continuing with the new members alone. `propose_members` proposes a change only
//!   while the leader talks with a majority of the new members.
//! - *A snapshot is overtaken.* It carries the members of its slot, and replaces only the chosen prefix:
//!   slots accepted after it stay accepted. The log after a snapshot in transfer is kept longer.
//!
//! **Proposals that rest on a reign.** Some proposals depend on a user's knowledge as leader, such as a
//! change of a state that only the leader has computed. The user binds them to its ballot
//! ([`Command::ProposeIn`]). Such proposals are never forwarded. They wait in a queue that belongs to the
//! reign and ends with it. A leader's log is taken over from its beginning. So a prefix of these proposals
//! survives the reign, in order, and nothing else of that reign comes after this prefix. The user learns when
//! a reign begins, when its initial log is chosen, and when it ends, before any slot of a later reign is
//! learned. By [`Command::Confirm`] it finds out whether its reign still stands.
//!
//! **Where we differ, and why.** Ballots belong to logs and not to slots (see above): FIFO order of
//! proposers, stop commands and the absence of gaps follow from that. The pre-vote is not in the paper:
//! without it, every router that returns from a cut deposes the leader. Safety never depends on time (rule
//! S11): the detector only decides when to try.
//!
//! **Speed.** Payloads are shared, never copied. An `Accept` is encoded once for all followers. Proposals
//! gather while a batch of inputs is handled, and go into a slot at its end, or when a batch is full. The
//! window (the number of slots in flight) grows while full batches wait for it, and shrinks while slots are
//! small, so that a deep pipeline does not prevent batching. Followers learn which slots are chosen from the
//! leader's next message. The leader sends a message for this purpose alone only if it has sent no other
//! message for [`Settings::chosen_after`].
//!
//! **Disk.** A router writes everything on which others rely ([`Record`]), and makes it durable before it
//! reports it. A promise is durable before any message that depends on it, an acceptance before its report,
//! and a founder's first slot before anybody learns it. A router that is created again from its records
//! ([`Paxos::recover`]) holds everything that it ever reported. Its other messages may count as lost on the
//! way, which links always permit. So it continues under its incarnation, as a follower. Pulses and proposals
//! do not wait for the disk: a router with a slow disk is not dead. Once [`Settings::checkpoint_bytes`] have
//! been written, the user gives its state, and one record replaces all earlier records. A user that cannot
//! give its state at once announces it ([`Command::SnapshotLater`]). The log after that slot is kept until
//! the user gives the state, and is a part of the record.
//!
//! **Snapshots.** A process that lacks more than the kept log gets the user's state, whole or in parts. A
//! user with a large state takes a cheap checkpoint and gives its parts over many turns, while the log
//! continues.
//!
//! **Memory.** Without a disk, the failure of a majority at once stops the domain for good (rule S1). Chosen
//! log is kept until every member reports it, but never more of it than [`Settings::log_bytes_kept`].

mod acceptor;
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
mod pulse;
mod record;
mod recovery;
mod reform;
mod reign;
mod snapshot;
mod user;

use bytes::Bytes;

pub use self::{
    ballot::{Ballot, Slot},
    log::SlotValue,
    message::{Better, Change, ChangeRefusal, Message, Prepare, Refusal},
    pulse::{Contact, LeaderRoute, Pulse},
    record::{Corrupt, Record},
    reform::ReformRefusal,
    user::{Command, Event, Settings, StateKind, Status},
};
use self::{
    candidate::{Candidacy, CandidateStage, Promise},
    core::{Chunk, Core, SnapshotPart},
    log::Log,
    reign::Reign,
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
    /// Events that a recovered router first emits to its user.
    recovered: Option<Vec<Event>>,
    /// A checkpoint on its way to the disk.
    checkpoint: Option<Ticket>,
    /// Time at which signs of life are due.
    tick_at: Time,
    /// Time at which this process stands for election.
    election: Option<Time>,
    /// Time from which this process stands for election as soon as it knows a majority that would elect it.
    ready_from: Option<Time>,
    /// The candidate that this router helps, and the time until which it helps no other candidate.
    granted: Option<(ProcessId, Time)>,
    /// Number of failed candidacies since a leader was known.
    attempts: u32,
    /// Proposals on their way to the leader.
    forward: Vec<Bytes>,
    /// Whether acceptances must be reported to the leader.
    acceptance_due: bool,
    /// The round to confirm to the leader.
    confirmation_due: Option<u64>,
    /// Whether to announce the leader to the user again, so that the user proposes again.
    repeat_leader: bool,
    /// The process that has this router's node number and prevents it from joining, while this router joins.
    namesake: Option<Peer>,
    /// Whether the router is about to stop, and must not lead.
    pausing: bool,
}

/// The role of a router, with the state of that role.
#[derive(Debug)]
enum State {
    /// The router asks for admission, receives the log, and has no vote.
    Joining { seeds: Vec<Peer>, ask_at: Time },
    /// The router follows a leader, or waits for one.
    Follower,
    /// The router stands for election.
    Candidate(Candidacy),
    /// The router leads.
    Leader(Box<Reign>),
    /// The router was a member and has been removed.
    Removed,
}

impl Paxos {
    /// Creates the first router of a new domain (rule S1): sole member, and leader. Must be called once per
    /// domain, ever.
    pub fn found(me: Peer, settings: Settings, now: Time) -> Paxos {
        Paxos::new(me, State::Follower, settings, now)
    }

    /// Creates a router that asks `seeds`, and every process to which it gets a link, for admission. It has
    /// no vote until it is a member.
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
            repeat_leader: false,
            namesake: None,
            pausing: false,
        }
    }

    /// Returns the id of this router's process.
    pub fn me(&self) -> ProcessId {
        self.core.me.id
    }

    /// Returns the leader, as far as this process knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.core.leader.map(|ballot| ballot.router)
    }

    /// Returns the process that has the same node number and prevents this router from joining, by the latest
    /// answer.
    pub fn namesake(&self) -> Option<&Peer> {
        self.namesake.as_ref().filter(|_| matches!(self.state, State::Joining { .. }))
    }

    /// Whether this process leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.state, State::Leader(_))
    }

    /// Whether this process leads, and proposals wait for slots at the end of the turn.
    pub fn has_proposals(&self) -> bool {
        matches!(&self.state, State::Leader(reign) if reign.pending_bytes > 0)
    }

    /// Returns the size in bytes of the proposals that wait for a slot; zero unless this process leads.
    pub fn pending_bytes(&self) -> usize {
        match &self.state {
            State::Leader(reign) => reign.pending_bytes,
            _ => 0,
        }
    }

    /// Returns the members after the last slot learned, in id order.
    pub fn members(&self) -> &[Peer] {
        &self.core.members
    }

    /// Returns the last slot learned.
    pub fn applied(&self) -> Slot {
        self.core.chosen
    }

    /// Returns the settings with which the router was created.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// Returns the router's state for operators.
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
            pending_bytes: self.pending_bytes(),
        }
    }
}

impl Protocol for Paxos {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        assert!(cx.me == self.core.me.id, "a router's state stays with its process");
        if !self.started {
            self.started = true;
            self.start(cx, out);
        }
        if matches!(self.state, State::Removed) {
            return;
        }
        match input {
            Input::Receive { from, message } => self.receive(cx, from, message, out),
            // Nobody casts to routers.
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
            // The deadline is the exact instant of suspicion: a fast failover must not wait for a tick.
            State::Follower => self.leader().and_then(|leader| self.core.detector.suspected_from(leader)),
            State::Leader(reign) => reign.announce_at,
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
                // The other routers may have a leader. This router will hear from that leader after a moment.
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

    /// Founds the log. The founder's first slot is chosen at once, because the founder is the only member.
    /// From then on the founder acts like any sole member.
    fn begin(&mut self, cx: &mut Context<'_>, again: bool, out: &mut dyn Sink<Self>) {
        let ballot = Ballot { round: self.core.round.max(self.core.promised.round) + 1, router: cx.me };
        let first = SlotValue::Members([self.core.me.clone()].into());
        self.core.promise(ballot, out);
        let ticket = self.core.replace(ballot, Slot::ZERO, &[first], out);
        if again {
            // The founder learns its slot in the turn in which it proposes the beginning of the generation,
            // like a survivor that continues.
            self.core.learn(Slot(1), out);
        }
        self.core.leader = Some(ballot);
        self.state = State::Leader(Box::new(Reign::begin(&self.core, ballot, ticket, out)));
        self.core.announce_leader(again, out);
    }

    fn receive(&mut self, cx: &mut Context<'_>, from: ProcessId, message: Message, out: &mut dyn Sink<Self>) {
        self.core.heard(from, cx.now);
        // One match shows the whole protocol, grouped by who receives a message.
        match message {
            // Messages from a leader. The router follows the leader first, and then handles the message.
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
                    let part = SnapshotPart { slot, members, number, last, bytes };
                    self.part(ballot, part, out);
                }
            }
            Message::Resign { ballot } => {
                if self.core.leader == Some(ballot) && from == ballot.router {
                    self.lose_leader(cx, Duration::ZERO, out);
                }
            }
            Message::HandOver { ballot, successor } => self.succeed(cx, from, ballot, successor, out),
            Message::Away => self.note_member_restart(from, cx.now),
            Message::Dropped { ballot } => {
                self.repeat_leader |= self.core.leader == Some(ballot) && from == ballot.router;
            }

            // Messages to a leader.
            Message::Forward { ballot, payloads } => {
                // If this leader does not know the sender as a member yet, it answers as if it had no room,
                // and the sender tries again.
                if let State::Leader(reign) = &mut self.state
                    && reign.ballot == ballot
                    && !(self.core.is_member(from) && reign.propose(&mut self.core, payloads, out))
                {
                    self.core.send(from, Message::Dropped { ballot }, out);
                    reign.send_not_member(&self.core, from, out);
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
                    if reign.dismiss_departed(&self.core, out) {
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

            // Messages about elections.
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

            // Messages about membership.
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
                // A learner may have been voted in and out again without knowing it. If an open change named
                // this process, the sender has a newer log without that change, so the change is dead.
                if chosen >= self.core.chosen && members.iter().all(|peer| peer.id != cx.me) {
                    self.be_removed(out);
                }
            }
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command, out: &mut dyn Sink<Self>) {
        match (command, &mut self.state) {
            (Command::Propose { payload }, State::Leader(reign)) => {
                self.repeat_leader |= !reign.propose(&mut self.core, [payload], out);
            }
            (Command::Propose { payload }, State::Follower) if self.core.leader.is_some() => {
                self.forward.push(payload);
            }
            // No leader is known, so the attempt to propose ends here. `Event::Leader` will cause the next
            // attempt.
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
            (Command::Found, _) => self.found_again(cx, out),
            (Command::Snapshot { slot, state }, _) => self.snapshot(slot, state, out),
            (Command::SnapshotLater { slot }, _) => self.gather(slot, out),
            (Command::SnapshotBegins { slot }, State::Leader(reign)) => {
                reign.snapshot_begins(&mut self.core, slot, out);
            }
            (Command::SnapshotBegins { slot }, _) => out.emit(Event::SnapshotUnwanted { slot }),
            (Command::SnapshotPart { slot, bytes, last }, State::Leader(reign)) => {
                reign.snapshot_part(&mut self.core, slot, bytes, last, out);
            }
            // The snapshot ended with the reign, so its parts are dropped.
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
                reign.send_not_member(&self.core, peer, out);
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
                // Proposals on the old link may be lost, and later proposals must not overtake them.
                self.forward.clear();
                self.core.announce_leader(true, out);
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
                // A leader that does not talk with a majority chooses nothing, and routers that hear it would
                // wait in vain.
                let ballot = reign.ballot;
                self.core.send_all(self.core.others(), Message::Resign { ballot }, out);
                self.lose_leader(cx, self.interval() * 2, out);
            }
        }
        self.pulse(cx, out);
        self.ask(cx, out);
        if std::mem::take(&mut self.repeat_leader) && self.is_voter() {
            self.forward.clear();
            self.core.announce_leader(true, out);
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        match &mut self.state {
            State::Leader(reign) => {
                reign.open_slots(&mut self.core, out, false);
                reign.consider_change(&mut self.core, cx.now, out);
                reign.announce_chosen(&self.core, cx.now, out);
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

    /// Returns a random duration below `limit`.
    fn chance(&self, cx: &mut Context<'_>, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos((cx.random)() % limit)
    }
}
