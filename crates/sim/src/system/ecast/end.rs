//! The end of an E-Cast run: the conditions of success, and the explanation of a failure.

use quorate_protocol::{ProcessId, ecast::Position};
use quorate_world::Violation;

use super::{EcastStage, EcastWorkload, EcastWorld, Kind, generation, kind};

impl EcastWorkload {
    /// Whether all messages have been submitted, and all members have received them.
    pub(super) fn is_settled(&mut self, stage: &EcastStage, world: &EcastWorld) -> bool {
        let end = self.orders.last().end();
        let at_end = |id: &ProcessId| match kind(world, id.node as usize) {
            Some(Kind::Router(router)) => router.position().0 == end,
            _ => false,
        };
        let idle = |&machine: &usize| match kind(world, machine) {
            Some(Kind::Member(member)) => member.outstanding() == (0, 0),
            _ => false,
        };
        self.words >= self.settings.words
            && stage.routers.members.iter().all(at_end)
            && self.members.iter().all(idle)
            && self.members.clone().into_iter().all(|machine| {
                generation(world, machine) == self.orders.current() && self.is_member(world, machine)
            })
    }

    /// Checks that each living member received the outcomes of its submissions.
    pub(super) fn all_told(&self, world: &EcastWorld) -> Result<(), Violation> {
        self.waits(world).map_or(Ok(()), |(life, token)| {
            let what = format!("process life {life} never received an outcome of its message {token}");
            Err(Violation::new("one outcome", what))
        })
    }

    /// Returns the loss that stops the run for good, in runs in which an operator may let the domain
    /// continue.
    pub(super) fn lost_for_good(
        &self,
        stage: &EcastStage,
        world: &EcastWorld,
        lost: &'static str,
    ) -> Option<&'static str> {
        match (self.settings.losses, self.settings.extinctions) {
            (0, 0) => Some(lost),
            _ if !self.survivors(stage, world).is_empty() => None,
            (_, 0) => Some(self.operator.lost()),
            // The domain cannot continue: every member that delivered anything has crashed, or ended because
            // it no longer belonged to the domain.
            _ if self.members.iter().all(|&machine| !has_delivered(world, machine)) => {
                Some("lost: everybody who had delivered anything")
            }
            _ => None,
        }
    }

    /// Returns the state of all processes.
    pub(super) fn describe(&self, world: &EcastWorld) -> String {
        let processes: Vec<String> = (0..world.machines())
            .map(|machine| match kind(world, machine) {
                Some(Kind::Router(router)) => format!("router {machine}: {:?}", router.status()),
                Some(Kind::Member(member)) => format!(
                    "member {machine}: {:?} in {:?}, delivered {}, outstanding {:?}, leader {:?}",
                    world.id(machine),
                    generation(world, machine),
                    member.delivered(),
                    member.outstanding(),
                    member.leader()
                ),
                None => format!("machine {machine} is down"),
            })
            .collect();
        format!("the order ends at {}; {}", self.orders.newest().end(), processes.join("; "))
    }
}

/// Whether the member on `machine` lives and has delivered anything.
fn has_delivered(world: &EcastWorld, machine: usize) -> bool {
    matches!(kind(world, machine), Some(Kind::Member(member)) if member.delivered() > Position(0))
}
