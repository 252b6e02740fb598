//! The log of the users' requests that have no answer. The workload compares answers with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use quorate_protocol::partial::{Level, MapId, Token};

use super::settings::MapKind;
use crate::check::quorum::{OperationKind, PendingOperation};

/// The operations that have not ended.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    pub(super) asked: u64,
    pub(super) numbers: u64,
    pub(super) under_way: BTreeMap<u64, (usize, Level, Option<Level>, PendingOperation)>,
    pub(super) scans: BTreeMap<u64, Scanning>,
    pub(super) busy: BTreeSet<u64>,
}

impl RequestLog {
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way.is_empty() && self.scans.is_empty()
    }

    /// Returns a number for a scan that begins.
    pub(super) fn scanning(&mut self, scan: Scanning) -> u64 {
        self.numbers += 1;
        self.scans.insert(self.numbers, scan);
        self.numbers
    }

    /// Removes a scan that ended.
    pub(super) fn scanned(&mut self, id: u64) -> Option<Scanning> {
        self.scans.remove(&id)
    }

    /// Returns the names that are being written.
    pub(super) fn writing(&self) -> BTreeSet<String> {
        let writes = self.under_way.values().filter(|(.., asked)| asked.deed != OperationKind::Read);
        writes.map(|(.., asked)| asked.key.clone()).collect()
    }
}

impl fmt::Display for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations were begun, {} have not ended", self.asked, self.under_way.len())
    }
}

/// A scan that has not ended.
#[derive(Debug)]
pub(super) struct Scanning {
    pub(super) machine: usize,
    pub(super) map: MapId,
    pub(super) kind: &'static MapKind,
    pub(super) behind: Option<Token>,
    pub(super) at: i64,
}
