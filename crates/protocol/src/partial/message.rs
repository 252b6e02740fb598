//! The messages between cells, and their byte form.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    compare::{ARCS_MAX, ArcContent, DifferenceCount, TOKENS_MAX, put_arc, put_part, take_arc, take_part},
    entry::{Digest, Entry, Kind},
    horizon::{Horizon, HorizonReport},
    id::{LayoutVersion, MapId},
    stamp::{Stamp, put_stamp, take_stamp},
    token::{Arc, Token},
};
use crate::wire::{Wire, WireError, put_bytes, take_bytes, take_count, take_u8, take_u32, take_u64};

/// The number of one round of requests of one coordinator. Answers carry the number, and the coordinator
/// never uses it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Round(pub u64);

/// A request to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The round that the answer names.
    pub round: Round,
    /// The layout version by which the coordinator chose the owners.
    pub layout: LayoutVersion,
    /// The map.
    pub map: MapId,
    /// The key.
    pub key: Bytes,
    /// The action that the replica must perform.
    pub demand: Demand,
}

/// The action that a replica must perform for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Return the highest stamp of the key.
    Ask,
    /// Merge this write.
    Write(Entry),
    /// Merge this copy of an entry that some replica has accepted. The limits of clients do not apply.
    Repair(Entry),
    /// Return the entry if it has at most this many bytes, and else its size.
    Read(u32),
    /// Return the entry's digest.
    Digest,
    /// Return some of the map's entries that the asking cell also owns, starting at the first entry or behind
    /// the request's key.
    Copy {
        /// Whether to begin at the first entry.
        first: bool,
    },
    /// List some of the map's keys.
    List {
        /// The token behind which the list begins. `None` if it begins at the first key.
        behind: Option<Token>,
    },
    /// Return the content of these arcs of the map.
    Compare {
        /// A rough number of the differences that the asking cell has found so far.
        pace: DifferenceCount,
        /// The arcs, at most `ARCS_MAX`.
        arcs: Vec<Arc>,
    },
    /// Return the entries at these tokens, which are in ascending order. There are at most `TOKENS_MAX`
    /// tokens.
    Fetch(Vec<Token>),
}

/// A replica's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The highest stamp of the key. Answers `Ask`.
    HighestStamp(Stamp),
    /// The replica holds the write, or a newer one. Answers `Write` and `Repair`.
    Written {
        /// The replica's highest stamp, if it is above the stamp of the write. Zero if not.
        newer: Stamp,
    },
    /// The key's entry.
    Entry(Entry),
    /// The size of the entry in bytes, which is above the limit of the request.
    Large(u32),
    /// The entry's digest.
    Digest(Digest),
    /// Some entries of a map.
    Copied {
        /// The keys and their entries.
        entries: Vec<(Bytes, Entry)>,
        /// The key behind which further entries follow. `None` if these are the last.
        next: Option<Bytes>,
    },
    /// Some keys of a map.
    Listed {
        /// The keys, including deleted ones.
        keys: Vec<Listed>,
        /// The token up to which the list is complete. `None` if it reaches the end of the map.
        through: Option<Token>,
    },
    /// The content of each arc of the question, in the question's order.
    Compared(Vec<ArcContent>),
    /// The replica did nothing.
    Refused(ReplicaRefusal),
}

/// A key in a replica's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Bytes,
    /// The highest stamp of the key's entry.
    pub newest: Stamp,
    /// The kind of the entry's value.
    pub kind: Kind,
    /// A hash, never zero, of an entry with fields or tallies. Zero for any other entry.
    pub print: u64,
}

/// The reason why a replica did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRefusal {
    /// The replica has another version of the layout.
    Layout,
    /// A stamp is too far ahead of the replica's wall clock.
    Skewed,
    /// The key's entry would exceed its limit.
    TooLarge,
    /// The memory for entries is used up.
    Full,
    /// The replica is arriving: it lacks entries, and answers no reads.
    Arriving,
    /// The replica is comparing its keys with another cell.
    Comparing,
}

