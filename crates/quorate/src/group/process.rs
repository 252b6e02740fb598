//! A process with groups: one member of the domain on a reactor, the thread that applies, and the one that looks for routers.
//!
//! ```text
//!   callers ── updates, in packs ──▶ outbox ──▶ protocol thread
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
    group::{
        self, Command, Event, Failure, Figures, GroupId, Outcome, Pack, Place, SEATS_MAX, SeatId, Sending,
        Settings, Strength,
    },
    relay::{self, Relay},
    seam::CAST_BYTES_MAX,
};
use quorate_runtime::{
    Config, Host, Port, Untaken,
    calls::Calls,
    config::cast_bytes,
    counters::Counters,
    discover::{Answer, Presence},
};
use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{debug, info, warn};

use super::{
    inbox::{Delivery, Seat, Taker, lock},
    outbox::{Outbox, PackBounds, Packing, Refused, Sent},
    query::Word,
    row::{Row, Turn, Wish},
    touch::{Loss, Touch},
};
use crate::{
    error::{DROPPED, Error},
    seek::Search,
};

/// How long the protocol thread may take to say what it has counted.
const FIGURES_PATIENCE: Duration = Duration::from_millis(800);
/// Calls are waited for no longer than this once the process is out of touch.
const AWAY_PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of ordered or safe updates that travel together; a longer one travels alone.
const ORDERED_PACK_BYTES: usize = 16 << 10;

/// A running process. It ends with the last who holds it.
pub(super) struct Process {
    pub(super) shared: Arc<Shared>,
    domain: DomainId,
    /// The seeking thread ends when this is dropped.
    _seeks: Sender<()>,
}

/// State that the threads of a process share.
pub(super) struct Shared {
    me: ProcessId,
    port: OnceLock<Port<Relay<group::Process>>>,
    rows: Mutex<BTreeMap<GroupId, Row<Arc<Seat>>>>,
    /// To the delivery thread, which ends when this and the door's are dropped.
    news: Mutex<Option<Sender<Arc<Seat>>>>,
    outbox: Outbox,
    calls: Mutex<FxHashMap<u64, Call>>,
    figures: Calls<Figures>,
    /// Replies that came when nobody waited for them any more.
    late: AtomicU64,
    last: AtomicU64,
    touch: Touch,
    wedged: AtomicBool,
    /// Told when the process is out of the domain.
    out: Mutex<Option<oneshot::Sender<()>>>,
}

/// A command that has not ended.
enum Call {
    /// Updates were sent. Their room is for others when they have ended.
    Send { told: oneshot::Sender<Result<Place, Failure>>, _rooms: Vec<OwnedSemaphorePermit> },
    /// Something else that somebody waits for.
    Other(oneshot::Sender<Result<Outcome, Failure>>),
    /// This process leaves a group.
    Leave(GroupId),
}

/// The end of a command that sends nothing, when it comes. An error says that the process has ended.
pub(super) type Ending = oneshot::Receiver<Result<Outcome, Failure>>;

impl Process {
    /// Starts the threads. `routers` are where routers may be, and `updates` travel together at most.
    pub(super) fn start(
        config: Config,
        address: String,
        routers: Vec<String>,
        updates: u32,
    ) -> Result<Process, Error> {
        let (domain, me) = (config.domain, config.me);
        let cast_bytes = config.datagrams.map_or(CAST_BYTES_MAX, cast_bytes);
        let settings = Settings { cast_bytes, ..Settings::default() };
        let bounds =
            PackBounds { soft_bytes: settings.cast_pack_bytes(), ordered_bytes: ORDERED_PACK_BYTES, updates };
        let (news, deliver) = unbounded();
        let shared = Arc::new(Shared {
            me,
            port: OnceLock::new(),
            rows: Mutex::default(),
            news: Mutex::new(Some(news.clone())),
            outbox: Outbox::new(bounds),
            calls: Mutex::default(),
            figures: Calls::default(),
            late: AtomicU64::new(0),
            last: AtomicU64::new(0),
            touch: Touch::default(),
            wedged: AtomicBool::new(false),
            out: Mutex::new(None),
        });
        let member = group::Process::new(Peer { id: me, address }, settings, MemberSettings::default());
        let relay = Relay::new(member, relay::Settings::default());
        let door = Door::new(shared.clone(), news);
        let port = Port::alone(EndpointId::TABLES, relay, door, config).map_err(Error::start)?;
        assert!(shared.port.set(port).is_ok(), "a process has one port");
        let (seeks, kicks) = bounded(0);
        let (applying, seeking) = (shared.clone(), shared.clone());
        let process = Process { shared, domain, _seeks: seeks };
        thread::Builder::new().name(String::from("deliver")).spawn(move || apply(&applying, &deliver))?;
        Search::quiet(domain, me, routers).go_on(kicks, move |found| {
            if !found.is_empty() {
                // They are looked for again.
                let _ = seeking.try_tell(Command::Seeds(found));
            }
        })?;
        Ok(process)
    }

