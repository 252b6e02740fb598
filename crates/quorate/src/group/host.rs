//! The protocol thread's access to the members of a process.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use crossbeam_channel::Sender;
use quorate_protocol::{
    CommandId, DomainId, ProcessId, Protocol, Time,
    group::{self, Command, CommandOutcome, Event, Failure, GroupId, Place, SeatId},
    relay::Relay,
};
use quorate_runtime::{
    Host,
    discover::{DomainAnswer, DomainState},
};
use tracing::{debug, info};

use super::{
    open_commands::{OpenCommand, complete},
    open_queries::QueryAnswer,
    row::{SeatRow, ViewChange},
    shared::{Delivery, GroupShared, Seat, StateReceiver},
};
use crate::{error::Error, lock::lock};

/// Upper bound of the bytes in an inbox. Above it the member is removed because it does not keep up.
const INBOX_BYTES_MAX: usize = 256 << 20;

/// The protocol thread's access to the members. The host passes deliveries on at the end of a turn, so that
/// it takes a lock once for many messages. It reports the end of a command after all earlier deliveries.
pub(super) struct GroupHost {
    shared: Arc<GroupShared>,
    news: Sender<Arc<Seat>>,
    /// The latest deliveries, all to the group `run_of`, which are not in the inboxes yet.
    run: Vec<Delivery>,
    run_of: GroupId,
    /// The receivers of `run`, in a buffer that is reused to save allocations.
    seats: Vec<Arc<Seat>>,
    /// Commands that ended in this turn.
    ended: Vec<(CommandId, Result<CommandSuccess, Failure>)>,
    /// Members that received a delivery in this turn.
    notified: Vec<Arc<Seat>>,
}

