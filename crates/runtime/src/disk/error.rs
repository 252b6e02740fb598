//! Errors of a disk, named by who must act.

use std::{io, path::PathBuf};

use quorate_protocol::{DomainId, ProcessId, Ticket, journal::Owner};
use thiserror::Error;

/// The reason why a directory could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process uses the directory.
    #[error(
        "the directory {} is in use by process {}: end that process, or give this process a directory of its \
         own",
        .directory.display(),
        .pid.map_or_else(|| String::from("with an unknown id"), |pid| pid.to_string())
    )]
    Locked {
        /// The path of the directory.
        directory: PathBuf,
        /// The holder's process id of the operating system, if the holder wrote one.
        pid: Option<u32>,
    },
    /// The directory belongs to another domain or node than the process that wants to use it.
    #[error(
        "the directory {} belongs to node {} of domain {}, and this is node {node} of domain {domain}: give \
         each node its own directory",
        .directory.display(), .owner.process.node, .owner.domain
    )]
    Foreign {
        /// The path of the directory.
        directory: PathBuf,
        /// The domain and the process that own the directory.
        owner: Owner,
        /// The domain that asked for the directory.
        domain: DomainId,
        /// The node that asked for the directory.
        node: u64,
    },
    /// A later version of the program wrote the directory.
    #[error(
        "the directory {} has format {version}, which this build does not read: use a later version of \
         quorate",
        .directory.display()
    )]
    Newer {
        /// The path of the directory.
        directory: PathBuf,
        /// The version of the directory's format.
        version: u32,
    },
    /// The system refuses the use of the directory.
    #[error("cannot use the disk: {0}")]
    System(io::Error),
}

/// The reason why a running process cannot go on with its disk. The process then ends. Everything that it
/// reported as durable is durable.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The disk is full.
    #[error("the disk is full: cannot {operation} {file}; make room and start the process again")]
    Full {
        /// The operation that failed.
        operation: &'static str,
        /// The file of the operation.
        file: String,
    },
    /// The file system is read-only now, usually because it found an error.
    #[error(
        "the disk is read-only: cannot {operation} {file}; look into the system's log before you start the \
         process again"
    )]
    ReadOnly {
        /// The operation that failed.
        operation: &'static str,
        /// The file of the operation.
        file: String,
    },
    /// The disk failed in any other way.
    #[error(
        "the disk failed: cannot {operation} {file}: {error}; check the disk before you start the process \
         again"
    )]
    Failed {
        /// The operation that failed.
        operation: &'static str,
        /// The file of the operation.
        file: String,
        /// The error that the system returned.
        error: io::Error,
    },
    /// The directory is an older copy: a peer remembers that this process had made later records durable.
    #[error(
        "the directory {} is an older copy: its journal ends with record {}, but process {witness} remembers \
         that this process had record {} on disk; put the newest copy back, or remove the directory, and a \
         new process begins that the others bring up to date",
        .directory.display(), .last.0, .reported.0
    )]
    OlderCopy {
        /// The path of the directory.
        directory: PathBuf,
        /// The last record in the directory's journal.
        last: Ticket,
        /// The record that the process had reported as durable. It may belong to a start of the process that
        /// the directory does not know.
        reported: Ticket,
        /// The peer that remembers a later record.
        witness: ProcessId,
    },
    /// The disk has not answered for very long, so the reserved numbers of greetings are used up.
    #[error(
        "the disk is stuck: no write has ended while this process made thousands of connections; check the \
         disk before you start the process again"
    )]
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
