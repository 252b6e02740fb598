//! What is judged of routers and replicas from outside.

use std::collections::BTreeMap;

use quorate_node::Node;
use quorate_protocol::{
    ProcessId,
    ecast::{MessageId, Position},
    rubberband::{Config, StorageState, Task, TaskKind},
};
use quorate_table::{
    engine::{Chunk, Engine},
    schema::KeyRange,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    mutation::Mutation,
    world::{Violation, World},
};

/// The order, each position fixed at its first learning anywhere.
#[derive(Default)]
pub(super) struct Order {
    fixed: BTreeMap<u64, (MessageId, u64)>,
    /// How many messages of each sender are ordered.
    numbers: BTreeMap<ProcessId, u64>,
    compared: BTreeMap<u64, u64>,
}

impl Order {
    /// The last position.
    pub(super) fn end(&self) -> u64 {
        self.fixed.last_key_value().map_or(0, |(&position, _)| position)
    }

    /// Compares what a router has learned since the last time.
    pub(super) fn compare(&mut self, world: &World<Node>, machine: usize) -> Result<(), Violation> {
        let Some(Node::Router(router)) = world.process(machine) else { return Ok(()) };
        let compared = self.compared.entry(world.life(machine)).or_insert(0);
        if router.position().0 <= *compared {
            return Ok(());
        }
        for (position, ordered) in router.live_after(Position(*compared)) {
            // A body is dropped once the log says that it is stable.
            let content = (!ordered.body.is_empty()).then(|| xxh3_64(&ordered.body));
            match self.fixed.get(&position.0) {
                Some((id, fixed)) if *id == ordered.id && content.is_none_or(|content| content == *fixed) => {
                }
                Some((id, _)) => {
                    let what = format!("machine {machine} has {:?} at {position}, not {id:?}", ordered.id);
                    return Err(Violation::new("agreement", what));
                }
                None => {
                    let end = self.fixed.last_key_value().map_or(0, |(&end, _)| end);
                    if position.0 != end + 1 {
                        let what = format!("machine {machine} has {position} first, nobody has {}", end + 1);
                        return Err(Violation::new("agreement", what));
                    }
                    let number = self.numbers.entry(ordered.id.sender).or_insert(0);
                    if ordered.id.number != *number + 1 {
                        let what = format!("{:?} at {position} comes behind {number}", ordered.id);
                        return Err(Violation::new("gap-free", what));
                    }
                    *number += 1;
                    self.fixed.insert(position.0, (ordered.id, content.unwrap_or_default()));
                }
            }
        }
        *compared = router.position().0;
        Ok(())
    }
}

/// The tasks that a broken engine does instead of `tasks`.
pub(super) fn mutated(mutation: Mutation, machine: usize, mut tasks: Vec<Task>) -> Vec<Task> {
    for task in &mut tasks {
        // One machine in two is broken, so that its ranges have replicas that are not.
        let broken = machine.is_multiple_of(2);
        match (mutation, &mut task.kind) {
            (Mutation::VoidedPublished, TaskKind::Settle { publish }) if broken => *publish = true,
            (Mutation::WriteSkipped, TaskKind::Write { ranges, held: false, .. })
                if broken && task.at.0.is_multiple_of(97) =>
            {
                ranges.clear();
            }
            (Mutation::ImportLost, TaskKind::Import { rows }) => {
                let mut chunk: Chunk = postcard::from_bytes(rows).expect("a chunk from an export");
                chunk.rows.pop();
                *rows = postcard::to_stdvec(&chunk).expect("our own types always serialise").into();
            }
            _ => {}
        }
    }
    tasks
}

/// Replicas of a range hold the same, once everything is at rest.
pub(super) fn replicas_are_equal(
    world: &World<Node>,
    config: &Config,
    engines: &mut BTreeMap<usize, Box<dyn Engine>>,
) -> Result<(), Violation> {
    for segment in config.segments() {
        let range = [KeyRange { low: segment.range.low, high: segment.range.high }];
        let mut first: Option<(ProcessId, u64)> = None;
        for &replica in &segment.replicas {
            let machine = replica.node as usize;
            if world.id(machine) != Some(replica)
                || config.storage.get(&replica) != Some(&StorageState::Active)
            {
                continue;
            }
            let engine = engines.get_mut(&machine).expect("every storage process has an engine");
            let digest = engine
                .digest(None, &range)
                .map_err(|failure| Violation::new("replicas", format!("{replica}: {failure:?}")))?;
            match first {
                None => first = Some((replica, digest)),
                Some((_, other)) if other == digest => {}
                Some((other, _)) => {
                    let what = format!("{other} and {replica} hold different rows of {:?}", segment.range);
                    return Err(Violation::new("replicas", what));
                }
            }
        }
    }
    Ok(())
}
