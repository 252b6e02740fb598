//! Changes the messages between one cell and the simulated world, for mutations.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    Context, Destination, ProcessId, Protocol, Sink,
    partial::{
        self, Answer, CellNumber, Demand, Digest, Entry, Horizon, HorizonReport, MapId, Request, Resident,
        Round, Stamp, Tally, resident::Message,
    },
};

use crate::mutation::Mutation;

/// In seeds with small limits, an entry with more fields than this is above the limit of a client.
const FIELDS_FEW: usize = 4;
/// Number of copies of a deletion that are lost on their way to a cell.
const COPIES_LOST: u32 = 100;

/// The adapter around one cell.
pub(crate) struct Tamper {
    mutation: Mutation,
    /// The cells that have sent answers.
    heard: BTreeSet<ProcessId>,
    /// For each round, the digest that replaces the digests in its answers.
    digests: BTreeMap<Round, Expected>,
    /// The rounds that asked for digests in this turn, each with the map and the key.
    asked: Vec<(Round, MapId, Bytes)>,
    /// The number of copies of each deletion that have come, by the deletion's stamp.
    copies: BTreeMap<Stamp, u32>,
}

/// The digest that makes a read find no difference.
enum Expected {
    Known(Digest),
    /// The entry has not arrived; the digests of these processes wait for it.
    Awaited(Vec<ProcessId>),
}

impl Tamper {
    pub(super) fn new(mutation: Mutation) -> Self {
        Tamper {
            mutation,
            heard: BTreeSet::new(),
            digests: BTreeMap::new(),
            asked: Vec::new(),
            copies: BTreeMap::new(),
        }
    }

    /// Counts a copy of the deletion with this stamp. Returns whether the copy is lost.
    fn loses_copy(&mut self, deletion: Stamp) -> bool {
        let copies = self.copies.entry(deletion).or_default();
        *copies += 1;
        *copies <= COPIES_LOST
    }

    /// Returns the messages that a cell receives instead of `message`.
    pub(super) fn received<P: Protocol<Message = Message>>(
        &mut self,
        cx: &mut Context<'_>,
        (from, message): (ProcessId, Message),
        resident: &Resident,
        out: &mut dyn Sink<P>,
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
                Message::Cell(partial::Message::Request(Request {
                    round,
                    demand: Demand::Write(_) | Demand::Repair(_),
                    ..
                })),
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
            // The changed report claims that its sender has all deletions.
            (Mutation::TombstoneCollectedEarly, Message::Cell(partial::Message::HorizonReport(word))) => {
                let horizon = Horizon { time: u64::MAX, cell: CellNumber(u32::MAX) };
                vec![(
                    from,
                    Message::Cell(partial::Message::HorizonReport(HorizonReport { horizon, ..word })),
                )]
            }
            // A cell with a deletion gives it to cells that lack it, before it can forget the deletion. This
            // would hide the early collection, so the first copies are lost here, as on a bad link. The loss
            // is harmless by itself: as long as a cell has the deletion, it gives the deletion again.
            (
                Mutation::TombstoneCollectedEarly,
                Message::Cell(partial::Message::Request(Request { demand: Demand::Repair(entry), .. })),
            ) if entry.is_delete() && self.loses_copy(entry.newest()) => Vec::new(),
            (Mutation::TalliesAdded, Message::Cell(partial::Message::Request(mut request))) => {
                let Request { map, key, demand, .. } = &mut request;
                if let Demand::Write(entry) | Demand::Repair(entry) = demand {
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
            // The changed report claims that its sender has no deletion.
            (Mutation::TombstoneKept, Message::Cell(partial::Message::HorizonReport(word))) => {
                let word = HorizonReport { horizon: Horizon::default(), ..word };
                vec![(from, Message::Cell(partial::Message::HorizonReport(word)))]
            }
            (Mutation::CopiesLimited, Message::Cell(partial::Message::Request(mut request))) => {
                if let Demand::Repair(entry) = request.demand {
                    request.demand = Demand::Write(entry);
                }
                vec![(from, Message::Cell(partial::Message::Request(request)))]
            }
            // The cell drops fetched copies that would make an entry larger than clients may make it.
            (
                Mutation::CopiesLimited,
                Message::Cell(partial::Message::Answer {
                    round,
                    answer: Answer::Copied { mut entries, next },
                }),
            ) => {
                entries.retain(|(_, entry)| entry.fields().count() <= FIELDS_FEW);
                let answer = Answer::Copied { entries, next };
                vec![(from, Message::Cell(partial::Message::Answer { round, answer }))]
            }
            // The changed report claims that its sender has no writes under way.
            (Mutation::BarrierIgnored, Message::Cell(partial::Message::HorizonReport(word))) => {
                let word = HorizonReport { through: u64::MAX, barrier: u64::MAX, ..word };
                vec![(from, Message::Cell(partial::Message::HorizonReport(word)))]
            }
            (_, message) => vec![(from, message)],
        }
    }

    /// Returns the message that leaves a cell instead of `message`.
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
                    Demand::Read(_) => {
                        self.digests.entry(*round).or_insert(Expected::Awaited(Vec::new()));
                    }
                    _ => {}
                }
                Message::Cell(partial::Message::Request(request))
            }
            Message::Cell(partial::Message::Request(mut request)) => {
                if let Demand::Write(entry) | Demand::Repair(entry) = &mut request.demand {
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
            (Mutation::StampNotRaised, Answer::HighestStamp(_)) => Answer::HighestStamp(Stamp::ZERO),
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

    /// Ends a turn of the cell. If a read has asked no other cell for the whole entry, the cell itself holds
    /// that entry, and its digest is the expected one.
    pub(super) fn turned(&mut self, resident: &Resident) {
        for (round, map, key) in self.asked.drain(..) {
            let held = resident.cell().replica().entry(map, &key);
            let own = Expected::Known(held.unwrap_or_default().digest());
            self.digests.entry(round).or_insert(own);
        }
    }
}

/// Returns the same write with changed tallies of its counter.
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
