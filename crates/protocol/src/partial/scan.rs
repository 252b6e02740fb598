//! Scanning: the keys of a map, a piece at a time, in the order of their tokens.
//!
//! **Promise.** Take a key that was written at a level W before the scan began, and not deleted until the
//! scan ends. If R + W > N for the level R of the scan, the key is in the piece of its token. A key that is
//! deleted or written meanwhile may be there or not. No key is in a piece twice.
//!
//! **How.** The coordinator asks all reachable cells for their keys from a token on. Each cell lists a part
//! of its keys, with the highest stamp and whether there is a value. It lists deleted keys too, so that a
//! replica that missed the delete does not bring the key back. It also reports up to which token its list is
//! complete. Once the cells that answered meet the level for *every* key of the map, the piece ends at the
//! least of these tokens. For a key that was only written whole, the highest stamp decides.
//!
//! Fields and tallies are merged one by one, so the highest stamp of an entry with fields or tallies says
//! nothing about its other parts. A cell sends a hash of such an entry. If the cells' lists differ on such a
//! key, the coordinator reads the key from each cell that listed it, one key after another, and merges. A
//! piece ends early, after [`DOUBTS_MAX`] such keys.
//!
//! **Disks.** A cell sends its list only once the record of the last write that it took is durable. So a scan
//! shows no key that a power cut would take away.
//!
//! **Bounds.** A cell runs [`Scans::MAX`] scans. Each scan holds one list of keys of each cell. A list has up
//! to 256 KiB plus the keys of one token. At most [`Scans::READING_MAX`] scans read keys at a time, and each
//! of these holds the merged entry of one key. The other scans wait until one of the reading scans ends.
//!
//! **Source.** The cursor is a place on the ring, as the cursor of Redis is a place in a hash table. It stays
//! valid however long the user takes, and needs no state here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    entry::{Entry, Kind},
    id::{CellNumber, MapId, Site},
    layout::{Layout, Map},
    message::{Answer, Demand, Listed, Request, Round},
    operation::Rejection,
    ring::Ring,
    stamp::Stamp,
    token::Token,
};
use crate::{
    strength::Level,
    time::{Duration, Time},
};

/// A user's request for a piece of a map's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The id that the user gave the scan. Its outcome carries the id.
    pub id: u64,
    /// The map.
    pub map: MapId,
    /// The level that the cells that answer must meet for each key.
    pub level: Level,
    /// The token behind which the piece begins. `None` if it begins at the first key.
    pub behind: Option<Token>,
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// A piece of the map's keys.
    Piece {
        /// The keys, in the order of their tokens, with the kinds of their values.
        keys: Vec<(Bytes, Kind)>,
        /// The token behind which the next piece begins. `None` if this was the last piece.
        next: Option<Token>,
    },
    /// Too few cells can be asked to meet the level for some key.
    Unavailable,
    /// Too few cells answered in time.
    Unanswered,
    /// The scan was not begun.
    Rejected(Rejection),
}

/// The parts of the cell that scans work with.
pub(super) struct ScanContext<'a> {
    pub(super) now: Time,
    pub(super) site: Site,
    /// The wall clock, in nanoseconds.
    pub(super) wall: u64,
    pub(super) layout: &'a Layout,
    pub(super) rings: &'a BTreeMap<MapId, Ring>,
    pub(super) reachable: &'a BTreeSet<CellNumber>,
    /// Requests to cells, including this one.
    pub(super) out: &'a mut Vec<(CellNumber, Request)>,
    pub(super) ended: &'a mut Vec<(u64, Scanned)>,
}

impl ScanContext<'_> {
    /// Returns the cells that can be asked and are not arriving.
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
struct RunningScan {
    scan: Scan,
    deadline: Time,
    /// Cells that were asked and have not answered. An answer to a question of an earlier layout is ignored.
    asked: BTreeMap<CellNumber, ScanQuestion>,
    /// The cells' lists, each with the token up to which it is complete, or `None` if it is complete to the
    /// end of the map.
    lists: BTreeMap<CellNumber, (Vec<Listed>, Option<Token>)>,
    /// The piece, once enough cells have answered.
    piece: Option<Piece>,
}

/// A question to a cell that has not answered: whether its answer will count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanQuestion {
    Present,
    OfAnEarlierLayout,
}

/// A piece whose doubtful keys are being read.
#[derive(Debug)]
struct Piece {
    /// The keys whose kind is known.
    kinds: BTreeMap<(Token, Bytes), Kind>,
    next: Option<Token>,
    /// Keys on which the lists differ, with the cells that listed each key. The first key is being read.
    doubts: VecDeque<(Token, Bytes, BTreeSet<CellNumber>)>,
    /// The cells that sent their entry of the first doubtful key. These entries are merged.
    given: BTreeSet<CellNumber>,
    merged: Entry,
}

