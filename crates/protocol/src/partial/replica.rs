//! A replica: the entries of one cell, and its answers.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;

use super::{
    clock::{Clock, Stamp},
    entry::{Entry, Value},
    layout::{Layout, MapId},
    message::{Answer, Demand, Refusal, Request},
    ring::Token,
    scan::{Kind, Listed},
};
use crate::time::Time;

/// How much a replica keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// No entry takes more bytes.
    pub entry_bytes_max: usize,
    /// All entries together take no more bytes. Deletes are taken beyond it: they are how room is made.
    pub store_bytes_max: usize,
}

/// Refusals of a replica, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Refused {
    /// Requests of another layout.
    pub layout: u64,
    /// Writes with stamps too far ahead.
    pub skewed: u64,
    /// Writes that would make an entry too large.
    pub too_large: u64,
    /// Writes for which there was no memory.
    pub full: u64,
}

/// The entries that a cell keeps.
#[derive(Debug)]
pub struct Replica {
    limits: Limits,
    /// By token first, so that an arc of the ring is a range.
    maps: BTreeMap<MapId, BTreeMap<(Token, Bytes), Entry>>,
    bytes: usize,
    refused: Refused,
}

impl Replica {
    /// A replica that keeps nothing yet.
    pub fn new(limits: Limits) -> Replica {
        Replica { limits, maps: BTreeMap::new(), bytes: 0, refused: Refused::default() }
    }

    /// How many bytes its keys and entries take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its refusals so far.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The entry of a key.
    pub fn entry(&self, map: MapId, key: &Bytes) -> Option<&Entry> {
        self.maps.get(&map)?.get(&(Token::of(map, key), key.clone()))
    }

    /// The layout changed: maps that were dropped are forgotten.
    pub fn adopt(&mut self, layout: &Layout) {
        let dropped: Vec<_> = self.maps.keys().copied().filter(|map| layout.map(*map).is_none()).collect();
        for map in dropped {
            let entries = self.maps.remove(&map).expect("its key is there");
            self.bytes -= entries.iter().map(|((_, key), entry)| entry_bytes(key, entry)).sum::<usize>();
        }
    }

    /// Does what a coordinator demands.
    pub fn answer(&mut self, request: Request, layout: &Layout, clock: &mut Clock, now: Time) -> Answer {
        if request.layout != layout.version() || layout.map(request.map).is_none() {
            self.refused.layout += 1;
            return Answer::Refused(Refusal::Layout);
        }
        let held = self.entry(request.map, &request.key);
        match request.demand {
            Demand::Copy { .. } => unreachable!("the cell, which knows the owners, answers that"),
            Demand::List { behind } => {
                let (keys, through) = self.list(request.map, behind, clock.wall(now));
                Answer::Listed { keys, through }
            }
            Demand::Ask => Answer::Told(held.map_or(Stamp::ZERO, Entry::newest)),
            Demand::Read => Answer::Entry(held.cloned().unwrap_or_default()),
            Demand::Digest => Answer::Digest(held.map(Entry::digest).unwrap_or_default()),
            Demand::Write(entry) => match self.write(request.map, request.key, &entry, clock, now) {
                Ok(newer) => Answer::Written { newer },
                Err(refusal) => Answer::Refused(refusal),
            },
        }
    }

    /// Some entries of a map, of those that `wanted` holds for: from behind a key on. Looks at a part of the map only; tells the
    /// last key that it looked at, unless it was the map's last.
    pub(super) fn copy(
        &self,
        map: MapId,
        behind: Option<&Bytes>,
        wanted: impl Fn(Token) -> bool,
    ) -> (Vec<(Bytes, Entry)>, Option<Bytes>) {
        let (mut copied, mut bytes) = (Vec::new(), 0);
        let Some(entries) = self.maps.get(&map) else { return (copied, None) };
        let from = behind.map(|key| (Token::of(map, key), key.clone()));
        let from = from.map_or(Bound::Unbounded, Bound::Excluded);
        for (looked, ((token, key), entry)) in (1..).zip(entries.range((from, Bound::Unbounded))) {
            if wanted(*token) {
                bytes += entry_bytes(key, entry);
                copied.push((key.clone(), entry.clone()));
            }
            if bytes >= COPY_BYTES || looked >= COPY_LOOKS {
                return (copied, Some(key.clone()));
            }
        }
        (copied, None)
    }