/// A message between cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From a coordinator to a replica.
    Request(Request),
    /// From a replica to a coordinator.
    Answer {
        /// The round of the request.
        round: Round,
        /// The answer.
        answer: Answer,
    },
    /// A sign of life, for the failure detector.
    Alive,
    /// The sender's progress. It never overtakes the sender's earlier messages.
    HorizonReport(HorizonReport),
}

const ASK: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const DIGEST: u8 = 4;
const HIGHEST_STAMP: u8 = 5;
const WRITTEN: u8 = 6;
const FOUND: u8 = 7;
const DIGESTED: u8 = 8;
const REFUSED: u8 = 9;
const ALIVE: u8 = 10;
const COPY: u8 = 11;
const COPIED: u8 = 12;
const LIST: u8 = 13;
const LISTED: u8 = 14;
const WORD: u8 = 15;
const COMPARE: u8 = 16;
const FETCH: u8 = 17;
const COMPARED: u8 = 18;
const REPAIR: u8 = 19;
const LARGE: u8 = 20;
/// Minimum size of a key and its entry, in bytes.
const COPY_BYTES_LEAST: usize = 21;
/// Minimum size of a listed key in bytes: key, stamp, kind and hash.
const LISTED_BYTES_LEAST: usize = 25;
const TOKEN_BYTES: usize = 8;
impl ReplicaRefusal {
    const ALL: [ReplicaRefusal; 6] = [
        ReplicaRefusal::Layout,
        ReplicaRefusal::Skewed,
        ReplicaRefusal::TooLarge,
        ReplicaRefusal::Full,
        ReplicaRefusal::Arriving,
        ReplicaRefusal::Comparing,
    ];