/// The number of doubtful keys that a piece reads, not counting further keys that share the token of the last
/// such key.
const DOUBTS_MAX: usize = 64;

/// The scans that a cell coordinates.
#[derive(Debug, Default)]
pub(super) struct Scans {
    running: BTreeMap<Round, RunningScan>,
    /// The scans that read doubtful keys. Bounded by [`Scans::READING_MAX`].
    reading: BTreeSet<Round>,
    /// The next time at which scans ask again, while there are any.
    look_at: Time,
}

impl Scans {
    /// Maximum number of scans at a time. Each scan holds the lists of keys that cells sent, so more scans
    /// would take too much memory.
    const MAX: usize = 256;
    /// Maximum number of scans that read keys at a time. More scans would hold too many bytes of entries.
    const READING_MAX: usize = 4;
    /// The pause before a scan asks cells that did not answer again.
    const LOOK_EVERY: Duration = Duration::from_millis(50);

    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.running.is_empty()).then_some(self.look_at)
    }

    /// Returns how many scans run.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Begins a scan, which ends unanswered after `patience`.
    pub(super) fn begin(
        &mut self,
        scan: Scan,
        round: Round,
        patience: Duration,
        context: &mut ScanContext<'_>,
    ) {
        let refusal = if context.layout.map(scan.map).and_then(Map::read_repair).is_none() {
            Some(Scanned::Rejected(Rejection::NoMap))
        } else if self.running.len() >= Scans::MAX {
            Some(Scanned::Rejected(Rejection::Busy))
        } else {
            (!context.is_met(&scan, &context.fit())).then_some(Scanned::Unavailable)
        };
        if let Some(refusal) = refusal {
            return context.ended.push((scan.id, refusal));
        }
        if self.running.is_empty() {
            self.look_at = context.now + Scans::LOOK_EVERY;
        }
        let deadline = context.now + patience;
        let (asked, lists) = (BTreeMap::new(), BTreeMap::new());
        let mut running = RunningScan { scan, deadline, asked, lists, piece: None };
        running.ask(round, context);
        self.running.insert(round, running);
    }

    /// Whether this round belongs to a scan.
    pub(super) fn has(&self, round: Round) -> bool {
        self.running.contains_key(&round)
    }

    /// Handles a cell's answer. Ignores it if the scan has ended.
    pub(super) fn answer(
        &mut self,
        from: CellNumber,
        round: Round,
        answer: Answer,
        context: &mut ScanContext<'_>,
    ) {
        let Some(running) = self.running.get_mut(&round) else { return };
        if running.asked.remove(&from) != Some(ScanQuestion::Present) {
            return;
        }
        running.take(from, answer, context);
        if running.piece.as_ref().is_some_and(|piece| piece.doubts.is_empty()) {
            let running = self.remove(round, context.now);
            let piece = running.piece.expect("the scan's piece was just looked at");
            context.ended.push((running.scan.id, piece.into_scanned()));
        } else if running.piece.is_some() && may_read(&mut self.reading, round) {
            running.ask(round, context);
        }
    }

    /// Removes a scan. If the scan read keys, another scan may read keys now, so the next check comes at
    /// once.
    fn remove(&mut self, round: Round, now: Time) -> RunningScan {
        if self.reading.remove(&round) {
            self.look_at = now;
        }
        self.running.remove(&round).expect("the scan was found in the table of running scans")
    }

    /// Handles a broken link to a cell: the next check asks the cell again.
    pub(super) fn unlinked(&mut self, cell: CellNumber) {
        for running in self.running.values_mut() {
            running.asked.remove(&cell);
        }
    }

    /// Adopts a changed layout: keys may have other owners, so the scans ask each cell again from the
    /// beginning.
    pub(super) fn adopt(&mut self, context: &mut ScanContext<'_>) {
        for running in self.running.values_mut() {
            running.asked.values_mut().for_each(|question| *question = ScanQuestion::OfAnEarlierLayout);
            (running.lists, running.piece) = (BTreeMap::new(), None);
        }
        self.reading.clear();
        self.look_at = context.now;
    }

    /// Ends scans whose time is over or whose map is gone, and asks cells again.
    pub(super) fn tick(&mut self, context: &mut ScanContext<'_>) {
        if self.running.is_empty() || context.now < self.look_at {
            return;
        }
        let over: Vec<Round> = self
            .running
            .iter()
            .filter(|(_, it)| it.deadline <= context.now || context.layout.map(it.scan.map).is_none())
            .map(|(round, _)| *round)
            .collect();
        for round in over {
            let running = self.remove(round, context.now);
            context.ended.push((running.scan.id, Scanned::Unanswered));
        }
        self.look_at = context.now + Scans::LOOK_EVERY;
        for (round, running) in &mut self.running {
            if running.piece.is_none() || may_read(&mut self.reading, *round) {
                running.ask(*round, context);
            }
        }
    }
}

