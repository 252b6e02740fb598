//! A process with groups: one member of the domain on a reactor, the thread that applies, and the one that looks for routers.
//!
//! ```text
//!   protocol thread ── deliveries ──▶ inbox of each seat ── "something is there" ──▶ delivery thread
//!                   ── ends of commands ──▶ whoever waits for them
//!   seeking thread  ── who listens at the routers' addresses ──▶ protocol thread
//! ```

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use quorate_node::EndpointId;
use quorate_protocol::{
    CommandId, DomainId, Peer, ProcessId, Protocol, Time,
    ecast::MemberSettings,
    group::{self, Command, Event, Failure, Figures, GroupId, Outcome, Place, Settings, Strength},
    relay::{self, Relay},
};
use quorate_runtime::{
    Config, Host, Port, Untaken,
    calls::Calls,
    discover::{Answer, Presence},
};
use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{info, warn};

use super::{
    inbox::{Delivery, Seat, lock},
    query::Word,
};
use crate::{
    error::{DROPPED, Error},
    seek::Search,
};

/// How long the protocol thread may take to say what it has counted.
const FIGURES_PATIENCE: Duration = Duration::from_millis(800);

/// A running process. It ends with the last who holds it.
pub(super) struct Process {
    pub(super) shared: Arc<Shared>,
    me: ProcessId,
    domain: DomainId,
    /// The seeking thread ends when this is dropped.
    _seeks: Sender<()>,
}

/// State that the threads of a process share.
pub(super) struct Shared {
    port: OnceLock<Port<Relay<group::Process>>>,
    seats: Mutex<BTreeMap<GroupId, Arc<Seat>>>,
    calls: Mutex<FxHashMap<u64, Call>>,
    figures: Calls<Figures>,
    last: AtomicU64,
    in_touch: AtomicBool,
    wedged: AtomicBool,
    /// Told when the process is out of the domain.
    out: Mutex<Option<oneshot::Sender<()>>>,
}

/// A command that has not ended.
struct Call {
    told: oneshot::Sender<Result<Ended, Failure>>,
    /// The seat that is free when it has ended.
    leaves: Option<Arc<Seat>>,
    /// Its room, for others when it has ended.
    _room: Option<OwnedSemaphorePermit>,
}

/// The good end of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// It was sent, and delivered here.
    Sent(Place),
    /// Another one.
    Otherwise(Outcome),
}

/// The end of a command, when it comes. An error says that the process has ended.
pub(super) type Ending = oneshot::Receiver<Result<Ended, Failure>>;

impl Process {
    /// Starts the threads. `routers` are where routers may be.
    pub(super) fn start(config: Config, address: String, routers: Vec<String>) -> Result<Process, Error> {
        let (domain, me) = (config.domain, config.me);
        let shared = Arc::new(Shared {
            port: OnceLock::new(),
            seats: Mutex::default(),
            calls: Mutex::default(),
            figures: Calls::default(),
            last: AtomicU64::new(0),
            in_touch: AtomicBool::new(true),
            wedged: AtomicBool::new(false),
            out: Mutex::new(None),
        });
        let (news, deliver) = unbounded();
        let member =
            group::Process::new(Peer { id: me, address }, Settings::default(), MemberSettings::default());
        let relay = Relay::new(member, relay::Settings::default());
        let door = Door::new(shared.clone(), news);
        let port = Port::alone(EndpointId::TABLES, relay, door, config).map_err(Error::start)?;
        assert!(shared.port.set(port).is_ok(), "a process has one port");
        let (seeks, kicks) = bounded(0);
        let (applying, seeking) = (shared.clone(), shared.clone());
        let process = Process { shared, me, domain, _seeks: seeks };
        thread::Builder::new().name(String::from("deliver")).spawn(move || apply(&applying, &deliver))?;
        Search::quiet(domain, me, routers).go_on(kicks, move |found| {
            if !found.is_empty() {
                // They are looked for again.
                let _ = seeking.port().try_command(Command::Seeds(found));
            }
        })?;
        Ok(process)
    }

