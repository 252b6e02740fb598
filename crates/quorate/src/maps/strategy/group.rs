//! A map as a process group: each cell is a member with a copy, writes are ordered sends, and reads use the
//! cell's own copy.
//!
//! **Promise.** All cells make the same writes in one order. A client that stays with one cell reads its own
//! writes, and never goes back in time. Another cell may be behind for a moment. A write is acknowledged once
//! the cell that the client asked has delivered it. If that cell dies after the acknowledgement, the write
//! survives: the routers chose the write before any cell delivered it, and they deliver it to all other cells
//! of the view. A write can be lost in two cases. In the first case, all cells that have the map's state die.
//! In the second case, a majority of the routers is lost for good, and an operator lets the domain go on from
//! a router that lacks the write. In addition, all cells that had delivered the write are dead.
//!
//! **Why no write is voided.** The members void an ordered message only if soft messages that its sender sent
//! before it are lost (`protocol::group`, *Voided everywhere*). A map sends no soft message, so nothing that
//! a write depends on can be lost.
//!
//! **Source.** Isis2: `OrderedSend`, with a member that gives the state to a joiner ([`crate::group`]).
//!
//! **Answers.** The result of a write depends on the keys at its place in the order, so every copy computes
//! the result when it applies the write. The sender numbers its writes, and its own copy stores each answer
//! by that number.
//!
//! **Time.** A write carries the map's time as its sender estimates it ([`MapClock`]). The copies' time is
//! the latest time in the writes so far, so the copies agree on the keys that have expired. The estimate
//! advances from the copies' time by the sender's monotonic clock. The wall clock corrects it, by at most a
//! tenth of the passed time and half a second at once. So a wall clock that is wrong for ten seconds moves
//! the map's time by at most one second, and the other cells correct the map's time afterwards. Reads use the
//! same estimate as writes.

