//! Coming back from a disk ([journal](crate::rubberband::journal)).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Storage, StorageSettings, checkpoints::CheckpointProgress, decisions::WriteDecisions,
    engine_queue::EngineQueue, fragment_index::FragmentIndex, verdicts::Verdicts, work::QueuedStep,
};
use crate::{
    ecast::{MemberEvent, MemberSettings, Position, Submissions},
    id::{Generation, Peer, ProcessId},
    rubberband::{
        Control, Range, Role, StorageState,
        journal::{self, Began, Record, Unrecoverable},
        membership::{Membership, Past},
    },
    seam::{Context, Sink, Ticket},
};

/// The contents of a journal, read at startup.
struct JournalContents {
    began: Option<Box<Began>>,
    rows: Vec<Bytes>,
    outline: Vec<Bytes>,
    fragments: BTreeMap<u64, Bytes>,
    fragment_index: FragmentIndex,
    named: Vec<(u64, u32)>,
    replies: Vec<Bytes>,
    verdicts: Verdicts,
    submissions: Submissions,
    delivered: Position,
    events: Vec<MemberEvent>,
}

impl Storage {
    /// Creates the storage process that wrote these records, with an empty engine; `None` if there are no
    /// records. The process belonged to the generation `generation`.
    ///
    /// # Errors
    ///
    /// The reason why no process can continue under the same id.
    pub fn recover(
        me: Peer,
        settings: StorageSettings,
        generation: Generation,
        records: Vec<(Ticket, Bytes)>,
    ) -> Result<Option<Storage>, Unrecoverable> {
        let records = journal::read(records)?;
        if records.is_empty() {
            return Ok(None);
        }
        let mut contents = JournalContents::read(me.id, &settings, records)?;
        let known = contents.address(me.id);
        if let Some(known) = known.filter(|known| *known != me.address) {
            return Err(Unrecoverable::Moved(known));
        }
        let mut replies = settings.replies();
        for (number, section) in contents.replies.iter().enumerate() {
            if !replies.take_in(section) {
                return Err(Unrecoverable::Disconnected(number));
            }
        }
        let (began, queue) = (contents.began.take(), contents.steps());
        let past = Past {
            config: began.as_ref().map(|began| began.config.clone()),
            delivered: contents.delivered,
            submissions: contents.submissions,
            generation,
        };
        let member = MemberSettings { executes: true, ..MemberSettings::default() };
        let membership = Membership::recovered(me.id, Role::Storage, member, settings.alive_every, past);
        let departed = began.as_ref().map_or(Position(0), |began| began.departed);
        Ok(Some(Storage {
            queue: EngineQueue::of(queue),
            checkpoints: CheckpointProgress::new(contents.fragment_index),
            replies,
            verdicts: contents.verdicts,
            decisions: WriteDecisions::recovered(departed),
            received: began.and_then(|began| began.received),
            replay: Some(contents.events),
            ..Storage::with(membership, settings, None)
        }))
    }

    /// Delivers again the messages after the checkpoint.
    pub(super) fn replay(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(events) = self.replay.take() else { return };
        self.membership.request_member_links(out);
        for event in events {
            self.membership.replay(event);
            while let Some(item) = self.membership.next(out) {
                self.on_delivered(cx, item, out);
            }
        }
        self.membership.replayed();
        self.replayed();
        if let Some(config) = self.membership.config() {
            let me = self.membership.me;
            self.verdicts.owe_all_decisions(config.storage.keys().copied().filter(|process| *process != me));
        }
        let stands = self.config().and_then(|config| config.storage.get(&self.membership.me)).copied();
        if let Some(StorageState::Receiving { change }) = stands
            && self.received == Some(change)
        {
            // The former life may not have submitted `Complete`.
            self.complete(cx, change, out);
        }
    }
}

impl JournalContents {
    fn new(settings: &StorageSettings) -> JournalContents {
        JournalContents {
            began: None,
            rows: Vec::new(),
            outline: Vec::new(),
            fragments: BTreeMap::new(),
            fragment_index: FragmentIndex::new(1),
            named: Vec::new(),
            replies: Vec::new(),
            verdicts: settings.verdicts(),
            submissions: Submissions::default(),
            delivered: Position(0),
            events: Vec::new(),
        }
    }

