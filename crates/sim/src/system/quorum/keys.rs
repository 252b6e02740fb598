//! Names of keys, and further workloads: fields of hashes, values that expire, scans, and a map that is
//! created and dropped under traffic.
//!
//! To the checker, each field of a hash is a key of its own, so its name has two parts. A name in the map
//! that is dropped contains the map's number, because reads after a drop must not return values from before
//! the drop.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{
    CommandId,
    partial::{self, Change, Entry, Level, Scan, Scanned, Token, Value, resident::Command},
};
use quorate_world::Violation;

use super::{
    MapsWorkload, QuorumStage, QuorumWorld,
    request_log::Scanning,
    settings::{EXTRA, MAPS, MapKind},
    world::ask,
};
use crate::check::quorum::{OperationKind, number};

/// Separates a map from the number of one of its hashes.
const HASH: char = '#';
/// Separates a hash from a field.
const FIELD: char = '.';
/// Separates a map from a key whose values expire.
const EXPIRING: char = '~';
/// Surrounds the number of a map that is dropped.
const NUMBER: char = ':';

/// The lifetime of a value that expires.
pub(super) const LIFE: Duration = Duration::from_millis(300);

/// Returns the key of a name, and the field.
pub(super) fn key_of(name: &str) -> (String, Option<Bytes>) {
    if let [map, _, key] = name.split(NUMBER).collect::<Vec<_>>()[..] {
        return (format!("{map}{NUMBER}{key}"), None);
    }
    match name.split_once(FIELD) {
        Some((key, field)) => (key.to_owned(), Some(Bytes::copy_from_slice(field.as_bytes()))),
        None => (name.to_owned(), None),
    }
}

/// Whether the values of this key expire.
pub(super) fn expires(name: &str) -> bool {
    name.contains(EXPIRING)
}

/// Returns the number that a read of a key shows for a name.
pub(super) fn number_of(name: &str, value: &Value) -> Option<u64> {
    match (key_of(name).1, value) {
        (Some(field), Value::Hash(fields)) => {
            let value = fields.iter().find(|(name, _)| *name == field).map(|(_, value)| value.clone());
            value.and_then(|value| number(&Value::String(value)))
        }
        _ => number(value),
    }
}

/// Returns the part of an entry that a name refers to.
pub(super) fn part_of(name: &str, entry: Entry) -> Entry {
    let Some(field) = key_of(name).1 else { return entry };
    let register = entry.fields().find(|(name, _)| **name == field).map(|(_, register)| register.clone());
    register.map_or_else(Entry::nothing, |it| Entry::whole(it.stamp, it.value, it.expires))
}

impl MapsWorkload {
    /// Makes a user ask for something that is neither a string nor a counter.
    pub(super) fn ask_more(&mut self, world: &mut QuorumWorld) {
        let MapsWorkload { more, settings, machines, request_log, .. } = self;
        if settings.hashes == 0 {
            return;
        }
        let machine = machines[more.index(machines.len())];
        let user = settings.users + USERS + more.below(settings.users);
        let kind = &MAPS[more.index(MAPS.len())];
        let (draw, number, field) = (more.below(20), more.below(settings.hashes), more.below(FIELDS));
        let reads = more.happens(0.4);
        let levels = if reads { kind.reads } else { kind.writes };
        let level = levels[more.index(levels.len())];
        if request_log.busy.contains(&user) || world.process(machine).is_none() {
            return;
        }
        if draw == 0 {
            return self.scan(world, machine, kind, None);
        }
        request_log.asked += 1;
        let written = if reads { OperationKind::Read } else { OperationKind::Write(Some(request_log.asked)) };
        let (kind, name, deed, level) = match draw {
            1..3 => (kind, format!("{}{EXPIRING}{number}", kind.name), written, level),
            3..6 => {
                let Some(map) = self.roster.as_ref().and_then(|roster| roster.map(EXTRA.name)) else {
                    return;
                };
                let name = format!("{}{NUMBER}{}{NUMBER}{number}", EXTRA.name, map.0);
                (&EXTRA, name, written, Level::Quorum)
            }
            // A field that never existed. Its deletion leaves a tombstone nevertheless.
            6 => {
                let name = format!("{}{HASH}{number}{FIELD}absent-{}", kind.name, request_log.asked);
                (kind, name, OperationKind::Write(None), kind.writes[0])
            }
            draw => {
                let deed = if draw < 9 && !reads { OperationKind::Write(None) } else { written };
                (kind, format!("{}{HASH}{number}{FIELD}{field}", kind.name), deed, level)
            }
        };
        self.request_log.busy.insert(user);
        if let (true, OperationKind::Write(Some(value))) = (expires(&name), deed) {
            self.check.expires(&name, kind.name, value, world.now().0 as i64);
        }
        self.begin(world, (machine, user), kind, name, deed, level);
    }

