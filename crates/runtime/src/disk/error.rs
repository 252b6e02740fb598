//! Errors of a disk, by who must act.

use std::{io, path::PathBuf};

use quorate_protocol::{DomainId, ProcessId, Ticket, journal::Owner};
use thiserror::Error;

/// Why a directory was not opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{} is in use by process {}: one directory belongs to one process at a time",
        .directory.display(),
        .pid.map_or_else(|| String::from("of an unknown id"), |pid| pid.to_string())
    )]
    Locked {
        /// The directory.
        directory: PathBuf,
        /// The operating system's id of the holder, if it wrote one.
        pid: Option<u32>,
    },
    /// It belongs to another domain or node.
    #[error(
        "{} belongs to node {} of domain {}, and this is node {node} of domain {domain}: give each its own directory",
        .directory.display(), .owner.process.node, .owner.domain
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// Whose it is.
        owner: Owner,
        /// The domain that wanted it.
        domain: DomainId,
        /// The node that wanted it.
        node: u64,
    },
    /// It was written by a later version.
    #[error("{} has format {version}, which this build does not read: use a later one", .directory.display())]
    Newer {
        /// The directory.
        directory: PathBuf,
        /// Its format.
        version: u32,
    },
    /// The system does not let it be used.
    #[error("cannot use the disk: {0}")]
    System(io::Error),
}

/// Why a process that runs cannot go on with its disk. It ends: what it told to be durable is, and nothing else was told.
#[derive(Debug, Error)]
pub enum DiskError {
    /// There is no room.
    #[error("the disk is full: cannot {operation} {file}; make room and start the process again")]
    Full {
        /// The operation that failed.
        operation: &'static str,
        /// To which file.
        file: String,
    },
    /// The file system takes no writes any more, usually because it found an error.
    #[error(
        "the disk is read-only: cannot {operation} {file}; look into the system's log before starting again"
    )]
    ReadOnly {
        /// The operation that failed.
        operation: &'static str,
        /// To which file.
        file: String,
    },
    /// Anything else.
    #[error("the disk failed: cannot {operation} {file}: {error}")]
    Failed {
        /// The operation that failed.
        operation: &'static str,
        /// To which file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// The directory is an older copy, put back: others know that the process had made more durable.
    #[error(
        "{} is an older copy: its journal ends with record {}, and lacks some of what the process had told {witness}, \
         record {} among it; put the newest copy back, or remove the directory, and a new process begins that the others bring \
         up to date",
        .directory.display(), .last.0, .told.0
    )]
    OlderCopy {
        /// The directory.
        directory: PathBuf,
        /// The last record that is there.
        last: Ticket,
        /// The record of which it had told, since a start that the directory may not know.
        told: Ticket,
        /// The process that it had told.
        witness: ProcessId,
    },
    /// It has taken nothing for very long: the numbers of greetings that it let the process use are used up.
    #[error("the disk is stuck: it has taken nothing while this process made thousands of connections")]
    Stuck,
}

impl DiskError {
    pub(super) fn new(operation: &'static str, file: &str, error: io::Error) -> DiskError {
        let file = file.to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskError::Full { operation, file },
            io::ErrorKind::ReadOnlyFilesystem => DiskError::ReadOnly { operation, file },
            _ => DiskError::Failed { operation, file, error },
        }
    }
}
