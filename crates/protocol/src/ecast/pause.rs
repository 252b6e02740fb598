//! A router stops for a moment: if it leads, it first hands over the lead.

#[cfg(doc)]
use super::RouterCommand;
use super::{Router, RouterEvent, RouterRefusal, Routing};
use crate::{
    paxos,
    seam::{CommandId, Context, Input, Sink},
};

impl<R: Routing> Router<R> {
    /// Executes [`RouterCommand::Pause`].
    pub(super) fn pause(&mut self, cx: &mut Context<'_>, id: CommandId, out: &mut dyn Sink<Self>) {
        if let Some(id) = self.commands.pause.replace(id) {
            out.emit(RouterEvent::Ended { id, result: Err(RouterRefusal::TooMany) });
        }
        self.drive(cx, Input::Command(paxos::Command::Pause), out);
        if self.log().is_leader()
            && let Some(id) = self.commands.pause.take()
        {
            return out.emit(RouterEvent::Ended { id, result: Err(RouterRefusal::NoSuccessor) });
        }
        self.paused(out);
    }

    /// Ends the command once another router leads.
    pub(super) fn paused(&mut self, out: &mut dyn Sink<Self>) {
        if !self.log().is_leader()
            && self.log().leader().is_some()
            && let Some(id) = self.commands.pause.take()
        {
            out.emit(RouterEvent::Ended { id, result: Ok(()) });
        }
    }
}