    /// Some keys of a map behind a token, deleted ones too, and the token up to which these are all; none: they are the last. Keys
    /// of one token are never parted.
    fn list(&self, map: MapId, behind: Option<Token>, wall: u64) -> (Vec<Listed>, Option<Token>) {
        let from = match behind {
            Some(Token(u64::MAX)) => return (Vec::new(), None),
            Some(Token(token)) => Token(token + 1),
            None => Token(0),
        };
        let (mut keys, mut bytes, mut last) = (Vec::new(), 0, None);
        let entries = self.maps.get(&map).into_iter().flat_map(|it| it.range((from, Bytes::new())..));
        for ((token, key), entry) in entries {
            if (keys.len() >= LIST_KEYS || bytes >= COPY_BYTES) && last != Some(*token) {
                return (keys, last);
            }
            last = Some(*token);
            bytes += size_of::<Listed>() + key.len();
            let kind = match entry.value(wall) {
                Value::Nothing => Kind::Nothing,
                Value::String(_) => Kind::String,
                Value::Hash(_) => Kind::Hash,
            };
            keys.push(Listed { key: key.clone(), newest: entry.newest(), kind });
        }
        (keys, None)
    }

    /// Takes a copy of an entry, as a write.
    pub(super) fn take(
        &mut self,
        map: MapId,
        (key, entry): (Bytes, Entry),
        clock: &mut Clock,
        now: Time,
    ) -> Result<(), Refusal> {
        self.write(map, key, &entry, clock, now).map(|_| ())
    }

    /// Merges `write` into what is held; returns the highest stamp of what concerns the same and is newer.
    fn write(
        &mut self,
        map: MapId,
        key: Bytes,
        write: &Entry,
        clock: &mut Clock,
        now: Time,
    ) -> Result<Stamp, Refusal> {
        if clock.admit(write.newest(), now).is_err() {
            self.refused.skewed += 1;
            return Err(Refusal::Skewed);
        }
        let entries = self.maps.entry(map).or_default();
        let at = (Token::of(map, &key), key);
        let before = entries.get(&at);
        let size_before = before.map_or(0, |entry| entry_bytes(&at.1, entry));
        let mut entry = before.cloned().unwrap_or_default();
        let beside = entry.newest_beside(write);
        if entry.merge(write) {
            let size = entry_bytes(&at.1, &entry);
            // A write that makes nothing larger is always taken, and so is a delete.
            let grows = size > size_before && !write.is_delete();
            if grows && size > self.limits.entry_bytes_max {
                self.refused.too_large += 1;
                return Err(Refusal::TooLarge);
            }
            if grows && self.bytes - size_before + size > self.limits.store_bytes_max {
                self.refused.full += 1;
                return Err(Refusal::Full);
            }
            self.bytes = self.bytes - size_before + size;
            entries.insert(at, entry);
        }
        Ok(if beside > write.newest() { beside } else { Stamp::ZERO })
    }
}

/// One copy has about so many bytes, or looks at so many entries.
const COPY_BYTES: usize = 256 << 10;
const COPY_LOOKS: usize = 4_096;
/// One piece of a scan has about so many keys.
const LIST_KEYS: usize = 512;

