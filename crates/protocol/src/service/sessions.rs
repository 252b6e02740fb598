//! The calls that have taken effect, and their replies: a part of the replicated state (rule S6).
//!
//! Every replica makes the same changes to it at the same instance, so that each knows what it may forget. A session keeps
//! the answers that its client has not acknowledged. When there are too many sessions, or their answers are too many bytes,
//! the session that was used least recently is over, everywhere at the same instance. Recency is counted coarsely, so that
//! a call seldom moves its session.
//!
//! Calls with keys of their users' choice are of no client's session ([`SessionId::KEYED`]). No client acknowledges their answers: the
//! oldest are forgotten when there are too many.

use std::collections::{BTreeSet, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use rustc_hash::FxHashMap;

use super::{CallId, SessionId, Settings};
use crate::wire::{WireError, put_bytes, take_bytes, take_count, take_u64};

/// The calls of all sessions that are remembered.
#[derive(Debug)]
pub(super) struct Sessions {
    table: FxHashMap<SessionId, Remembered>,
    /// The sessions by the instance that used them last, about.
    by_use: BTreeSet<(u64, SessionId)>,
    bytes: usize,
    sessions_max: usize,
    bytes_max: usize,
    keyed: Keyed,
}

/// Calls with keys that have taken effect.
#[derive(Debug)]
struct Keyed {
    /// The print of the request, and the reply.
    table: FxHashMap<u64, (u64, Bytes)>,
    /// In the order in which they took effect.
    order: VecDeque<u64>,
    bytes: usize,
    calls_max: usize,
    bytes_max: usize,
}

impl Keyed {
    fn record(&mut self, number: u64, print: u64, reply: Bytes) {
        self.bytes += REPLY_BYTES + reply.len();
        assert!(
            self.table.insert(number, (print, reply)).is_none(),
            "a call took effect twice: key {number}"
        );
        self.order.push_back(number);
        while self.table.len() > self.calls_max || self.table.len() > 1 && self.bytes > self.bytes_max {
            let oldest = self.order.pop_front().expect("the order names all");
            let (_, reply) = self.table.remove(&oldest).expect("it is in the table");
            self.bytes -= REPLY_BYTES + reply.len();
        }
    }
}

#[derive(Debug)]
struct Remembered {
    used: u64,
    /// The client has the answers to all calls below this number.
    done: u64,
    /// Answers by number, in rising order.
    replies: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Remembered {
    /// Where the answer to a call of this number is, or would be: behind the others, of most calls.
    fn place(&self, number: u64) -> Result<usize, usize> {
        match self.replies.back() {
            Some((last, _)) if *last >= number => {
                self.replies.binary_search_by_key(&number, |(number, _)| *number)
            }
            _ => Err(self.replies.len()),
        }
    }
}

/// The knowledge about a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It has not taken effect.
    New,
    /// It took effect, and this was the reply.
    Done(Bytes),
    /// Its session is over, or its client has said that it has the answer.
    Forgotten,
    /// Its key was used for another request.
    Reused,
}

impl Sessions {
    pub(super) fn new(settings: &Settings) -> Sessions {
        let keyed = Keyed {
            table: FxHashMap::default(),
            order: VecDeque::new(),
            bytes: 0,
            calls_max: settings.keyed_max,
            bytes_max: settings.keyed_bytes_max,
        };
        Sessions {
            table: FxHashMap::default(),
            by_use: BTreeSet::new(),
            bytes: 0,
            sessions_max: settings.sessions_max,
            bytes_max: settings.replies_bytes_max,
            keyed,
        }
    }

    /// Whether a call with a key has taken effect, whose request has this print.
    pub(super) fn find_keyed(&self, number: u64, print: u64) -> Known {
        match self.keyed.table.get(&number) {
            None => Known::New,
            Some((before, reply)) if *before == print => Known::Done(reply.clone()),
            Some(_) => Known::Reused,
        }
    }

    pub(super) fn find(&self, id: CallId) -> Known {
        let Some(session) = self.table.get(&id.session) else { return Known::Forgotten };
        if id.number < session.done {
            return Known::Forgotten;
        }
        match session.place(id.number) {
            Ok(index) => Known::Done(session.replies[index].1.clone()),
            Err(_) => Known::New,
        }
    }

    /// Instance `number` opened a session.
    pub(super) fn open(&mut self, number: u64) {
        let id = SessionId(number);
        let session = Remembered { used: number, done: 0, replies: VecDeque::new(), bytes: 0 };
        assert!(self.table.insert(id, session).is_none(), "a session is opened once");
        self.by_use.insert((number, id));
        self.forget_oldest();
    }

    /// Instance `number` was this call. Of one with a key, `done` is the print of the request.
    pub(super) fn record(&mut self, number: u64, id: CallId, done: u64, reply: Bytes) {
        if id.session == SessionId::KEYED {
            return self.keyed.record(id.number, done, reply);
        }
        // Sessions end by agreement. One that ended between this call's execution and its choice took no note of it, and
        // every later attempt is told so.
        let Some(session) = self.table.get_mut(&id.session) else { return };
        if number - session.used >= COARSE {
            self.by_use.remove(&(session.used, id.session));
            session.used = number;
            self.by_use.insert((number, id.session));
        }
        let before = session.bytes;
        session.done = session.done.max(done);
        while let Some((_, gone)) = session.replies.pop_front_if(|(number, _)| *number < session.done) {
            session.bytes -= REPLY_BYTES + gone.len();
        }
        if id.number >= session.done {
            match session.place(id.number) {
                Ok(_) => panic!("a call took effect twice: {id:?}"),
                Err(index) => {
                    session.bytes += REPLY_BYTES + reply.len();
                    session.replies.insert(index, (id.number, reply));
                }
            }
        }
        self.bytes = self.bytes - before + session.bytes;
        self.forget_oldest();
    }

    /// A session is over.
    pub(super) fn close(&mut self, id: SessionId) {
        if let Some(session) = self.table.remove(&id) {
            self.by_use.remove(&(session.used, id));
            self.bytes -= session.bytes;
        }
    }

    /// Whether there is this session.
    pub(super) fn is_open(&self, id: SessionId) -> bool {
        self.table.contains_key(&id)
    }

    /// All sessions, those that were used least recently first.
    pub(super) fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.by_use.iter().map(|(_, id)| *id)
    }

    fn forget_oldest(&mut self) {
        // The last one stays, whatever it takes: its client's window bounds it.
        while self.table.len() > 1 && (self.table.len() > self.sessions_max || self.bytes > self.bytes_max) {
            let (_, id) = self.by_use.pop_first().expect("every session has been used");
            let session = self.table.remove(&id).expect("it is in the table");
            self.bytes -= session.bytes;
        }
    }

    /// Everything, as a checkpoint holds it.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(u32::try_from(self.by_use.len()).expect("sessions are bounded"));
        for (used, id) in &self.by_use {
            let session = &self.table[id];
            for number in [id.0, *used, session.done] {
                out.put_u64_le(number);
            }
            out.put_u32_le(u32::try_from(session.replies.len()).expect("replies are bounded"));
            for (number, reply) in &session.replies {
                out.put_u64_le(*number);
                put_bytes(out, reply);
            }
        }
        out.put_u32_le(u32::try_from(self.keyed.order.len()).expect("calls with keys are bounded"));
        for number in &self.keyed.order {
            let (print, reply) = &self.keyed.table[number];
            out.put_u64_le(*number);
            out.put_u64_le(*print);
            put_bytes(out, reply);
        }
    }

    /// Replaces everything by what a checkpoint holds.
    pub(super) fn restore(&mut self, input: &mut Bytes) -> Result<(), WireError> {
        self.table.clear();
        self.by_use.clear();
        self.bytes = 0;
        for _ in 0..take_count(input, 28)? {
            let (id, used, done) = (SessionId(take_u64(input)?), take_u64(input)?, take_u64(input)?);
            let mut replies = VecDeque::new();
            let mut bytes = 0;
            for _ in 0..take_count(input, 12)? {
                let (number, reply) = (take_u64(input)?, take_bytes(input)?);
                bytes += REPLY_BYTES + reply.len();
                replies.push_back((number, reply));
            }
            self.bytes += bytes;
            self.by_use.insert((used, id));
            self.table.insert(id, Remembered { used, done, replies, bytes });
        }
        self.keyed.table.clear();
        self.keyed.order.clear();
        self.keyed.bytes = 0;
        for _ in 0..take_count(input, 20)? {
            let (number, print, reply) = (take_u64(input)?, take_u64(input)?, take_bytes(input)?);
            if self.keyed.table.contains_key(&number) {
                return Err(WireError::Body);
            }
            self.keyed.record(number, print, reply);
        }
        Ok(())
    }
}

