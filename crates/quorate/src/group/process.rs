//! A process with groups: one member of the domain on a reactor, the delivery thread, and the thread that
//! seeks routers.
//!
//! ```text
//!   callers ── updates, in packs ──▶ outbox ──▶ protocol thread
//!   protocol thread ── deliveries ──▶ inbox of each seat ── "something is there" ──▶ delivery thread
//!                   ── ends of commands ──▶ their callers
//!   seeking thread  ── who listens at the routers' addresses ──▶ protocol thread
//! ```

use std::{
    mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_protocol::{
    CommandId, DomainId, Peer, ProcessId,
    ecast::MemberSettings,
    group::{
        self, Command, Failure, GroupCounters, GroupId, Mark, Pack, SEATS_MAX, SeatId, SendStrength, Sending,
        Settings,
    },
    relay::{self, Relay},
    seam::CAST_BYTES_MAX,
};
use quorate_runtime::{CommandError, Config, Port, config::cast_bytes, counters::Counters};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::warn;

use super::{
    host::GroupHost,
    open_commands::{CommandEnd, OpenCommand, RowLife, complete},
    open_queries::QueryAnswer,
    outbox::{Outbox, PackBounds, Packing, PutError, Sent},
    owed::Owed,
    row::{SeatCommand, SeatRow},
    shared::{GroupShared, Seat},
    touch::{Loss, Touch},
};
use crate::{
    error::{Error, groups::DROPPED},
    lock::lock,
    seek::Search,
    shell::{Shell, seeds_to},
    waiters::{Calls, Waiters},
};

/// Longest wait for the protocol thread to report its counters.
const FIGURES_PATIENCE: Duration = Duration::from_millis(800);
/// Longest wait for open calls once the process is out of touch with the routers.
const AWAY_PATIENCE: Duration = Duration::from_secs(3);
/// Upper bound of the ordered or safe updates that travel together, in bytes. A longer update travels alone.
const ORDERED_PACK_BYTES: usize = 16 << 10;

/// A running process. The process ends when its last holder drops it.
pub(super) struct Process {
    pub(super) shared: Arc<GroupShared>,
    domain: DomainId,
    shell: Shell<Relay<group::Process>>,
}

impl Process {
    /// Starts the threads. `routers` are possible addresses of routers. At most `updates` updates travel in
    /// one message.
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
        let shared = Arc::new(GroupShared::new(me, news.clone(), bounds, settings.body_bytes_max));
        let member = group::Process::new(Peer { id: me, address }, settings, MemberSettings::default());
        let relay = Relay::new(member, relay::Settings::default());
        let host = GroupHost::new(shared.clone(), news);
        let shell = Shell::start(relay, host, config, None, None, &shared.port).map_err(Error::start)?;
        let applying = shared.clone();
        let process = Process { shared, domain, shell };
        thread::Builder::new().name(String::from("deliver")).spawn(move || apply(&applying, &deliver))?;
        let port = process.shared.port().clone();
        process.shell.seek(Search::quiet(domain, me, routers), seeds_to(port, Command::Seeds))?;
        Ok(process)
    }

    pub(super) fn me(&self) -> ProcessId {
        self.shared.me
    }

    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }

    /// Gives a new member a seat. Also returns whether the member is the first of its group in this process,
    /// so that the process has to join the group.
    pub(super) fn seat(
        &self,
        group: GroupId,
        is_alone: bool,
        seat: impl FnOnce(SeatId) -> Seat,
    ) -> Result<(Arc<Seat>, bool), Error> {
        let mut rows = lock(&self.shared.rows);
        let seat = |id| Arc::new(seat(id));
        let Some(row) = rows.get_mut(&group) else {
            let row = SeatRow::new(self.shared.lives.fetch_add(1, Ordering::Relaxed), seat);
            let first = row.first().expect("a new row has one seat");
            rows.insert(group, row);
            return Ok((first, true));
        };
        if is_alone || row.all().any(|seat| seat.is_alone()) {
            return Err(Error::invalid(
                "this node has a member of the group already: a group with a key or a checkpoint file has \
                 at most one member in each node",
            ));
        }
        let taken = row.take(seat).ok_or_else(|| {
            Error::start(format!(
                "this process is about to leave the group, or has {SEATS_MAX} members of the group already"
            ))
        })?;
        Ok((taken, false))
    }

    /// Leaves the domain. A receive error means that the process had left before.
    pub(super) fn exit(&self) -> oneshot::Receiver<()> {
        let (result_sender, out) = oneshot::channel();
        if !self.shared.is_wedged() {
            *lock(&self.shared.out) = Some(result_sender);
            self.shared.pass_command(Command::Exit);
        }
        out
    }

    pub(super) fn groups(&self) -> Vec<Arc<Seat>> {
        lock(&self.shared.rows).values().flat_map(SeatRow::all).collect()
    }

    /// Returns the protocol's counters, and the number of bytes that were delivered and are not applied.
    /// `None` if the protocol thread does not answer in time.
    pub(super) fn figures(&self) -> Option<(GroupCounters, usize)> {
        let ask = |token| self.shared.try_pass_command(Command::Figures { token }).is_ok();
        let figures = self.shared.figures.call(FIGURES_PATIENCE, ask).ok()?;
        Some((figures, self.groups().iter().map(|seat| seat.waiting_bytes()).sum()))
    }

    /// Returns the counters of the process's sockets.
    pub(super) fn counters(&self) -> &Counters {
        self.shared.port().node().counters()
    }

    /// Returns the number of replies that came after their query had ended.
    pub(super) fn late_replies(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
    }

    /// Ends the process at once.
    pub(super) fn stop(&self) {
        self.shell.stop();
        self.shared.end();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

impl GroupShared {
    pub(super) fn new(
        me: ProcessId,
        news: Sender<Arc<Seat>>,
        bounds: PackBounds,
        answer_bytes_max: usize,
    ) -> GroupShared {
        GroupShared {
            me,
            port: OnceLock::new(),
            rows: Mutex::default(),
            news: Mutex::new(Some(news)),
            outbox: Outbox::new(bounds),
            calls: Waiters::default(),
            figures: Calls::default(),
            late: AtomicU64::new(0),
            touch: Touch::default(),
            owed: Owed::default(),
            lives: AtomicU64::new(0),
            numbers: Arc::default(),
            answer_bytes_max,
            wedged: AtomicBool::new(false),
            out: Mutex::new(None),
        }
    }

    fn port(&self) -> &Port<Relay<group::Process>> {
        self.port.get().expect("the port is set before the process is shared")
    }

    pub(super) fn is_wedged(&self) -> bool {
        self.wedged.load(Ordering::Acquire)
    }

    /// Checks that the process is in touch with the routers, so that its state counts as current.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_wedged() {
            return Err(Error::wedged(DROPPED));
        }
        if self.touch.is_in() { Ok(()) } else { Err(Error::OutOfTouch) }
    }

    /// Passes an update to the outbox. The future reports the outcome of the update.
    pub(super) fn send(
        &self,
        to: (GroupId, SendStrength),
        update: &[u8],
        room: OwnedSemaphorePermit,
    ) -> Result<Sent, Error> {
        let put =
            self.outbox.put(to, update, Some(room), || self.port().try_command(Command::Send(Vec::new())));
        put.map_err(|refused| match refused {
            PutError::Over => Error::wedged(DROPPED),
            PutError::Full => unreachable!("it has room"),
            PutError::Untaken(untaken) => not_taken(untaken),
        })
    }

    /// Passes a command to the protocol. The future reports the outcome of the command.
    pub(super) fn call(&self, command: impl FnOnce(CommandId) -> Command) -> Result<CommandEnd, Error> {
        let (result_sender, ending) = oneshot::channel();
        self.hand_over(OpenCommand::Other(result_sender), command)?;
        Ok(ending)
    }

    /// Makes this process join a group for a seated member, with the checkpoint in this file.
    pub(super) fn join(
        &self,
        seat: &Seat,
        file: Option<Mark>,
        command: impl FnOnce(CommandId) -> Command,
    ) -> Result<CommandEnd, Error> {
        let (result_sender, ending) = oneshot::channel();
        let life = lock(&self.rows).get(&seat.group).map_or(0, SeatRow::life);
        self.hand_over(OpenCommand::Join { life: (seat.group, life), file, result_sender }, command)?;
        Ok(ending)
    }

    /// Makes a member leave after all its sends. The member goes on until it is out of the group, because
    /// other members may need its state.
    pub(super) fn leave(&self, seat: &Arc<Seat>) -> CommandEnd {
        let (result_sender, ending) = oneshot::channel();
        seat.set_end_sender(result_sender);
        if let Some(row) = lock(&self.rows).get_mut(&seat.group) {
            row.leave(seat.id);
        }
        self.reseat(seat.group);
        if self.touch.is_given_up() {
            seat.leave_unheard();
        }
        ending
    }

    /// Notes that a member has got its object from another member of this process. A leaving member may have
    /// stayed to give the object.
    pub(super) fn got(&self, seat: &Seat) {
        if let Some(row) = lock(&self.rows).get_mut(&seat.group) {
            row.got(seat.id);
        }
        self.reseat(seat.group);
    }

    /// If this process's seats in a group have changed, sends the present seats to the protocol, after all
    /// commands so far. Runs on any thread. If the queue of commands is full, the seats are sent with the
    /// next command that the protocol takes.
    pub(super) fn reseat(&self, group: GroupId) {
        // The command is sent under the lock, so that commands arrive in the order in which they were made.
        let mut rows = lock(&self.rows);
        let Some(row) = rows.get_mut(&group) else { return };
        let seat_command = row.seat_command();
        let passed = match &seat_command {
            SeatCommand::Nothing => return,
            SeatCommand::Seats(seats) => {
                self.try_pass_command(Command::Seats { group, seats: seats.clone() })
            }
            SeatCommand::Leave => {
                let leave = |id| Command::Leave { id, group };
                self.hand_over(OpenCommand::Leave((group, row.life())), leave)
            }
        };
        match passed {
            Ok(()) => row.sent(seat_command),
            // The queue is full. The command does not become an owed command, because it must not overtake
            // earlier sends.
            Err(_) => {
                self.owed.insert(group);
                self.wake();
            }
        }
    }

    /// Saves the state of a member that is about to leave, if the member has a checkpoint file. From then on
    /// the member sends nothing.
    pub(super) fn close(&self, seat: &Seat) -> Option<Result<CommandEnd, Error>> {
        let group = seat.group;
        seat.keeper.as_ref()?;
        Some(self.call(|id| Command::Save { id, group, last: true }))
    }

    fn hand_over(&self, call: OpenCommand, command: impl FnOnce(CommandId) -> Command) -> Result<(), Error> {
        let is_awaited = !matches!(call, OpenCommand::Leave(_));
        let handed = self.calls.send(
            call,
            || Error::wedged(DROPPED),
            |id| {
                // The check comes after the call was entered in the table. The thread that gives up waiting
                // for touch ends all calls in the table. So either that thread finds the call, or this check
                // sees that waiting was given up.
                if is_awaited && self.touch.is_given_up() {
                    return Err(Error::OutOfTouch);
                }
                self.try_pass_command(command(CommandId(id)))
            },
        );
        handed.map(drop)
    }

    /// Passes a command to the protocol, unless too many commands wait.
    fn try_pass_command(&self, command: Command) -> Result<(), Error> {
        self.port().try_command(command).map_err(not_taken)?;
        self.outbox.close();
        Ok(())
    }

    /// Takes the updates of the next batch, for a command that sends them.
    pub(super) fn sends(&self) -> Vec<Sending> {
        self.calls.add_each(
            self.outbox.take(),
            |Packing { group, strength, writer, result_sender, rooms, .. }, id| {
                let pack = writer.finish().expect("a pack begins with an update");
                let sending = Sending { id: CommandId(id), group, strength, pack };
                (OpenCommand::Send { result_sender, _rooms: rooms }, sending)
            },
        )
    }

    /// Queues a member for the delivery thread, once.
    pub(super) fn queue_for_delivery(&self, seat: Arc<Seat>) {
        if !seat.queued.swap(true, Ordering::AcqRel)
            && let Some(news) = &*lock(&self.news)
        {
            // The delivery thread lives longer than the thread that removes `news`.
            let _ = news.send(seat);
        }
    }

    /// Takes the answer of a group's member to a query that a member in this process asked.
    pub(super) fn take_answer(
        &self,
        group: GroupId,
        from: (ProcessId, SeatId),
        number: u64,
        answer: QueryAnswer,
    ) {
        let asks = lock(&self.rows).get(&group).and_then(|row| row.get(SeatId::of_number(number)));
        let is_awaited = asks.is_some_and(|asks| lock(&asks.open_queries).take_answer(from, number, answer));
        if !is_awaited {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends the answer of a member in this process. Does not run on the protocol thread, because it blocks
    /// while too many commands wait.
    pub(super) fn answer(&self, seat: &Seat, asker: ProcessId, number: u64, answer: QueryAnswer) {
        if let Some(say) = self.answer_command(seat, asker, number, answer) {
            self.pass_command(say);
        }
    }

    /// Sends an answer of a few bytes like [`GroupShared::answer`], on any thread.
    pub(super) fn answer_briefly(&self, seat: &Seat, asker: ProcessId, number: u64, answer: QueryAnswer) {
        if let Some(say) = self.answer_command(seat, asker, number, answer) {
            self.command_owed(say);
        }
    }

    /// Returns the command that carries a member's answer to the asker. If the asker is in this process,
    /// delivers the answer and returns `None`.
    fn answer_command(
        &self,
        seat: &Seat,
        asker: ProcessId,
        number: u64,
        answer: QueryAnswer,
    ) -> Option<Command> {
        let answer = answer.within(self.answer_bytes_max);
        let answer = match &seat.group_keys {
            None => answer,
            Some(group_keys) => answer.sealed(number, group_keys),
        };
        if asker == self.me {
            self.take_answer(seat.group, (asker, seat.id), number, answer);
            return None;
        }
        Some(Command::Say { group: seat.group, to: asker, body: answer.encode(number, seat.id) })
    }

    /// Passes a command that reports no end to the protocol. Must not run on the protocol thread, because
    /// this call blocks while too many commands wait.
    pub(super) fn pass_command(&self, command: Command) {
        // The command is refused only if the process has ended.
        let _ = self.port().command(command);
        self.outbox.close();
    }

    /// Sends a message to a group. No caller waits for the outcome. Must not run on the protocol thread.
    pub(super) fn say(&self, group: GroupId, strength: SendStrength, update: &[u8]) {
        let ask = || self.port().try_command(Command::Send(Vec::new()));
        if let Err(PutError::Full | PutError::Untaken(CommandError::Full(_))) =
            self.outbox.put((group, strength), update, None, ask)
        {
            let pack = Pack::of(update);
            let id = CommandId(self.calls.token());
            self.pass_command(Command::Send(vec![Sending { id, group, strength, pack }]));
        }
    }

    /// Makes the protocol take a command before all waiting commands. This call never blocks, so any thread
    /// may make it. This call serves commands without which this process would stay in a view without acting,
    /// or another process would wait in vain.
    pub(super) fn command_owed(&self, command: Command) {
        self.owed.push(command);
        self.wake();
    }

    /// Makes the protocol take a command soon, and all owed work with it.
    fn wake(&self) {
        // If the queue is full, the protocol is about to take a command, and takes the owed work with that
        // command. If the process has ended, nobody waits for owed work.
        let _ = self.try_pass_command(Command::Several(Vec::new()));
    }

    /// Handles the loss of a member's object. The process quits the group, unless another member here has the
    /// object and nobody waits for the lost object. Also runs on the protocol thread.
    pub(super) fn lose_member(&self, seat: &Seat, why: &Error) {
        let group = seat.group;
        let over = {
            let mut rows = lock(&self.rows);
            let Some(row) = rows.get_mut(&group) else { return };
            // A member that waits for the lost object cannot tell a lost giver from a slow giver, and would
            // wait in vain.
            if row.lose(seat.id) && !seat.owes() {
                None
            } else {
                // The command is sent under the lock, so that a later join of the group comes after it.
                self.command_owed(Command::Quit { group });
                rows.remove(&group)
            }
        };
        match over {
            None => self.reseat(group),
            Some(row) => row.all().for_each(|seat| {
                seat.end(why.clone());
            }),
        }
    }

    /// Ends the members in this process's row `life` of the group, because the process has left the group or
    /// was not admitted. Does nothing if the process has a later row of the group.
    pub(super) fn out(&self, (group, life): RowLife, why: &Error) {
        let mut rows = lock(&self.rows);
        if rows.get(&group).is_none_or(|row| row.life() != life) {
            // The members that this call would end have ended already, and later members of the same group
            // may be in their place.
            return;
        }
        let row = rows.remove(&group);
        drop(rows);
        row.iter().flat_map(SeatRow::all).for_each(|seat| {
            seat.end(why.clone());
        });
    }

    /// Notes that the process is out of touch. Requests that went to the routers may take effect once the
    /// routers are back, but the routers may be away for good. So callers wait for at most `AWAY_PATIENCE`.
    pub(super) fn on_touch_lost(self: &Arc<Self>) {
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

    /// Ends the waits of all callers with open requests, unless the process is back in touch.
    fn give_up(&self, loss: Loss) {
        if !self.touch.give_up(loss) {
            return;
        }
        for call in self.calls.take_where(|call| !matches!(call, OpenCommand::Leave(_))) {
            match call {
                OpenCommand::Send { result_sender, .. } => {
                    complete(result_sender, Err(Failure::MaybeApplied))
                }
                OpenCommand::Other(result_sender) | OpenCommand::Join { result_sender, .. } => {
                    complete(result_sender, Err(Failure::MaybeApplied))
                }
                OpenCommand::Leave(_) => {}
            }
        }
        let seats: Vec<_> = lock(&self.rows).values().flat_map(SeatRow::all).collect();
        seats.iter().for_each(|seat| seat.leave_unheard());
    }

    /// Notes that the process is in touch again. Sends the releases of claims that may not have been sent.
    pub(super) fn on_touch_regained(self: &Arc<Self>) {
        self.touch.regain();
        let seats: Vec<_> = lock(&self.rows).values().flat_map(SeatRow::all).collect();
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
                    seat.sealed(&body, |body| shared.say(seat.group, SendStrength::Ordered, body));
                }
            }
        };
        // The releases run on a thread of their own, because `say` blocks while too many commands wait.
        if thread::Builder::new().name(String::from("release")).spawn(say).is_err() {
            warn!(
                "locks that were released while the routers were away stay held, because the system gives \
                 no thread"
            );
        }
    }

    /// Ends the members, because the process is out of the domain or has ended.
    pub(super) fn end(&self) {
        self.wedged.store(true, Ordering::Release);
        let rows = mem::take(&mut *lock(&self.rows));
        for seat in rows.values().flat_map(SeatRow::all) {
            seat.end(Error::wedged(DROPPED));
        }
        // Callers that still wait get an error.
        self.outbox.end();
        self.calls.close();
        if let Some(out) = lock(&self.out).take() {
            // The caller may no longer wait.
            let _ = out.send(());
        }
    }
}

/// Returns the error for a command that did not reach the protocol thread.
fn not_taken<T>(untaken: CommandError<T>) -> Error {
    match untaken {
        CommandError::Full(_) => Error::not_sent("too many commands wait for the protocol thread"),
        CommandError::Stopped(_) => Error::wedged(DROPPED),
    }
}

/// Applies deliveries until all senders of the channel are dropped.
fn apply(shared: &Arc<GroupShared>, deliver: &Receiver<Arc<Seat>>) {
    for seat in deliver {
        seat.deliver(shared);
    }
}
