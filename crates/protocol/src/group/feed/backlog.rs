//! Events that wait at a joining member until its host has the group's state.
//!
//! The transfer of a state may take long, and updates keep coming meanwhile. If each update were an event
//! with a reference to its receive buffer, millions of updates would take many times the memory of their
//! bytes, and it would take long to move them. So consecutive soft updates of one sender are one event here,
//! if nothing between them has a place in the order. Soft updates of different senders have no order among
//! each other, so this merging breaks no order. Ordered updates are copied out of their buffers. So the
//! memory of all events is known ([`EventBacklog::bytes`]), and the backlog's owner can bound it.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
};

use crate::{
    group::{Event, GroupId, PackWriter, Place, Updates},
    id::ProcessId,
};

/// Upper bound of a merged event, in bytes. It limits the copying that a growing buffer needs now and then.
const RUN_BYTES_MAX: usize = 256 << 10;

/// Memory of an event in addition to its updates or entries, in bytes.
const EVENT_BYTES: usize = mem::size_of::<Event>() + mem::size_of::<WaitingEvent>();
/// Memory of a member in a view, in bytes.
const ENTRY_BYTES: usize = 256;

/// Events that wait, in order.
#[derive(Debug, Default)]
pub(super) struct EventBacklog {
    events: VecDeque<WaitingEvent>,
    /// Number of events that were taken from the queue since the last [`EventBacklog::clear`].
    taken: usize,
    /// For each sender whose last event is an open run, the run's number among all events since the last
    /// [`EventBacklog::clear`]. The sender's next update joins the run.
    open: BTreeMap<ProcessId, usize>,
    /// Memory of the events, in bytes.
    bytes: usize,
    /// Size of all updates that came since the last [`EventBacklog::clear`], in bytes.
    came: u64,
}

#[derive(Debug)]
enum WaitingEvent {
    Event(Box<Event>),
    /// Consecutive soft updates of one sender, of which the first update has this number.
    Run {
        group: GroupId,
        sender: ProcessId,
        first: u64,
        writer: PackWriter,
    },
}

impl WaitingEvent {
    /// Returns the event's memory, in bytes.
    fn bytes(&self) -> usize {
        EVENT_BYTES
            + match self {
                WaitingEvent::Run { writer, .. } => writer.memory(),
                WaitingEvent::Event(event) => match &**event {
                    Event::Deliver { updates, .. } => updates.bytes(),
                    Event::View { view, arrived, departed, missing, .. } => {
                        let members = view.places().count() + view.joined.len() + view.left.len();
                        (members + arrived.len() + departed.len() + missing.len()) * ENTRY_BYTES
                    }
                    _ => 0,
                },
            }
    }

    fn into_event(self) -> Event {
        match self {
            WaitingEvent::Event(event) => *event,
            WaitingEvent::Run { group, sender, first, writer } => {
                let pack = writer.finish().expect("a run begins with an update");
                Event::Deliver { group, sender, updates: Updates::new(Place::Soft(first), pack) }
            }
        }
    }
}

impl EventBacklog {
    pub(super) fn push(&mut self, event: Event) {
        match event {
            Event::Deliver { group, sender, updates } => {
                self.came += updates.bytes() as u64;
                if matches!(updates.first(), Place::Soft(_)) {
                    return self.push_soft(group, sender, &updates);
                }
                let updates = Updates::new(updates.first(), updates.pack().copied());
                self.put(WaitingEvent::Event(Box::new(Event::Deliver { group, sender, updates })));
            }
            event => self.put(WaitingEvent::Event(Box::new(event))),
        }
    }

    /// Appends an event. Soft updates that come later are not merged with updates before this event.
    fn put(&mut self, waiting: WaitingEvent) {
        self.open.clear();
        self.bytes += waiting.bytes();
        self.events.push_back(waiting);
    }

    fn push_soft(&mut self, group: GroupId, sender: ProcessId, updates: &Updates) {
        let Place::Soft(number) = updates.first() else { unreachable!("soft updates have soft places") };
        // An event that was already taken has a smaller number than all present events.
        let place = self.open.get(&sender).and_then(|number| number.checked_sub(self.taken));
        if let Some(WaitingEvent::Run { first, writer, .. }) = place.map(|place| &mut self.events[place])
            && *first + u64::from(writer.count()) == number
            && writer.bytes() + updates.bytes() <= RUN_BYTES_MAX
        {
            let before = writer.memory();
            writer.append(updates.pack());
            self.bytes = self.bytes - before + writer.memory();
            return;
        }
        let mut writer = PackWriter::default();
        writer.append(updates.pack());
        let run = WaitingEvent::Run { group, sender, first: number, writer };
        self.bytes += run.bytes();
        self.open.insert(sender, self.taken + self.events.len());
        self.events.push_back(run);
    }

