//! A cell in its domain: it joins through the routers, takes each layout that the order decides, and works
//! with the other cells.
//!
//! ```text
//!   routers ── order ──▶ member ── layout ──▶ cell ◀── requests, answers ──▶ other cells
//! ```
//!
//! The member and the cell share nothing but the layout. When all routers are gone the cell goes on with its
//! present layout, and only changes wait. A router may relay the link between a cell and another router, but
//! never a link between two cells ([`relay`](crate::relay)): a cell that cannot reach another cell asks the
//! next one, as if the unreachable cell were dead.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::{
    cell::{self, Cell, Settings, Status},
    id::Site,
    journal::{Past, Record, Unrecoverable},
    message,
    routing::{Change, ChangeRefusal, Maps, Roster},
    token::Token,
};
use crate::{
    admission::NotAdmitted,
    ecast::{self, Class, Member, MemberCommand, MemberEvent, MemberSettings, MessageId, Position, Routing},
    id::{Generation, Peer, ProcessId},
    relay::Relayed,
    seam::{CommandId, Context, Destination, Input, Lift, Policy, Protocol, Sink, Ticket},
    time::Time,
    wire::{Wire, WireError, encode_whole, take_u8},
};

/// A message between cells and routers.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A message of the order: between routers, or between a router and a cell.
    Order(ecast::Message),
    /// A message from cell to cell.
    Cell(message::Message),
}

impl ecast::OrderCarrier for Message {
    fn of_order(message: ecast::Message) -> Self {
        Message::Order(message)
    }

    fn into_order(self) -> Option<ecast::Message> {
        match self {
            Message::Order(message) => Some(message),
            Message::Cell(_) => None,
        }
    }
}

/// The properties with which a process joins a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinOptions {
    /// The process's name, as people read it.
    pub name: String,
    /// The process's site.
    pub site: Site,
    /// The process's places on the ring.
    pub tokens: Vec<Token>,
}

/// A request to a [`Resident`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Names processes that may be routers. This command has no answer.
    Seeds(Vec<Peer>),
    /// A command for the process's cell.
    Cell(cell::Command),
    /// Submits this change to the order. Ends in exactly one [`Event::Changed`].
    Change {
        /// The name that the user gives the change, at most [`NAME_MAX`].
        id: CommandId,
        /// The change. Boxed because changes are rare and other commands are small.
        change: Box<Change>,
    },
}

impl From<cell::Command> for Command {
    fn from(command: cell::Command) -> Command {
        Command::Cell(command)
    }
}

/// The greatest name that a user may give a command. The resident uses larger names itself.
pub const NAME_MAX: CommandId = CommandId(u64::MAX - 2);

/// An event that a [`Resident`] reports to the program that runs it.
#[derive(Clone, Debug)]
pub enum Event {
    /// An event of the process's cell.
    Cell(cell::Event),
    /// The members, cells and maps have changed to these.
    Roster(Arc<Roster>),
    /// A change was made, or was not made for the given reason.
    Changed {
        /// The name that the user gave the change.
        id: CommandId,
        /// The outcome.
        result: Result<(), Unchanged>,
    },
    /// The domain refuses this process, for this reason. Repeated with each refusal, as long as the process
    /// tries.
    NotAdmitted(NotAdmitted),
    /// This process is no longer a member: it must stop, and may come back as a new member.
    Wedged,
}

/// The reason why a change was not made, or the report that its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unchanged {
    /// The order refused the change.
    #[error(transparent)]
    Refused(#[from] ChangeRefusal),
    /// The change was not sent, because this process is no longer a member.
    #[error("this process no longer belongs to the domain, so the change was not sent")]
    Out,
    /// The change may have been made.
    #[error("the change may have been made: this process was cut off before the outcome reached it")]
    Unknown,
}

/// The token of the message by which this process joins.
const JOIN: u64 = u64::MAX;
/// The token of the message by which this process announces that its cell has arrived.
const COMPLETE: u64 = u64::MAX - 1;