use std::{
    cmp::Ordering as Order,
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use quorate_protocol::partial::MapId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use super::outcome::{OutcomeFuture, wall};
use super::{
    RequestError,
    keyspace::{Keyspace, KeyspaceAnswer, Request},
};
use crate::{
    group::{self, Corrupt, Member, Object, Origin, Share, Snapshot},
    lock::lock,
    node::Node,
    timer,
};

/// A write in the form in which it is sent.
#[derive(Serialize, Deserialize)]
pub(super) struct Update {
    /// The sender's number for the update.
    number: u64,
    /// The map's time as the sender estimated it, in nanoseconds since 1970.
    time: u64,
    request: Request,
}

/// Answers that no caller has taken yet, by the numbers of the writes.
type Answers = Arc<Mutex<HashMap<u64, KeyspaceAnswer>>>;

/// A cell's estimate of the map's time. Each cell has its own estimate. The map's time is the latest time
/// that a cell has sent.
#[derive(Debug, Default)]
struct MapClock {
    /// The estimate, in nanoseconds since 1970, at a moment of the monotonic clock. `None` if the cell has
    /// neither sent nor received a time.
    at: Option<(u64, Duration)>,
}

/// Upper bound of one correction by the wall clock.
const CORRECTION_MAX: Duration = Duration::from_millis(500);
/// Upper bound of a correction, as the inverse of its share in the time since the last correction.
const CORRECTION_PART: u32 = 10;

impl MapClock {
    /// Raises the estimate to the copies' time, if that is later.
    fn raise(&mut self, time: u64, now: Duration) {
        if self.at.is_none_or(|at| estimate(at, now) < time) {
            self.at = Some((time, now));
        }
    }

    /// Returns the map's time, corrected by the wall clock.
    fn read(&mut self, wall: u64, now: Duration) -> u64 {
        let time = match self.at {
            None => wall,
            Some(at) => {
                let (estimate, passed) = (estimate(at, now), now.saturating_sub(at.1));
                let most = nanos(CORRECTION_MAX.min(passed / CORRECTION_PART));
                match wall.cmp(&estimate) {
                    Order::Less => wall.max(estimate.saturating_sub(most)),
                    Order::Equal => wall,
                    Order::Greater => wall.min(estimate.saturating_add(most)),
                }
            }
        };
        self.at = Some((time, now));
        time
    }
}

fn estimate((time, then): (u64, Duration), now: Duration) -> u64 {
    time.saturating_add(nanos(now.saturating_sub(then)))
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A map's clock at a cell, and the moment from which the cell counts.
#[derive(Clone)]
struct SharedMapClock(Arc<Mutex<MapClock>>, Instant);

impl Default for SharedMapClock {
    fn default() -> SharedMapClock {
        SharedMapClock(Arc::default(), Instant::now())
    }
}

impl SharedMapClock {
    fn raise(&self, time: u64) {
        lock(&self.0).raise(time, self.1.elapsed());
    }

    fn read(&self) -> u64 {
        lock(&self.0).read(wall(), self.1.elapsed())
    }
}

/// A cell's copy of a map that a group replicates.
#[derive(Default)]
pub(super) struct Copy {
    state: State,
    answers: Answers,
    clock: SharedMapClock,
}

/// The part of a copy that is the same at all cells.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    keys: Keyspace,
    /// The latest time in the writes so far, in nanoseconds since 1970.
    time: u64,
}

impl Object for Copy {
    type Update = Update;
    type Query = ();
    type Reply = ();

    fn name(&self) -> &str {
        "quorate map/1"
    }

    fn apply(&mut self, update: Update, origin: &Origin) {
        let State { keys, time } = &mut self.state;
        *time = update.time.max(*time);
        self.clock.raise(*time);
        let (answer, changes) = keys.decide(&update.request, *time);
        changes.iter().for_each(|change| drop(keys.apply(change)));
        if origin.own {
            lock(&self.answers).insert(update.number, answer);
        }
    }

    fn query(&self, (): (), _: Share) -> group::Answer<()> {
        group::Answer::Now(())
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::later(self.state.clone())
    }

    fn restore(&self, snapshot: &Snapshot) -> Result<Copy, Corrupt> {
        let (state, clock): (State, _) = (snapshot.read()?, self.clock.clone());
        if state.time > 0 {
            clock.raise(state.time);
        }
        Ok(Copy { state, answers: self.answers.clone(), clock })
    }
}

/// A cell's part in a map that a group keeps.
pub(super) struct GroupMap {
    member: watch::Receiver<Option<Member<Copy>>>,
    answers: Answers,
    clock: SharedMapClock,
    last: AtomicU64,
    /// A sender without messages. Dropping it makes the member leave.
    _stays: watch::Sender<()>,
}

/// Interval at which the member is checked, and the pause before the next attempt to join.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time that a command waits for this cell to be a member.
const PATIENCE: Duration = Duration::from_secs(5);

impl GroupMap {
    /// Begins to join the group. The returned future joins again whenever the group has dropped the member.
    /// The future ends when the map is dropped.
    pub(super) fn begin(node: Node, map: MapId) -> (GroupMap, Pin<Box<dyn Future<Output = ()> + Send>>) {
        let (answers, clock) = (Answers::default(), SharedMapClock::default());
        let (member_sender, member) = watch::channel(None);
        let (stays, mut stay) = watch::channel(());
        let belong = {
            let (answers, clock) = (answers.clone(), clock.clone());
            async move {
                // The check fails once the sender is dropped.
                while stay.has_changed().is_ok() {
                    let copy =
                        Copy { state: State::default(), answers: answers.clone(), clock: clock.clone() };
                    let member = match node.group(format!("map-{}", map.0)).join(copy).await {
                        Ok(member) => member,
                        Err(error) => {
                            warn!(%error, map = map.0, "this cell is not in the map's group yet, and tries again");
                            timer::sleep(LOOK_EVERY).await;
                            continue;
                        }
                    };
                    info!(map = map.0, process = %member.id(), "this cell is in the map's group");
                    member_sender.send_replace(Some(member.clone()));
                    while member.ended().is_none() {
                        let gone = timer::timeout(LOOK_EVERY, stay.changed()).await;
                        if gone.is_some_and(|changed| changed.is_err()) {
                            break;
                        }
                    }
                    member_sender.send_replace(None);
                    // The member leaves when its last holder drops it. Requests in progress hold it, too.
                    drop(member);
                }
            }
        };
        (GroupMap { member, answers, clock, last: AtomicU64::new(0), _stays: stays }, Box::pin(belong))
    }

    /// Returns the number of members, if this cell is a member.
    pub(super) fn members(&self) -> Option<usize> {
        Some(self.member.borrow().as_ref()?.view().ok()?.members.len())
    }

    pub(super) fn ask(&self, request: Request) -> OutcomeFuture {
        let mut member = self.member.clone();
        let (answers, clock) = (self.answers.clone(), self.clock.clone());
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let ready = timer::timeout(PATIENCE, async {
                member.wait_for(Option::is_some).await.ok().and_then(|member| member.clone())
            });
            let Some(Some(member)) = ready.await else {
                return Err(RequestError::NotDone(String::from(
                    "this cell is not in the map's group at present",
                )));
            };
            if request.is_read() {
                return member
                    .read(|copy| copy.state.keys.read(&request, clock.read()))
                    .map_err(RequestError::of);
            }
            let _forgotten = Forget(&answers, number);
            member
                .ordered_send(Update { number, time: clock.read(), request })
                .await
                .map_err(RequestError::of)?;
            // A read first applies all deliveries.
            member.read(|_| ()).map_err(|error| RequestError::MaybeApplied(error.to_string()))?;
            let answer = lock(&answers).remove(&number);
            answer.ok_or_else(|| {
                RequestError::MaybeApplied(String::from(
                    "this cell left the map's group and joined it again while the request was under way",
                ))
            })
        })
    }
}

