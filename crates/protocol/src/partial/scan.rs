//! Scanning: the keys of a map, a piece at a time, in the order of their tokens.
//!
//! **Promise.** A key that was written at a level W before the scan began, and is not deleted until it ends, is in the piece of its
//! token if R + W > N, for the level R of the scan. A key that is deleted or written meanwhile may be there or not. No
//! key is in a piece twice.
//!
//! **How.** The coordinator asks all cells that it can reach for their keys from a token on. Each tells, of a part of its keys, the
//! highest stamp and whether there is a value; deleted keys too, so that a replica that missed the delete does not bring the
//! key back. It also tells up to which token its word is whole. Once those that answered meet the level for *every* key of the
//! map, the piece ends at the least of these tokens, and of each key the highest stamp counts.
//!
//! **Source.** The cursor is a place on the ring, as Redis's is a place in a table of hashes: it stays good however long the user takes,
//! and whoever keeps it keeps nothing here.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    clock::Stamp,
    layout::{CellNumber, Layout, Map, MapId},
    level::Level,
    message::{Answer, Demand, Request, Round},
    operation::Rejection,
    ring::{Ring, Site, Token},
};
use crate::time::{Duration, Time};

/// A user's request for a piece of a map's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The user's name for it: its outcome carries it.
    pub id: u64,
    /// The map.
    pub map: MapId,
    /// For how many replicas of each key the piece speaks.
    pub level: Level,
    /// The keys behind this token; none: from the first on.
    pub behind: Option<Token>,
}

/// The end of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// A piece.
    Piece {
        /// Its keys, in the order of their tokens.
        keys: Vec<(Bytes, Kind)>,
        /// The token behind which the next piece begins; none: this was the last.
        next: Option<Token>,
    },
    /// Fewer cells can be asked than the level needs for some key.
    Unavailable,
    /// Too few answered in time.
    Unanswered,
    /// It was not begun.
    Rejected(Rejection),
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// There is none: it was deleted, or has expired.
    Nothing,
    /// A string.
    String,
    /// Fields.
    Hash,
}

/// A replica's word of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Bytes,
    /// The highest stamp of its entry.
    pub newest: Stamp,
    /// Its value.
    pub kind: Kind,
}

/// The surroundings of scans in their cell.
pub(super) struct Around<'a> {
    pub(super) now: Time,
    pub(super) site: Site,
    pub(super) layout: &'a Layout,
    pub(super) rings: &'a BTreeMap<MapId, Ring>,
    pub(super) reachable: &'a BTreeSet<CellNumber>,
    /// Requests, to this cell too.
    pub(super) out: &'a mut Vec<(CellNumber, Request)>,
    pub(super) ended: &'a mut Vec<(u64, Scanned)>,
}

impl Around<'_> {
    /// The cells that can be asked and have what they should have.
    fn fit(&self) -> BTreeSet<CellNumber> {
        let is_fit = |number: &CellNumber| self.layout.cell(*number).is_some_and(|cell| !cell.arriving);
        self.reachable.iter().copied().filter(is_fit).collect()
    }

    /// Whether these cells meet the level for every key.
    fn is_met(&self, scan: &Scan, cells: &BTreeSet<CellNumber>) -> bool {
        self.rings.get(&scan.map).is_some_and(|ring| {
            let met = |owners: &super::Owners| {
                let share = owners.share(|owner| cells.contains(&owner.cell));
                scan.level.is_met(owners, share, self.site)
            };
            ring.all_owners().all(met)
        })
    }
}

#[derive(Debug)]
struct Running {
    scan: Scan,
    deadline: Time,
    /// Cells that were asked and have not answered.
    asked: BTreeSet<CellNumber>,
    /// What cells told, and up to which token that is whole; none: to the end.
    told: BTreeMap<CellNumber, (Vec<Listed>, Option<Token>)>,
}

/// The scans that a cell coordinates.
#[derive(Debug, Default)]
pub(super) struct Scans {
    running: BTreeMap<Round, Running>,
    /// The next look at them, as long as there are any.
    look_at: Time,
}