/// A process of a domain that keeps keys of maps.
pub struct Resident {
    me: ProcessId,
    member: Member,
    roster: Option<Arc<Roster>>,
    cell: Cell,
    /// Events of the member that were not handled yet.
    news: VecDeque<MemberEvent>,
    /// Changes that this process asked for and that have not ended, the oldest first.
    asked: VecDeque<(CommandId, Change)>,
    wedged: bool,
    refused: u64,
    disk: Option<OnDisk>,
}

/// The state of the order's records, for a process with a disk.
#[derive(Default)]
struct OnDisk {
    /// Changes that were submitted and are not written down yet.
    unwritten: Vec<(u64, Bytes)>,
    /// Changes that take effect here once their records are durable.
    written: VecDeque<(Ticket, DeliveredChange)>,
    /// Whether the process has come back from its disk, and its cell has not got a layout yet.
    resumes: bool,
}

/// A delivered change, and the roster after it.
struct DeliveredChange {
    at: Position,
    id: MessageId,
    body: Bytes,
    roster: Arc<Roster>,
}

impl Resident {
    /// Returns a process that asks to join as soon as it finds a router. `offset` is the wall clock less the
    /// boot-time clock, in nanoseconds. The process starts without entries, so no process may have used its
    /// incarnation before.
    pub fn new(me: Peer, place: JoinOptions, settings: Settings, offset: i64, now: Time) -> Resident {
        let mut member = Member::new(me.id, MemberSettings::default());
        let disk = settings.checkpoint_bytes.map(|_| OnDisk::default());
        if disk.is_some() {
            member.persist();
        }
        let cell = Cell::new(me.id, settings, offset, now);
        let mut resident = Resident::with(me.id, member, cell, disk);
        let JoinOptions { name, site, tokens } = place;
        let join = Change::Join { name, address: me.address, site, tokens };
        resident.submit(JOIN, join.encode());
        resident
    }

    /// Returns the process that continues these records, or `None` if there are none. `generation` is the
    /// generation to which the process belonged.
    pub fn recover(
        me: Peer,
        settings: Settings,
        generation: Generation,
        records: Vec<Bytes>,
        (offset, now): (i64, Time),
    ) -> Result<Option<Resident>, Unrecoverable> {
        let Some(past) = Past::read(records, settings.limits)? else { return Ok(None) };
        if let Some(known) = past.address(me.id).filter(|known| *known != me.address) {
            return Err(Unrecoverable::Moved(known));
        }
        let (delivered, roster) = past.roster.clone().unzip();
        let delivered = delivered.unwrap_or(Position(0));
        let submissions = past.submissions.clone();
        let member = Member::recovered(me.id, MemberSettings::default(), delivered, submissions, generation);
        let cell = Cell::recovered(me.id, settings, offset, now, past);
        let disk = OnDisk { resumes: true, ..OnDisk::default() };
        let roster = roster.map(Arc::new);
        Ok(Some(Resident { roster, ..Resident::with(me.id, member, cell, Some(disk)) }))
    }

    fn with(me: ProcessId, member: Member, cell: Cell, disk: Option<OnDisk>) -> Resident {
        Resident {
            me,
            member,
            roster: None,
            cell,
            news: VecDeque::new(),
            asked: VecDeque::new(),
            wedged: false,
            refused: 0,
            disk,
        }
    }

    /// Returns the members, cells and maps. `None` until the domain has taken this process in.
    pub fn roster(&self) -> Option<&Arc<Roster>> {
        self.roster.as_ref()
    }

    /// Returns the process's member of the order.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the process's cell.
    pub fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Returns the status of the process's cell.
    pub fn status(&self) -> Status {
        self.cell.status()
    }

    /// Returns how many messages from the order were refused.
    pub fn refused(&self) -> u64 {
        self.refused + self.member.refused()
    }

    /// Submits a message of this process to the order. With a disk, `write_down` records the message before
    /// it leaves.
    fn submit(&mut self, token: u64, body: Bytes) {
        if let Some(disk) = &mut self.disk {
            disk.unwritten.push((token, body.clone()));
        }
        self.member.submit(token, Class::Control, body);
    }