    /// Returns the memory of the events, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the size of all updates that came since the last [`EventBacklog::clear`], in bytes.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    pub(super) fn clear(&mut self) {
        *self = EventBacklog::default();
    }

    /// Removes and returns the first events, up to this memory, but at least one event if there is any.
    pub(super) fn take(&mut self, bytes_max: usize) -> Vec<Event> {
        let (mut events, mut room) = (Vec::new(), bytes_max);
        while let Some(first) = self.events.front().map(WaitingEvent::bytes)
            && (events.is_empty() || first <= room)
        {
            let waiting = self.events.pop_front().expect("the first event was just looked at");
            self.taken += 1;
            self.bytes -= first;
            room = room.saturating_sub(first);
            events.push(waiting.into_event());
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ecast::Position, group::Pack, id::Incarnation};

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(0) }
    }

    fn deliver(sender: u64, place: Place, text: &str) -> Event {
        let updates = Updates::new(place, Pack::of(text.as_bytes()));
        Event::Deliver { group: GroupId(1), sender: process(sender), updates }
    }

    /// Returns the events as text: sender, first place, and updates.
    fn drained(behind: &mut EventBacklog) -> Vec<(u64, Place, String)> {
        let words = |event| {
            let Event::Deliver { sender, updates, .. } = event else { panic!("nothing else was put in") };
            let texts: Vec<_> = updates.iter().map(|(_, text)| String::from_utf8_lossy(text)).collect();
            (sender.node, updates.first(), texts.join(" "))
        };
        behind.take(usize::MAX).into_iter().map(words).collect()
    }

    #[test]
    fn soft_updates_of_a_sender_are_one_event() {
        let mut behind = EventBacklog::default();
        for number in 1..4 {
            behind.push(deliver(7, Place::Soft(number), "a"));
            behind.push(deliver(8, Place::Soft(number + 4), "b"));
        }
        let expected = [(7, Place::Soft(1), "a a a"), (8, Place::Soft(5), "b b b")];
        let expected = expected.map(|(sender, place, texts)| (sender, place, texts.to_owned()));
        assert_eq!(drained(&mut behind), expected);
        assert!(behind.take(usize::MAX).is_empty() && behind.bytes() == 0);
    }

    #[test]
    fn ordered_updates_keep_their_place_among_soft_updates() {
        let (mut behind, at) = (EventBacklog::default(), Place::Ordered(Position(9), 0));
        behind.push(deliver(7, Place::Soft(1), "a"));
        behind.push(deliver(8, at, "o"));
        behind.push(deliver(7, Place::Soft(2), "b"));
        let expected = [(7, Place::Soft(1), "a"), (8, at, "o"), (7, Place::Soft(2), "b")];
        assert_eq!(
            drained(&mut behind),
            expected.map(|(sender, place, text)| (sender, place, text.to_owned()))
        );
    }

    #[test]
    fn a_restarted_numbering_or_a_long_run_begins_another_event() {
        let mut behind = EventBacklog::default();
        behind.push(deliver(7, Place::Soft(4), "a"));
        behind.push(deliver(7, Place::Soft(1), "b"));
        let long = "x".repeat(RUN_BYTES_MAX);
        behind.push(deliver(7, Place::Soft(2), &long));
        behind.push(deliver(7, Place::Soft(3), "c"));
        let places: Vec<Place> = drained(&mut behind).into_iter().map(|(_, place, _)| place).collect();
        assert_eq!(places, [4, 1, 2, 3].map(Place::Soft));
    }

    #[test]
    fn events_are_taken_step_by_step_and_more_may_come_meanwhile() {
        let (mut behind, at) = (EventBacklog::default(), |at| Place::Ordered(Position(at), 0));
        let kilobyte = "x".repeat(1_000);
        for position in 1..=9 {
            behind.push(deliver(8, at(position), &kilobyte));
        }
        behind.push(deliver(7, Place::Soft(1), "a"));
        let all = behind.bytes();
        assert!((9_000..18_000).contains(&all), "{all}");
        assert_eq!(behind.take(all / 2).len(), 4);
        // The run was not taken yet, so the new update joins it.
        behind.push(deliver(7, Place::Soft(2), "b"));
        assert_eq!(behind.take(1).len(), 1, "one at least");
        assert_eq!(behind.take(usize::MAX).len(), 5);
        assert_eq!(behind.bytes(), 0);
        // The former run was taken, so a new run begins.
        behind.push(deliver(7, Place::Soft(3), "c"));
        let words = drained(&mut behind);
        assert_eq!(words, [(7, Place::Soft(3), String::from("c"))]);
        assert_eq!(behind.came(), 9 * 1_004 + 3 * 5);
    }

    #[test]
    fn an_ordered_update_holds_no_larger_buffer() {
        let mut buffer = vec![0; 1 << 20];
        buffer[..4].copy_from_slice(&2_u32.to_le_bytes());
        let buffer = bytes::Bytes::from(buffer);
        let (updates, _) = Updates::ordered(Position(9), buffer.slice(..6));
        let updates = updates.expect("there is one");
        let mut behind = EventBacklog::default();
        behind.push(Event::Deliver { group: GroupId(1), sender: process(7), updates });
        assert!(buffer.is_unique(), "the buffer is held");
        assert!(behind.bytes() < 4_096);
    }
}
