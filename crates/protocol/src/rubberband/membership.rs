//! The common part of clients, storage processes and supers: membership, the copy of the configuration, signs
//! of life.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::{
    Config, Control, DataHeader, DataKind, Direct, KeptRows, Message, Record, Role, Rubberband,
    journal::Journal, message::TAG,
};
use crate::{
    admission::Terms,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, MemberSettings, MessageId, Outcome, Position, Routing,
        Submissions,
    },
    id::{Generation, Peer, ProcessId},
    seam::{CommandId, Context, Destination, Input, Lift, Protocol, Sink},
    time::{Duration, Time},
    wire::encode_body,
};

/// An item that the order hands to a role.
#[derive(Debug)]
pub(super) enum Delivered {
    /// A control message, already applied to [`Membership::config`]. `before` is the configuration before the
    /// message, or `None` if this process joins by the message.
    Control { at: Position, sender: ProcessId, control: Control, before: Option<Config> },
    /// A data message.
    Data { at: Position, id: MessageId, header: DataHeader, operation: Bytes },
    /// A data message that bypassed the log, with the position `at` as its stamp.
    Injected { at: Position, sender: ProcessId, header: DataHeader, operation: Bytes, fits: bool },
    /// The outcome of a message that the role submitted.
    Outcome { token: u64, outcome: Outcome },
    /// A submission that was never sent.
    NotSent { token: u64 },
    /// An injection that no router accepted.
    NotInjected { token: u64 },
    /// The stamp of an injection covers everything that was stable when this process injected it.
    Latest { token: u64 },
    /// Injections that have no answer may have been lost.
    Rerouted,
    /// Whether no router in reach knows a leader.
    Adrift(bool),
    /// The result of the command to leave.
    Left { id: CommandId, result: Result<(), LeaveRefusal> },
    /// This process is no longer a member.
    Wedged,
}

/// The reason why a process did not leave its domain, or may not have left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaveRefusal {
    /// The process is still a member, because nobody else has some of its rows.
    #[error("the other processes need this process: some of its rows are nowhere else")]
    Needed,
    /// All processes that could confirm the departure have failed.
    #[error("this process may have left the domain: every process that could confirm it has failed")]
    Unknown,
    /// An earlier command to leave has not ended.
    #[error("this process is leaving already")]
    Already,
}

/// Bit that marks the tokens of a role's own submissions; a user's tokens lack this bit.
pub(super) const INTERNAL: u64 = 1 << 63;
/// Token of the message by which this process leaves.
const LEAVE: u64 = INTERNAL | 1 << 61;

pub(super) struct Membership {
    pub(super) me: ProcessId,
    role: Role,
    pub(super) member: Member,
    config: Option<Config>,
    /// Events of the order that the role has not taken yet.
    events: VecDeque<MemberEvent>,
    alive_every: Duration,
    alive_at: Time,
    wedged: bool,
    /// The command to leave that is in progress.
    leaving: Option<CommandId>,
    /// An item that the role gets before `events`.
    further: Option<Delivered>,
    /// The journal, if the process has a disk.
    journal: Option<Journal>,
    refused: u64,
}

/// The state with which a process comes back from its disk.
pub(super) struct Past {
    /// The configuration before the first replayed delivery.
    pub(super) config: Option<Config>,
    /// Position of the last delivery to replay.
    pub(super) delivered: Position,
    pub(super) submissions: Submissions,
    pub(super) generation: Generation,
}

impl Membership {
    /// Creates a process that asks for admission as soon as it finds a router.
    pub(super) fn new(
        me: Peer,
        role: Role,
        name: String,
        settings: MemberSettings,
        alive_every: Duration,
        terms: Option<Terms>,
        keeps: Option<KeptRows>,
    ) -> Self {
        let mut membership = Membership {
            me: me.id,
            role,
            member: Member::new(me.id, settings),
            config: None,
            events: VecDeque::new(),
            alive_every,
            alive_at: Time::ZERO,
            wedged: false,
            leaving: None,
            further: None,
            journal: None,
            refused: 0,
        };
        let join = Control::Join { role, name, address: me.address, terms, keeps };
        membership.say(join);
        membership
    }

