//! A member's checkpoint file, and its saves in progress.

use std::{
    fs::{File, OpenOptions, TryLockError},
    mem,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use quorate_protocol::{DomainId, group::Mark};
use tokio::sync::oneshot;

use super::{Snapshot, checkpoint::CheckpointHead};
use crate::{error::Error, lock::lock};

/// A member's file, and its saves in progress.
pub(super) struct Keeper {
    pub(super) path: PathBuf,
    pub(super) domain: DomainId,
    pub(super) state: Mutex<Keeping>,
}

#[derive(Default)]
pub(super) struct Keeping {
    /// The state to be written next.
    pub(super) next: Option<CheckpointJob>,
    /// Whether a thread is writing a state to the file.
    pub(super) busy: bool,
    /// The mark and the result of the last save that ended.
    pub(super) done: Option<(Mark, Result<(), Error>)>,
    /// Callers that wait for a checkpoint at this mark, or a newer one.
    pub(super) waits: Vec<(Mark, oneshot::Sender<Result<Mark, Error>>)>,
    /// The reason why the member has ended, if it has ended.
    pub(super) over: Option<Error>,
    /// The lock on the file, held while the file belongs to this member.
    claim: Option<File>,
}

/// A state to be saved.
pub(super) struct CheckpointJob {
    pub(super) head: CheckpointHead,
    pub(super) object: Snapshot,
}

/// Time for which a member waits for a file that another member uses, and the pause between attempts.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

impl Keeping {
    /// Releases the file, if the member has ended and no thread writes to the file.
    pub(super) fn let_go(&mut self) {
        if self.over.is_some() && !self.busy {
            self.claim = None;
        }
    }
}

impl Keeper {
    /// Reserves a checkpoint file for a member, by a lock on a neighbouring file, which is never removed.
    /// Without the lock, two members that save to one file would each take the other's content for an older
    /// checkpoint. A member that was just dropped may still write its last save: this call waits for it, up
    /// to `CLAIM_PATIENCE`. Waits for the disk.
    pub(super) fn claim(path: PathBuf, domain: DomainId) -> Result<Keeper, Error> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let claim = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&beside);
        let claim = claim.map_err(|error| Error::file(Path::new(&beside), error))?;
        let until = Instant::now() + CLAIM_PATIENCE;
        loop {
            match claim.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(CLAIM_PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::file(
                        &path,
                        "another member uses this file: give each member a file of its own",
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(Error::file(Path::new(&beside), error)),
            }
        }
        let keeping = Keeping { claim: Some(claim), ..Keeping::default() };
        Ok(Keeper { path, domain, state: Mutex::new(keeping) })
    }

    /// Returns a receiver for the result of the save at this mark, or of a newer save.
    pub(super) fn wait(&self, mark: Mark) -> oneshot::Receiver<Result<Mark, Error>> {
        let (result_sender, end) = oneshot::channel();
        let mut keeping = lock(&self.state);
        let ended = match (&keeping.done, &keeping.over) {
            (Some((done, result)), _) if *done >= mark => Some(result.clone().map(|()| *done)),
            (_, over) => over.clone().map(Err),
        };
        match ended {
            // Sending cannot fail, because this function holds the receiver.
            Some(ended) => drop(result_sender.send(ended)),
            None => keeping.waits.push((mark, result_sender)),
        }
        end
    }

    /// Ends all saves because the member has ended. Callers that wait get the reason.
    pub(super) fn fail(&self, why: &Error) {
        let mut keeping = lock(&self.state);
        keeping.over.get_or_insert_with(|| why.clone());
        keeping.let_go();
        let waits = mem::take(&mut keeping.waits);
        drop(keeping);
        for (_, result_sender) in waits {
            // The caller may no longer wait.
            let _ = result_sender.send(Err(why.clone()));
        }
    }
}