impl GroupHost {
    pub(super) fn new(shared: Arc<GroupShared>, news: Sender<Arc<Seat>>) -> GroupHost {
        GroupHost {
            shared,
            news,
            run: Vec::new(),
            run_of: GroupId(0),
            seats: Vec::new(),
            ended: Vec::new(),
            notified: Vec::new(),
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

    /// Puts deliveries into a member's inbox, and leaves the vector empty.
    fn give(&mut self, seat: Arc<Seat>, deliveries: &mut Vec<Delivery>) {
        if let Some(why) = seat.push(deliveries, INBOX_BYTES_MAX) {
            seat.fail(why, &self.shared);
        } else if !seat.queued.swap(true, Ordering::AcqRel) {
            self.notified.push(seat);
        }
    }

    /// Delivers to one member: the member that receives states for the process and gives its object on
    /// request.
    fn give_first(&mut self, group: GroupId, delivery: Delivery) {
        self.deliver();
        let rows = lock(&self.shared.rows);
        let first = rows.get(&group).and_then(SeatRow::first);
        // The owed object is counted under the lock under which a lost member is removed. So a lost member
        // either is not asked for its object, or is known to owe it.
        let is_owed = matches!(delivery, Delivery::StateWanted(_) | Delivery::Progress);
        first.iter().filter(|_| is_owed).for_each(|first| first.owe());
        drop(rows);
        if let Some(first) = first {
            self.give(first, &mut vec![delivery]);
        }
    }

    /// Begins a view, in which members of this process may come and go.
    fn view(&mut self, group: GroupId, view: &Delivery, seats: &[SeatId]) {
        self.deliver();
        let Some(ViewChange { here, come, gone }) =
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
            self.give_first(group, Delivery::StateWanted(StateReceiver::Seats(come)));
        }
        for seat in gone {
            seat.depart();
        }
        self.shared.reseat(group);
    }

    fn hand_over(&mut self) {
        self.deliver();
        if self.ended.is_empty() {
            return;
        }
        let ended = self.ended.drain(..).map(|(id, result)| (id.0, result));
        let ended = self.shared.calls.answer_each(ended, |call, result| Some((call.remove(), result)));
        for (call, result) in ended {
            // The caller may no longer wait.
            match (call, result) {
                (OpenCommand::Leave(life), _) => {
                    self.shared.out(life, &Error::not_member("the member has left the group"))
                }
                (OpenCommand::Join { life, file, result_sender }, Err(failure)) => {
                    let why = match failure {
                        Failure::Stale(newest) => Error::Stale { file, newest },
                        other => other.into(),
                    };
                    self.shared.out(life, &why);
                    let _ = result_sender.send(Err(failure));
                }
                (OpenCommand::Join { result_sender, .. }, Ok(CommandSuccess::Otherwise(outcome))) => {
                    complete(result_sender, Ok(outcome))
                }
                (OpenCommand::Send { result_sender, .. }, Err(failure)) => {
                    complete(result_sender, Err(failure))
                }
                (OpenCommand::Send { result_sender, .. }, Ok(CommandSuccess::Sent(first))) => {
                    complete(result_sender, Ok(first))
                }
                (OpenCommand::Other(result_sender), Err(failure)) => complete(result_sender, Err(failure)),
                (OpenCommand::Other(result_sender), Ok(CommandSuccess::Otherwise(outcome))) => {
                    complete(result_sender, Ok(outcome))
                }
                (_, Ok(ended)) => unreachable!("a command ended in {ended:?}"),
            }
        }
    }
}

impl Drop for GroupHost {
    fn drop(&mut self) {
        lock(&self.shared.news).take();
        // This code also runs after a panic of the protocol thread, so that no caller waits for that thread.
        self.shared.end();
    }
}

/// The outcome of a command that succeeded.
#[derive(Clone, Copy, Debug)]
enum CommandSuccess {
    /// Updates were sent and delivered here. The place is the place of the first update.
    Sent(Place),
    /// A command other than a send succeeded.
    Otherwise(CommandOutcome),
}

impl Host<Relay<group::Process>> for GroupHost {
    fn event(&mut self, event: Event, _: Time) {
        match event {
            Event::Done { id, result } => self.ended.push((id, result.map(CommandSuccess::Otherwise))),
            Event::Sent { id, first } => self.ended.push((id, Ok(CommandSuccess::Sent(first)))),
            Event::Restore { group, state } => self.give_first(group, Delivery::Restore(state)),
            Event::View { group, view, arrived, departed, missing, waited } => {
                let view = Arc::new(view);
                let seats = view.seats.of(self.shared.me).to_vec();
                // All members in this process share the two lists; there may be hundreds of members.
                let (arrived, departed) = (arrived.into(), departed.into());
                self.view(group, &Delivery::View { view, arrived, departed, missing, waited }, &seats);
            }
            Event::CheckpointWanted { group, view } => {
                self.give_first(group, Delivery::StateWanted(StateReceiver::Group(view)));
            }
            Event::ProgressWanted { group } => self.give_first(group, Delivery::Progress),
            Event::Keep { group, checkpoint } => self.give_first(group, Delivery::Keep(checkpoint)),
            Event::Deliver { group, sender, updates } => {
                self.push(group, Delivery::Updates { sender, updates });
            }
            Event::Said { group, from, body } => {
                if let Some((number, seat, answer)) = QueryAnswer::decode(&body) {
                    self.shared.take_answer(group, (from, seat), number, answer);
                }
            }
            Event::Figures { token, figures } => self.shared.figures.answer(token, figures),
            Event::InTouch(in_touch) => {
                info!(in_touch, "this process has lost or regained contact with the routers");
                if in_touch {
                    self.shared.on_touch_regained();
                } else {
                    self.shared.on_touch_lost();
                }
            }
            Event::Wedged => {
                info!("this process is no longer in the domain");
                self.hand_over();
                self.shared.end();
            }
        }
    }

    fn complete_command(&mut self, command: &mut Command) {
        if let Command::Send(sends) = command
            && sends.is_empty()
        {
            *sends = self.shared.sends();
        }
        for group in self.shared.owed.settle(command) {
            self.shared.reseat(group);
        }
    }

    fn batch_ended(&mut self, _: Time) {
        self.hand_over();
        for seat in self.notified.drain(..) {
            // The delivery thread lives longer than the protocol thread.
            let _ = self.news.send(seat);
        }
    }

    fn answer(&self, relay: &Relay<group::Process>, _: DomainId) -> DomainAnswer {
        DomainAnswer { presence: DomainState::Settled, pass: relay.policy().pass() }
    }

    fn policy_mismatch(&mut self, peer: ProcessId, _: &[u8], theirs: &[u8]) {
        // The peer tries again and again, and each attempt is logged, so the level is low.
        debug!(%peer, pass = ?Bytes::copy_from_slice(theirs), "this process has no session with another process, because the two belong to different generations of the domain");
    }
}