    fn read(
        me: ProcessId,
        settings: &StorageSettings,
        records: Vec<(Ticket, Record)>,
    ) -> Result<JournalContents, Unrecoverable> {
        let ended = records.iter().rposition(|(_, record)| *record == Record::Ended);
        let began = ended.and_then(|ended| {
            records[..ended].iter().rposition(|(_, record)| matches!(record, Record::Began(_)))
        });
        let whole = began.zip(ended).map(|(began, ended)| began..ended);
        let mut contents = JournalContents::new(settings);
        if whole.is_none() {
            contents.begins_with_joining(&records)?;
        }
        let first = began.unwrap_or(0);
        let tickets = || records[first..].iter().map(|(ticket, _)| ticket.0);
        if tickets().zip(tickets().skip(1)).any(|(one, next)| next != one + 1) {
            return Err(Unrecoverable::Missing);
        }
        for (number, (ticket, record)) in records.into_iter().enumerate() {
            if let Record::Fragments { number, count, fragments } = record {
                // The fragments of every checkpoint are kept, even of an unfinished one.
                contents.fragment_index.found(number, ticket, fragments.len() as u64, count);
                contents.fragments.insert(number, fragments);
                continue;
            }
            contents.fragment_index.passed(record.bytes());
            if number < first {
                continue;
            }
            let in_whole = whole.as_ref().is_some_and(|whole| whole.contains(&number));
            match record {
                Record::Began(began) if in_whole => {
                    (contents.delivered, contents.submissions) = (began.at, began.submissions());
                    contents.began = Some(began);
                }
                Record::Rows(rows) if in_whole => contents.rows.push(rows),
                Record::Outline(piece) if in_whole => contents.outline.push(piece),
                Record::Named(named) if in_whole => contents.named = named,
                Record::Replies(section) if in_whole => contents.replies.push(section),
                Record::Verdicts(section) if in_whole => {
                    if !contents.verdicts.take_in(&section) {
                        return Err(Unrecoverable::Disconnected(number));
                    }
                }
                // Pieces of a checkpoint that did not become whole are skipped.
                Record::Began(_)
                | Record::Rows(_)
                | Record::Fragments { .. }
                | Record::Outline(_)
                | Record::Named(_)
                | Record::Replies(_)
                | Record::Verdicts(_)
                | Record::Ended => {}
                Record::Submitted { token, body } => contents.submissions.messages.push((token, body)),
                Record::Passed { at } => contents.delivered = contents.delivered.max(at),
                Record::Decided { at, failure } => {
                    contents.verdicts.restore(at, (vec![Range::ALL], failure));
                }
                Record::Delivered { at, id, class, attachment, body } => {
                    if at <= contents.delivered {
                        return Err(Unrecoverable::Disconnected(number));
                    }
                    if takes_over(me, &body) {
                        return Err(Unrecoverable::Unfinished);
                    }
                    contents.delivered = at;
                    contents.events.push(MemberEvent::Deliver { at, id, class, body, attachment });
                }
                Record::Log(_) => return Err(Unrecoverable::Disconnected(number)),
            }
        }
        if contents.named.iter().any(|(number, _)| !contents.fragment_index.has(*number)) {
            return Err(Unrecoverable::Missing);
        }
        Ok(contents)
    }

    /// Takes the steps that load the checkpoint into the engine.
    fn steps(&mut self) -> VecDeque<QueuedStep> {
        let named = std::mem::take(&mut self.named);
        let mut fragments = std::mem::take(&mut self.fragments);
        let records = named.iter().filter_map(|(number, _)| fragments.remove_entry(number));
        let records: Arc<BTreeMap<u64, Bytes>> = Arc::new(records.collect());
        let rows = std::mem::take(&mut self.rows).into_iter().map(|rows| QueuedStep::RestoreRows { rows });
        let outline = std::mem::take(&mut self.outline).into_iter();
        rows.chain(outline.map(|outline| QueuedStep::Restore { outline, records: records.clone() })).collect()
    }

    /// Checks that a journal without a checkpoint starts at the beginning, with this process's joining.
    fn begins_with_joining(&self, records: &[(Ticket, Record)]) -> Result<(), Unrecoverable> {
        let Some((_, Record::Submitted { body, .. })) = records.first() else {
            return Err(Unrecoverable::Disconnected(0));
        };
        match Control::decode(body) {
            Some(Control::Join { keeps: None, .. }) => Ok(()),
            Some(Control::Join { keeps: Some(_), .. }) => Err(Unrecoverable::Unfinished),
            _ => Err(Unrecoverable::Disconnected(0)),
        }
    }

    /// Returns the address at which the other processes know this process.
    fn address(&self, me: ProcessId) -> Option<String> {
        if let Some(began) = &self.began {
            return began.config.members.get(&me).map(|info| info.address.clone());
        }
        match Control::decode(&self.submissions.messages.first()?.1)? {
            Control::Join { address, .. } => Some(address),
            _ => None,
        }
    }
}

/// Whether a message lets this process take over ranges whose rows come from other processes.
fn takes_over(me: ProcessId, body: &[u8]) -> bool {
    matches!(Control::decode(body), Some(Control::Replace { new, copy, .. }) if new == me && !copy.is_empty())
}

#[cfg(test)]
mod tests;
