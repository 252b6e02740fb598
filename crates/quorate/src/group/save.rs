//! The save of a member's state to its checkpoint file.

use std::{
    io::Write,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use quorate_node::panic_message;
use quorate_protocol::group::{Command, Locks, Mark};
use tracing::warn;

use super::{
    Object,
    checkpoint::{CheckpointHead, encode, replace},
    groups::number,
    keeper::{CheckpointJob, Keeper},
    shared::{GroupShared, Seat},
    signature::Signature,
};
use crate::{
    error::{Error, groups::DROPPED},
    lock::lock,
};

impl Keeper {
    /// Saves the present state of a replica, after the save in progress has ended.
    pub(super) fn keep<R: Object>(
        self: &Arc<Self>,
        seat: &Seat,
        shared: &Arc<GroupShared>,
        mark: Mark,
        object: &R,
        locks: Locks,
    ) {
        let head = CheckpointHead {
            domain: self.domain,
            group: seat.name.clone(),
            mark,
            signature: Signature::of(object),
            secrets: seat.group_keys.as_ref().map(|group_keys| group_keys.secrets()),
            locks,
        };
        let job = CheckpointJob { head, object: object.checkpoint() };
        let mut keeping = lock(&self.state);
        keeping.next = Some(job);
        if mem::replace(&mut keeping.busy, true) {
            return;
        }
        drop(keeping);
        let (keeper, group_shared) = (self.clone(), shared.clone());
        let spawned = thread::Builder::new().name(String::from("checkpoint")).spawn(move || {
            while let Some(job) = keeper.next() {
                let mark = job.head.mark;
                // A snapshot made by `Snapshot::later` runs user code.
                let saved = catch_unwind(AssertUnwindSafe(|| keeper.save(job, &group_shared)));
                let saved = saved.unwrap_or_else(|panic| {
                    Err(Error::file(
                        &keeper.path,
                        format!(
                            "the group's object panicked while it wrote its checkpoint: {}",
                            panic_message(&*panic)
                        ),
                    ))
                });
                keeper.done(mark, saved);
            }
        });
        if let Err(error) = spawned {
            let mut keeping = lock(&self.state);
            (keeping.next, keeping.busy) = (None, false);
            drop(keeping);
            self.done(mark, Err(Error::file(&self.path, error)));
        }
    }

    fn next(&self) -> Option<CheckpointJob> {
        let mut keeping = lock(&self.state);
        keeping.busy = keeping.next.is_some();
        keeping.let_go();
        keeping.next.take()
    }

    /// Writes a state to the file, and informs the routers.
    fn save(&self, job: CheckpointJob, shared: &GroupShared) -> Result<(), Error> {
        let failed = |why: String| Error::file(&self.path, why);
        let CheckpointJob { head, object } = job;
        let object = object.finish_behind(Vec::new()).map_err(failed)?;
        let bytes = encode(&head, &object);
        replace(&self.path, |file| file.write_all(&bytes)).map_err(|error| failed(error.to_string()))?;
        let (group, checkpoint) = (number(&head.group), head.mark);
        let unrecorded = |error: Error| match error {
            Error::OutOfTouch => {
                let why = String::from(
                    "the checkpoint file is written, and the routers could not be reached to record the checkpoint",
                );
                Error::MaybeApplied { id: None, why }
            }
            other => other,
        };
        let recorded = shared.call(|id| Command::Kept { id, group, checkpoint }).map_err(unrecorded)?;
        match recorded.blocking_recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failure)) => Err(failure.into()),
            Err(_) => Err(Error::MaybeApplied { id: None, why: String::from(DROPPED) }),
        }
    }

    /// Notes that the save at `mark` has ended, and answers the callers that it covers.
    fn done(&self, mark: Mark, saved: Result<(), Error>) {
        if let Err(why) = &saved {
            warn!(file = %self.path.display(), %mark, %why, "a checkpoint of a group could not be saved");
        }
        let mut keeping = lock(&self.state);
        keeping.done = Some((mark, saved.clone()));
        let (due, waits): (Vec<_>, Vec<_>) =
            mem::take(&mut keeping.waits).into_iter().partition(|(wanted, _)| *wanted <= mark);
        keeping.waits = waits;
        drop(keeping);
        for (_, caller) in due {
            // The caller may no longer wait.
            let _ = caller.send(saved.clone().map(|()| mark));
        }
    }
}