    pub(super) fn me(&self) -> ProcessId {
        self.shared.me
    }

    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }

    /// Takes a seat. Says whether it is the first of its group, which joins.
    pub(super) fn seat(
        &self,
        group: GroupId,
        is_alone: bool,
        seat: impl FnOnce(SeatId) -> Seat,
    ) -> Result<(Arc<Seat>, bool), Error> {
        let mut rows = lock(&self.shared.rows);
        let seat = |id| Arc::new(seat(id));
        let Some(row) = rows.get_mut(&group) else {
            let row = Row::new(seat);
            let first = row.first().expect("it was made with one");
            rows.insert(group, row);
            return Ok((first, true));
        };
        if is_alone || row.all().any(|seat| seat.is_alone()) {
            return Err(Error::invalid(
                "this node has a member of the group: of one with a key or a checkpoint file it has one at most",
            ));
        }
        let taken = row.take(seat).ok_or_else(|| {
            Error::start(format!(
                "the process is about to leave the group, or has {SEATS_MAX} members of it already"
            ))
        })?;
        Ok((taken, false))
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
        lock(&self.shared.rows).values().flat_map(Row::all).collect()
    }

    /// Its figures, and the bytes that were delivered and are not applied. None: the protocol thread does not answer.
    pub(super) fn figures(&self) -> Option<(Figures, usize)> {
        let ask = |token| self.shared.try_tell(Command::Figures { token }).is_ok();
        let figures = self.shared.figures.call(FIGURES_PATIENCE, ask).ok()?;
        Some((figures, self.groups().iter().map(|seat| seat.waiting_bytes()).sum()))
    }

    /// The counts of its sockets.
    pub(super) fn counters(&self) -> &Counters {
        self.shared.port().node().counters()
    }

    /// Replies to queries of this process that came when nobody waited for them any more.
    pub(super) fn late_replies(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
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
        if self.touch.is_in() { Ok(()) } else { Err(Error::OutOfTouch) }
    }

    /// Hands an update over. What becomes of it is told.
    pub(super) fn send(
        &self,
        to: (GroupId, Strength),
        update: &[u8],
        room: OwnedSemaphorePermit,
    ) -> Result<Sent, Error> {
        let put =
            self.outbox.put(to, update, Some(room), || self.port().try_command(Command::Send(Vec::new())));
        put.map_err(|refused| match refused {
            Refused::Over => Error::wedged(DROPPED),
            Refused::Full => unreachable!("it has room"),
            Refused::Untaken(untaken) => not_taken(untaken),
        })
    }

    /// Hands a command over. What becomes of it is told.
    pub(super) fn call(&self, command: impl FnOnce(CommandId) -> Command) -> Result<Ending, Error> {
        let (told, ending) = oneshot::channel();
        self.hand_over(Call::Other(told), command)?;
        Ok(ending)
    }

    /// Has a member leave, behind all that it sent. Until it is out it goes on, since others may need its state.
    pub(super) fn leave(&self, seat: &Arc<Seat>) -> Result<Ending, Error> {
        let (told, ending) = oneshot::channel();
        seat.tell_out(told);
        if let Some(row) = lock(&self.rows).get_mut(&seat.group) {
            row.leave(seat.id);
        }
        self.reseat(seat.group)?;
        if self.touch.is_given_up() {
            seat.leave_unheard();
        }
        Ok(ending)
    }

    /// A member has got its object from another one of this process, which may go now.
    pub(super) fn got(&self, seat: &Seat) {
        if let Some(row) = lock(&self.rows).get_mut(&seat.group) {
            row.got(seat.id);
        }
        self.reseat_or_warn(seat.group);
    }

    /// [`Shared::reseat`], where nobody can be told if it does not go.
    fn reseat_or_warn(&self, group: GroupId) {
        if let Err(Error::NotSent { .. }) = self.reseat(group) {
            warn!("a member that leaves has to wait for the next view: too many commands wait");
        }
    }

    /// Tells the protocol which members of a group are here, if that is news to it.
    pub(super) fn reseat(&self, group: GroupId) -> Result<(), Error> {
        // Told under the lock, or an earlier wish might come later.
        let mut rows = lock(&self.rows);
        let Some(row) = rows.get_mut(&group) else { return Ok(()) };
        let wish = row.wish();
        match &wish {
            Wish::Nothing => {}
            Wish::Seats(seats) => {
                self.try_tell(Command::Seats { group, seats: seats.clone() })?;
            }
            Wish::Leave => self.hand_over(Call::Leave(group), |id| Command::Leave { id, group })?,
        }
        row.told(wish);
        Ok(())
    }

    /// Has the state of a member that is about to leave saved, if it has a file: it sends nothing more.
    pub(super) fn close(&self, seat: &Seat) -> Option<Result<Ending, Error>> {
        let group = seat.group;
        seat.keeper.as_ref()?;
        Some(self.call(|id| Command::Save { id, group, last: true }))
    }

    fn hand_over(&self, call: Call, command: impl FnOnce(CommandId) -> Command) -> Result<(), Error> {
        let id = self.id();
        let is_awaited = !matches!(call, Call::Leave(_));
        lock(&self.calls).insert(id.0, call);
        // Looked at behind that: whoever gives up takes all that is there.
        if is_awaited && self.touch.is_given_up() {
            lock(&self.calls).remove(&id.0);
            return Err(Error::OutOfTouch);
        }
        let handed = self.try_tell(command(id));
        if handed.is_err() {
            lock(&self.calls).remove(&id.0);
        }
        handed
    }

    fn id(&self) -> CommandId {
        CommandId(self.last.fetch_add(1, Ordering::Relaxed))
    }

    /// Hands a command over, unless too many wait.
    fn try_tell(&self, command: Command) -> Result<(), Error> {
        self.port().try_command(command).map_err(not_taken)?;
        self.outbox.close();
        Ok(())
    }

    /// The updates that a command to send is for.
    fn sends(&self) -> Vec<Sending> {
        let packs = self.outbox.take();
        let mut calls = lock(&self.calls);
        let sending = |Packing { group, strength, writer, told, rooms, .. }| {
            let id = self.id();
            calls.insert(id.0, Call::Send { told, _rooms: rooms });
            let pack = writer.finish().expect("a pack begins with an update");
            Sending { id, group, strength, pack }
        };
        packs.into_iter().map(sending).collect()
    }

    /// Has a member say that it waits for the delivery thread.
    pub(super) fn stir(&self, seat: Arc<Seat>) {
        if !seat.queued.swap(true, Ordering::AcqRel)
            && let Some(news) = &*lock(&self.news)
        {
            // Its thread ends after the one that took this away.
            let _ = news.send(seat);
        }
    }

    /// A member of a group answers a query of a member of this process.
    pub(super) fn said(&self, group: GroupId, from: (ProcessId, SeatId), number: u64, word: Word) {
        let asks = lock(&self.rows).get(&group).and_then(|row| row.get(SeatId::of_number(number)));
        let is_awaited = asks.is_some_and(|asks| lock(&asks.asked).said(from, number, word));
        if !is_awaited {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A member of this process answers a query. Not on the protocol thread, since it waits while too many others do.
    pub(super) fn answer(&self, seat: &Seat, asker: ProcessId, number: u64, word: Word) {
        if let Some(say) = self.word(seat, asker, number, word) {
            self.tell(say);
        }
    }

    /// As [`Shared::answer`], unless that has to wait.
    pub(super) fn try_answer(&self, seat: &Seat, asker: ProcessId, number: u64, word: Word) {
        if let Some(say) = self.word(seat, asker, number, word)
            && self.try_tell(say).is_err()
        {
            debug!(group = seat.name, "a query is not declined: too many commands wait");
        }
    }

    /// The command that tells the asker of a query a member's word; none if the asker is in this process, and was told.
    fn word(&self, seat: &Seat, asker: ProcessId, number: u64, word: Word) -> Option<Command> {
        let word = match &seat.ring {
            None => word,
            Some(ring) => word.sealed(number, ring),
        };
        if asker == self.me {
            self.said(seat.group, (asker, seat.id), number, word);
            return None;
        }
        Some(Command::Say { group: seat.group, to: asker, body: word.encode(number, seat.id) })
    }

    /// Hands a command over that has no end. Not on the protocol thread, since it waits while too many others do.
    pub(super) fn tell(&self, command: Command) {
        // Untaken only if the process has ended.
        let _ = self.port().command(command);
        self.outbox.close();
    }

    /// Sends to a group what nobody waits for. Not on the protocol thread.
    pub(super) fn say(&self, group: GroupId, strength: Strength, update: &[u8]) {
        let ask = || self.port().try_command(Command::Send(Vec::new()));
        if let Err(Refused::Full | Refused::Untaken(Untaken::Full(_))) =
            self.outbox.put((group, strength), update, None, ask)
        {
            let pack = Pack::of(update);
            self.tell(Command::Send(vec![Sending { id: self.id(), group, strength, pack }]));
        }
    }

    /// A member's object is lost. Unless others of this process have theirs, and nobody waits for this one's, the process quits the
    /// group. Also on the protocol thread.
    pub(super) fn lost(&self, seat: &Seat, why: &Error) {
        let group = seat.group;
        let over = {
            let mut rows = lock(&self.rows);
            let Some(row) = rows.get_mut(&group) else { return };
            // A member that waits for its object waits in vain, and cannot tell that from a giver that is slow.
            if row.lose(seat.id) && !seat.owes() { None } else { rows.remove(&group) }
        };
        let told = match over {
            None => self.reseat(group),
            Some(row) => {
                row.all().for_each(|seat| {
                    seat.end(why.clone());
                });
                self.try_tell(Command::Quit { group })
            }
        };
        if let Err(Error::NotSent { .. }) = told {
            warn!("a member that ended cannot leave its group: too many commands wait");
        }
    }

    /// This process has left a group, in order.
    fn left(&self, group: GroupId) {
        let row = lock(&self.rows).remove(&group);
        row.iter().flat_map(Row::all).for_each(|seat| {
            seat.end(Error::not_member("it has left"));
        });
    }

    /// It is out of touch. What the order was given may come about once the routers are back, and they may be away for good: after a while
    /// nobody waits for it any more.
    fn away(self: &Arc<Self>) {
        let loss = self.touch.lose();
        let shared = Arc::downgrade(self);
        let waiting = thread::Builder::new().name(String::from("away")).spawn(move || {
            thread::sleep(AWAY_PATIENCE);
            if let Some(shared) = shared.upgrade() {
                shared.give_up(loss);
            }
        });
        if waiting.is_err() {
            self.give_up(loss);
        }
    }

    /// Nobody waits any more for what is under way, unless the process is back.
    fn give_up(&self, loss: Loss) {
        if !self.touch.give_up(loss) {
            return;
        }
        let is_awaited = |call: &Call| !matches!(call, Call::Leave(_));
        let given_up: Vec<_> = lock(&self.calls).extract_if(|_, call| is_awaited(call)).collect();
        for (_, call) in given_up {
            // The one who waits may have lost interest.
            match call {
                Call::Send { told, .. } => drop(told.send(Err(Failure::MaybeApplied))),
                Call::Other(told) => drop(told.send(Err(Failure::MaybeApplied))),
                Call::Leave(_) => {}
            }
        }
        let seats: Vec<_> = lock(&self.rows).values().flat_map(Row::all).collect();
        seats.iter().for_each(|seat| seat.leave_unheard());
    }

    /// It is in touch again. What was said of claims that were given up, and may not have been sent, is said once more.
    fn back(self: &Arc<Self>) {
        self.touch.regain();
        let seats: Vec<_> = lock(&self.rows).values().flat_map(Row::all).collect();
        let mut unreleased = Vec::new();
        for seat in seats {
            let said = lock(&seat.claims).unreleased();
            if !said.is_empty() {
                unreleased.push((said, seat));
            }
        }
        if unreleased.is_empty() {
            return;
        }
        let shared = self.clone();
        let say = move || {
            for (said, seat) in unreleased {
                for body in said {
                    seat.sealed(&body, |body| shared.say(seat.group, Strength::Ordered, body));
                }
            }
        };
        // Not on the protocol thread: it waits while too many commands do.
        if thread::Builder::new().name(String::from("release")).spawn(say).is_err() {
            warn!(
                "locks that were given up while the routers were away stay held: the system gives no thread"
            );
        }
    }

    /// The process is out, or has ended: so are its members.
    fn end(&self) {
        self.wedged.store(true, Ordering::Release);
        let rows = mem::take(&mut *lock(&self.rows));
        for seat in rows.values().flat_map(Row::all) {
            seat.end(Error::wedged(DROPPED));
        }
        // Callers that wait still are told that nothing comes.
        self.outbox.end();
        lock(&self.calls).clear();
        if let Some(out) = lock(&self.out).take() {
            // The one who waits may have lost interest.
            let _ = out.send(());
        }
    }
}

/// The end of a command that the protocol thread did not take.
fn not_taken<T>(untaken: Untaken<T>) -> Error {
    match untaken {
        Untaken::Full(_) => Error::not_sent("too many commands wait for the protocol thread"),
        Untaken::Stopped(_) => Error::wedged(DROPPED),
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
    news: Sender<Arc<Seat>>,
    /// The last deliveries, all to one group.
    run: Vec<Delivery>,
    run_of: GroupId,
    /// Members that are told it, reused.
    seats: Vec<Arc<Seat>>,
    /// Commands that ended in this turn.
    ended: Vec<(CommandId, Result<Ended, Failure>)>,
    /// Those that something was delivered to in this turn.
    told: Vec<Arc<Seat>>,
}

impl Door {
    fn new(shared: Arc<Shared>, news: Sender<Arc<Seat>>) -> Door {
        Door {
            shared,
            news,
            run: Vec::new(),
            run_of: GroupId(0),
            seats: Vec::new(),
            ended: Vec::new(),
            told: Vec::new(),
        }
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
        let mut seats = mem::take(&mut self.seats);
        if let Some(row) = lock(&self.shared.rows).get(&self.run_of) {
            seats.extend(row.inside());
        }
        let mut run = mem::take(&mut self.run);
        if let Some(last) = seats.pop() {
            for seat in seats.drain(..) {
                self.give(seat, &mut run.clone());
            }
            self.give(last, &mut run);
        }
        run.clear();
        (self.seats, self.run) = (seats, run);
    }

    /// Puts deliveries into a member's inbox, and leaves none.
    fn give(&mut self, seat: Arc<Seat>, deliveries: &mut Vec<Delivery>) {
        if seat.push(deliveries) {
            seat.fail(Error::not_member("it does not keep up: too much waits to be applied"), &self.shared);
        } else if !seat.queued.swap(true, Ordering::AcqRel) {
            self.told.push(seat);
        }
    }

    /// Something for the member that takes what the process is given, and gives what it is asked for.
    fn give_first(&mut self, group: GroupId, delivery: Delivery) {
        self.deliver();
        let rows = lock(&self.shared.rows);
        let first = rows.get(&group).and_then(Row::first);
        // Under the lock under which a member is taken out that is lost: it is not asked, or known to owe.
        first.iter().filter(|_| matches!(delivery, Delivery::Wanted(_))).for_each(|first| first.owe());
        drop(rows);
        if let Some(first) = first {
            self.give(first, &mut vec![delivery]);
        }
    }

    /// A view begins: members of this process come and go with it.
    fn view(&mut self, group: GroupId, view: &Delivery, seats: &[SeatId]) {
        self.deliver();
        let Some(Turn { here, come, gone }) =
            lock(&self.shared.rows).get_mut(&group).map(|row| row.view(seats))
        else {
            return;
        };
        for seat in &here {
            self.give(seat.clone(), &mut vec![view.clone()]);
        }
        for seat in &come {
            seat.wait();
            self.give(seat.clone(), &mut vec![view.clone()]);
        }
        if !come.is_empty() {
            self.give_first(group, Delivery::Wanted(Taker::Seats(come)));
        }
        for seat in gone {
            seat.depart();
        }
        self.shared.reseat_or_warn(group);
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
            // The one who waits may have lost interest.
            match (call, result) {
                (Call::Leave(group), _) => self.shared.left(group),
                (Call::Send { told, .. }, Err(failure)) => drop(told.send(Err(failure))),
                (Call::Send { told, .. }, Ok(Ended::Sent(first))) => drop(told.send(Ok(first))),
                (Call::Other(told), Err(failure)) => drop(told.send(Err(failure))),
                (Call::Other(told), Ok(Ended::Otherwise(outcome))) => drop(told.send(Ok(outcome))),
                (_, Ok(ended)) => unreachable!("a command ended in {ended:?}"),
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        lock(&self.shared.news).take();
        // Also where the protocol thread panicked: nobody is to wait for it.
        self.shared.end();
    }
}

/// The good end of a command.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// Updates were sent, and delivered here, the first at this place.
    Sent(Place),
    /// Another one.
    Otherwise(Outcome),
}

impl Host<Relay<group::Process>> for Door {
    fn event(&mut self, event: Event, _: Time) {
        match event {
            Event::Done { id, result } => self.ended.push((id, result.map(Ended::Otherwise))),
            Event::Sent { id, first } => self.ended.push((id, Ok(Ended::Sent(first)))),
            Event::Restore { group, state } => self.give_first(group, Delivery::Restore(state)),
            Event::View { group, view, arrived, departed, missing, waited } => {
                let view = Arc::new(view);
                let seats = view.seats.of(self.shared.me).to_vec();
                // Shared by all members here, of whom there may be hundreds.
                let (arrived, departed) = (arrived.into(), departed.into());
                self.view(group, &Delivery::View { view, arrived, departed, missing, waited }, &seats);
            }
            Event::CheckpointWanted { group, view } => {
                self.give_first(group, Delivery::Wanted(Taker::Group(view)));
            }
            Event::Keep { group, checkpoint } => self.give_first(group, Delivery::Keep(checkpoint)),
            Event::Deliver { group, sender, updates } => {
                self.push(group, Delivery::Updates { sender, updates });
            }
            Event::Said { group, from, body } => {
                if let Some((number, seat, word)) = Word::decode(&body) {
                    self.shared.said(group, (from, seat), number, word);
                }
            }
            Event::Figures { token, figures } => self.shared.figures.answer(token, figures),
            Event::InTouch(in_touch) => {
                info!(in_touch, "in touch with the routers");
                if in_touch {
                    self.shared.back();
                } else {
                    self.shared.away();
                }
            }
            Event::Wedged => {
                info!("this process is out of the domain");
                self.hand_over();
                self.shared.end();
            }
        }
    }

    fn fill(&mut self, command: &mut Command) {
        if let Command::Send(sends) = command
            && sends.is_empty()
        {
            *sends = self.shared.sends();
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
        debug!(%peer, pass = ?Bytes::copy_from_slice(theirs), "no session with it");
    }
}
