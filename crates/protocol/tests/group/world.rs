//! One router, and the members of one group.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Incarnation, MulticastAddress, Peer, ProcessId,
    ecast::{MemberSettings, Router, RouterSettings, Station, StationCommand, StationEvent},
    group::{
        self, Command, CommandOutcome, Direct, Event, Groups, Mark, Message, Offer, PackWriter, Place,
        Roster, SeatId, SendStrength, Sending, Settings, Soft, StateTransfer,
    },
    paxos::{self, Paxos},
};
use quorate_world::{Environment, Violation};

use crate::world::{Chance, Rig, Trace, Traced};

pub(crate) const GROUP: group::GroupId = group::GroupId(7);

/// Returns the process with this name. The router is `r`, members are `a`, `b`, `c`.
pub(crate) fn process(name: &str) -> ProcessId {
    let node = match name {
        "r" => 0,
        name => u64::from(name.bytes().next().expect("a name") - b'a') + 1,
    };
    ProcessId { node, incarnation: Incarnation(0) }
}

pub(crate) fn name(process: ProcessId) -> String {
    match process.node {
        0 => "r".to_owned(),
        node => char::from(b'a' + (node - 1) as u8).to_string(),
    }
}

fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("{}:1", name(process)) }
}

pub(crate) type Role = Station<Groups, group::Process>;

/// The users of the members.
pub(crate) struct Members {
    pub(crate) settings: Settings,
    /// The updates (words) delivered to each member, which are its state.
    words: BTreeMap<ProcessId, Vec<String>>,
    /// The checkpoint of each member.
    files: BTreeMap<ProcessId, (Mark, String)>,
    /// Members whose disks never report that a checkpoint is written.
    pub(crate) mute: BTreeSet<ProcessId>,
    /// Members whose hosts apply nothing until a script says so.
    pub(crate) slow: BTreeSet<ProcessId>,
    commands: u64,
    pub(crate) trace: Trace,
}

type Virtual = quorate_world::World<Role>;

impl Environment<Role> for Members {
    fn start(&mut self, world: &mut Virtual, _: usize, id: ProcessId) -> Role {
        if id == process("r") {
            let settings = paxos::Settings { wanted: 1, ..paxos::Settings::default() };
            let log = Paxos::found(peer(id), settings.clone(), world.now());
            let settings = RouterSettings { paxos: settings, ..RouterSettings::default() };
            return Role::Router(Box::new(Router::new(log, Roster::default(), settings)));
        }
        self.words.insert(id, Vec::new());
        let member = group::Process::new(peer(id), self.settings.clone(), MemberSettings::default());
        Role::Member(Box::new(member))
    }