    /// Writes down the submitted messages, before they are sent.
    fn write_down(&mut self, out: &mut dyn Sink<Self>) {
        for (token, body) in self.disk.iter_mut().flat_map(|disk| disk.unwritten.drain(..)) {
            let record = out.persist(Record::Submitted { token, body });
            self.member.send_after(record);
        }
    }

    /// Hands the recovered layout to the cell, once.
    fn resume(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if self.disk.as_mut().is_some_and(|disk| std::mem::take(&mut disk.resumes))
            && let Some(roster) = self.roster.clone()
        {
            self.lay(cx, roster, out);
        }
    }

    /// Lets the changes of records up to `through` take effect, because these are durable now.
    fn persisted(&mut self, cx: &mut Context<'_>, through: Ticket, out: &mut dyn Sink<Self>) {
        let mut durable = None;
        while let Some(disk) = &mut self.disk
            && let Some((_, turn)) = disk.written.pop_front_if(|(ticket, _)| *ticket <= through)
        {
            durable = Some(turn.at);
            self.take_effect(cx, turn, out);
        }
        if let Some(through) = durable {
            self.order(cx, Input::Command(MemberCommand::Durable { through }), out);
        }
        self.work(cx, Input::Persisted(through), out);
    }

    /// Begins a checkpoint if one is due. The checkpoint waits while the member cannot list the messages that
    /// it may have to send again.
    fn look_at_journal(&mut self, out: &mut dyn Sink<Self>) {
        if !self.cell.is_checkpoint_due() {
            return;
        }
        let at = self.member.delivered();
        let (Some(submissions), Some(roster)) = (self.member.submissions(), &self.roster) else { return };
        let roster = Roster::clone(roster);
        self.cell.checkpoint((at, roster), submissions, &mut at_cell(out));
    }

    fn order(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut dyn Sink<Self>) {
        self.write_down(out);
        let Resident { member, news, .. } = self;
        let mut lift = Lift::<Resident, _, _>::new::<Member>(
            out,
            |_, _, message| Some(Message::Order(message)),
            |_, event| news.push_back(event),
        );
        member.handle(cx, input, &mut lift);
        while let Some(event) = self.news.pop_front() {
            self.learn(cx, event, out);
        }
    }

    fn work(&mut self, cx: &mut Context<'_>, input: Input<Cell>, out: &mut dyn Sink<Self>) {
        self.cell.handle(cx, input, &mut at_cell(out));
        self.announce();
    }

    /// Submits the end of the cell's arrival to the order, if the cell has reported it.
    fn announce(&mut self) {
        if let Some(number) = self.cell.take_complete() {
            self.submit(COMPLETE, Change::Complete(number).encode());
        }
    }

    fn learn(&mut self, cx: &mut Context<'_>, event: MemberEvent, out: &mut dyn Sink<Self>) {
        match event {
            MemberEvent::Deliver { at, id, class: Class::Control, body, attachment } => {
                self.apply(cx, (at, id), &body, attachment, out);
            }
            MemberEvent::Outcome { token: JOIN, outcome, .. } => {
                // A process whose joining was refused must stop, too.
                if let ecast::Outcome::Rejected(_) = outcome {
                    self.wedge(out);
                }
            }
            MemberEvent::Outcome { token, outcome, .. } => {
                let result = match outcome {
                    // This process's member gets all changes. The change ends for the user when it takes
                    // effect here, so that the user's next request finds it in effect.
                    ecast::Outcome::Stable if !self.goes(CommandId(token)) => return,
                    ecast::Outcome::Stable => Ok(()),
                    ecast::Outcome::Rejected(refusal) => Err(ChangeRefusal::of(refusal).into()),
                    ecast::Outcome::MaybeApplied => Err(Unchanged::Unknown),
                    ecast::Outcome::Wedged => Err(Unchanged::Out),
                };
                self.end(CommandId(token), result, out);
            }
            MemberEvent::NotSent { token } => self.end(CommandId(token), Err(Unchanged::Out), out),
            MemberEvent::WitnessWanted { founder } => {
                let known = self.roster.as_ref().map(|roster| roster.witness()).unwrap_or_default();
                let witness = self.member.witness(known);
                out.send(Destination::One(founder), Message::Order(witness), None);
            }
            MemberEvent::Wedged => self.wedge(out),
            // This order carries no data and injects nothing, and the cell works whichever router leads.
            MemberEvent::Deliver { .. } | MemberEvent::Injected { .. } => self.refused += 1,
            MemberEvent::NotInjected { .. }
            | MemberEvent::Latest { .. }
            | MemberEvent::Rerouted
            | MemberEvent::Lead { .. }
            | MemberEvent::Adrift(_) => {}
        }
    }

