//! The requests to members, and their suspicions of other members.

use quorate_protocol::{
    ProcessId,
    ecast::{Class, MemberCommand, RouterCommand},
};
use xxhash_rust::xxh3::xxh3_64;

use super::{EcastCommand, EcastStage, EcastWorkload, EcastWorld, Kind, PendingSubmission, generation, kind};
use crate::{check::order::Twin, system::rooms::Say};

impl EcastWorkload {
    /// Makes the member on `machine` submit a message.
    pub(super) fn say(&mut self, world: &mut EcastWorld, machine: usize, say: Say) {
        let Some(me) = world.id(machine) else { return };
        self.tokens += 1;
        let token = self.tokens;
        let (class, body) = (say.class(), say.encode());
        self.submissions.asked(me, class == Class::Data, xxh3_64(&body));
        self.pending.insert((world.life(machine), token), PendingSubmission { say, machine });
        let submit = MemberCommand::Submit { token, class, body };
        world.command(machine, EcastCommand::Member(submit));
    }

    /// Returns a random living member.
    fn somebody(&mut self, stage: &mut EcastStage, world: &EcastWorld) -> Option<usize> {
        let mut alive = self.members.clone();
        alive.retain(|&machine| self.is_member(world, machine));
        stage.chance.pick(&alive)
    }

    /// Whether a member lives on `machine`, according to the order of its generation.
    pub(super) fn is_member(&mut self, world: &EcastWorld, machine: usize) -> bool {
        let order = self.orders.of(generation(world, machine));
        order.zip(world.id(machine)).is_some_and(|(order, id)| order.twin.is_member(id))
    }

    pub(super) fn talk(&mut self, stage: &mut EcastStage, world: &mut EcastWorld) {
        let Some(machine) = self.somebody(stage, world) else { return };
        for _ in 0..1 + stage.chance.below(20) {
            let room = stage.chance.below(self.settings.rooms);
            let say = match stage.chance.below(60) {
                0 => Say::Quit { room },
                1 | 2 => Say::Enter { room },
                _ => {
                    self.words += 1;
                    let length = stage.chance.below(self.settings.filler_bytes_max + 1);
                    Say::Word { room, word: self.words, filler: vec![b'.'; length as usize] }
                }
            };
            self.say(world, machine, say);
        }
        if stage.chance.happens(0.2) {
            self.tokens += 1;
            let room = stage.chance.below(self.settings.rooms);
            let say = Say::Word { room, word: 0, filler: Vec::new() };
            let inject = MemberCommand::Inject { token: self.tokens, latest: false, body: say.encode() };
            world.command(machine, EcastCommand::Member(inject));
        }
    }

    /// Returns a living member's life, and the token of one of its submissions without an outcome.
    pub(super) fn waits(&self, world: &EcastWorld) -> Option<(u64, u64)> {
        let lives = |life: u64| {
            let of = |&machine: &usize| world.process(machine).is_some() && world.life(machine) == life;
            self.members.iter().any(of)
        };
        self.pending.keys().copied().find(|(life, _)| lives(*life))
    }

    /// Makes some member suspect the members that are dead, and sometimes a living one.
    pub(super) fn watch(&mut self, stage: &mut EcastStage, world: &mut EcastWorld) {
        let present: Vec<ProcessId> = self.orders.last().twin.present().keys().copied().collect();
        let mut processes: Vec<ProcessId> = present.iter().copied().filter(|&id| !world.alive(id)).collect();
        if !stage.is_healed() && present.len() > 2 && stage.chance.happens(0.03) {
            processes.push(present[stage.chance.index(present.len())]);
            world.count("false suspicion");
        }
        if !processes.is_empty()
            && let Some(machine) = self.somebody(stage, world)
        {
            self.say(world, machine, Say::Suspect { processes });
        }
        let seeds = stage.routers.living(world);
        for machine in self.members.clone() {
            // A member that knows only former routers asks its host, which knows where routers run.
            if let Some(Kind::Member(member)) = kind(world, machine)
                && member.leader().is_none_or(|leader| !world.alive(leader))
            {
                world.command(machine, EcastCommand::Member(MemberCommand::Seeds(seeds.clone())));
            }
        }
        if self.settings.goes_on() || self.settings.disk.is_some() {
            for &machine in &stage.routers.machines {
                world.command(machine, EcastCommand::Router(RouterCommand::Seeds(seeds.clone())));
            }
        }
    }
}
