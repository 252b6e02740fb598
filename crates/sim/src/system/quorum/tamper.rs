//! What stands between a cell and the world, and changes what passes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    Context, Destination, ProcessId, Sink,
    partial::{
        self, Answer, CellNumber, Demand, Digest, Entry, Horizon, MapId, Request, Resident, Round, Stamp,
        Tally, Word, resident::Message,
    },
};

use super::process::Process;
use crate::mutation::Mutation;

/// The adapter around one cell.
pub(crate) struct Tamper {
    mutation: Mutation,
    /// The cells that answered something.
    heard: BTreeSet<ProcessId>,
    /// What digests are replaced with, by the round that asked for them.
    digests: BTreeMap<Round, Expected>,
    /// The rounds of this turn that asked for digests, and their keys.
    asked: Vec<(Round, MapId, Bytes)>,
}

/// The digest that makes a read find no difference.
enum Expected {
    Known(Digest),
    /// The entry has not come; these digests wait for it.
    Awaited(Vec<ProcessId>),
}

impl Tamper {
    pub(super) fn new(mutation: Mutation) -> Self {
        Tamper { mutation, heard: BTreeSet::new(), digests: BTreeMap::new(), asked: Vec::new() }
    }

    /// What a cell receives instead of a message.
    pub(super) fn received(
        &mut self,
        cx: &mut Context<'_>,
        (from, message): (ProcessId, Message),
        resident: &Resident,
        out: &mut dyn Sink<Process>,
    ) -> Vec<(ProcessId, Message)> {
        match (self.mutation, message) {
            (Mutation::ReplicaCountedTwice, Message::Cell(partial::Message::Answer { round, answer })) => {
                self.heard.insert(from);
                let others: Vec<ProcessId> = self.heard.iter().copied().filter(|it| *it != from).collect();
                let message = Message::Cell(partial::Message::Answer { round, answer });
                let other = others.get((cx.random)() as usize % others.len().max(1)).copied();
                let forged = other.map(|other| (other, message.clone()));
                [Some((from, message)), forged].into_iter().flatten().collect()
            }
            (
                Mutation::ArrivingLeftOut,
                Message::Cell(partial::Message::Request(Request { round, demand: Demand::Write(_), .. })),
            ) if resident.status().arriving.is_some() => {
                let answer = Answer::Written { newer: Stamp::ZERO };
                let answer = Message::Cell(partial::Message::Answer { round, answer });
                out.send(Destination::One(from), answer, None);
                Vec::new()
            }
            (
                Mutation::DigestMismatchIgnored,
                Message::Cell(partial::Message::Answer { round, answer: Answer::Digest(digest) }),
            ) => {
                let forged = match self.digests.get_mut(&round) {
                    Some(Expected::Known(known)) => *known,
                    Some(Expected::Awaited(waiting)) => {
                        waiting.push(from);
                        return Vec::new();
                    }
                    None => digest,
                };
                vec![(from, digest_answer(round, forged))]
            }
            (
                Mutation::DigestMismatchIgnored,
                Message::Cell(partial::Message::Answer { round, answer: Answer::Entry(entry) }),
            ) => {
                let digest = entry.digest();
                let before = self.digests.insert(round, Expected::Known(digest));
                let answer = Answer::Entry(entry);
                let entry = (from, Message::Cell(partial::Message::Answer { round, answer }));
                let waiting =
                    if let Some(Expected::Awaited(waiting)) = before { waiting } else { Vec::new() };
                let released = waiting.into_iter().map(|from| (from, digest_answer(round, digest)));
                [entry].into_iter().chain(released).collect()
            }
            // Everybody seems to have all deletions.
            (Mutation::TombstoneCollectedEarly, Message::Cell(partial::Message::Word(word))) => {
                let horizon = Horizon { time: u64::MAX, cell: CellNumber(u32::MAX) };
                vec![(from, Message::Cell(partial::Message::Word(Word { horizon, ..word })))]
            }
            // The cells that have a deletion give it to those that lack it, which alone hides that it is collected too early. These copies
            // are lost here, which does no harm by itself: cells ask for what they lack.
            (
                Mutation::TombstoneCollectedEarly,
                Message::Cell(partial::Message::Request(Request { demand: Demand::Write(entry), .. })),
            ) if entry.is_delete() && resident.cell().layout().number(from) != Some(entry.newest().cell) => {
                Vec::new()
            }
            (Mutation::TalliesAdded, Message::Cell(partial::Message::Request(mut request))) => {
                let Request { map, key, demand, .. } = &mut request;
                if let Demand::Write(entry) = demand {
                    let held = resident.cell().replica().entry(*map, key).unwrap_or_default();
                    *entry = with_tallies(entry, |begun, tally| {
                        let earlier =
                            held.tallies().find(|(it, before)| *it == begun && before.stamp < tally.stamp);
                        let more = earlier.map_or(0, |(_, before)| before.sum);
                        (begun, Tally { sum: tally.sum.wrapping_add(more), ..tally })
                    });
                }
                vec![(from, Message::Cell(partial::Message::Request(request)))]
            }
            // Nobody seems to have writes on their way.
            (Mutation::BarrierIgnored, Message::Cell(partial::Message::Word(word))) => {
                let word = Word { through: u64::MAX, barrier: u64::MAX, ..word };
                vec![(from, Message::Cell(partial::Message::Word(word)))]
            }
            (_, message) => vec![(from, message)],
        }
    }