    /// Applies a delivered change to the roster. The change takes effect at once, or once its record is
    /// durable.
    fn apply(
        &mut self,
        cx: &mut Context<'_>,
        (at, id): (Position, MessageId),
        body: &Bytes,
        attachment: Option<Bytes>,
        out: &mut dyn Sink<Self>,
    ) {
        let after = match (&self.roster, attachment) {
            (Some(before), _) => match Maps::apply(before, at, id.sender, body) {
                Ok(changed) => changed,
                Err(refusal) => {
                    panic!(
                        "no change that the routing refuses is delivered, but {refusal:?} was delivered at \
                         {at}"
                    )
                }
            },
            (None, Some(attachment)) => postcard::from_bytes(&attachment).ok(),
            (None, None) => None,
        };
        let Some(after) = after else {
            self.refused += 1;
            return;
        };
        let roster = Arc::new(after);
        self.roster = Some(roster.clone());
        let turn = DeliveredChange { at, id, body: body.clone(), roster };
        match &mut self.disk {
            None => self.take_effect(cx, turn, out),
            Some(disk) => {
                let record = Record::Layout { at, roster: Box::new(Roster::clone(&turn.roster)) };
                disk.written.push_back((out.persist(record), turn));
            }
        }
    }

    /// Lets a delivered change take effect.
    fn take_effect(&mut self, cx: &mut Context<'_>, turn: DeliveredChange, out: &mut dyn Sink<Self>) {
        let DeliveredChange { id, body, roster, .. } = turn;
        self.lay(cx, roster, out);
        // The order reports a change's outcome only when all members have the change, and other members may
        // be away for long. A change that is delivered here is decided, so its user need not wait for them.
        if id.sender == self.me
            && let Some(change) = Change::decode(&body)
            && let Some((id, _)) = self.asked.iter().find(|(_, asked)| *asked == change)
        {
            self.end(*id, Ok(()), out);
        }
    }

    fn lay(&mut self, cx: &mut Context<'_>, roster: Arc<Roster>, out: &mut dyn Sink<Self>) {
        self.cell.lay(cx, roster.layout().clone(), &mut at_cell(out));
        self.announce();
        out.emit(Event::Roster(roster));
    }

    /// Whether the change that the user asked for under this name removes this process.
    fn goes(&self, id: CommandId) -> bool {
        let asked = self.asked.iter().find(|(asked, _)| *asked == id);
        asked.is_some_and(|(_, change)| match change {
            Change::Dismiss(process) | Change::Replace { old: process, .. } => *process == self.me,
            _ => false,
        })
    }

    /// Ends a change, unless it has ended before.
    fn end(&mut self, id: CommandId, result: Result<(), Unchanged>, out: &mut dyn Sink<Self>) {
        if let Some(index) = self.asked.iter().position(|(asked, _)| *asked == id) {
            self.asked.remove(index);
            out.emit(Event::Changed { id, result });
        }
    }

