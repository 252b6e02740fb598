//! The requests of users, and the routers that get them.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{Incarnation, Peer, ProcessId, paxos::Paxos};

use super::{PaxosCommand, PaxosWorkload, Stage, World};
use crate::mutation::Mutation;

impl PaxosWorkload {
    /// Makes a user request some entries.
    pub(super) fn append(&mut self, stage: &mut Stage, world: &mut World) {
        let machine = stage.chance.index(world.machines());
        let Some(&author) = self.authors.get(&machine).filter(|_| world.id(machine).is_some()) else {
            return;
        };
        for _ in 0..1 + stage.chance.below(8) {
            let length = stage.chance.below(self.settings.payload_bytes_max + 1);
            let filler = Bytes::from(vec![stage.chance.bits() as u8; length as usize]);
            let later = stage.chance.between(Duration::ZERO, Duration::from_micros(300));
            world.command_after(machine, later, PaxosCommand::Append(filler));
            self.check.asked(author);
            self.asked_total += 1;
        }
    }

    /// Returns the log of the router that starts on `machine`, from its disk if there is one, and the author
    /// id of its entries.
    pub(super) fn router(&mut self, stage: &mut Stage, world: &mut World, me: Peer) -> (Paxos, ProcessId) {
        let (machine, id) = (me.id.node as usize, me.id);
        let mut settings = self.paxos.clone();
        match stage.mutation {
            Some(Mutation::FoundsAgain) => stage.routers.found_again(),
            Some(Mutation::BelowTheFloor) if stage.routers.founded() => settings.wanted = 1,
            _ => {}
        }
        let recovered = Paxos::recover(me, settings.clone(), world.records(machine), world.clock(machine));
        if let Some(paxos) = recovered.expect("the durable records of a log follow from each other") {
            world.count("recovered from disk");
            // The author id depends on the number of the life, which this world never uses again.
            let incarnation = Incarnation(id.incarnation.0 ^ u128::from(world.births()) << 64);
            return (paxos, ProcessId { node: id.node, incarnation });
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // The founder lost its records before any process had heard of the domain, so the domain is
            // founded again.
            stage.routers.found_again();
        }
        if !stage.routers.founded() {
            self.founder = Some(machine);
        }
        (stage.routers.start(world, machine, id, settings), id)
    }
}
