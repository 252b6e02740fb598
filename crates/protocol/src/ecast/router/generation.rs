//! How a router begins a new generation, and what it does once the log has said with what that begins ([`reform`](crate::ecast::reform)).

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

/// Members may take so long to answer a survivor that was restarted meanwhile: as long as they may be away for a restart of their own.
/// The operator may have allowed less, which went with the life that was asked.
pub(super) const RESUME_PATIENCE: Duration = Duration::from_secs(30);

impl<R: Routing> Router<R> {
    /// An operator says that a majority of the routers is gone for good.
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

    /// A former life of this router entered a generation, and may have ended before its log said with what that begins.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.resumes = false;
        // The log first tells what it knows to be chosen.
        self.drive(cx, Input::Drained, out);
        if self.knows_cut() {
            return;
        }
        let begins = |entry: Bytes| match LogEntry::decode(entry) {
            Ok(LogEntry::Recovered(recovery)) => recovery.generation == self.settings.generation,
            _ => false,
        };
        if self.paxos.unchosen().into_iter().any(begins) {
            // Members may have heard of that beginning, so there is no other. It is learned once this router leads.
            self.founding = true;
            return;
        }
        if !self.order.is_founded() || self.paxos.can_reform().is_err() {
            // A founder's ground was in memory alone, and nobody has heard of it.
            return out.emit(RouterEvent::Removed);
        }
        let before = self.order.reformed().map_or(Generation::FIRST, |reformed| reformed.generation);
        self.go_on_alone(cx, before, RESUME_PATIENCE, out);
    }

    /// The log goes on with this router alone, which asks members what they have.
    fn go_on_alone(
        &mut self,
        cx: &mut Context<'_>,
        before: Generation,
        patience: Duration,
        out: &mut dyn Sink<Self>,
    ) {
        let (until, unchosen) = (cx.now + patience, self.paxos.unchosen());
        // Nothing is dispatched from here on.
        self.gathering =
            Some(Gathering::new(before, self.settings.generation, self.order.last(), until, unchosen));
        self.drive(cx, Input::Command(paxos::Command::Reform), out);
        self.gather(self.linked.iter().copied().collect(), out);
    }

    /// Asks members what they have.
    pub(super) fn gather(&mut self, members: Vec<ProcessId>, out: &mut dyn Sink<Self>) {
        if self.gathering.as_ref().is_some_and(|gathering| gathering.until().is_some()) && !members.is_empty()
        {
            let generation = self.settings.generation;
            self.asked.extend(&members);
            out.send(Destination::Many(members), Message::Gather { generation }, None);
        }
    }

    /// Proposes what the generation begins with, once all have answered or have had their time.
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

    /// Whether the log has said here what this generation begins with.
    pub(super) fn knows_cut(&self) -> bool {
        let known = self.order.reformed().map_or(Generation::FIRST, |reformed| reformed.generation);
        known == self.settings.generation
    }

    /// The log has what this generation begins with.
    pub(super) fn begun(&mut self, out: &mut dyn Sink<Self>) {
        let began_here = self.gathering.take().is_some();
        if began_here {
            let reformed = self.order.reformed().expect("it was just learned").clone();
            out.emit(RouterEvent::Reformed(reformed));
        }
        if began_here {
            // Should no router live to tell the others, those that have heard of the beginning can.
            let members = R::members(self.order.config()).into_iter();
            let members: Vec<ProcessId> = members.filter(|it| !self.order.is_fenced(*it)).collect();
            let told = members.iter().copied().filter(|it| self.linked.contains(it)).collect();
            let generation = self.settings.generation;
            out.send(Destination::Many(told), Message::Counted { generation, members }, None);
        }
        // Those who are cut off hear who leads too: whom they do not know for a router they would not believe that. Where the
        // generation began elsewhere all do: what they have they may have said before this router could judge it.
        let mut told = self.linked.clone();
        told.retain(|it| !began_here || self.order.is_fenced(*it));
        self.tell_lead(told.into_iter().collect(), out);
        self.linked = &self.linked - self.order.fenced();
        if began_here {
            self.lead(self.paxos.leader(), out);
            // An operator asked for it, of this life or of a former one.
            if let Some(id) = self.commands.generation.take() {
                out.emit(RouterEvent::Ended { id, result: Ok(()) });
            }
        }
    }
}