fn entry_bytes(key: &Bytes, entry: &Entry) -> usize {
    size_of::<(Token, Bytes)>() + key.len() + entry.bytes()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            layout::{CellNumber, Copies, LayoutOrder, Map, ReadRepair, tests::layout},
            message::Round,
            ring::Site,
        },
        *,
    };
    use crate::time::Duration;

    const MAP: MapId = MapId(1);

    struct Rig {
        replica: Replica,
        layout: Layout,
        clock: Clock,
    }

    impl Rig {
        fn new(limits: Limits) -> Rig {
            let mut layout = layout(&[(0, 1)]);
            let copies = Copies::new([(Site(0), 1)]).unwrap();
            let map = Map { copies, read_repair: ReadRepair::None };
            layout.apply(&LayoutOrder::CreateMap(MAP, map)).unwrap();
            Rig { replica: Replica::new(limits), layout, clock: Clock::new(0, Duration::from_micros(1)) }
        }

        fn demand(&mut self, key: &'static str, demand: Demand) -> Answer {
            let key = Bytes::from_static(key.as_bytes());
            let request = Request { round: Round(1), layout: self.layout.version(), map: MAP, key, demand };
            self.replica.answer(request, &self.layout, &mut self.clock, Time(1_000))
        }

        fn put(&mut self, key: &'static str, time: u64, bytes: usize) -> Answer {
            let value = Some(Bytes::from(vec![b'x'; bytes]));
            self.demand(key, Demand::Write(Entry::whole(stamp(time), value, None)))
        }
    }

    fn stamp(time: u64) -> Stamp {
        Stamp { time, cell: CellNumber(1) }
    }

    const TAKEN: Answer = Answer::Written { newer: Stamp::ZERO };
    const WIDE: Limits = Limits { entry_bytes_max: 1 << 20, store_bytes_max: 1 << 20 };

    #[test]
    fn who_holds_a_newer_stamp_says_so() {
        let mut rig = Rig::new(WIDE);
        assert_eq!(rig.demand("k", Demand::Ask), Answer::Told(Stamp::ZERO));
        assert_eq!(rig.put("k", 100, 1), TAKEN);
        assert_eq!(rig.put("k", 50, 1), Answer::Written { newer: stamp(100) });
        assert_eq!(rig.put("k", 100, 1), TAKEN);
        assert_eq!(rig.demand("k", Demand::Ask), Answer::Told(stamp(100)));
        let held = rig.replica.entry(MAP, &Bytes::from_static(b"k")).unwrap().clone();
        assert_eq!(rig.demand("k", Demand::Digest), Answer::Digest(held.digest()));
        assert_eq!(rig.demand("k", Demand::Read), Answer::Entry(held));
    }

    #[test]
    fn a_stamp_too_far_ahead_is_refused_and_counted() {
        let mut rig = Rig::new(WIDE);
        assert_eq!(rig.put("k", 2_001, 1), Answer::Refused(Refusal::Skewed));
        assert_eq!(rig.put("k", 2_000, 1), TAKEN);
        assert_eq!(rig.replica.refused().skewed, 1);
    }

    #[test]
    fn another_layout_is_refused_and_a_dropped_map_is_forgotten() {
        let mut rig = Rig::new(WIDE);
        rig.put("k", 1, 1);
        let key = Bytes::from_static(b"k");
        let old = Request {
            round: Round(1),
            layout: rig.layout.version(),
            map: MAP,
            key: key.clone(),
            demand: Demand::Read,
        };
        rig.layout.apply(&LayoutOrder::DropMap(MAP)).unwrap();
        rig.replica.adopt(&rig.layout);
        assert!(rig.replica.entry(MAP, &key).is_none());
        assert_eq!(rig.replica.bytes(), 0);
        let answer = rig.replica.answer(old.clone(), &rig.layout, &mut rig.clock, Time(1_000));
        assert_eq!(answer, Answer::Refused(Refusal::Layout));
        let new = Request { layout: rig.layout.version(), ..old };
        let answer = rig.replica.answer(new, &rig.layout, &mut rig.clock, Time(1_000));
        assert_eq!(answer, Answer::Refused(Refusal::Layout));
    }

    #[test]
    fn limits_hold_and_deletes_make_room() {
        let mut rig = Rig::new(Limits { entry_bytes_max: 600, store_bytes_max: 1_000 });
        assert_eq!(rig.put("a", 1, 1_000), Answer::Refused(Refusal::TooLarge));
        assert_eq!(rig.put("a", 1, 400), TAKEN);
        assert_eq!(rig.put("b", 1, 400), Answer::Refused(Refusal::Full));
        assert_eq!(rig.put("a", 2, 400), TAKEN);
        assert_eq!(rig.demand("a", Demand::Write(Entry::whole(stamp(3), None, None))), TAKEN);
        assert_eq!(rig.put("b", 1, 400), TAKEN);
        let refused = rig.replica.refused();
        assert_eq!((refused.too_large, refused.full), (1, 1));
    }
}