    fn event(
        &mut self,
        world: &mut Virtual,
        machine: usize,
        event: StationEvent<Roster, Event>,
    ) -> Result<(), Violation> {
        let StationEvent::Member(event) = event else { return Ok(()) };
        let id = world.id(machine).expect("it lives");
        if let Event::ProgressWanted { group } = event {
            if self.slow.contains(&id) {
                self.trace.say(world.now(), &format!("{} applies slowly", name(id)));
                return Ok(());
            }
            return world.ask(self, id, StationCommand::Member(Command::Progress { group }));
        }
        let begins = matches!(event, Event::Restore { state: None, .. });
        let shown = match self.files.get(&id).filter(|_| begins) {
            Some((checkpoint, state)) => format!("begins from {checkpoint}: {state}"),
            None => shown(&event),
        };
        self.trace.say(world.now(), &format!("{} {shown}", name(id)));
        let words = self.words.get_mut(&id).expect("routers tell nothing");
        match event {
            Event::Deliver { updates, .. } => words.extend(updates.iter().map(|(_, body)| text(body))),
            Event::Restore { state, .. } => {
                let own = self.files.get(&id).map(|(_, state)| state.clone());
                let state = state.as_deref().map(text).or(own).unwrap_or_default();
                *words = state.split_whitespace().map(str::to_owned).collect();
            }
            Event::CheckpointWanted { group, view } => {
                let state = Bytes::from(words.join(" "));
                let checkpoint = Command::Checkpoint { group, view, state };
                world.ask(self, id, StationCommand::Member(checkpoint))?;
            }
            Event::Keep { group, checkpoint } => {
                let me = id;
                self.files.insert(id, (checkpoint, words.join(" ")));
                if !self.mute.contains(&id) {
                    let id = CommandId(1_000 + checkpoint.view.0);
                    world.ask(self, me, StationCommand::Member(Command::Kept { id, group, checkpoint }))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn delivered(&mut self, world: &Virtual, from: ProcessId, to: ProcessId, message: &Message) {
        if let Message::Group { direct, .. } = message
            && let Some(line) = said(direct)
        {
            self.trace.say(world.now(), &format!("{} > {} {line}", name(from), name(to)));
        }
    }

    fn cast(
        &mut self,
        world: &Virtual,
        (from, to): (ProcessId, ProcessId),
        by: Option<MulticastAddress>,
        message: &Message,
    ) {
        if let Message::Group { direct, .. } = message
            && let Some(line) = said(direct)
        {
            let arrow = if by.is_some() { "*>" } else { "~>" };
            self.trace.say(world.now(), &format!("{} {arrow} {} {line}", name(from), name(to)));
        }
    }
}

impl Traced for Members {
    fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
}

pub(crate) type World = Rig<Role, Members>;

impl World {
    pub(crate) fn new(settings: Settings) -> World {
        let members = Members {
            settings,
            words: BTreeMap::new(),
            files: BTreeMap::new(),
            mute: BTreeSet::new(),
            slow: BTreeSet::new(),
            commands: 0,
            trace: Trace::default(),
        };
        let mut world = Rig::of(members, Chance(1));
        world.add("r");
        world
    }

    fn add(&mut self, who: &str) {
        let peer = peer(process(who));
        self.begin(peer.id, &peer.address);
    }

    pub(crate) fn start(&mut self, who: &str) {
        self.add(who);
        let seeds = Command::Seeds(vec![peer(process("r"))]);
        self.command(process(who), StationCommand::Member(seeds));
    }

    /// Gives a member a command. The command ends its batch unless a script bundles several commands.
    pub(crate) fn ask(&mut self, who: &str, command: impl FnOnce(CommandId) -> Command) {
        self.commands += 1;
        let command = command(CommandId(self.commands));
        self.command(process(who), StationCommand::Member(command));
    }

    /// Returns the checkpoint that this process offers when it joins.
    pub(crate) fn offer(&self, who: &str, forced: bool) -> Offer {
        let checkpoint = self.files.get(&process(who)).map(|(checkpoint, _)| *checkpoint);
        Offer { checkpoint, forced }
    }

    /// Copies the checkpoint of a process that is dead or has left. The copy belongs to another process.
    pub(crate) fn hand_over(&mut self, from: &str, to: &str) {
        let file = self.files[&process(from)].clone();
        self.files.insert(process(to), file);
    }

    /// Writes to the trace which messages the router keeps.
    pub(crate) fn show_order(&mut self) {
        let Role::Router(router) = self.process(process("r")) else { unreachable!("it is the router") };
        let (position, base) = (router.position(), router.base());
        self.say(&format!("r is at {position}, and keeps what is behind {base}"));
    }

    /// Writes the state of each member to the trace.
    pub(crate) fn show(&mut self) {
        for id in self.everybody() {
            let Role::Member(member) = self.process(id) else { continue };
            let (bytes, waiting) = member.held(GROUP);
            let view = member.view(GROUP).map_or(0, |view| view.number.0);
            let words = self.words[&id].join(" ");
            self.say(&format!(
                "{} view {view}, holds {bytes} bytes and {waiting} ordered: {words}",
                name(id)
            ));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn placed(place: Place) -> String {
    match place {
        Place::Soft(number) => format!("soft {number}"),
        Place::Ordered(at, 0) => format!("@{at}"),
        Place::Ordered(at, index) => format!("@{at}.{index}"),
    }
}

/// Returns the trace of an event.
fn shown(event: &Event) -> String {
    match event {
        Event::Done { id, result: Ok(outcome) } => {
            let what = match outcome {
                CommandOutcome::Joined => "joined".to_owned(),
                CommandOutcome::Left => "left".to_owned(),
                CommandOutcome::Flushed => "flushed".to_owned(),
                CommandOutcome::Marked(checkpoint) => format!("marked {checkpoint}"),
                CommandOutcome::Kept => "kept".to_owned(),
            };
            format!("command {} done: {what}", id.0)
        }
        Event::Done { id, result: Err(failure) } => format!("command {} failed: {failure}", id.0),
        Event::Sent { id, first } => format!("command {} sent at {}", id.0, placed(*first)),
        Event::Restore { state: None, .. } => "begins afresh".to_owned(),
        Event::Restore { state: Some(state), .. } => format!("restores: {}", text(state)),
        Event::View { view, missing, .. } => {
            let member = |entry: &group::ViewMember| {
                let mut who = name(entry.peer.id);
                let seats = view.seats.of(entry.peer.id);
                if seats != [SeatId(0)] {
                    let seats: Vec<String> = seats.iter().map(|seat| seat.0.to_string()).collect();
                    who += &format!("[{}]", seats.join(" "));
                }
                if let StateTransfer::Receiving { giver, .. } = entry.transfer {
                    who += &format!(" (fed by {})", name(giver));
                }
                who
            };
            let members: Vec<String> = view.members.iter().map(member).collect();
            let lost = missing.iter().map(|(id, count)| format!(", {count} of {} lost", name(*id)));
            format!("view {}: {}{}", view.number, members.join(" "), lost.collect::<String>())
        }
        Event::ProgressWanted { .. } => unreachable!("answered above"),
        Event::Keep { checkpoint, .. } => format!("keeps {checkpoint}"),
        Event::CheckpointWanted { view, .. } => format!("gives its state as of view {view}"),
        Event::Deliver { sender, updates, .. } => {
            let shown = updates.iter().map(|(place, body)| format!("{} {}", placed(place), text(body)));
            format!("delivers of {}: {}", name(*sender), shown.collect::<Vec<_>>().join(", "))
        }
        Event::Said { from, body, .. } => format!("hears of {}: {}", name(*from), text(body)),
        Event::InTouch(true) => "is in touch".to_owned(),
        Event::InTouch(false) => "is out of touch".to_owned(),
        Event::Figures { figures, .. } => format!("has counted {figures:?}"),
        Event::Wedged => "is wedged".to_owned(),
    }
}

/// Returns the trace of a message between members, or `None` for receipts.
fn said(direct: &Direct) -> Option<String> {
    Some(match direct {
        Direct::Soft { sender, first, messages } => {
            let packed = |soft: &Soft| soft.pack.iter().map(text).collect::<Vec<_>>().join("+");
            let bodies: Vec<String> = messages.iter().map(packed).collect();
            format!("Soft of {} from {first}: {}", name(*sender), bodies.join(" "))
        }
        Direct::Receipts { .. } => return None,
        Direct::Word { body } => format!("Word {}", text(body)),
        Direct::Want { sender, from } => format!("Want of {} from {from}", name(*sender)),
        Direct::Gap { sender, first, last } => format!("Gap of {} from {first} to {last}", name(*sender)),
        Direct::StateWanted { offset } => format!("StateWanted from {offset}"),
        Direct::State { offset, total, piece } => {
            format!("State {offset}+{} of {total}", piece.len())
        }
    })
}

/// Returns the command to send a pack. A plus separates its updates.
pub(crate) fn send(id: CommandId, strength: SendStrength, updates: &str) -> Command {
    let mut pack = PackWriter::default();
    updates.split('+').for_each(|update| pack.push(update.as_bytes()));
    let pack = pack.finish().expect("it has an update");
    Command::Send(vec![Sending { id, group: GROUP, strength, pack }])
}
