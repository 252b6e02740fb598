//! A map as a process group: each cell is a member and has a copy, writes are ordered sends, and reads look at the cell's own copy.
//!
//! **Promise.** All cells make the same writes in one order. A client that stays with one cell reads its own writes, and never goes back in
//! time. Another cell may be behind for a moment. A write is acknowledged once it was delivered at the cell that was asked; one
//! that this cell alone has when it dies is lost, as ordered sends are.
//!
//! **Source.** Isis2: `OrderedSend`, with the state of a joiner given by a member ([`crate::group`]).
//!
//! **Answers.** What a write comes to is known where it is applied, and so at the sender's own copy. The write carries a number that its
//! sender made up, under which the copy that is the sender's leaves the answer.
//!
//! **Time.** A write carries its sender's clock. The copies' time is the latest that they were sent, so they agree which keys are over.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quorate_protocol::partial::MapId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    Asked, Undone,
    keyspace::{Answer, Keyspace, Request},
    wall,
};
use crate::{
    group::{self, Corrupt, Member, Object, Origin, Share, Snapshot},
    node::Node,
    timer,
};

/// A write, as it is sent.
#[derive(Serialize, Deserialize)]
pub(super) struct Update {
    /// The sender's name for it.
    number: u64,
    /// The sender's clock, in nanoseconds since 1970.
    time: u64,
    request: Request,
}

/// Answers that nobody has taken yet, by the numbers of the writes.
type Answers = Arc<Mutex<HashMap<u64, Answer>>>;

/// A cell's copy.
#[derive(Default)]
pub(super) struct Copy {
    state: State,
    answers: Answers,
}

/// The part of a copy that is the same at all cells.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    keys: Keyspace,
    /// The latest time that was sent.
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
        Ok(Copy { state: snapshot.read()?, answers: self.answers.clone() })
    }
}

/// This cell's part in a map that a group keeps.
pub(super) struct GroupMap {
    member: watch::Receiver<Option<Member<Copy>>>,
    answers: Answers,
    last: AtomicU64,
    /// The member leaves when this is dropped.
    _stays: watch::Sender<()>,
}

/// The time between two looks at whether the member was dropped, and the pause before one joins again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A command waits so long for this cell to be a member.
const PATIENCE: Duration = Duration::from_secs(5);

impl GroupMap {
    /// Begins to join, on the future that is returned, which joins again whenever the member was dropped. It ends once the map is.
    pub(super) fn begin(node: Node, map: MapId) -> (GroupMap, Pin<Box<dyn Future<Output = ()> + Send>>) {
        let answers = Answers::default();
        let (told, member) = watch::channel(None);
        let (stays, mut stay) = watch::channel(());
        let belong = {
            let answers = answers.clone();
            async move {
                // An error says that the sender is gone.
                while stay.has_changed().is_ok() {
                    let copy = Copy { answers: answers.clone(), ..Copy::default() };
                    let member = match node.group(format!("map-{}", map.0)).join(copy).await {
                        Ok(member) => member,
                        Err(error) => {
                            warn!(%error, map = map.0, "this cell is not in the map's group yet, and tries again");
                            timer::sleep(LOOK_EVERY).await;
                            continue;
                        }
                    };
                    info!(map = map.0, process = %member.id(), "in the map's group");
                    told.send_replace(Some(member.clone()));
                    while member.ended().is_none() {
                        let gone = timer::timeout(LOOK_EVERY, stay.changed()).await;
                        if gone.is_some_and(|changed| changed.is_err()) {
                            break;
                        }
                    }
                    told.send_replace(None);
                    // The last to hold it has it leave; what is under way holds it.
                    drop(member);
                }
            }
        };
        (GroupMap { member, answers, last: AtomicU64::new(0), _stays: stays }, Box::pin(belong))
    }

    /// The number of members, if this cell is one.
    pub(super) fn members(&self) -> Option<usize> {
        Some(self.member.borrow().as_ref()?.view().ok()?.members.len())
    }

    pub(super) fn ask(&self, request: Request) -> Asked {
        let mut member = self.member.clone();
        let answers = self.answers.clone();
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let ready = timer::timeout(PATIENCE, async {
                member.wait_for(Option::is_some).await.ok().and_then(|member| member.clone())
            });
            let Some(Some(member)) = ready.await else {
                return Err(Undone::NotDone(String::from("this cell is not in the map's group at present")));
            };
            if request.is_read() {
                return member.read(|copy| copy.state.keys.read(&request, wall())).map_err(Undone::of);
            }
            let _forgotten = Forget(&answers, number);
            member.ordered_send(Update { number, time: wall(), request }).await.map_err(Undone::of)?;
            // A read looks behind everything that was delivered.
            member.read(|_| ()).map_err(|error| Undone::MaybeApplied(error.to_string()))?;
            let answer = lock(&answers).remove(&number);
            answer.ok_or_else(|| Undone::MaybeApplied(String::from("this cell joined the group anew")))
        })
    }
}

/// Has an answer forgotten that nobody waits for any more.
struct Forget<'a>(&'a Answers, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

/// The state under this lock is whole at every step.
fn lock(answers: &Answers) -> MutexGuard<'_, HashMap<u64, Answer>> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}
