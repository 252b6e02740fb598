//! Random schedules. Links break, processes crash and return as new processes, messages are slow. The world
//! checks agreement at every learning. In the end the links heal, and all routers must learn every proposal.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{
    Duration, Incarnation, Input, ProcessId,
    paxos::{Command, Paxos, Settings},
};

use super::{
    recovery,
    world::{Node, World},
};

fn router(node: u64, life: u128) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(life) }
}

/// Runs one schedule. Prints its seed if it fails.
fn run(seed: u64, counts: &mut BTreeMap<&'static str, u64>) {
    let result = std::panic::catch_unwind(|| schedule(seed));
    match result {
        Ok(counted) => counted.into_iter().for_each(|(what, n)| *counts.entry(what).or_default() += n),
        Err(failure) => {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(failure);
        }
    }
}

fn schedule(seed: u64) -> BTreeMap<&'static str, u64> {
    let settings = Settings { chunk_bytes: 300, batch_bytes_max: 200, ..Settings::default() };
    let mut world = World::new(settings, seed);
    world.settings.log_bytes_kept = [500, 3000, 1 << 20][(world.random() % 3) as usize];
    world.settings.wanted = if world.random().is_multiple_of(3) { 5 } else { 3 };
    world.persistent = true;
    if seed % 4 == 1 {
        world.parts = true;
        world.settings.checkpoint_bytes = Some(usize::MAX);
    }
    let nodes = world.settings.wanted as u64;
    let mut lives = BTreeMap::new();
    let mut proposed = 0_u64;
    world.found(router(1, 0));
    for node in 1..=nodes {
        lives.insert(node, 0_u128);
        if node > 1 {
            world.join(router(node, 0), &[router(1, 0)]);
        }
    }
    world.run(Duration::from_millis(500));
    assert!(world.living().all(|(_, paxos, _)| paxos.members().len() == nodes as usize), "it grew");

    // Safety must hold whatever happens in these steps.
    for _ in 0..3000 {
        match world.random() % 100 {
            0..70 => {
                let links = world.links();
                if !links.is_empty() {
                    let (a, b) = links[(world.random() % links.len() as u64) as usize];
                    let (from, to) = if world.random().is_multiple_of(2) { (a, b) } else { (b, a) };
                    for _ in 0..=world.random() % 4 {
                        world.deliver(from, to);
                    }
                    world.input(to, Input::Drained);
                }
            }
            70..88 => world.wake_next(),
            88..95 => {
                let ids = world.everybody();
                let id = ids[(world.random() % ids.len() as u64) as usize];
                proposed += 1;
                world.propose(id, Bytes::from(format!("{proposed} by {id}")));
            }
            95 => {
                let links = world.links();
                if !links.is_empty() {
                    let (a, b) = links[(world.random() % links.len() as u64) as usize];
                    if world.random().is_multiple_of(3) { world.cut(a, b) } else { world.unlink(a, b) }
                }
            }
            96 => world.relink(),
            97 if world.random().is_multiple_of(3) => world.heal(),
            97 => {
                let ids = world.everybody();
                let id = ids[(world.random() % ids.len() as u64) as usize];
                let asked = ids[(world.random() % ids.len() as u64) as usize];
                // A pending command relies on the processes that were alive when it was given, so these seeds
                // have no crashes.
                if seed.is_multiple_of(4) {
                    world.input(asked, Input::Command(Command::RemoveRouter(id)));
                }
            }
            98 => {
                // No more processes may fail than the members tolerate. Further processes may fail only after
                // the failed processes are replaced.
                let ids = world.everybody();
                let id = ids[(world.random() % ids.len() as u64) as usize];
                if !seed.is_multiple_of(4) && bears_loss_of(&world, id) {
                    world.crash(id);
                    let life = lives.get_mut(&id.node).expect("every node has lived");
                    *life += 1;
                    let new = router(id.node, *life);
                    let seeds = world.everybody();
                    world.join(new, &seeds);
                    *world.counts.entry("crash").or_default() += 1;
                }
            }
            _ => {
                // Routers that were voted out restart as new routers.
                for id in removed(&world) {
                    restart(&mut world, &mut lives, id);
                }
            }
        }
    }

    recovery::check(&world);

    // Liveness: all links heal, and in the end all routers are members and know the same log.
    world.heal();
    for _ in 0..400 {
        world.relink();
        world.run(Duration::from_millis(50));
        for id in removed(&world) {
            restart(&mut world, &mut lives, id);
        }
        if converged(&world) {
            break;
        }
    }
    if !converged(&world) {
        let line = |(id, paxos, node): (_, &Paxos, &Node)| {
            format!("{id} {:?} unlearned {}", paxos.status(), node.unlearned.len())
        };
        let lines: Vec<_> = world.living().map(line).collect();
        eprintln!(
            "{}",
            world
                .trace
                .lines()
                .rev()
                .take(100)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("\n")
        );
        panic!("no convergence:\n{}", lines.join("\n"));
    }
    world.environment.counts
}

/// Returns the routers that were voted out.
fn removed(world: &World) -> Vec<ProcessId> {
    world.living().filter(|(_, _, node)| node.removed).map(|(id, ..)| id).collect()
}

fn restart(world: &mut World, lives: &mut BTreeMap<u64, u128>, id: ProcessId) {
    world.crash(id);
    let life = lives.get_mut(&id.node).expect("every node has lived");
    *life += 1;
    let seeds = world.everybody();
    world.join(router(id.node, *life), &seeds);
}

/// Whether every set of members keeps a majority of living routers without `id`. The sets are the newest
/// learned set, and the sets that pending changes would make.
fn bears_loss_of(world: &World, id: ProcessId) -> bool {
    let statuses: Vec<_> = world.living().map(|(_, paxos, _)| paxos.status()).collect();
    let newest = statuses.iter().max_by_key(|status| status.chosen).map(|status| &status.members);
    let open = statuses.iter().filter_map(|status| status.members_open.as_ref());
    open.chain(newest).all(|members| {
        let alive = members
            .iter()
            .filter(|peer| {
                peer.id != id && world.living().any(|(id, _, node)| id == peer.id && !node.removed)
            })
            .count();
        alive > members.len() / 2
    })
}

fn converged(world: &World) -> bool {
    let applied = world.living().map(|(_, _, node)| node.applied).max();
    world.living().all(|(_, paxos, node)| {
        Some(node.applied) == applied
            && node.unlearned.is_empty()
            && paxos.members().len() == world.settings.wanted
            && paxos.leader().is_some()
    })
}

const SEEDS: u64 = 300;

#[test]
fn agreement_and_progress_over_random_schedules() {
    let mut counts = BTreeMap::new();
    for seed in 0..SEEDS {
        run(seed, &mut counts);
    }
    println!("{counts:?}");
    for what in ["leader", "crash", "removed", "members", "snapshot", "install"] {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "no schedule showed {what}: {counts:?}");
    }
}
