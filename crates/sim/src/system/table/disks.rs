//! Disks of routers and storage processes: the processes that recover from a disk, and the losses if part of
//! a disk cannot be read.

mod recovery;

use std::collections::BTreeMap;

use quorate_protocol::rubberband::Storage;

/// The founder, the storage processes that were recovered and are about to start, and a range whose rows no
/// disk has any longer.
#[derive(Default)]
pub(super) struct Disks {
    /// The router that founds the domain, or founded it.
    founder: Option<usize>,
    /// Recovered storage processes that are about to start, by machine.
    recovered: BTreeMap<usize, Storage>,
    /// A range that no disk has any longer, and the process whose disk had it.
    lost: Option<String>,
}