    /// Asks for a piece of the keys of a map.
    fn scan(
        &mut self,
        world: &mut QuorumWorld,
        machine: usize,
        kind: &'static MapKind,
        behind: Option<Token>,
    ) {
        let Some(map) = self.roster.as_ref().and_then(|roster| roster.map(kind.name)) else { return };
        let at = world.now().0 as i64;
        let id = self.request_log.scanning(Scanning { machine, map, kind, behind, at });
        let scan = Scan { id, map, level: kind.reads[0], behind };
        world.command(machine, ask(partial::Command::Scan(scan).into()));
    }

    /// Judges the end of a scan.
    pub(super) fn scanned(
        &mut self,
        world: &mut QuorumWorld,
        id: u64,
        outcome: Scanned,
    ) -> Result<(), Violation> {
        let Some(Scanning { machine, map, kind, behind, at }) = self.request_log.scanned(id) else {
            return Err(Violation::new(
                "outcome",
                format!("scan {id} ended although no user waits for this scan: {outcome:?}"),
            ));
        };
        let Scanned::Piece { keys, next } = outcome else {
            world.count("not scanned");
            return Ok(());
        };
        world.count("scanned");
        if next.is_some_and(|next| behind.is_some_and(|behind| next <= behind)) {
            return Err(Violation::new(
                "scan",
                format!(
                    "a scan goes on from {next:?}, which is not behind the start of the present piece, \
                     {behind:?}"
                ),
            ));
        }
        let told: Vec<String> =
            keys.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
        let writing = self.request_log.writing();
        let is_within = |name: &str| {
            let token = Token::of(map, key_of(name).0.as_bytes());
            behind.is_none_or(|behind| token > behind) && next.is_none_or(|next| token <= next)
        };
        let key = |name: &str| key_of(name).0;
        self.check.scanned((kind.name, kind.promise), &told, at, key, is_within, &writing)?;
        if next.is_some() && world.process(machine).is_some() {
            self.scan(world, machine, kind, next);
        }
        Ok(())
    }

    /// Creates the temporary map, or drops it.
    pub(super) fn create_or_drop(&mut self, stage: &QuorumStage, world: &mut QuorumWorld) {
        if self.settings.hashes == 0 {
            return;
        }
        let Some(roster) = &self.roster else { return };
        let (is_there, healed) = (roster.map(EXTRA.name).is_some(), stage.is_healed());
        let machine = self.machines[self.more.index(self.machines.len())];
        let wants = if healed { is_there } else { self.more.happens(0.05) };
        if !wants || world.process(machine).is_none() {
            return;
        }
        let name = EXTRA.name.to_owned();
        let change =
            if is_there { Change::DropMap { name } } else { Change::CreateMap { name, map: EXTRA.map() } };
        world.count(if is_there { "map dropped" } else { "map created" });
        // Another command of the operator may have the present instant as its id.
        let id = CommandId(world.now().0 + 1);
        world.command(machine, ask(Command::Change { id, change: Box::new(change) }));
    }
}

/// Number of fields of a hash that are written and read.
const FIELDS: u64 = 4;
/// Offset of the numbers of this workload's users. The offset is large because, at the end, further users
/// read one key each, and their numbers follow the numbers of the users of strings.
const USERS: u64 = 1_000_000;