    pub(super) fn me(&self) -> ProcessId {
        self.me
    }

    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }

    /// Takes a seat, unless another one has this group.
    pub(super) fn seat(&self, seat: Seat) -> Result<Arc<Seat>, Error> {
        let mut seats = lock(&self.shared.seats);
        if seats.contains_key(&seat.group) {
            return Err(Error::start(format!("this process has a member of `{}` already", seat.name)));
        }
        let seat = Arc::new(seat);
        seats.insert(seat.group, seat.clone());
        Ok(seat)
    }

    /// Is a member of the domain no more. An error says that it has been none before.
    pub(super) fn exit(&self) -> oneshot::Receiver<()> {
        let (told, out) = oneshot::channel();
        if !self.shared.is_wedged() {
            *lock(&self.shared.out) = Some(told);
            self.shared.tell(Command::Exit);
        }
        out
    }

    pub(super) fn groups(&self) -> Vec<Arc<Seat>> {
        lock(&self.shared.seats).values().cloned().collect()
    }

    /// Its figures, and the bytes that were delivered and are not applied. None: the protocol thread does not answer.
    pub(super) fn figures(&self) -> Option<(Figures, usize)> {
        let ask = |token| self.shared.port().try_command(Command::Figures { token }).is_ok();
        let figures = self.shared.figures.call(FIGURES_PATIENCE, ask).ok()?;
        Some((figures, self.groups().iter().map(|seat| seat.waiting_bytes()).sum()))
    }

    /// Ends at once.
    pub(super) fn stop(&self) {
        // A panic has been printed by its own thread.
        let _ = self.shared.port().node().stop();
        self.shared.end();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn port(&self) -> &Port<Relay<group::Process>> {
        self.port.get().expect("set before anybody else has it")
    }

    pub(super) fn is_wedged(&self) -> bool {
        self.wedged.load(Ordering::Acquire)
    }

    /// Whether this process may be taken at its word.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_wedged() {
            return Err(Error::wedged(DROPPED));
        }
        if self.in_touch.load(Ordering::Acquire) { Ok(()) } else { Err(Error::OutOfTouch) }
    }

    /// Hands a command over. What becomes of it is told.
    pub(super) fn call(
        &self,
        room: Option<OwnedSemaphorePermit>,
        command: impl FnOnce(CommandId) -> Command,
    ) -> Result<Ending, Error> {
        self.hand_over(room, None, command)
    }

    /// Has a member leave, behind all that it sent. Until it is out it goes on, since others may need its state.
    pub(super) fn leave(&self, seat: &Arc<Seat>) -> Result<Ending, Error> {
        let group = seat.group;
        self.hand_over(None, Some(seat.clone()), |id| Command::Leave { id, group })
    }

    /// Has the state of a member that is about to leave saved, if it has a file: it sends nothing more.
    pub(super) fn close(&self, seat: &Seat) -> Option<Result<Ending, Error>> {
        let group = seat.group;
        seat.keeper.as_ref()?;
        Some(self.call(None, |id| Command::Save { id, group, last: true }))
    }

    fn hand_over(
        &self,
        room: Option<OwnedSemaphorePermit>,
        leaves: Option<Arc<Seat>>,
        command: impl FnOnce(CommandId) -> Command,
    ) -> Result<Ending, Error> {
        let name = self.last.fetch_add(1, Ordering::Relaxed);
        let (told, ending) = oneshot::channel();
        lock(&self.calls).insert(name, Call { told, leaves, _room: room });
        let Err(untaken) = self.port().try_command(command(CommandId(name))) else { return Ok(ending) };
        lock(&self.calls).remove(&name);
        Err(match untaken {
            Untaken::Full(_) => Error::not_sent("too many commands wait for the protocol thread"),
            Untaken::Stopped(_) => Error::wedged(DROPPED),
        })
    }

    /// Hands a command over that has no end. Not on the protocol thread, since it waits while too many others do.
    pub(super) fn tell(&self, command: Command) {
        // Untaken only if the process has ended.
        let _ = self.port().command(command);
    }

    /// Sends to a group what nobody waits for. Not on the protocol thread.
    pub(super) fn say(&self, group: GroupId, strength: Strength, body: Bytes) {
        let id = CommandId(self.last.fetch_add(1, Ordering::Relaxed));
        self.tell(Command::Send { id, group, strength, body });
    }

    /// Has this process quit a group whose object is lost. Also on the protocol thread.
    pub(super) fn quit(&self, group: GroupId) {
        lock(&self.seats).remove(&group);
        if let Err(Untaken::Full(_)) = self.port().try_command(Command::Quit { group }) {
            warn!("a member that ended cannot quit its group: too many commands wait");
        }
    }

    /// This process's member of a group ends.
    pub(super) fn fail(self: &Arc<Self>, group: GroupId, why: Error) {
        let seat = lock(&self.seats).get(&group).cloned();
        if let Some(seat) = seat {
            seat.fail(why, self);
        }
    }

    /// A member has left, in order.
    fn left(&self, seat: &Seat) {
        seat.end(Error::not_member("it has left"));
        let mut seats = lock(&self.seats);
        if seats.get(&seat.group).is_some_and(|there| std::ptr::eq(&**there, seat)) {
            seats.remove(&seat.group);
        }
    }

    /// The process is out, or has ended: so are its members.
    fn end(&self) {
        self.wedged.store(true, Ordering::Release);
        let seats = mem::take(&mut *lock(&self.seats));
        for seat in seats.values() {
            seat.end(Error::wedged(DROPPED));
        }
        // Callers that wait still are told that nothing comes.
        lock(&self.calls).clear();
        if let Some(out) = lock(&self.out).take() {
            // The one who waits may have lost interest.
            let _ = out.send(());
        }
    }
}