    fn tag(self) -> u8 {
        match self {
            ReplicaRefusal::Layout => 0,
            ReplicaRefusal::Skewed => 1,
            ReplicaRefusal::TooLarge => 2,
            ReplicaRefusal::Full => 3,
            ReplicaRefusal::Arriving => 4,
            ReplicaRefusal::Comparing => 5,
        }
    }
}

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Message::Request(Request { round, layout, map, key, demand }) => {
                out.put_u8(match demand {
                    Demand::Ask => ASK,
                    Demand::Write(_) => WRITE,
                    Demand::Repair(_) => REPAIR,
                    Demand::Read(_) => READ,
                    Demand::Digest => DIGEST,
                    Demand::Copy { .. } => COPY,
                    Demand::List { .. } => LIST,
                    Demand::Compare { .. } => COMPARE,
                    Demand::Fetch(_) => FETCH,
                });
                out.put_u64_le(round.0);
                out.put_u64_le(layout.0);
                out.put_u32_le(map.0);
                put_bytes(out, key);
                match demand {
                    Demand::Write(entry) | Demand::Repair(entry) => entry.encode(out),
                    Demand::Copy { first } => out.put_u8((*first).into()),
                    Demand::List { behind } => put_token(out, *behind),
                    Demand::Compare { pace, arcs } => {
                        out.put_u8(pace.tag());
                        put_count(out, arcs.len());
                        arcs.iter().for_each(|arc| put_arc(out, *arc));
                    }
                    Demand::Fetch(tokens) => {
                        put_count(out, tokens.len());
                        tokens.iter().for_each(|token| out.put_u64_le(token.0));
                    }
                    Demand::Read(most) => out.put_u32_le(*most),
                    Demand::Ask | Demand::Digest => {}
                }
            }
            Message::Answer { round, answer } => {
                out.put_u8(match answer {
                    Answer::HighestStamp(_) => HIGHEST_STAMP,
                    Answer::Written { .. } => WRITTEN,
                    Answer::Entry(_) => FOUND,
                    Answer::Large(_) => LARGE,
                    Answer::Digest(_) => DIGESTED,
                    Answer::Copied { .. } => COPIED,
                    Answer::Listed { .. } => LISTED,
                    Answer::Compared(_) => COMPARED,
                    Answer::Refused(_) => REFUSED,
                });
                out.put_u64_le(round.0);
                match answer {
                    Answer::HighestStamp(stamp) | Answer::Written { newer: stamp } => put_stamp(out, *stamp),
                    Answer::Entry(entry) => entry.encode(out),
                    Answer::Large(bytes) => out.put_u32_le(*bytes),
                    Answer::Digest(digest) => digest.encode(out),
                    Answer::Copied { entries, next } => {
                        put_count(out, entries.len());
                        for (key, entry) in entries {
                            put_bytes(out, key);
                            entry.encode(out);
                        }
                        out.put_u8(next.is_some().into());
                        if let Some(next) = next {
                            put_bytes(out, next);
                        }
                    }
                    Answer::Listed { keys, through } => {
                        put_count(out, keys.len());
                        for Listed { key, newest, kind, print } in keys {
                            put_bytes(out, key);
                            put_stamp(out, *newest);
                            out.put_u8(*kind as u8);
                            out.put_u64_le(*print);
                        }
                        put_token(out, *through);
                    }
                    Answer::Compared(parts) => {
                        put_count(out, parts.len());
                        parts.iter().for_each(|part| put_part(out, part));
                    }
                    Answer::Refused(refusal) => out.put_u8(refusal.tag()),
                }
            }
            Message::Alive => out.put_u8(ALIVE),
            Message::HorizonReport(HorizonReport { layout, through, barrier, horizon }) => {
                out.put_u8(WORD);
                out.put_u64_le(layout.0);
                out.put_u64_le(*through);
                out.put_u64_le(*barrier);
                put_stamp(out, horizon.stamp());
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Message, WireError> {
        let tag = take_u8(input)?;
        if tag == ALIVE {
            return Ok(Message::Alive);
        }
        if tag == WORD {
            let (layout, through, barrier) =
                (LayoutVersion(take_u64(input)?), take_u64(input)?, take_u64(input)?);
            let Stamp { time, cell } = take_stamp(input)?;
            return Ok(Message::HorizonReport(HorizonReport {
                layout,
                through,
                barrier,
                horizon: Horizon { time, cell },
            }));
        }
        if !(ASK..=LARGE).contains(&tag) {
            return Err(WireError::Tag(tag));
        }
        let round = Round(take_u64(input)?);
        let answer = match tag {
            HIGHEST_STAMP => Answer::HighestStamp(take_stamp(input)?),
            WRITTEN => Answer::Written { newer: take_stamp(input)? },
            FOUND => Answer::Entry(Entry::decode(input)?),
            DIGESTED => Answer::Digest(Digest::decode(input)?),
            LARGE => Answer::Large(take_u32(input)?),
            COPIED => {
                let count = take_count(input, COPY_BYTES_LEAST)?;
                let entry = |_| Ok((take_bytes(input)?, Entry::decode(input)?));
                let entries = (0..count).map(entry).collect::<Result<_, WireError>>()?;
                Answer::Copied {
                    entries,
                    next: if take_flag(input)? { Some(take_bytes(input)?) } else { None },
                }
            }
            LISTED => {
                let count = take_count(input, LISTED_BYTES_LEAST)?;
                let listed = |_| {
                    let (key, newest) = (take_bytes(input)?, take_stamp(input)?);
                    let kind = match take_u8(input)? {
                        0 => Kind::Nothing,
                        1 => Kind::String,
                        2 => Kind::Hash,
                        other => return Err(WireError::Tag(other)),
                    };
                    Ok(Listed { key, newest, kind, print: take_u64(input)? })
                };
                let keys = (0..count).map(listed).collect::<Result<_, WireError>>()?;
                Answer::Listed { keys, through: take_token(input)? }
            }
            COMPARED => {
                let count = take_bounded(input, 1, ARCS_MAX)?;
                Answer::Compared((0..count).map(|_| take_part(input)).collect::<Result<_, WireError>>()?)
            }
            REFUSED => {
                let tag = take_u8(input)?;
                let refusal = ReplicaRefusal::ALL.into_iter().find(|refusal| refusal.tag() == tag);
                Answer::Refused(refusal.ok_or(WireError::Tag(tag))?)
            }
            _ => {
                let layout = LayoutVersion(take_u64(input)?);
                let map = MapId(take_u32(input)?);
                let key = take_bytes(input)?;
                let demand = match tag {
                    ASK => Demand::Ask,
                    WRITE => Demand::Write(Entry::decode(input)?),
                    REPAIR => Demand::Repair(Entry::decode(input)?),
                    READ => Demand::Read(take_u32(input)?),
                    COPY => Demand::Copy { first: take_flag(input)? },
                    LIST => Demand::List { behind: take_token(input)? },
                    COMPARE => {
                        let pace = DifferenceCount::of(take_u8(input)?)?;
                        let count = take_bounded(input, 1, ARCS_MAX)?;
                        let arcs = (0..count).map(|_| take_arc(input)).collect::<Result<_, _>>()?;
                        Demand::Compare { pace, arcs }
                    }
                    FETCH => {
                        let count = take_bounded(input, TOKEN_BYTES, TOKENS_MAX)?;
                        let token = |_| take_u64(input).map(Token);
                        Demand::Fetch((0..count).map(token).collect::<Result<_, _>>()?)
                    }
                    _ => Demand::Digest,
                };
                return Ok(Message::Request(Request { round, layout, map, key, demand }));
            }
        };
        Ok(Message::Answer { round, answer })
    }
}