impl Scans {
    /// So many run at a time.
    const MAX: usize = 1_024;
    /// The pause before cells that did not answer are asked again.
    const LOOK_EVERY: Duration = Duration::from_millis(50);

    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.running.is_empty()).then_some(self.look_at)
    }

    /// How many run.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Begins a scan, which may take so long.
    pub(super) fn begin(&mut self, scan: Scan, round: Round, patience: Duration, around: &mut Around<'_>) {
        let refusal = if around.layout.map(scan.map).and_then(Map::read_repair).is_none() {
            Some(Scanned::Rejected(Rejection::NoMap))
        } else if self.running.len() >= Scans::MAX {
            Some(Scanned::Rejected(Rejection::Busy))
        } else {
            (!around.is_met(&scan, &around.fit())).then_some(Scanned::Unavailable)
        };
        if let Some(refusal) = refusal {
            return around.ended.push((scan.id, refusal));
        }
        if self.running.is_empty() {
            self.look_at = around.now + Scans::LOOK_EVERY;
        }
        let deadline = around.now + patience;
        let mut running = Running { scan, deadline, asked: BTreeSet::new(), told: BTreeMap::new() };
        running.ask(round, around);
        self.running.insert(round, running);
    }

    /// Whether this round is a scan's.
    pub(super) fn has(&self, round: Round) -> bool {
        self.running.contains_key(&round)
    }

    /// A cell answered; if the scan has ended, nobody waits for that.
    pub(super) fn answer(&mut self, from: CellNumber, round: Round, answer: Answer, around: &mut Around<'_>) {
        let Some(running) = self.running.get_mut(&round) else { return };
        running.asked.remove(&from);
        // One that refused is asked again soon.
        let Answer::Listed { keys, through } = answer else { return };
        running.told.insert(from, (keys, through));
        let told = running.told.keys().copied().collect();
        if around.is_met(&running.scan, &told) {
            let running = self.running.remove(&round).expect("it was found");
            around.ended.push((running.scan.id, running.piece()));
        }
    }

    /// The link to a cell broke: it is asked again.
    pub(super) fn unlinked(&mut self, cell: CellNumber) {
        for running in self.running.values_mut() {
            running.asked.remove(&cell);
        }
    }

    /// The layout changed: owners may be others, so what was told is asked for anew.
    pub(super) fn adopt(&mut self, around: &mut Around<'_>) {
        for running in self.running.values_mut() {
            (running.asked, running.told) = (BTreeSet::new(), BTreeMap::new());
        }
        self.look_at = around.now;
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, around: &mut Around<'_>) {
        if self.running.is_empty() || around.now < self.look_at {
            return;
        }
        self.look_at = around.now + Scans::LOOK_EVERY;
        let over: Vec<Round> = self
            .running
            .iter()
            .filter(|(_, it)| it.deadline <= around.now || around.layout.map(it.scan.map).is_none())
            .map(|(round, _)| *round)
            .collect();
        for round in over {
            let running = self.running.remove(&round).expect("it was found");
            around.ended.push((running.scan.id, Scanned::Unanswered));
        }
        for (round, running) in &mut self.running {
            running.ask(*round, around);
        }
    }
}

impl Running {
    /// Asks the cells that have neither answered nor been asked.
    fn ask(&mut self, round: Round, around: &mut Around<'_>) {
        for cell in around.fit() {
            if !self.told.contains_key(&cell) && self.asked.insert(cell) {
                let Scan { map, behind, .. } = self.scan;
                let demand = Demand::List { behind };
                let request =
                    Request { round, layout: around.layout.version(), map, key: Bytes::new(), demand };
                around.out.push((cell, request));
            }
        }
    }

    fn piece(self) -> Scanned {
        let next = self.told.values().filter_map(|(_, through)| *through).min();
        let mut newest: BTreeMap<(Token, Bytes), (Stamp, Kind)> = BTreeMap::new();
        for Listed { key, newest: stamp, kind } in self.told.into_values().flat_map(|(keys, _)| keys) {
            let token = Token::of(self.scan.map, &key);
            if next.is_none_or(|next| token <= next) {
                let best = newest.entry((token, key)).or_insert((stamp, kind));
                *best = (stamp, kind).max(*best);
            }
        }
        let there = newest.into_iter().filter(|(_, (_, kind))| *kind != Kind::Nothing);
        let keys = there.map(|((_, key), (_, kind))| (key, kind)).collect();
        Scanned::Piece { keys, next }
    }
}