    fn wedge(&mut self, out: &mut dyn Sink<Self>) {
        if std::mem::replace(&mut self.wedged, true) {
            return;
        }
        while let Some((id, _)) = self.asked.pop_front() {
            out.emit(Event::Changed { id, result: Err(Unchanged::Unknown) });
        }
        out.emit(Event::Wedged);
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command, out: &mut dyn Sink<Self>) {
        match command {
            Command::Seeds(seeds) => self.order(cx, Input::Command(MemberCommand::Seeds(seeds)), out),
            Command::Cell(command) => self.work(cx, Input::Command(command), out),
            Command::Change { id, .. } if self.wedged => {
                out.emit(Event::Changed { id, result: Err(Unchanged::Out) });
            }
            Command::Change { id, change } => {
                assert!(id <= NAME_MAX, "the ids of users' changes are small, but {id:?} is not");
                let body = change.encode();
                self.asked.push_back((id, *change));
                if let Some(disk) = &mut self.disk {
                    disk.unwritten.push((id.0, body.clone()));
                }
                let submit = MemberCommand::Submit { token: id.0, class: Class::Control, body };
                self.order(cx, Input::Command(submit), out);
            }
        }
    }
}

impl Relayed for Resident {
    fn is_router(&self) -> bool {
        false
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.member.relays()
    }

    /// Keys and values of maps never pass a router, so links between cells are not relayed.
    fn may_relay_to(&self, peer: ProcessId) -> bool {
        self.member.routers().any(|router| router == peer)
    }
}

impl Protocol for Resident {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        self.resume(cx, out);
        match input {
            Input::Receive { from, message: Message::Cell(message) } => {
                self.work(cx, Input::Receive { from, message }, out);
            }
            Input::Receive { from, message: Message::Order(message) } => {
                let refused = matches!(message, ecast::Message::NotAdmitted(_));
                self.order(cx, Input::Receive { from, message }, out);
                if let Some(why) = self.member.not_admitted().filter(|_| refused) {
                    out.emit(Event::NotAdmitted(why.clone()));
                }
            }
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => {
                if self.member.deadline().is_some_and(|deadline| deadline <= cx.now) {
                    self.order(cx, Input::Deadline, out);
                }
                if self.cell.deadline().is_some_and(|deadline| deadline <= cx.now) {
                    self.work(cx, Input::Deadline, out);
                }
            }
            Input::Linked { peer, session } => {
                self.order(cx, Input::Linked { peer, session }, out);
                self.work(cx, Input::Linked { peer, session }, out);
            }
            Input::Unlinked { peer } => {
                self.order(cx, Input::Unlinked { peer }, out);
                self.work(cx, Input::Unlinked { peer }, out);
            }
            Input::Progress { peer } => self.work(cx, Input::Progress { peer }, out),
            // No process casts in this protocol.
            Input::Cast { .. } => self.refused += 1,
            Input::Drained => {
                self.order(cx, Input::Drained, out);
                self.look_at_journal(out);
            }
            Input::Persisted(ticket) => self.persisted(cx, ticket, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        [self.member.deadline(), self.cell.deadline()].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.member.policy()
    }
}

/// Returns the sink for the outputs of the cell.
fn at_cell<'a>(out: &'a mut dyn Sink<Resident>) -> impl Sink<Cell> + 'a {
    Lift::<Resident, _, _>::new::<Cell>(
        out,
        |_, _, message| Some(Message::Cell(message)),
        |out, event| out.emit(Event::Cell(event)),
    )
}

// Routers read the first tag before they know the part; 2 and 4 mark messages of tables and of groups.
const ORDER: u8 = 1;
const CELL: u8 = 5;

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Message::Order(message) => {
                out.put_u8(ORDER);
                message.encode_head(out)
            }
            Message::Cell(message) => {
                out.put_u8(CELL);
                message.encode_head(out)
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Message, WireError> {
        match take_u8(input)? {
            ORDER => Ok(Message::Order(ecast::Message::decode(input)?)),
            CELL => Ok(Message::Cell(message::Message::decode(input)?)),
            tag => Err(WireError::Tag(tag)),
        }
    }
}