/// Applies what is delivered, until nothing more is.
fn apply(shared: &Arc<Shared>, deliver: &Receiver<Arc<Seat>>) {
    for seat in deliver {
        seat.deliver(shared);
    }
}

/// The protocol thread's view of the members. What a turn brings is handed over at its end, so that a lock is taken once for many
/// messages; a command's end is told behind what was delivered before it.
struct Door {
    shared: Arc<Shared>,
    /// The delivery thread ends when this is dropped.
    news: Sender<Arc<Seat>>,
    /// The last deliveries, all to one group.
    run: Vec<Delivery>,
    run_of: GroupId,
    /// Commands that ended in this turn.
    ended: Vec<(CommandId, Result<Ended, Failure>)>,
    /// Those that something was delivered to in this turn.
    told: Vec<Arc<Seat>>,
}

impl Door {
    fn new(shared: Arc<Shared>, news: Sender<Arc<Seat>>) -> Door {
        Door { shared, news, run: Vec::new(), run_of: GroupId(0), ended: Vec::new(), told: Vec::new() }
    }

    fn push(&mut self, group: GroupId, delivery: Delivery) {
        if self.run_of != group {
            self.deliver();
            self.run_of = group;
        }
        self.run.push(delivery);
    }

    fn deliver(&mut self) {
        if self.run.is_empty() {
            return;
        }
        let Some(seat) = lock(&self.shared.seats).get(&self.run_of).cloned() else {
            return self.run.clear();
        };
        if seat.push(&mut self.run) {
            seat.fail(Error::not_member("it does not keep up: too much waits to be applied"), &self.shared);
        } else if !seat.queued.swap(true, Ordering::AcqRel) {
            self.told.push(seat);
        }
    }

    fn hand_over(&mut self) {
        self.deliver();
        if self.ended.is_empty() {
            return;
        }
        let mut calls = lock(&self.shared.calls);
        let ended = self.ended.drain(..).filter_map(|(id, result)| Some((calls.remove(&id.0)?, result)));
        let ended: Vec<_> = ended.collect();
        drop(calls);
        for (call, result) in ended {
            if let Some(seat) = call.leaves {
                self.shared.left(&seat);
            }
            // The one who waits may have lost interest.
            let _ = call.told.send(result);
        }
    }
}

impl Host<Relay<group::Process>> for Door {
    fn event(&mut self, event: Event, _: Time) {
        match event {
            Event::Done { id, result } => self.ended.push((id, result.map(Ended::Otherwise))),
            Event::Sent { ids, first } => {
                let places = (0..).map(|index| first.behind(index));
                self.ended
                    .extend(ids.into_iter().zip(places).map(|(id, place)| (id, Ok(Ended::Sent(place)))));
            }
            Event::Restore { group, state } => self.push(group, Delivery::Restore(state)),
            Event::View { group, view, missing, waited } => {
                self.push(group, Delivery::View { view, missing, waited });
            }
            Event::Keep { group, checkpoint } => self.push(group, Delivery::Keep(checkpoint)),
            Event::CheckpointWanted { group, view } => self.push(group, Delivery::CheckpointWanted(view)),
            Event::Deliver { group, sender, updates } => {
                self.push(group, Delivery::Updates { sender, updates });
            }
            Event::Said { group, from, body } => {
                let seat = lock(&self.shared.seats).get(&group).cloned();
                if let Some(seat) = seat
                    && let Some((number, word)) = Word::decode(&body)
                {
                    lock(&seat.asked).said(from, number, word);
                }
            }
            Event::Figures { token, figures } => self.shared.figures.answer(token, figures),
            Event::InTouch(in_touch) => {
                info!(in_touch, "in touch with the routers");
                self.shared.in_touch.store(in_touch, Ordering::Release);
            }
            Event::Wedged => {
                info!("this process is out of the domain");
                self.hand_over();
                self.shared.end();
            }
        }
    }

    fn drained(&mut self, _: Time) {
        self.hand_over();
        for seat in self.told.drain(..) {
            // Its thread ends after this one.
            let _ = self.news.send(seat);
        }
    }

    fn answer(&self, relay: &Relay<group::Process>, _: DomainId) -> Answer {
        Answer { presence: Presence::Settled, pass: relay.policy().pass() }
    }

    fn stranger(&mut self, peer: ProcessId, _: &[u8], theirs: &[u8]) {
        // Told again as long as it is met.
        tracing::debug!(%peer, pass = ?Bytes::copy_from_slice(theirs), "no session with it");
    }
}
