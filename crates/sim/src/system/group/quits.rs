//! Processes that quit a group at any time, like a process that has lost its state: while it joins, while a
//! view changes, with open sends. Half of them come back at once, within the view that they quit.

use quorate_protocol::{
    ProcessId,
    group::{Command, Failure, GroupId},
};
use quorate_world::Violation;

use super::{GroupStage, GroupWorkload, GroupWorld, member, status::PendingRequest, world::ask};

impl GroupWorkload {
    /// Makes a process quit a group. A request for its counters follows; the answer shows that it has quit.
    pub(super) fn quit(&mut self, world: &mut GroupWorld, (machine, me): (usize, ProcessId), group: u64) {
        let asked = self.pending.range((me, 0)..=(me, u64::MAX));
        let asked = asked.filter(|(_, asked)| asked.group() == group);
        let place = self.places.entry((me, group)).or_default();
        let mut sends = false;
        for (key, asked) in asked {
            sends |= matches!(asked, PendingRequest::Send(..));
            self.quitting.insert(*key);
        }
        if sends {
            world.count("quit with sends under way");
        }
        if !place.inside {
            world.count("quit while joining");
        }
        if let Some(member) = member(world, machine)
            && member.is_changing(GroupId(group))
        {
            world.count("quit while a view changes");
        }
        place.quits = true;
        let quit = Command::Several(vec![
            Command::Quit { group: GroupId(group) },
            Command::Figures { token: group },
        ]);
        world.command(machine, ask(quit));
    }

    /// Checks the failure of a request to a process that the workload commanded to quit.
    pub(super) fn ended_by_quit(
        &mut self,
        world: &mut GroupWorld,
        me: ProcessId,
        asked: &PendingRequest,
        failure: Failure,
    ) -> Result<(), Violation> {
        match (asked, failure) {
            (PendingRequest::Send(..), Failure::NotSent) => {
                world.count("not sent by one who quit");
                self.unsent(me, asked);
            }
            (PendingRequest::Send(..), Failure::MaybeApplied) => {}
            (
                PendingRequest::Join(_) | PendingRequest::Flush(..) | PendingRequest::Save(..),
                Failure::Wedged,
            ) => {}
            // A quit never ends a send or a leave with the failure `Wedged`, so the process was dropped
            // before it came to this request, perhaps in a pause. A dropped process reports nothing more.
            (PendingRequest::Send(..) | PendingRequest::Leave(_), Failure::Wedged) => self.check.ended(me),
            (asked, failure) => {
                let what = format!(
                    "process {me} quit a group, and its request {asked:?} failed in a way that quitting \
                     does not explain: {failure}"
                );
                return Err(Violation::new("one outcome", what));
            }
        }
        Ok(())
    }

    /// Notes that a process has quit a group: all its earlier requests there must have ended.
    pub(super) fn has_quit(
        &mut self,
        stage: &mut GroupStage,
        world: &mut GroupWorld,
        (machine, me): (usize, ProcessId),
        group: u64,
    ) -> Result<(), Violation> {
        world.count("quit");
        let quitting = self.quitting.range((me, 0)..=(me, u64::MAX));
        let open = quitting.filter_map(|key| self.pending.get(key)).find(|asked| asked.group() == group);
        if let Some(asked) = open {
            return Err(Violation::new(
                "one outcome",
                format!("process {me} has quit a group, but its request {asked:?} has no outcome"),
            ));
        }
        self.check.left(me, group);
        self.places.entry((me, group)).or_default().quit();
        if stage.chance.happens(0.5) {
            self.join(stage, world, (machine, me), group);
        }
        Ok(())
    }
}
