//! What clients, storage processes and supers have in common: membership, the configuration's replica, signs of life.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::{
    Config, Control, DataHeader, DataKind, Direct, Keeps, Message, Record, Role, Rubberband, config::TAG,
    journal::Journal,
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

/// What the order hands to a role.
#[derive(Debug)]
pub(super) enum Delivered {
    /// The configuration has changed (or was handed over on joining): `before` is what it was.
    Control { at: Position, sender: ProcessId, control: Control, before: Option<Config> },
    /// A data message.
    Data { at: Position, id: MessageId, header: DataHeader, operation: Bytes },
    /// A data message past the log, stamped `at`.
    Injected { at: Position, sender: ProcessId, header: DataHeader, operation: Bytes, fits: bool },
    /// What became of a submission.
    Outcome { token: u64, outcome: Outcome },
    /// A submission that was never sent.
    NotSent { token: u64 },
    /// An injection that went nowhere.
    NotInjected { token: u64 },
    /// Nobody leads the routers, as far as is heard, or somebody does again.
    Adrift(bool),
    /// The end of the command to leave.
    Left { id: CommandId, result: Result<(), LeaveRefusal> },
    /// This process is no member any more.
    Wedged,
}

/// Why a process that was asked to leave its domain does not, or not for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaveRefusal {
    /// It is a member still: some rows are nowhere else.
    #[error("the others need it: some rows are nowhere else")]
    Needed,
    /// All that were to confirm it have failed.
    #[error("it may be out: all processes that could tell have failed")]
    Unknown,
    /// It was asked before, and that has not ended.
    #[error("it is leaving already")]
    Already,
}

/// Tokens of a role's own submissions have this bit; a user's do not.
pub(super) const INTERNAL: u64 = 1 << 63;
/// The token of a message that has this process leave.
const LEAVE: u64 = INTERNAL | 1 << 61;

pub(super) struct Membership {
    pub(super) me: ProcessId,
    role: Role,
    pub(super) member: Member,
    config: Option<Config>,
    /// What the order told and the role has not taken yet.
    events: VecDeque<MemberEvent>,
    alive_every: Duration,
    alive_at: Time,
    wedged: bool,
    /// The command to leave that has not ended.
    leaving: Option<CommandId>,
    /// Delivered next, before what else the order told.
    further: Option<Delivered>,
    /// What it writes down, if it has a disk.
    journal: Option<Journal>,
    refused: u64,
}

/// What a process comes back with from its disk.
pub(super) struct Past {
    /// The configuration that what is to be replayed begins with.
    pub(super) config: Option<Config>,
    /// The last position of what is to be replayed.
    pub(super) delivered: Position,
    pub(super) submissions: Submissions,
    pub(super) generation: Generation,
}

impl Membership {
    /// A process that asks to be admitted as soon as it finds a router.
    pub(super) fn new(
        me: Peer,
        role: Role,
        name: String,
        settings: MemberSettings,
        alive_every: Duration,
        terms: Option<Terms>,
        keeps: Option<Keeps>,
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

    /// A process that comes back, and is a member as far as it knows. What was delivered to it is to be replayed.
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

    /// Has it write down what it needs to come back.
    pub(super) fn persist(mut self) -> Self {
        self.member.persist();
        let submitted = self.member.submissions().expect("nothing was sent yet");
        self.journal.get_or_insert_default().unsaid = submitted.messages;
        self
    }

    /// What it writes down, if it has a disk.
    pub(super) fn journal(&mut self) -> Option<&mut Journal> {
        self.journal.as_mut()
    }

    /// Looks for all members that it knows of.
    pub(super) fn meet_all<P>(&self, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        if let Some(config) = &self.config {
            self.meet(None, config, out);
        }
    }

    /// What was delivered before a crash is delivered once more.
    pub(super) fn replay(&mut self, event: MemberEvent) {
        self.events.push_back(event);
    }

    /// All that was delivered before the crash was delivered once more: what is suspected of this process may have been
    /// neither refuted nor left.
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

    /// Submits of its own accord. Nobody waits for what becomes of it.
    pub(super) fn say(&mut self, control: Control) {
        if !self.is_replaying() {
            let body = control.encode();
            self.note_submission(INTERNAL, &body);
            self.member.submit(INTERNAL, Class::Control, body);
        }
    }

    fn note_submission(&mut self, token: u64, body: &Bytes) {
        if let Some(journal) = &mut self.journal {
            journal.unsaid.push((token, body.clone()));
        }
    }

    /// Writes down what was submitted, before it is sent, and at the end of a batch that something was passed over.
    pub(super) fn write_down<P>(&mut self, drained: bool, out: &mut dyn Sink<P>)
    where
        P: Protocol<Message = Message, Record = Record>,
    {
        let Some(journal) = &mut self.journal else { return };
        for (token, body) in journal.unsaid.drain(..) {
            let record = out.persist(Record::Submitted { token, body });
            self.member.send_after(record);
        }
        if let Some(at) = journal.passed.take_if(|_| drained) {
            let record = out.persist(Record::Passed { at });
            journal.wrote(record, at, 0);
        }
    }

    /// Writes down what was delivered.
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

    /// The configuration at the last delivered position, once admitted.
    pub(super) fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// As if the order had handed it over.
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

    /// Hands an input to the member. What comes of it is to be taken with [`Membership::next`].
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

    /// What the order hands over next. One at a time, so that [`Membership::config`] is that of the very position.
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

    /// Submits through the order. What becomes of it is delivered; of a wedged process nothing becomes.
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

    /// Has this process leave. Returns the end of the command if it ends at once; otherwise that is delivered.
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

    /// The command to leave ends.
    fn left(&mut self, result: Result<(), LeaveRefusal>) -> Option<Delivered> {
        self.leaving.take().map(|id| Delivered::Left { id, result })
    }

    /// The message that has this process leave has an outcome. Whether the process is out, other news tells: that of its being
    /// wedged, or the message itself, which is delivered to members alone.
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
                // Why it is out, nobody asks.
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
            // What others join with is no news to a member that has the configuration already.
            (Some(before), _) => match Rubberband::apply(before, at, id.sender, &body) {
                Ok(changed) => changed.unwrap_or_else(|| before.clone()),
                Err(refusal) => {
                    panic!("a control message that routing refused ({refusal:?}) was delivered at {at}")
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

    /// Whether a process of role `other` is one that we talk to without being asked first.
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

    /// Sends a sign of life to every super when it is time.
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
