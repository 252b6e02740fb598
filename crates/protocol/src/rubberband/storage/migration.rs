//! Moving ranges to standbys (002 §6.4, partial live migration).
//!
//! Every replica of a moving range pins the version at the position of the change, so that any of them can
//! send. The receiver asks one replica for its rows, chunk by chunk, and imports them before it executes any
//! later message. If its source dies, the receiver drops that source's rows and asks another replica. It
//! copies a range without a replica from a [keeper](crate::rubberband::keeping). The ranges' memory (S6)
//! follows the rows of each source, in sections.

use super::{
    Storage, StorageEvent, Task, TaskKind,
    import::ImportAction,
    token::COMPLETION,
    work::{Fetch, Purpose, QueuedStep},
};
use crate::{
    ecast::{Class, Position},
    id::ProcessId,
    rubberband::{Control, Direct, Message, StorageState, TransferCursor},
    seam::{Context, Destination, Sink},
    time::Time,
};

impl Storage {
    /// Adds tasks for the exports for which standbys wait, and for this process's own import.
    pub(super) fn push_transfers(&mut self, tasks: &mut Vec<Task>, out: &mut dyn Sink<Self>) {
        for _ in 0..self.exports.fetches.len() {
            let fetch = self.exports.fetches.pop_front().expect("counted");
            if self.send_section(&fetch, out) {
                continue;
            }
            match fetch.cursor {
                TransferCursor::Rows(asked) if self.exports.pinned(fetch.change).is_some() => {
                    let kind = TaskKind::Export { ranges: fetch.ranges, cursor: asked.clone() };
                    let (to, at) = (fetch.from, fetch.change);
                    self.queue.run(tasks, at, kind, Purpose::Export { to, at, asked });
                }
                _ => self.exports.fetches.push_back(fetch),
            }
        }
        // Steps queued before the change come first, because they create the tables of the rows to import.
        if let Some(import) = &mut self.import
            && matches!(self.queue.steps.front(), Some(QueuedStep::Await { at }) if *at == import.change())
        {
            let change = import.change();
            if let Some(kind) = import.task() {
                self.queue.run(tasks, change, kind, Purpose::Import);
            }
        }
    }

    /// Sends a section of the ranges' memory at a pinned position, if the request asks for a section. Returns
    /// whether the request asked for a section.
    pub(super) fn send_section(&self, fetch: &Fetch, out: &mut dyn Sink<Self>) -> bool {
        let (TransferCursor::Replies(cursor), Some(pinned)) =
            (&fetch.cursor, self.exports.pinned(fetch.change))
        else {
            return false;
        };
        // With a cursor that does not decode, the transfer starts from the beginning.
        let from = cursor.as_deref().and_then(|cursor| postcard::from_bytes(cursor).ok());
        let (content, next) = pinned.section(&fetch.ranges, from, self.settings.section_bytes_max);
        let next =
            next.map(|cursor| postcard::to_stdvec(&cursor).expect("every type of this crate serialises"));
        let next = next.map(|cursor| TransferCursor::Replies(Some(cursor.into())));
        let chunk = Direct::Chunk { change: fetch.change, asked: fetch.cursor.clone(), content, next };
        out.send(Destination::One(fetch.from), Message::Direct(chunk), None);
        true
    }

    pub(super) fn fetch(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let Some(import) = &mut self.import else { return };
        if let Some((source, ranges, cursor)) = import.fetch(now + self.settings.ask_after * 5) {
            let fetch = Direct::Fetch { change: import.change(), ranges, cursor };
            out.send(Destination::One(source), Message::Direct(fetch), None);
        }
    }

    pub(super) fn import_failed(&mut self, now: Time, source: ProcessId, out: &mut dyn Sink<Self>) {
        let config = self.membership.config().expect("an import follows a delivered message");
        let Some(import) = self.import.as_mut().filter(|import| !import.is_failed()) else { return };
        if import.switch(config, source) {
            self.fetch(now, out);
        } else {
            // No replica can send the missing rows, so this process is useless in its present state. It never
            // counts as complete, because the failure of the import is final.
            out.emit(StorageEvent::Wedged);
        }
    }

    pub(super) fn imported(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(import) = &mut self.import else { return };
        let step = import.done();
        self.import_step(cx, step, out);
    }

    pub(super) fn import_step(&mut self, cx: &mut Context<'_>, step: ImportAction, out: &mut dyn Sink<Self>) {
        match step {
            ImportAction::More => self.fetch(cx.now, out),
            ImportAction::Finished { change, replies } => {
                self.import = None;
                self.replies.adopt(replies);
                self.received = Some(change);
                if self.settings.checkpoint_bytes.is_some() {
                    // No record on disk contains the imported rows yet.
                    self.completion_due = Some(change);
                } else {
                    self.complete(cx, change, out);
                }
            }
        }
    }

    pub(super) fn complete(&mut self, cx: &mut Context<'_>, change: Position, out: &mut dyn Sink<Self>) {
        self.received = Some(change);
        let complete = Control::Complete { change };
        self.membership.submit(cx, COMPLETION, Class::Control, complete.encode(), out);
    }

    /// Submits [`Control::Complete`] again, as long as the configuration still shows this process as
    /// receiving. The message may be lost with a generation of routers, and no other process can submit it.
    /// If it was not lost, the repetition is refused.
    pub(super) fn complete_again(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let me = self.membership.me;
        let stands = self.config().and_then(|config| config.storage.get(&me).copied());
        if let Some(StorageState::Receiving { change }) = stands
            && self.received == Some(change)
        {
            self.complete(cx, change, out);
        }
    }
}