    /// What leaves a cell instead of a message.
    pub(super) fn sent(&mut self, message: Message) -> Message {
        match message {
            Message::Cell(partial::Message::Answer { round, answer }) => {
                let answer = self.answered(answer);
                Message::Cell(partial::Message::Answer { round, answer })
            }
            Message::Cell(partial::Message::Request(request))
                if self.mutation == Mutation::DigestMismatchIgnored =>
            {
                let Request { round, map, key, demand, .. } = &request;
                match demand {
                    Demand::Digest => self.asked.push((*round, *map, key.clone())),
                    Demand::Read => {
                        self.digests.entry(*round).or_insert(Expected::Awaited(Vec::new()));
                    }
                    _ => {}
                }
                Message::Cell(partial::Message::Request(request))
            }
            Message::Cell(partial::Message::Request(mut request)) => {
                if let Demand::Write(entry) = &mut request.demand {
                    self.write(entry);
                }
                Message::Cell(partial::Message::Request(request))
            }
            message => message,
        }
    }

    /// Changes a write that leaves a cell.
    fn write(&self, entry: &mut Entry) {
        *entry = match self.mutation {
            Mutation::TalliesShared => with_tallies(entry, |_, tally| {
                let shared = |time| Stamp { time, cell: CellNumber(1) };
                (shared(1), Tally { stamp: shared(tally.stamp.time), ..tally })
            }),
            Mutation::TakenInCountedAgain => {
                with_tallies(entry, |begun, tally| (begun, Tally { sole: false, ..tally }))
            }
            _ => return,
        }
    }

    fn answered(&self, answer: Answer) -> Answer {
        match (self.mutation, answer) {
            (Mutation::StampNotRaised, Answer::Written { .. }) => Answer::Written { newer: Stamp::ZERO },
            (Mutation::StampNotRaised, Answer::Told(_)) => Answer::Told(Stamp::ZERO),
            (Mutation::TombstoneForgotten, Answer::Entry(entry)) if entry.is_delete() => {
                Answer::Entry(Entry::nothing())
            }
            (Mutation::TombstoneForgotten, Answer::Copied { mut entries, next }) => {
                entries.retain(|(_, entry)| !entry.is_delete());
                Answer::Copied { entries, next }
            }
            (_, answer) => answer,
        }
    }

    /// A turn of the cell is over. A read that asked nobody for an entry has it from the cell itself.
    pub(super) fn turned(&mut self, resident: &Resident) {
        for (round, map, key) in self.asked.drain(..) {
            let held = resident.cell().replica().entry(map, &key);
            let own = Expected::Known(held.unwrap_or_default().digest());
            self.digests.entry(round).or_insert(own);
        }
    }
}

/// The same write, with other tallies of its counter.
fn with_tallies(entry: &Entry, forge: impl Fn(Stamp, Tally) -> (Stamp, Tally)) -> Entry {
    if entry.tallies().next().is_none() {
        return entry.clone();
    }
    let base = entry.base();
    let mut forged = Entry::whole(base.stamp, base.value.clone(), base.expires);
    for (begun, tally) in entry.tallies() {
        let (begun, tally) = forge(begun, tally);
        forged.merge(&Entry::of_tally(begun, tally));
    }
    forged
}

fn digest_answer(round: Round, digest: Digest) -> Message {
    Message::Cell(partial::Message::Answer { round, answer: Answer::Digest(digest) })
}
