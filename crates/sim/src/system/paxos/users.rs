//! What users ask for, and the routers that they ask.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{Incarnation, Peer, ProcessId, paxos::Paxos};

use super::{Ask, Stage, Users, World};
use crate::mutation::Mutation;

impl Users {
    /// A user asks for some entries.
    pub(super) fn append(&mut self, stage: &mut Stage, world: &mut World) {
        let machine = stage.chance.index(world.machines());
        let Some(&author) = self.authors.get(&machine).filter(|_| world.id(machine).is_some()) else {
            return;
        };
        for _ in 0..1 + stage.chance.below(8) {
            let length = stage.chance.below(self.settings.payload_bytes_max + 1);
            let filler = Bytes::from(vec![stage.chance.bits() as u8; length as usize]);
            let later = stage.chance.between(Duration::ZERO, Duration::from_micros(300));
            world.command_after(machine, later, Ask::Append(filler));
            self.check.asked(author);
            self.asked_total += 1;
        }
    }

    /// The log of the router that starts on `machine`, from its disk if there is one.
    pub(super) fn router(&mut self, stage: &mut Stage, world: &mut World, me: Peer) -> (Paxos, ProcessId) {
        let (machine, id) = (me.id.node as usize, me.id);
        let mut settings = self.paxos.clone();
        match stage.mutation {
            Some(Mutation::FoundsAgain) => stage.routers.found_again(),
            Some(Mutation::BelowTheFloor) if stage.routers.founded() => settings.wanted = 1,
            _ => {}
        }
        let recovered = Paxos::recover(me, settings.clone(), world.records(machine), world.clock(machine));
        if let Some(paxos) = recovered.expect("what was durable follows from itself") {
            world.count("recovered from disk");
            // Numbered by life: this world gives no number twice.
            let incarnation = Incarnation(id.incarnation.0 ^ u128::from(world.births()) << 64);
            return (paxos, ProcessId { node: id.node, incarnation });
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // Nobody has ever heard of the domain.
            stage.routers.found_again();
        }
        if !stage.routers.founded() {
            self.founder = Some(machine);
        }
        (stage.routers.start(world, machine, id, settings), id)
    }
}
