//! Events that wait behind a state.
//!
//! A state may take long, and updates come all the while. Kept as they came, each with its event and a hold on the buffer that it was read
//! into, millions of them would take many times their bytes, and whoever takes them over as long to move them. So soft updates of one sender, with
//! nothing between them that has a place in the order, are one event here. Those of several senders have no order among each other.

use std::collections::BTreeMap;

use crate::{
    group::{Event, GroupId, PackWriter, Place, Updates},
    id::ProcessId,
};

/// No event is made longer than this, in bytes: what grows is copied now and then.
const RUN_BYTES_MAX: usize = 256 << 10;

/// Events that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Behind {
    events: Vec<Waiting>,
    /// The last run of each sender, as long as more may be put into it.
    open: BTreeMap<ProcessId, usize>,
}

#[derive(Debug)]
enum Waiting {
    Event(Event),
    /// Soft updates of one sender in a row, from this number on.
    Run {
        group: GroupId,
        sender: ProcessId,
        first: u64,
        writer: PackWriter,
    },
}

impl Behind {
    pub(super) fn push(&mut self, event: Event) {
        match event {
            Event::Deliver { group, sender, updates } if matches!(updates.first(), Place::Soft(_)) => {
                self.push_soft(group, sender, &updates);
            }
            event => {
                self.open.clear();
                self.events.push(Waiting::Event(event));
            }
        }
    }

    fn push_soft(&mut self, group: GroupId, sender: ProcessId, updates: &Updates) {
        let Place::Soft(number) = updates.first() else { unreachable!("these are soft") };
        let run = self.open.get(&sender).map(|place| &mut self.events[*place]);
        if let Some(Waiting::Run { first, writer, .. }) = run
            && *first + u64::from(writer.count()) == number
            && writer.bytes() + updates.bytes() <= RUN_BYTES_MAX
        {
            writer.append(updates.pack());
            return;
        }
        let mut writer = PackWriter::default();
        writer.append(updates.pack());
        self.open.insert(sender, self.events.len());
        self.events.push(Waiting::Run { group, sender, first: number, writer });
    }

    pub(super) fn clear(&mut self) {
        *self = Behind::default();
    }

    /// All of them, and none is left.
    pub(super) fn take(&mut self) -> Vec<Event> {
        let Behind { events, .. } = std::mem::take(self);
        let told = |waiting| match waiting {
            Waiting::Event(event) => event,
            Waiting::Run { group, sender, first, writer } => {
                let pack = writer.finish().expect("a run begins with an update");
                Event::Deliver { group, sender, updates: Updates::new(Place::Soft(first), pack) }
            }
        };
        events.into_iter().map(told).collect()
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

    /// The events, in words: the sender, the first place, the updates.
    fn told(behind: &mut Behind) -> Vec<(u64, Place, String)> {
        let words = |event| {
            let Event::Deliver { sender, updates, .. } = event else { panic!("nothing else was put in") };
            let texts: Vec<_> = updates.iter().map(|(_, text)| String::from_utf8_lossy(text)).collect();
            (sender.node, updates.first(), texts.join(" "))
        };
        behind.take().into_iter().map(words).collect()
    }

    #[test]
    fn soft_updates_of_a_sender_are_one_event() {
        let mut behind = Behind::default();
        for number in 1..4 {
            behind.push(deliver(7, Place::Soft(number), "a"));
            behind.push(deliver(8, Place::Soft(number + 4), "b"));
        }
        let expected = [(7, Place::Soft(1), "a a a"), (8, Place::Soft(5), "b b b")];
        let expected = expected.map(|(sender, place, texts)| (sender, place, texts.to_owned()));
        assert_eq!(told(&mut behind), expected);
        assert!(behind.take().is_empty());
    }

    #[test]
    fn what_has_a_place_in_the_order_keeps_it() {
        let (mut behind, at) = (Behind::default(), Place::Ordered(Position(9), 0));
        behind.push(deliver(7, Place::Soft(1), "a"));
        behind.push(deliver(8, at, "o"));
        behind.push(deliver(7, Place::Soft(2), "b"));
        let expected = [(7, Place::Soft(1), "a"), (8, at, "o"), (7, Place::Soft(2), "b")];
        assert_eq!(told(&mut behind), expected.map(|(sender, place, text)| (sender, place, text.to_owned())));
    }

    #[test]
    fn numbers_that_begin_anew_and_runs_that_are_long_begin_another_event() {
        let mut behind = Behind::default();
        behind.push(deliver(7, Place::Soft(4), "a"));
        behind.push(deliver(7, Place::Soft(1), "b"));
        let long = "x".repeat(RUN_BYTES_MAX);
        behind.push(deliver(7, Place::Soft(2), &long));
        behind.push(deliver(7, Place::Soft(3), "c"));
        let places: Vec<Place> = told(&mut behind).into_iter().map(|(_, place, _)| place).collect();
        assert_eq!(places, [4, 1, 2, 3].map(Place::Soft));
    }
}
