//! What clients, storage processes and supers have in common: membership, the configuration's replica, signs of life.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::{Config, Control, DataHeader, Direct, Keeps, Message, Role, Rubberband};
use crate::{
    admission::Terms,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, MemberSettings, MessageId, Outcome, Position, Routing,
    },
    id::{Peer, ProcessId},
    paxos,
    seam::{Context, Destination, Input, Lift, Protocol, Sink},
    time::{Duration, Time},
    wire::encode_body,
};

/// What the order hands to a role.
#[derive(Debug)]
pub(super) enum Delivered {
    /// The configuration has changed (or was handed over on joining): `before` is what it was.
    Control { at: Position, control: Control, before: Option<Config> },
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
    /// This process is no member any more.
    Wedged,
}

/// Tokens of a role's own submissions have this bit; a user's do not.
pub(super) const INTERNAL: u64 = 1 << 63;

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
    refused: u64,
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
            refused: 0,
        };
        let join = Control::Join { role, name, address: me.address, terms, keeps };
        membership.member.submit(INTERNAL, Class::Control, join.encode());
        membership
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
    pub(super) fn handle<P>(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut impl Sink<P>)
    where
        P: Protocol<Message = Message, Record = paxos::Record>,
    {
        let Membership { member, events, .. } = self;
        let mut lift = Lift::<P, _, _, _>::new::<Member>(
            out,
            |_, _, message| Some(Message::Order(message)),
            |_, event| events.push_back(event),
        );
        member.handle(cx, input, &mut lift);
    }

    /// What the order hands over next. One at a time, so that [`Membership::config`] is that of the very position.
    pub(super) fn next<P>(&mut self, out: &mut impl Sink<P>) -> Option<Delivered>
    where
        P: Protocol<Message = Message, Record = paxos::Record>,
    {
        loop {
            let event = self.events.pop_front()?;
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
        out: &mut impl Sink<P>,
    ) where
        P: Protocol<Message = Message, Record = paxos::Record>,
    {
        if self.wedged {
            return;
        }
        self.handle(cx, Input::Command(MemberCommand::Submit { token, class, body }), out);
    }

    fn take<P>(&mut self, event: MemberEvent, out: &mut impl Sink<P>) -> Option<Delivered>
    where
        P: Protocol<Message = Message, Record = paxos::Record>,
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
            MemberEvent::Outcome { token, outcome, .. } => {
                return Some(Delivered::Outcome { token, outcome });
            }
            MemberEvent::NotSent { token } => return Some(Delivered::NotSent { token }),
            MemberEvent::NotInjected { token } => return Some(Delivered::NotInjected { token }),
            MemberEvent::Lead { .. } => {}
            MemberEvent::WitnessWanted { founder } => {
                let mut config = BytesMut::new();
                if let Some(known) = &self.config {
                    encode_body(&mut config, known);
                }
                let witness = self.member.witness(config.freeze());
                out.send(Destination::One(founder), Message::Order(witness), None);
            }
            MemberEvent::Adrift(adrift) => return Some(Delivered::Adrift(adrift)),
            MemberEvent::Wedged => {
                self.wedged = true;
                return Some(Delivered::Wedged);
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
        out: &mut impl Sink<P>,
    ) -> Option<Delivered>
    where
        P: Protocol<Message = Message, Record = paxos::Record>,
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
            let refute = Control::Refute { suspected: at };
            self.member.submit(INTERNAL, Class::Control, refute.encode());
        }
        self.config = Some(after);
        Some(Delivered::Control { at, control, before })
    }

    /// Whether a process of role `other` is one that we talk to without being asked first.
    fn seeks(&self, other: Role) -> bool {
        matches!((self.role, other), (_, Role::Super) | (Role::Client | Role::Storage, Role::Storage))
    }

    fn meet<P>(&self, before: Option<&Config>, after: &Config, out: &mut impl Sink<P>)
    where
        P: Protocol<Message = Message, Record = paxos::Record>,
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
    pub(super) fn tick<P>(&mut self, now: Time, executed: Position, out: &mut impl Sink<P>)
    where
        P: Protocol<Message = Message, Record = paxos::Record>,
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
