//! The status of a process's disk, for operators.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use quorate_runtime::counters::Counters;
use serde::{Deserialize, Serialize};

/// The size of a process's data on disk, and the times of its syncs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Size of the process's directory, reserved space included, in bytes.
    pub used_bytes: u64,
    /// Bytes that the process would read at a restart.
    pub restart_bytes: u64,
    /// Syncs in this life.
    pub syncs: u64,
    /// Mean time of a sync, in microseconds.
    pub sync_us_mean: u64,
    /// Longest time of a sync, in microseconds.
    pub sync_us_max: u64,
    /// Seconds since the last checkpoint was complete, in this life or an earlier one.
    pub checkpoint_age_s: Option<u64>,
}

impl DiskStatus {
    /// Returns the status of a process with these counters and this directory. Files that cannot be examined
    /// count as empty.
    pub(crate) fn of(counters: &Counters, directory: &Path) -> DiskStatus {
        let used_bytes = used(directory).unwrap_or(0);
        counters.disk_used_bytes.set(i64::try_from(used_bytes).unwrap_or(i64::MAX));
        let gauge = |value: i64| u64::try_from(value).unwrap_or(0);
        let syncs = counters.disk_syncs.get();
        let checkpoint = gauge(counters.disk_checkpoint_seconds.get());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        DiskStatus {
            used_bytes,
            restart_bytes: gauge(counters.disk_restart_bytes.get()),
            syncs,
            sync_us_mean: counters.disk_sync_nanoseconds.get() / syncs.max(1) / 1000,
            sync_us_max: gauge(counters.disk_sync_nanoseconds_max.get()) / 1000,
            // The wall clock may have been set back since the checkpoint.
            checkpoint_age_s: (checkpoint > 0).then(|| now.saturating_sub(checkpoint)),
        }
    }
}

fn used(directory: &Path) -> io::Result<u64> {
    let mut used = 0;
    for entry in fs::read_dir(directory)? {
        // A file that was removed meanwhile takes no space.
        used += entry?.metadata().map_or(0, |metadata| metadata.blocks() * BLOCK_BYTES);
    }
    Ok(used)
}

/// The unit in which systems report a file's size, in bytes.
const BLOCK_BYTES: u64 = 512;
