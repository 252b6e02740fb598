//! Coming back from a disk ([journal](crate::rubberband::journal)).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use super::{Storage, StorageSettings, replies::Replies, shelf::Shelf, steps::Step, verdicts::Verdicts};
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

/// What a journal says, in order.
struct Story {
    began: Option<Box<Began>>,
    rows: Vec<Bytes>,
    outline: Vec<Bytes>,
    fragments: BTreeMap<u64, Bytes>,
    shelf: Shelf,
    named: Vec<(u64, u32)>,
    replies: Vec<Bytes>,
    verdicts: Verdicts,
    submissions: Submissions,
    delivered: Position,
    events: Vec<MemberEvent>,
}

impl Storage {
    /// The storage process that wrote these records goes on, with an engine that is empty; `None` if there are none. It belonged
    /// to this generation.
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
        let mut story = Story::read(me.id, records)?;
        let known = story.address(me.id);
        if let Some(known) = known.filter(|known| *known != me.address) {
            return Err(Unrecoverable::Moved(known));
        }
        let mut replies = Replies::new(settings.remembered_bytes_max);
        for (number, section) in story.replies.iter().enumerate() {
            if !replies.take_in(section) {
                return Err(Unrecoverable::Disconnected(number));
            }
        }
        let (began, queue) = (story.began.take(), story.steps());
        let past = Past {
            config: began.as_ref().map(|began| began.config.clone()),
            delivered: story.delivered,
            submissions: story.submissions,
            generation,
        };
        let member = MemberSettings { executes: true, ..MemberSettings::default() };
        let membership = Membership::recovered(me.id, Role::Storage, member, settings.alive_every, past);
        Ok(Some(Storage {
            queue,
            shelf: story.shelf,
            replies,
            verdicts: story.verdicts,
            departed: began.as_ref().map_or(Position(0), |began| began.departed),
            received: began.and_then(|began| began.received),
            replay: Some(story.events),
            ..Storage::with(membership, settings, None)
        }))
    }

    /// What was delivered behind the checkpoint is delivered once more.
    pub(super) fn replay(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(events) = self.replay.take() else { return };
        self.membership.meet_all(out);
        for event in events {
            self.membership.replay(event);
            while let Some(item) = self.membership.next(out) {
                self.on_delivered(cx, item, out);
            }
        }
        self.membership.replayed();
        self.replayed();
        let stands = self.config().and_then(|config| config.storage.get(&self.membership.me)).copied();
        if let Some(StorageState::Receiving { change }) = stands
            && self.received == Some(change)
        {
            // It may not have said so.
            self.complete(cx, change, out);
        }
    }
}

impl Story {
    fn new() -> Story {
        Story {
            began: None,
            rows: Vec::new(),
            outline: Vec::new(),
            fragments: BTreeMap::new(),
            shelf: Shelf::new(1),
            named: Vec::new(),
            replies: Vec::new(),
            verdicts: Verdicts::default(),
            submissions: Submissions::default(),
            delivered: Position(0),
            events: Vec::new(),
        }
    }

    fn read(me: ProcessId, records: Vec<(Ticket, Record)>) -> Result<Story, Unrecoverable> {
        let ended = records.iter().rposition(|(_, record)| *record == Record::Ended);
        let began = ended.and_then(|ended| {
            records[..ended].iter().rposition(|(_, record)| matches!(record, Record::Began(_)))
        });
        let whole = began.zip(ended).map(|(began, ended)| began..ended);
        let mut story = Story::new();
        if whole.is_none() {
            story.begins_with_joining(&records)?;
        }
        let first = began.unwrap_or(0);
        let tickets = || records[first..].iter().map(|(ticket, _)| ticket.0);
        if tickets().zip(tickets().skip(1)).any(|(one, next)| next != one + 1) {
            return Err(Unrecoverable::Missing);
        }
        for (number, (ticket, record)) in records.into_iter().enumerate() {
            if let Record::Fragments { number, count, fragments } = record {
                // Whichever checkpoint it was written for.
                story.shelf.found(number, ticket, fragments.len() as u64, count);
                story.fragments.insert(number, fragments);
                continue;
            }
            story.shelf.passed(record.bytes());
            if number < first {
                continue;
            }
            let in_whole = whole.as_ref().is_some_and(|whole| whole.contains(&number));
            match record {
                Record::Began(began) if in_whole => {
                    (story.delivered, story.submissions) = (began.at, began.submissions());
                    story.began = Some(began);
                }
                Record::Rows(rows) if in_whole => story.rows.push(rows),
                Record::Outline(piece) if in_whole => story.outline.push(piece),
                Record::Named(named) if in_whole => story.named = named,
                Record::Replies(section) if in_whole => story.replies.push(section),
                Record::Verdicts(section) if in_whole => {
                    if !story.verdicts.take_in(&section) {
                        return Err(Unrecoverable::Disconnected(number));
                    }
                }
                // Of a checkpoint that did not become whole.
                Record::Began(_)
                | Record::Rows(_)
                | Record::Fragments { .. }
                | Record::Outline(_)
                | Record::Named(_)
                | Record::Replies(_)
                | Record::Verdicts(_)
                | Record::Ended => {}
                Record::Submitted { token, body } => story.submissions.messages.push((token, body)),
                Record::Passed { at } => story.delivered = story.delivered.max(at),
                Record::Decided { at, failure } => {
                    story.verdicts.settle(at, (vec![Range::ALL], failure), None);
                }
                Record::Delivered { at, id, class, attachment, body } => {
                    if at <= story.delivered {
                        return Err(Unrecoverable::Disconnected(number));
                    }
                    if takes_over(me, &body) {
                        return Err(Unrecoverable::Unfinished);
                    }
                    story.delivered = at;
                    story.events.push(MemberEvent::Deliver { at, id, class, body, attachment });
                }
                Record::Log(_) => return Err(Unrecoverable::Disconnected(number)),
            }
        }
        if story.named.iter().any(|(number, _)| !story.shelf.has(*number)) {
            return Err(Unrecoverable::Missing);
        }
        Ok(story)
    }

    /// What the engine is given to begin with.
    fn steps(&mut self) -> VecDeque<Step> {
        let named = std::mem::take(&mut self.named);
        let mut fragments = std::mem::take(&mut self.fragments);
        let records = named.iter().filter_map(|(number, _)| fragments.remove_entry(number));
        let records: Arc<BTreeMap<u64, Bytes>> = Arc::new(records.collect());
        let rows = std::mem::take(&mut self.rows).into_iter().map(|rows| Step::RestoreRows { rows });
        let outline = std::mem::take(&mut self.outline).into_iter();
        rows.chain(outline.map(|outline| Step::Restore { outline, records: records.clone() })).collect()
    }

    /// Without a checkpoint there is all from the beginning on.
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

    /// Where the others know this process to listen.
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

/// Whether a message has this process take ranges over, with rows from others.
fn takes_over(me: ProcessId, body: &[u8]) -> bool {
    matches!(Control::decode(body), Some(Control::Replace { new, copy, .. }) if new == me && !copy.is_empty())
}

#[cfg(test)]
mod tests;