    /// Creates a process that comes back from its disk and still counts as a member. The caller then replays
    /// its deliveries.
    pub(super) fn recovered(
        me: ProcessId,
        role: Role,
        settings: MemberSettings,
        alive_every: Duration,
        past: Past,
    ) -> Self {
        let Past { config, delivered, submissions, generation } = past;
        Membership {
            me,
            role,
            member: Member::recovered(me, settings, delivered, submissions, generation),
            config,
            events: VecDeque::new(),
            alive_every,
            alive_at: Time::ZERO,
            wedged: false,
            leaving: None,
            further: None,
            journal: Some(Journal { replaying: true, ..Journal::default() }),
            refused: 0,
        }
    }

    /// Makes the process write the records that it needs to come back.
    pub(super) fn persist(mut self) -> Self {
        self.member.persist();
        let submitted =
            self.member.submissions().expect("no message was submitted before the process persists");
        self.journal.get_or_insert_default().unwritten_submissions = submitted.messages;
        self
    }

    /// Returns the journal, if the process has a disk.
    pub(super) fn journal(&mut self) -> Option<&mut Journal> {
        self.journal.as_mut()
    }

    /// Asks for links to all members to which this process opens links.
    pub(super) fn request_member_links<P>(&self, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        if let Some(config) = &self.config {
            self.meet(None, config, out);
        }
    }

    /// Queues a delivery from before the crash, to be delivered again.
    pub(super) fn replay(&mut self, event: MemberEvent) {
        self.events.push_back(event);
    }