/// Whether a scan may read keys: it already reads, or there is room for one more reading scan.
fn may_read(reading: &mut BTreeSet<Round>, round: Round) -> bool {
    let may = reading.contains(&round) || reading.len() < Scans::READING_MAX;
    if may {
        reading.insert(round);
    }
    may
}

impl RunningScan {
    /// Asks the cells that have neither answered nor been asked.
    fn ask(&mut self, round: Round, context: &mut ScanContext<'_>) {
        let first = self.piece.as_ref().and_then(|piece| piece.doubts.front());
        for cell in context.fit() {
            let lacks = match (&self.piece, first) {
                (Some(piece), Some((.., cells))) => cells.contains(&cell) && !piece.given.contains(&cell),
                _ => !self.lists.contains_key(&cell),
            };
            if !lacks || self.asked.contains_key(&cell) {
                continue;
            }
            self.asked.insert(cell, ScanQuestion::Present);
            let Scan { map, behind, .. } = self.scan;
            let (key, demand) = match first {
                Some((_, key, _)) => (key.clone(), Demand::Read(u32::MAX)),
                None => (Bytes::new(), Demand::List { behind }),
            };
            context.out.push((cell, Request { round, layout: context.layout.version(), map, key, demand }));
        }
    }

    /// Takes an answer. The next check asks a cell that refused again.
    fn take(&mut self, from: CellNumber, answer: Answer, context: &ScanContext<'_>) {
        match answer {
            Answer::Listed { keys, through } if self.piece.is_none() => {
                self.lists.insert(from, (keys, through));
                let answered = self.lists.keys().copied().collect();
                if context.is_met(&self.scan, &answered) {
                    self.piece = Some(Piece::of(self.scan.map, std::mem::take(&mut self.lists)));
                }
            }
            Answer::Entry(entry) => {
                if let Some(piece) = &mut self.piece {
                    piece.read(from, &entry, context.wall);
                }
            }
            _ => {}
        }
    }
}

/// A cell's listing of one key: the cell, the newest stamp, the kind, and the hash of the entry.
type CellListing = (CellNumber, Stamp, Kind, u64);

impl Piece {
    /// Returns the piece that follows from the cells' lists.
    fn of(map: MapId, lists: BTreeMap<CellNumber, (Vec<Listed>, Option<Token>)>) -> Piece {
        let next = lists.values().filter_map(|(_, through)| *through).min();
        let mut words: BTreeMap<(Token, Bytes), Vec<CellListing>> = BTreeMap::new();
        for (cell, (keys, _)) in lists {
            for Listed { key, newest, kind, print } in keys {
                let token = Token::of(map, &key);
                if next.is_none_or(|next| token <= next) {
                    words.entry((token, key)).or_default().push((cell, newest, kind, print));
                }
            }
        }
        let (kinds, merged) = (BTreeMap::new(), Entry::nothing());
        let mut piece = Piece { kinds, next, doubts: VecDeque::new(), given: BTreeSet::new(), merged };
        for ((token, key), words) in words {
            let last = piece.doubts.back().map(|(token, ..)| *token).filter(|last| *last < token);
            if let Some(last) = last.filter(|_| piece.doubts.len() >= DOUBTS_MAX) {
                piece.next = Some(last);
                piece.kinds.retain(|(token, _), _| *token <= last);
                break;
            }
            let (_, newest, kind, print) = words[0];
            let differ = |it: &CellListing| (it.1, it.3) != (newest, print);
            if words.iter().any(|(.., print)| *print != 0) && words.iter().any(differ) {
                let cells = words.into_iter().map(|(cell, ..)| cell).collect();
                piece.doubts.push_back((token, key, cells));
            } else {
                let (_, kind) =
                    words.iter().map(|(_, newest, kind, _)| (*newest, *kind)).max().unwrap_or((newest, kind));
                piece.kinds.insert((token, key), kind);
            }
        }
        piece
    }

    /// Merges a cell's entry of the first doubtful key. Settles the key once all cells that listed it have
    /// given their entries.
    fn read(&mut self, from: CellNumber, entry: &Entry, wall: u64) {
        self.merged.merge(entry);
        self.given.insert(from);
        let Some((token, key, _)) = self.doubts.pop_front_if(|(.., cells)| cells.is_subset(&self.given))
        else {
            return;
        };
        self.kinds.insert((token, key), Kind::of(&self.merged, wall));
        (self.merged, self.given) = (Entry::nothing(), BTreeSet::new());
    }

