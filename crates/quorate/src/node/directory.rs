//! The owner of a directory: one process of a node number at a time.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use quorate_runtime::{
    chance,
    disk::{DirectoryState, Opened, make_directories},
};
use tracing::{info, warn};

use crate::error::Error;

/// A directory that belongs to this process until this is dropped.
pub(super) struct DirectoryLock {
    pub(super) node: u64,
    /// The file whose lock marks the owner.
    _lock: File,
}

/// Name of the file with the node number, for nodes that are not given a number.
const NUMBER: &str = "node";

/// Only the owner can read a process's files.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Makes a directory, if need be, that only its owner can enter. The new directory survives a power cut.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    make_directories(path)
}

/// Takes a directory for a node of this number. `None` stands for the number in the directory, or else a new
/// number.
pub(super) fn claim(path: &Path, number: Option<u64>) -> Result<DirectoryLock, Error> {
    let failed = |error: io::Error| Error::start(format!("{}: {error}", path.display()));
    make(path).map_err(failed)?;
    let node = match number {
        Some(number) => number,
        None => kept_number(path)?,
    };
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(FILE_MODE)
        .open(path.join(format!("lock-{node}")))
        .map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(DirectoryLock { node, _lock: lock }),
        Err(TryLockError::WouldBlock) => Err(Error::DirectoryInUse { directory: path.to_owned(), node }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Returns the number in the directory, which is drawn first if there is none.
fn kept_number(path: &Path) -> Result<u64, Error> {
    let file = path.join(NUMBER);
    let failed = |error: io::Error| Error::start(format!("{}: {error}", file.display()));
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&file) {
        Ok(mut new) => {
            let number = draw();
            writeln!(new, "{number}").and_then(|()| new.sync_all()).map_err(failed)?;
            Ok(number)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let text = fs::read_to_string(&file).map_err(failed)?;
            text.trim().parse().map_err(|_| {
                Error::start(format!(
                    "the file {} does not hold a node number, but \"{}\"",
                    file.display(),
                    text.trim()
                ))
            })
        }
        Err(error) => Err(failed(error)),
    }
}

/// Draws a number that nobody would choose by hand.
pub(crate) fn draw() -> u64 {
    (chance::incarnation().0 as u64) >> 16 | 1 << 47
}

/// Logs in which state the journal of a directory was found. `who` names the kind of process that continues
/// from the journal.
pub(crate) fn log_state(opened: &Opened, who: &str) {
    match &opened.found {
        DirectoryState::Nothing => {}
        DirectoryState::Records { torn_bytes } => {
            info!(process = %opened.disk.process(), torn_bytes, "this {who} goes on from its journal");
        }
        DirectoryState::Abandoned => warn!(
            "no {who} can go on from the journal in the directory, which was set aside: a new {who} begins"
        ),
        DirectoryState::Damaged(damage) => {
            warn!(%damage, "not all records of the journal can be read: a new {who} begins, and joins");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_process_of_a_number_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let first = claim(place.path(), None).unwrap_or_else(|error| panic!("{error}"));
        let refused = |number| match claim(place.path(), number) {
            Err(Error::DirectoryInUse { node, .. }) => Some(node),
            _ => None,
        };
        assert_eq!(refused(None), Some(first.node), "it has the number of the first");
        assert_eq!(refused(Some(first.node)), Some(first.node));
        assert!(claim(place.path(), Some(1)).is_ok(), "another number is another process");
        let number = first.node;
        drop(first);
        assert!(claim(place.path(), None).is_ok_and(|again| again.node == number));
    }

    #[test]
    fn a_malformed_node_number_is_reported() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(NUMBER), "seven").unwrap();
        let error = claim(place.path(), None).err().unwrap();
        assert!(error.to_string().contains("a node number, but \"seven\""), "{error}");
    }
}