pub(super) fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u32_le(u32::try_from(count).expect("messages and records are bounded far below 4 GiB"));
}

/// Reads a count of elements of which each takes at least `bytes_least` bytes. Refuses a count above `max`.
fn take_bounded(input: &mut Bytes, bytes_least: usize, max: usize) -> Result<usize, WireError> {
    let count = take_count(input, bytes_least)?;
    if count <= max { Ok(count) } else { Err(WireError::Body) }
}

fn put_token(out: &mut BytesMut, token: Option<Token>) {
    out.put_u8(token.is_some().into());
    if let Some(Token(token)) = token {
        out.put_u64_le(token);
    }
}

fn take_token(input: &mut Bytes) -> Result<Option<Token>, WireError> {
    if take_flag(input)? { take_u64(input).map(|token| Some(Token(token))) } else { Ok(None) }
}

pub(super) fn take_flag(input: &mut Bytes) -> Result<bool, WireError> {
    match take_u8(input)? {
        flag @ 0..=1 => Ok(flag == 1),
        other => Err(WireError::Tag(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{compare::Item, id::CellNumber},
        *,
    };

    #[test]
    fn bytes_of_messages_are_pinned() {
        let stamp = Stamp { time: 5, cell: CellNumber(2) };
        let entry = Entry::whole(stamp, Some(Bytes::from_static(b"v")), None);
        let request = |demand| {
            let (round, layout, map) = (Round(7), LayoutVersion(3), MapId(1));
            Message::Request(Request { round, layout, map, key: Bytes::from_static(b"k"), demand })
        };
        let answer = |answer| Message::Answer { round: Round(7), answer };
        let key = Bytes::from_static(b"k");
        let head = "070000000000000003000000000000000100000001000000".to_owned() + "6b";
        let written = "0500000000000000020000000101000000".to_owned() + "7600000000";
        let samples = [
            (request(Demand::Ask), format!("01{head}")),
            (request(Demand::Write(entry.clone())), format!("02{head}{written}")),
            (request(Demand::Repair(entry.clone())), format!("13{head}{written}")),
            (request(Demand::Read(4096)), format!("03{head}00100000")),
            (answer(Answer::Large(5000)), "14070000000000000088130000".to_owned()),
            (request(Demand::Digest), format!("04{head}")),
            (answer(Answer::HighestStamp(stamp)), "050700000000000000050000000000000002000000".to_owned()),
            (
                answer(Answer::Written { newer: Stamp::ZERO }),
                "060700000000000000000000000000000000000000".to_owned(),
            ),
            (answer(Answer::Entry(entry.clone())), format!("070700000000000000{written}")),
            (
                answer(Answer::Digest(Digest { newest: stamp, print: 9 })),
                "0807000000000000000500000000000000020000000900000000000000".to_owned(),
            ),
            (answer(Answer::Refused(ReplicaRefusal::Skewed)), "09070000000000000001".to_owned()),
            (request(Demand::Copy { first: true }), format!("0b{head}01")),
            (
                answer(Answer::Copied { entries: vec![(key.clone(), entry.clone())], next: Some(key) }),
                format!("0c070000000000000001000000010000006b{written}01010000006b"),
            ),
            (request(Demand::List { behind: Some(Token(6)) }), format!("0d{head}010600000000000000")),
            (
                answer(Answer::Listed {
                    keys: vec![Listed {
                        key: Bytes::from_static(b"k"),
                        newest: stamp,
                        kind: Kind::Hash,
                        print: 4,
                    }],
                    through: None,
                }),
                "0e070000000000000001000000010000006b05000000000000000200000002".to_owned()
                    + "040000000000000000",
            ),
            (Message::Alive, "0a".to_owned()),
            (
                Message::HorizonReport(HorizonReport {
                    layout: LayoutVersion(3),
                    through: 5,
                    barrier: 4,
                    horizon: Horizon { time: 2, cell: CellNumber(1) },
                }),
                "0f0300000000000000050000000000000004000000000000000200000000000000".to_owned() + "01000000",
            ),
            (
                request(Demand::Compare {
                    pace: DifferenceCount::Unknown,
                    arcs: vec![
                        Arc { first: Token(1), last: Token(9) },
                        Arc::block(0x1234_5000_0000_0000, 44),
                    ],
                }),
                format!("10{head}0002000000ff010000000000000009000000000000002c123450"),
            ),
            (request(Demand::Fetch(vec![Token(6)])), format!("11{head}010000000600000000000000")),
            (
                answer(Answer::Compared(vec![
                    ArcContent::Prints([1, 2, 3, 4]),
                    ArcContent::Items(vec![Item { token: Token(6), newest: 5, key: 7, print: 8 }]),
                ])),
                "12070000000000000002000000ff".to_owned()
                    + "0100000000000000020000000000000003000000000000000400000000000000"
                    + "0106000000000000000500000000000000070000000800000000000000",
            ),
            (answer(Answer::Refused(ReplicaRefusal::Comparing)), "09070000000000000005".to_owned()),
        ];
        for (message, hex) in samples {
            let mut out = BytesMut::new();
            message.encode(&mut out);
            assert_eq!(out.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), hex);
            let whole = out.freeze();
            let mut rest = whole.clone();
            assert_eq!(Message::decode(&mut rest).unwrap(), message);
            assert!(rest.is_empty());
            for end in 0..whole.len() {
                assert!(Message::decode(&mut whole.slice(..end)).is_err(), "{end} bytes of {message:?}");
            }
        }
        for tag in [0, LARGE + 1, 255] {
            let mut input = Bytes::copy_from_slice(&[tag; 40]);
            assert_eq!(Message::decode(&mut input), Err(WireError::Tag(tag)));
        }
    }

    #[test]
    fn questions_to_compare_are_bounded() {
        let decoded = |arcs: Vec<Arc>| {
            let (round, layout, map) = (Round(7), LayoutVersion(3), MapId(1));
            let demand = Demand::Compare { pace: DifferenceCount::Many, arcs };
            let mut out = BytesMut::new();
            Message::Request(Request { round, layout, map, key: Bytes::new(), demand }).encode(&mut out);
            Message::decode(&mut out.freeze()).err()
        };
        let arc = |first, last| Arc { first: Token(first), last: Token(last) };
        assert_eq!(decoded(vec![arc(1, 2); ARCS_MAX]), None);
        assert_eq!(decoded(vec![arc(1, 2); ARCS_MAX + 1]), Some(WireError::Body));
        assert_eq!(decoded(vec![arc(2, 1)]), Some(WireError::Body));
    }
}