    fn into_scanned(self) -> Scanned {
        let there = self.kinds.into_iter().filter(|(_, kind)| *kind != Kind::Nothing);
        Scanned::Piece { keys: there.map(|((_, key), kind)| (key, kind)).collect(), next: self.next }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::layout::{Copies, LayoutOrder, ReadRepair, Strategy, tests::layout},
        *,
    };

    struct World {
        scans: Scans,
        layout: Layout,
        rings: BTreeMap<MapId, Ring>,
        out: Vec<(CellNumber, Request)>,
        ended: Vec<(u64, Scanned)>,
        now: Time,
    }

    impl World {
        fn new() -> World {
            let mut layout = layout(&[(0, 4), (0, 4)]);
            let copies = Copies::new([(Site(0), 2)]).unwrap();
            let map = Map { copies: copies.clone(), strategy: Strategy::Quorum(ReadRepair::None) };
            layout.apply(&LayoutOrder::CreateMap(MapId(1), map)).unwrap();
            let rings = BTreeMap::from([(MapId(1), Ring::new(&layout, &copies))]);
            let (scans, now) = (Scans::default(), Time(1_000_000_000));
            World { scans, layout, rings, out: Vec::new(), ended: Vec::new(), now }
        }

        fn with<T>(&mut self, work: impl FnOnce(&mut Scans, &mut ScanContext<'_>) -> T) -> T {
            let reachable = BTreeSet::from([CellNumber(1), CellNumber(2)]);
            let mut context = ScanContext {
                now: self.now,
                site: Site(0),
                wall: 0,
                layout: &self.layout,
                rings: &self.rings,
                reachable: &reachable,
                out: &mut self.out,
                ended: &mut self.ended,
            };
            work(&mut self.scans, &mut context)
        }

        /// Begins a scan in which the cells differ on one key.
        fn begin_in_doubt(&mut self, round: Round) {
            let scan = Scan { id: round.0, map: MapId(1), level: Level::All, behind: None };
            self.with(|scans, context| scans.begin(scan, round, Duration::from_secs(2), context));
            for cell in [1, 2] {
                let (newest, kind) = (Stamp::ZERO, Kind::Hash);
                let keys = vec![Listed { key: Bytes::from_static(b"h"), newest, kind, print: cell }];
                let answer = Answer::Listed { keys, through: None };
                self.answer(round, CellNumber(cell as u32), answer);
            }
        }

        fn answer(&mut self, round: Round, cell: CellNumber, answer: Answer) {
            self.with(|scans, context| scans.answer(cell, round, answer, context));
        }

        /// Returns the scans that have sent reads since the last call.
        fn reads(&mut self) -> BTreeSet<u64> {
            let is_read =
                |(_, it): &(CellNumber, Request)| matches!(it.demand, Demand::Read(_)).then_some(it.round.0);
            self.out.drain(..).filter_map(|it| is_read(&it)).collect()
        }

        fn tick(&mut self, pause: Duration) {
            self.now = self.now + pause;
            self.with(|scans, context| scans.tick(context));
        }
    }

    /// Entries may be large, so only a few scans read keys at a time.
    #[test]
    fn few_scans_read_keys_at_a_time() {
        let mut world = World::new();
        (0..10).for_each(|round| world.begin_in_doubt(Round(round)));
        assert_eq!(world.reads(), BTreeSet::from([0, 1, 2, 3]));
        world.tick(Scans::LOOK_EVERY);
        assert_eq!(world.reads(), BTreeSet::new());
        // A scan that ends lets another scan read at once.
        for cell in [1, 2] {
            world.answer(Round(2), CellNumber(cell), Answer::Entry(Entry::nothing()));
        }
        assert_eq!(world.ended.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2]);
        assert_eq!(world.scans.deadline(), Some(world.now));
        world.tick(Duration::ZERO);
        assert_eq!(world.reads(), BTreeSet::from([4]));
        // After a change of the layout all cells list their keys again, and no scan reads.
        world.with(|scans, context| scans.adopt(context));
        assert!(world.scans.reading.is_empty());
        // Scans that have ended do not count against the limit.
        world.tick(Duration::from_secs(2));
        assert_eq!(world.ended.len(), 10);
        (20..30).for_each(|round| world.begin_in_doubt(Round(round)));
        assert_eq!(world.reads(), BTreeSet::from([20, 21, 22, 23]));
    }
}