    /// Ends the replay. Refutes a suspicion of this process, because its former life may not have refuted it.
    pub(super) fn replayed(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.replaying = false;
        }
        if let Some(at) = self.config.as_ref().and_then(|config| config.suspected.get(&self.me).copied()) {
            self.say(Control::Refute { suspected: at });
        }
    }

    fn is_replaying(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.replaying)
    }

    /// Submits a message of the role's own. No caller awaits its outcome.
    pub(super) fn say(&mut self, control: Control) {
        if !self.is_replaying() {
            let body = control.encode();
            self.note_submission(INTERNAL, &body);
            self.member.submit(INTERNAL, Class::Control, body);
        }
    }

    fn note_submission(&mut self, token: u64, body: &Bytes) {
        if let Some(journal) = &mut self.journal {
            journal.unwritten_submissions.push((token, body.clone()));
        }
    }

    /// Writes submissions to the journal before they are sent. At the end of a batch (`drained`), also writes
    /// the last position that was skipped.
    pub(super) fn write_down<P>(&mut self, drained: bool, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        let Some(journal) = &mut self.journal else { return };
        for (token, body) in journal.unwritten_submissions.drain(..) {
            let record = out.persist(Record::Submitted { token, body });
            self.member.send_after(record);
        }
        if let Some(at) = journal.passed.take_if(|_| drained) {
            let record = out.persist(Record::Passed { at });
            journal.wrote(record, at, 0);
        }
    }

    /// Writes a delivery to the journal.
    fn write_delivery<P>(&mut self, event: &MemberEvent, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        let Some(journal) = self.journal.as_mut() else { return };
        let MemberEvent::Deliver { at, id, class, body, attachment } = event else { return };
        let bytes = body.len() + attachment.as_ref().map_or(0, Bytes::len);
        if journal.replaying {
            journal.read(bytes);
            return;
        }
        let (at, id, class) = (*at, *id, *class);
        let header = || DataHeader::take(&mut body.clone());
        if class == Class::Data && header().is_ok_and(|header| header.kind == DataKind::Read) {
            journal.passed = Some(at);
            return;
        }
        let (body, attachment) = (body.clone(), attachment.clone());
        let record = out.persist(Record::Delivered { at, id, class, attachment, body });
        journal.wrote(record, at, bytes);
    }

    /// Returns the configuration at the last delivered position, `None` before admission.
    pub(super) fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Sets the configuration as if an ordered message had changed it.
    #[cfg(test)]
    pub(super) fn know(&mut self, config: Config) {
        self.config = Some(config);
    }

    pub(super) fn is_wedged(&self) -> bool {
        self.wedged
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused + self.member.refused()
    }

    /// Hands an input to the member. The caller takes the results with [`Membership::next`].
    pub(super) fn handle<P>(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        self.write_down(matches!(input, Input::Drained), out);
        let input = match (input, &mut self.journal) {
            (Input::Persisted(ticket), Some(journal)) => match journal.persisted(ticket) {
                Some(through) => Input::Command(MemberCommand::Durable { through }),
                None => return,
            },
            (input, _) => input,
        };
        let Membership { member, events, .. } = self;
        let mut lift = Lift::<P, _, _>::new::<Member>(
            out,
            |_, _, message| Some(Message::Order(message)),
            |_, event| events.push_back(event),
        );
        member.handle(cx, input, &mut lift);
    }

    /// Returns the next item of the order. Items come one at a time, so that [`Membership::config`] belongs
    /// to the item's position.
    pub(super) fn next<P>(&mut self, out: &mut dyn Sink<P>) -> Option<Delivered>
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        loop {
            if self.further.is_some() {
                return self.further.take();
            }
            let event = self.events.pop_front()?;
            self.write_delivery(&event, out);
            if let Some(delivered) = self.take(event, out) {
                return Some(delivered);
            }
        }
    }

    /// Submits a message through the order. The outcome arrives by [`Membership::next`]; a wedged process
    /// gets no outcome.
    pub(super) fn submit<P>(
        &mut self,
        cx: &mut Context<'_>,
        token: u64,
        class: Class,
        body: Bytes,
        out: &mut dyn Sink<P>,
    ) where
        P: Protocol<Message = Message, Record = Record>,
    {
        if self.wedged || self.is_replaying() {
            return;
        }
        self.note_submission(token, &body);
        self.handle(cx, Input::Command(MemberCommand::Submit { token, class, body }), out);
    }

    /// Starts to leave. Returns the result if it is known at once; otherwise [`Membership::next`] delivers
    /// it.
    pub(super) fn leave<P>(
        &mut self,
        cx: &mut Context<'_>,
        id: CommandId,
        out: &mut dyn Sink<P>,
    ) -> Option<Result<(), LeaveRefusal>>
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        if self.wedged {
            return Some(Ok(()));
        }
        if self.leaving.is_some() {
            return Some(Err(LeaveRefusal::Already));
        }
        self.leaving = Some(id);
        self.submit(cx, LEAVE, Class::Control, Control::Leave.encode(), out);
        None
    }

    /// Ends the command to leave.
    fn left(&mut self, result: Result<(), LeaveRefusal>) -> Option<Delivered> {
        self.leaving.take().map(|id| Delivered::Left { id, result })
    }

    /// Handles the outcome of the message by which this process leaves. `Stable` and `Wedged` do not end the
    /// command to leave: `MemberEvent::Wedged` ends it with success. If the message is delivered to this
    /// process itself, the process is still a member, and the command ends because the process is needed.
    fn leave_ended(&mut self, outcome: Outcome) -> Option<Delivered> {
        match outcome {
            _ if self.member.is_wedged() => None,
            Outcome::Stable | Outcome::Wedged => None,
            Outcome::Rejected(_) => self.left(Err(LeaveRefusal::Needed)),
            Outcome::MaybeApplied => self.left(Err(LeaveRefusal::Unknown)),
        }
    }

    fn take<P>(&mut self, event: MemberEvent, out: &mut dyn Sink<P>) -> Option<Delivered>
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        match event {
            MemberEvent::Deliver { at, id, class: Class::Data, mut body, .. } => {
                match DataHeader::take(&mut body) {
                    Ok(header) => return Some(Delivered::Data { at, id, header, operation: body }),
                    Err(_) => self.refused += 1,
                }
            }
            MemberEvent::Deliver { at, id, class: Class::Control, body, attachment } => {
                return self.on_control(at, id, body, attachment, out);
            }
            MemberEvent::Injected { at, sender, mut body, fits, .. } => match DataHeader::take(&mut body) {
                Ok(header) => return Some(Delivered::Injected { at, sender, header, operation: body, fits }),
                Err(_) => self.refused += 1,
            },
            MemberEvent::Outcome { token: LEAVE, outcome, .. } => return self.leave_ended(outcome),
            MemberEvent::Outcome { token, outcome, .. } => {
                return Some(Delivered::Outcome { token, outcome });
            }
            MemberEvent::NotSent { token } => return Some(Delivered::NotSent { token }),
            MemberEvent::NotInjected { token } => return Some(Delivered::NotInjected { token }),
            MemberEvent::Latest { token } => return Some(Delivered::Latest { token }),
            MemberEvent::Rerouted => return Some(Delivered::Rerouted),
            MemberEvent::Lead { .. } => {}
            MemberEvent::WitnessWanted { founder } => {
                let mut config = BytesMut::new();
                if let Some(known) = &self.config {
                    config.put_u8(TAG);
                    encode_body(&mut config, known);
                }
                let witness = self.member.witness(config.freeze());
                out.send(Destination::One(founder), Message::Order(witness), None);
            }
            MemberEvent::Adrift(adrift) => return Some(Delivered::Adrift(adrift)),
            MemberEvent::Wedged => {
                self.wedged = true;
                // The command to leave succeeds: the process is no longer a member, whatever the reason.
                let left = self.left(Ok(()));
                self.further = left.is_some().then_some(Delivered::Wedged);
                return left.or(Some(Delivered::Wedged));
            }
        }
        None
    }

    fn on_control<P>(
        &mut self,
        at: Position,
        id: MessageId,
        body: Bytes,
        attachment: Option<Bytes>,
        out: &mut dyn Sink<P>,
    ) -> Option<Delivered>
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        let Some(control) = Control::decode(&body) else {
            self.refused += 1;
            return None;
        };
        let before = self.config.take();
        let after = match (&before, attachment) {
            // A process that has the configuration applies the message itself. Only a process that joins
            // needs the attachment.
            (Some(before), _) => match Rubberband::apply(before, at, id.sender, &body) {
                Ok(changed) => changed.unwrap_or_else(|| before.clone()),
                Err(refusal) => {
                    panic!(
                        "no control message that the routing refuses is delivered, but {refusal:?} was \
                         delivered at {at}"
                    )
                }
            },
            (None, Some(attachment)) => match postcard::from_bytes(&attachment) {
                Ok(config) => config,
                Err(_) => {
                    self.refused += 1;
                    return None;
                }
            },
            (None, None) => {
                self.refused += 1;
                return None;
            }
        };
        self.meet(before.as_ref(), &after, out);
        let suspected = |config: &Config| config.suspected.get(&self.me).copied();
        if let Some(at) = suspected(&after)
            && before.as_ref().and_then(suspected) != Some(at)
        {
            self.say(Control::Refute { suspected: at });
        }
        self.config = Some(after);
        if id.sender == self.me && control == Control::Leave {
            self.further = self.left(Err(LeaveRefusal::Needed));
        }
        Some(Delivered::Control { at, sender: id.sender, control, before })
    }

    /// Whether this process opens the link to processes of role `other`.
    fn seeks(&self, other: Role) -> bool {
        matches!((self.role, other), (_, Role::Super) | (Role::Gateway | Role::Storage, Role::Storage))
    }

    fn meet<P>(&self, before: Option<&Config>, after: &Config, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        for (&process, info) in &after.members {
            let known = before.is_some_and(|before| before.members.contains_key(&process));
            if !known && process != self.me && self.seeks(info.role) {
                out.reach(process, &info.address);
            }
        }
        for (&process, info) in before.iter().flat_map(|before| &before.members) {
            if !after.members.contains_key(&process) && self.seeks(info.role) {
                out.forget(process);
            }
        }
    }

    /// Sends a sign of life to every super when it is due.
    pub(super) fn tick<P>(&mut self, now: Time, executed: Position, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        if now < self.alive_at || self.wedged {
            return;
        }
        self.alive_at = now.next_multiple(self.alive_every);
        if let Some(config) = &self.config {
            let supers: Vec<ProcessId> =
                config.role(Role::Super).filter(|&process| process != self.me).collect();
            if !supers.is_empty() {
                out.send(Destination::Many(supers), Message::Direct(Direct::Alive { executed }), None);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let alive = (self.config.is_some() && !self.wedged).then_some(self.alive_at);
        [alive, self.member.deadline()].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
