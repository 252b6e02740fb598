//! A whole cluster, and the rules that hold in it at all times.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Duration, Generation, ProcessId, RequestId,
    ecast::{Router, RouterCommand},
    rubberband::{ClientCommand, Config, DataHeader, Range, Rubberband, StorageCommand, SuperCommand},
};

use super::{
    engine::Row,
    names::{name, peer},
    process::{Asked, Role, Store},
    users::{RequestResult, Users, routers},
};
use crate::world::{Chance, Rig};

pub(crate) type World = Rig<Role, Users>;

/// Returns a statement's print. Any hash serves.
fn print(op: &str) -> u64 {
    op.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut world = Rig::of(Users::new(), Chance(seed));
        world.world.messages_take(Duration::from_micros(100), Duration::ZERO);
        world.world.limit_messages(MESSAGE_BYTES_MAX);
        world
    }

    pub(crate) fn start(&mut self, id: ProcessId) {
        self.go(|world, users| users.begin(world, id));
    }

    pub(crate) fn lives(&self, id: ProcessId) -> bool {
        self.world.alive(id)
    }

    /// Returns the living routers.
    pub(crate) fn routers(&self) -> Vec<ProcessId> {
        routers(&self.world)
    }

    pub(crate) fn router(&self, id: ProcessId) -> &Router<Rubberband> {
        self.process(id).router().unwrap_or_else(|| panic!("{} is no router", name(id)))
    }

    /// Returns the living processes that are no routers.
    pub(crate) fn members(&self) -> Vec<ProcessId> {
        let mut members = self.everybody();
        members.retain(|id| self.process(*id).router().is_none());
        members
    }

    /// Returns all living processes.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (ProcessId, &Role)> {
        self.everybody().into_iter().map(|id| (id, self.process(id)))
    }

    pub(crate) fn store(&self, id: ProcessId) -> &Store {
        self.process(id).store().unwrap_or_else(|| panic!("{} is no storage process", name(id)))
    }

    /// An operator makes a router begin the next generation.
    pub(crate) fn reform(&mut self, id: ProcessId) {
        let patience = Duration::from_secs(1);
        self.command(id, Asked::Router(RouterCommand::Reform { id: CommandId(1), patience }));
    }

    /// An operator makes a router without a log begin the next generation from these members.
    pub(crate) fn refound(&mut self, id: ProcessId, members: &[ProcessId]) {
        let before = self.everybody().into_iter().map(|id| self.nodes[&id].generation).max();
        let before = before.unwrap_or_default();
        let members = members.iter().map(|member| peer(*member)).collect();
        let patience = Duration::from_secs(1);
        let refound = RouterCommand::Refound { id: CommandId(1), before, members, patience };
        self.command(id, Asked::Router(refound));
        self.relink();
    }

    pub(crate) fn leave(&mut self, who: ProcessId) {
        let id = CommandId(1);
        let leave = match self.process(who) {
            Role::Storage(_) => Asked::Storage(StorageCommand::Leave { id }),
            Role::Super(_) => Asked::Super(SuperCommand::Leave { id }),
            Role::Client(_) => Asked::Client(ClientCommand::Leave { id }),
            Role::Router(_) => panic!("{} is a router", name(who)),
        };
        self.command(who, leave);
    }

    /// The user of a client begins a request.
    pub(crate) fn request(&mut self, id: ProcessId, token: u64, request: ClientCommand) {
        self.results.insert((id, token), RequestResult::default());
        self.command(id, Asked::Client(request));
    }

    pub(crate) fn write(
        &mut self,
        id: ProcessId,
        token: u64,
        again: Option<RequestId>,
        ranges: &[Range],
        op: &str,
    ) {
        let write = ClientCommand::Write {
            token,
            request: again,
            print: print(op),
            repeated: again.is_some(),
            table: DataHeader::NO_TABLE,
            ranges: ranges.into(),
            fallible: op.starts_with('!'),
            operation: Bytes::copy_from_slice(op.as_bytes()),
        };
        self.request(id, token, write);
    }

    /// Returns the newest configuration that any process has.
    pub(crate) fn config(&self) -> Option<&Config> {
        self.roles().filter_map(|(_, role)| role.config()).max_by_key(|config| config.version)
    }

    /// Checks that the order has each sender's messages once, without gaps, in the order of their submission.
    pub(crate) fn check_senders(&self) {
        let mut next: BTreeMap<ProcessId, u64> = BTreeMap::new();
        if self.generation > Generation::FIRST {
            // Positions and numbers may have holes. The remaining messages are in order.
            for (id, _) in self.ghost.values() {
                let before = next.insert(id.sender, id.number);
                assert!(before.is_none_or(|before| before < id.number), "{} out of order", name(id.sender));
            }
            return;
        }
        for (expected, (at, (id, _))) in (1..).zip(&self.ghost) {
            assert_eq!(at.0, expected, "positions run without gaps");
            let number = next.entry(id.sender).or_insert(1);
            assert_eq!(id.number, *number, "{} at {at}", name(id.sender));
            *number += 1;
        }
    }

    /// Checks that all complete replicas of a segment have the same rows. Returns the rows of all segments.
    pub(crate) fn check_replicas(&self) -> Vec<Row> {
        let config = self.config().expect("somebody has a configuration");
        let mut all = Vec::new();
        for segment in config.segments() {
            let mut first: Option<(ProcessId, Vec<&Row>)> = None;
            for id in config.complete(segment) {
                assert!(self.lives(id), "{} is active and not there", name(id));
                let rows = self.store(id).engine.rows.iter();
                let rows = rows.filter(|row| row.range.intersect(segment.range) == Some(row.range));
                let rows: Vec<&Row> = rows.collect();
                assert!(rows.is_sorted_by_key(|row| row.at), "{} executed out of order", name(id));
                match &first {
                    None => first = Some((id, rows)),
                    Some((other, theirs)) => {
                        assert_eq!(*theirs, rows, "{} and {} differ in {segment:?}", name(*other), name(id));
                    }
                }
            }
            let (_, rows) = first.unwrap_or_else(|| panic!("nobody has {segment:?}"));
            all.extend(rows.into_iter().cloned());
        }
        let mut seen = BTreeSet::new();
        for row in &all {
            assert!(seen.insert((row.range, &row.operation)), "{row:?} took effect twice");
        }
        all
    }
}

/// Maximum size of a message in bytes, scaled down.
const MESSAGE_BYTES_MAX: usize = 200 << 10;
