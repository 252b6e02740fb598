//! The beginning of a new generation at a router, before and after the log records it
//! ([`reform`](crate::ecast::reform)).

use bytes::Bytes;

use super::{
    super::{
        RouterRefusal, Routing, commands::RouterEvent, entry::LogEntry, message::Message, reform::Gathering,
    },
    Router,
};
use crate::{
    id::{Generation, ProcessId},
    paxos,
    seam::{CommandId, Context, Destination, Input, Sink},
    time::Duration,
};

/// Time that members have to answer a survivor that was restarted before its log recorded the beginning. It
/// equals the time that they may be away for a restart of their own. The operator may have allowed less, but
/// that setting was lost with the former life.
pub(super) const RESUME_PATIENCE: Duration = Duration::from_secs(30);

impl<R: Routing> Router<R> {
    /// Begins a generation, because an operator says that a majority of the routers is gone for good.
    pub(super) fn reform(
        &mut self,
        cx: &mut Context<'_>,
        id: CommandId,
        patience: Duration,
        out: &mut dyn Sink<Self>,
    ) {
        let possible = match self.paxos.can_reform() {
            _ if self.gathering.is_some() || self.commands.generation.is_some() => {
                Err(RouterRefusal::GenerationBegins)
            }
            possible => possible.map_err(RouterRefusal::from),
        };
        if possible.is_err() {
            return out.emit(RouterEvent::Ended { id, result: possible });
        }
        self.commands.generation = Some(id);
        let before = self.settings.generation;
        self.settings.generation = before.next(cx.me);
        self.adopt(out);
        self.go_on_alone(cx, before, patience, out);
    }

    /// Continues a generation that a former life of this router entered and may have left before its log
    /// recorded the beginning.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.resumes = false;
        // First the log reports the slots that it knows to be chosen.
        self.drive(cx, Input::Drained, out);
        if self.knows_beginning() {
            return;
        }
        let begins = |entry: Bytes| match LogEntry::decode(entry) {
            Ok(LogEntry::Recovered(recovery)) => recovery.generation == self.settings.generation,
            _ => false,
        };
        if self.paxos.unchosen().into_iter().any(begins) {
            // Members may have heard of the beginning that this log contains, so there must be no second
            // beginning. The entry is learned once this router leads.
            self.founding = true;
            return;
        }
        if !self.order.is_founded() || self.paxos.can_reform().is_err() {
            // This router was a founder. The ground that it chose was in memory only, and no other process
            // has heard of that ground. So this router ends.
            return out.emit(RouterEvent::Removed);
        }
        let before = self.order.reformed().map_or(Generation::FIRST, |reformed| reformed.generation);
        self.go_on_alone(cx, before, RESUME_PATIENCE, out);
    }

    /// Continues the log with this router alone, and asks members for their deliveries.
    fn go_on_alone(
        &mut self,
        cx: &mut Context<'_>,
        before: Generation,
        patience: Duration,
        out: &mut dyn Sink<Self>,
    ) {
        let (until, unchosen) = (cx.now + patience, self.paxos.unchosen());
        // From here on this router dispatches nothing.
        self.gathering =
            Some(Gathering::new(before, self.settings.generation, self.order.last(), until, unchosen));
        self.drive(cx, Input::Command(paxos::Command::Reform), out);
        self.gather(self.linked.iter().copied().collect(), out);
    }

    /// Asks members for their deliveries.
    pub(super) fn gather(&mut self, members: Vec<ProcessId>, out: &mut dyn Sink<Self>) {
        if self.gathering.as_ref().is_some_and(|gathering| gathering.until().is_some()) && !members.is_empty()
        {
            let generation = self.settings.generation;
            self.asked.extend(&members);
            out.send(Destination::Many(members), Message::Gather { generation }, None);
        }
    }

    /// Proposes the beginning of the generation, once all members have answered or their time is over.
    pub(super) fn finish_gathering(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(gathering) = &mut self.gathering else { return };
        let over = gathering.until().is_some_and(|until| until <= cx.now);
        let complete = gathering.until().is_some() && gathering.is_complete(&R::members(self.order.config()));
        if over || complete {
            for entry in gathering.finish() {
                self.propose(cx, entry, out);
            }
        }
    }

    /// Whether the log has recorded the beginning of this generation.
    pub(super) fn knows_beginning(&self) -> bool {
        let known = self.order.reformed().map_or(Generation::FIRST, |reformed| reformed.generation);
        known == self.settings.generation
    }

    /// Continues once the log has recorded the beginning of this generation.
    pub(super) fn begun(&mut self, out: &mut dyn Sink<Self>) {
        let began_here = self.gathering.take().is_some();
        if began_here {
            let reformed =
                self.order.reformed().expect("the start of the generation was just learned").clone();
            out.emit(RouterEvent::Reformed(reformed));
        }
        if began_here {
            // If no router survives to tell the others of this generation, members that have heard of its
            // beginning can tell them.
            let members = R::members(self.order.config()).into_iter();
            let members: Vec<ProcessId> = members.filter(|it| !self.order.is_fenced(*it)).collect();
            let receivers = members.iter().copied().filter(|it| self.linked.contains(it)).collect();
            let generation = self.settings.generation;
            out.send(Destination::Many(receivers), Message::Counted { generation, members }, None);
        }
        // Fenced members learn the leader, too, because they would not accept their removal from an unknown
        // router. If the generation began at a router other than this one, all members learn the leader: they
        // may have reported their deliveries before this router could judge them.
        let mut receivers = self.linked.clone();
        receivers.retain(|it| !began_here || self.order.is_fenced(*it));
        self.announce_leader(receivers.into_iter().collect(), out);
        self.linked = &self.linked - self.order.fenced();
        if began_here {
            self.lead(self.paxos.leader(), out);
            // A command of an operator to this life of the router waits for the generation. After a restart
            // no command waits.
            if let Some(id) = self.commands.generation.take() {
                out.emit(RouterEvent::Ended { id, result: Ok(()) });
            }
        }
    }
}