/// So many instances apart are two uses that count as one.
const COARSE: u64 = 1024;

/// The memory of a reply beside its bytes, about, in bytes.
const REPLY_BYTES: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(session: u64, number: u64) -> CallId {
        CallId { session: SessionId(session), number }
    }

    fn reply(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn sessions(sessions_max: usize, replies_bytes_max: usize) -> Sessions {
        let settings = Settings { keyed_max: 3, keyed_bytes_max: 400, ..Settings::default() };
        Sessions::new(&Settings { sessions_max, replies_bytes_max, ..settings })
    }

    #[test]
    fn a_key_stands_for_one_request_until_later_ones_take_its_place() {
        let mut sessions = self::sessions(1, 1000);
        let keyed = |number| CallId { session: SessionId::KEYED, number };
        for number in 1..=4 {
            assert_eq!(sessions.find_keyed(number, 7), Known::New);
            sessions.record(number, keyed(number), 7, reply("r"));
            assert_eq!(sessions.find_keyed(number, 7), Known::Done(reply("r")));
            assert_eq!(sessions.find_keyed(number, 8), Known::Reused);
        }
        assert_eq!(sessions.find_keyed(1, 7), Known::New, "three are remembered");
        let mut bytes = BytesMut::new();
        sessions.encode(&mut bytes);
        let mut copy = self::sessions(1, 1000);
        copy.record(9, keyed(9), 9, reply("gone"));
        copy.restore(&mut bytes.freeze()).unwrap();
        assert_eq!((&copy.keyed.order, copy.keyed.bytes), (&sessions.keyed.order, sessions.keyed.bytes));
        assert_eq!(copy.find_keyed(4, 7), Known::Done(reply("r")));
        let long = Bytes::from(vec![0; 380]);
        sessions.record(5, keyed(5), 7, long.clone());
        assert_eq!(sessions.find_keyed(5, 7), Known::Done(long));
        assert_eq!(
            (sessions.keyed.table.len(), sessions.keyed.bytes),
            (1, 428),
            "the last one stays, whatever it takes"
        );
    }

    #[test]
    fn a_call_is_known_until_its_client_has_the_answer() {
        let mut sessions = self::sessions(10, 1000);
        assert_eq!(sessions.find(id(1, 0)), Known::Forgotten, "a session must have been opened");
        sessions.open(1);
        assert_eq!(sessions.find(id(1, 0)), Known::New);
        sessions.record(2, id(1, 1), 0, reply("b"));
        sessions.record(3, id(1, 0), 0, reply("a"));
        assert_eq!(sessions.find(id(1, 0)), Known::Done(reply("a")), "out of order is in order");
        sessions.record(4, id(1, 2), 1, reply("c"));
        assert_eq!(sessions.find(id(1, 0)), Known::Forgotten);
        assert_eq!(sessions.find(id(1, 1)), Known::Done(reply("b")));
    }

    #[test]
    fn the_session_used_least_recently_ends() {
        let mut sessions = self::sessions(2, 1000);
        sessions.open(1);
        sessions.open(2);
        sessions.record(2000, id(1, 0), 0, reply("a"));
        sessions.open(2001);
        assert_eq!(sessions.find(id(2, 0)), Known::Forgotten);
        assert_eq!(sessions.find(id(1, 0)), Known::Done(reply("a")));
        let mut bytes = BytesMut::new();
        sessions.encode(&mut bytes);
        let mut copy = self::sessions(2, 1000);
        copy.restore(&mut bytes.freeze()).unwrap();
        assert_eq!(copy.find(id(1, 0)), Known::Done(reply("a")));
        assert_eq!(copy.bytes, sessions.bytes);
        copy.open(2002);
        sessions.open(2002);
        assert_eq!(copy.by_use, sessions.by_use, "a restored table forgets the same");
    }

    #[test]
    fn replies_are_bounded_in_bytes() {
        let mut sessions = self::sessions(10, 200);
        sessions.open(1);
        sessions.open(2);
        for number in 0..3 {
            sessions.record(3 + number, id(1, number), 0, reply("0123456789012345678901234567890"));
        }
        assert_eq!(sessions.find(id(1, 0)), Known::Forgotten, "it took too much, and was opened first");
        assert_eq!(sessions.bytes, 0);
    }
}