/// A guard that removes an answer if no caller takes it.
struct Forget<'a>(&'a Answers, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const HOUR: u64 = 3_600 * SECOND;
    const NOW: u64 = 1_795_000_000 * SECOND;

    /// Runs cells that send each other the map's time, ten times a second each. Returns by how much the map's
    /// time is ahead at the end.
    fn ahead_after(
        clocks: &mut [MapClock],
        from: u64,
        seconds: u64,
        wrong: impl Fn(usize, u64) -> u64,
    ) -> i64 {
        let mut time = 0;
        for tenth in from * 10..(from + seconds) * 10 {
            let passed = tenth * SECOND / 10;
            for cell in 0..clocks.len() {
                let now = Duration::from_nanos(passed);
                time = clocks[cell].read(NOW + passed + wrong(cell, passed), now).max(time);
                clocks.iter_mut().for_each(|clock| clock.raise(time, now));
            }
        }
        time as i64 - (NOW + (from + seconds) * SECOND) as i64
    }

    /// The wall clock of one cell is an hour ahead for one second. Values whose lives begin afterwards live
    /// as long as they should.
    #[test]
    fn a_wall_clock_that_jumps_moves_the_maps_time_by_little() {
        let mut clocks = [MapClock::default(), MapClock::default(), MapClock::default()];
        let right = |_, _| 0;
        assert!(ahead_after(&mut clocks, 0, 5, right).unsigned_abs() < SECOND);
        let jumped = |cell, _| if cell == 1 { HOUR } else { 0 };
        let ahead = ahead_after(&mut clocks, 5, 1, jumped);
        assert!(ahead.unsigned_abs() < SECOND / 2, "{ahead}");
        let ahead = ahead_after(&mut clocks, 6, 10, right);
        assert!(ahead.unsigned_abs() < SECOND / 5, "{ahead}");
    }

    /// The first cell that wrote had a wrong clock. The other cells pull the map's time to their clocks.
    #[test]
    fn a_wrong_initial_time_is_corrected() {
        let mut clocks = [MapClock::default(), MapClock::default(), MapClock::default()];
        clocks[0].raise(NOW + 10 * SECOND, Duration::ZERO);
        assert!(ahead_after(&mut clocks, 0, 200, |_, _| 0).unsigned_abs() < SECOND / 2);
    }

    /// After an hour without writes a clock jumps. The map's time follows the jump by half a second at most.
    #[test]
    fn an_idle_map_follows_no_jump() {
        let mut clock = MapClock::default();
        clock.read(NOW, Duration::ZERO);
        let time = clock.read(NOW + 2 * HOUR, Duration::from_secs(3_600));
        assert_eq!(time, NOW + HOUR + SECOND / 2);
    }
}
