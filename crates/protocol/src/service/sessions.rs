//! The calls that have taken effect, and their replies: a part of the replicated state (rule S6).
//!
//! Every replica makes the same changes to this table at the same instance, so all replicas agree on the
//! answers that may be forgotten. A session keeps the answers that its client has not acknowledged. When
//! there are too many sessions, the least recently used session ends, at all replicas at the same instance.
//! The time of a session's last use is counted coarsely, so that a call seldom changes the session's place in
//! the order of use.
//!
//! **Bytes.** A client may acknowledge nothing for long: while its oldest call has an unknown fate, all later
//! answers must be kept. So a session has a share ([`Settings::session_bytes_max`]), and all sessions have
//! one bound together ([`Settings::replies_bytes_max`]). Beyond its share a session loses its oldest answers.
//! Beyond the common bound, the session with the most bytes of answers loses its oldest answers. If all
//! sessions have few bytes, the least recently used session loses its oldest answers. A session that loses
//! answers goes on: its client may call as before. Only a repetition of a forgotten call, or of a call before
//! it, is answered *expired*. No session ends because of another session's answers.
//!
//! The leader goes on executing calls of a session beyond its share. An alternative was to make these calls
//! wait for their client, but the client may never acknowledge the oldest call. The wait would protect no
//! other session, because the session pays with its own answers.
//!
//! Calls with keys of their users' choice belong to no client's session ([`SessionId::KEYED`]). No client
//! acknowledges their answers: when there are too many, the oldest are forgotten.

use std::collections::{BTreeSet, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use rustc_hash::FxHashMap;

use super::{CallId, SessionId, Settings};
use crate::wire::{WireError, put_bytes, take_bytes, take_count, take_u64};

/// The remembered calls of all sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    table: FxHashMap<SessionId, SessionReplies>,
    /// The sessions in the order of their last use. Uses are numbered by instance, coarsely.
    by_use: BTreeSet<(u64, SessionId)>,
    /// The sessions that hold answers, in the order of their last use.
    holders: BTreeSet<(u64, SessionId)>,
    /// The sessions with at least `step_bytes` bytes of answers, by the size of the answers in steps of
    /// `step_bytes`.
    by_size: BTreeSet<(usize, SessionId)>,
    bytes: usize,
    sessions_max: usize,
    session_bytes_max: usize,
    bytes_max: usize,
    step_bytes: usize,
    keyed: Keyed,
}

/// Calls with keys that have taken effect.
#[derive(Debug)]
struct Keyed {
    /// For each hash of a key, the hash of the request, and the reply.
    table: FxHashMap<u64, (u64, Bytes)>,
    /// The hashes of the keys in the order in which the calls took effect.
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
            "a call takes effect once, but that with key {number} did twice"
        );
        self.order.push_back(number);
        while self.table.len() > self.calls_max || self.table.len() > 1 && self.bytes > self.bytes_max {
            let oldest = self.order.pop_front().expect("every call with a key is in the order");
            let (_, reply) = self.table.remove(&oldest).expect("the table has the entry that was listed");
            self.bytes -= REPLY_BYTES + reply.len();
        }
    }
}

#[derive(Debug)]
struct SessionReplies {
    used: u64,
    /// The number below which all answers are acknowledged or forgotten.
    done: u64,
    /// The remembered answers by call number, ascending.
    replies: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl SessionReplies {
    /// Returns the index of a call's answer, or else the index at which the answer would be inserted. Most
    /// calls are inserted at the end.
    fn place(&self, number: u64) -> Result<usize, usize> {
        match self.replies.back() {
            Some((last, _)) if *last >= number => {
                self.replies.binary_search_by_key(&number, |(number, _)| *number)
            }
            _ => Err(self.replies.len()),
        }
    }

    /// Forgets answers to calls below this number.
    fn forget_below(&mut self, done: u64) {
        self.done = self.done.max(done);
        while let Some((_, gone)) = self.replies.pop_front_if(|(number, _)| *number < self.done) {
            self.bytes -= REPLY_BYTES + gone.len();
        }
    }

    /// Forgets the oldest answer.
    fn forget_oldest(&mut self) {
        let (oldest, _) = self.replies.front().expect("a session that holds bytes holds answers");
        self.forget_below(oldest + 1);
    }
}

/// The place of a session in the orders by use and by size.
struct SessionUse {
    used: u64,
    bytes: usize,
    steps: usize,
}

impl SessionUse {
    fn of(session: &SessionReplies, step_bytes: usize) -> SessionUse {
        let bytes = session.bytes;
        // Most sessions hold less than a step, and so avoid the slow division.
        let steps = if bytes < step_bytes { 0 } else { bytes / step_bytes };
        SessionUse { used: session.used, bytes, steps }
    }
}

/// The outcome of a look-up of a call in the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallRecord {
    /// The call has not taken effect.
    New,
    /// The call took effect, with this reply.
    Done(Bytes),
    /// The call is no longer remembered: its session has ended, the client has acknowledged the answer, or
    /// there was no room for the answer.
    Forgotten,
    /// The call's key was already used for a different request.
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
            holders: BTreeSet::new(),
            by_size: BTreeSet::new(),
            bytes: 0,
            sessions_max: settings.sessions_max,
            session_bytes_max: settings.session_bytes_max,
            bytes_max: settings.replies_bytes_max,
            step_bytes: (settings.replies_bytes_max / STEPS).max(1),
            keyed,
        }
    }

    /// Looks up a call with a key whose request has the hash `print`.
    pub(super) fn find_keyed(&self, number: u64, print: u64) -> CallRecord {
        match self.keyed.table.get(&number) {
            None => CallRecord::New,
            Some((before, reply)) if *before == print => CallRecord::Done(reply.clone()),
            Some(_) => CallRecord::Reused,
        }
    }

    pub(super) fn find(&self, id: CallId) -> CallRecord {
        let Some(session) = self.table.get(&id.session) else { return CallRecord::Forgotten };
        if id.number < session.done {
            return CallRecord::Forgotten;
        }
        match session.place(id.number) {
            Ok(index) => CallRecord::Done(session.replies[index].1.clone()),
            Err(_) => CallRecord::New,
        }
    }

    /// Opens the session that instance `number` names.
    pub(super) fn open(&mut self, number: u64) {
        let id = SessionId(number);
        let session = SessionReplies { used: number, done: 0, replies: VecDeque::new(), bytes: 0 };
        assert!(self.table.insert(id, session).is_none(), "a session is opened once");
        self.by_use.insert((number, id));
        while self.table.len() > self.sessions_max.max(1) {
            let (_, oldest) = *self.by_use.first().expect("every session has been used");
            self.close(oldest);
        }
    }

    /// Records a call that took effect as instance `number`. For a call with a key, `done` is the hash of the
    /// request.
    pub(super) fn record(&mut self, number: u64, id: CallId, done: u64, reply: Bytes) {
        if id.session == SessionId::KEYED {
            return self.keyed.record(id.number, done, reply);
        }
        // Sessions end by agreement. If the session ended after the call was executed and before it was
        // chosen, the table does not record the call, and every later attempt is answered *expired*.
        let Some(session) = self.table.get_mut(&id.session) else { return };
        let before = SessionUse::of(session, self.step_bytes);
        if number - session.used >= COARSE {
            self.by_use.remove(&(session.used, id.session));
            session.used = number;
            self.by_use.insert((number, id.session));
        }
        session.forget_below(done);
        if id.number >= session.done {
            match session.place(id.number) {
                Ok(_) => panic!("a call takes effect once, but {id:?} did twice"),
                Err(index) => {
                    session.bytes += REPLY_BYTES + reply.len();
                    session.replies.insert(index, (id.number, reply));
                }
            }
        }
        // The newest answer of a session stays, however long it is.
        while session.bytes > self.session_bytes_max && session.replies.len() > 1 {
            session.forget_oldest();
        }
        let after = SessionUse::of(session, self.step_bytes);
        self.note(id.session, before, after);
        while self.bytes > self.bytes_max && self.forget_answer() {}
    }

    /// Forgets the oldest answer of the session with the most bytes of answers. If no session has many bytes,
    /// forgets the oldest answer of the least recently used session. Returns `false` if at most one answer is
    /// left.
    fn forget_answer(&mut self) -> bool {
        let largest = self.by_size.last().map(|(_, id)| *id);
        let Some(id) = largest.or_else(|| self.holders.first().map(|(_, id)| *id)) else { return false };
        let session = self.table.get_mut(&id).expect("the table has the entry that was listed");
        if self.holders.len() == 1 && session.replies.len() == 1 {
            return false;
        }
        let before = SessionUse::of(session, self.step_bytes);
        session.forget_oldest();
        let after = SessionUse::of(session, self.step_bytes);
        self.note(id, before, after);
        true
    }

    /// Moves a session in the orders by use and by size after its use or its size has changed.
    fn note(&mut self, id: SessionId, before: SessionUse, after: SessionUse) {
        self.bytes = self.bytes - before.bytes + after.bytes;
        if (before.used, before.bytes > 0) != (after.used, after.bytes > 0) {
            self.holders.remove(&(before.used, id));
            if after.bytes > 0 {
                self.holders.insert((after.used, id));
            }
        }
        if before.steps != after.steps {
            self.by_size.remove(&(before.steps, id));
            if after.steps > 0 {
                self.by_size.insert((after.steps, id));
            }
        }
    }

    /// Ends a session.
    pub(super) fn close(&mut self, id: SessionId) {
        if let Some(session) = self.table.remove(&id) {
            let held = SessionUse::of(&session, self.step_bytes);
            self.by_use.remove(&(held.used, id));
            self.holders.remove(&(held.used, id));
            self.by_size.remove(&(held.steps, id));
            self.bytes -= held.bytes;
        }
    }

    /// Whether this session is open.
    pub(super) fn is_open(&self, id: SessionId) -> bool {
        self.table.contains_key(&id)
    }

    /// Returns all sessions, the least recently used first.
    pub(super) fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.by_use.iter().map(|(_, id)| *id)
    }

    /// Returns all sessions, each with the number below which its calls are forgotten.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = (SessionId, u64)> {
        self.by_use.iter().map(|(_, id)| (*id, self.table[id].done))
    }

    /// Returns the size of all remembered answers, of sessions and of calls with keys, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.keyed.bytes
    }

    /// Returns the size of the remembered answers of the session with the largest answers in total, in bytes.
    pub(super) fn bytes_of_one(&self) -> usize {
        self.holders.iter().map(|(_, id)| self.table[id].bytes).max().unwrap_or(0)
    }

    /// Encodes the whole table for a checkpoint.
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

    /// Replaces the whole table by the table of a checkpoint.
    pub(super) fn restore(&mut self, input: &mut Bytes) -> Result<(), WireError> {
        self.table.clear();
        self.by_use.clear();
        self.holders.clear();
        self.by_size.clear();
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
            let session = SessionReplies { used, done, replies, bytes };
            self.by_use.insert((used, id));
            let held = SessionUse::of(&session, self.step_bytes);
            self.note(id, SessionUse { used, bytes: 0, steps: 0 }, held);
            self.table.insert(id, session);
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

/// Number of instances within which two uses of a session count as one.
const COARSE: u64 = 1024;

/// Number of steps into which the common bound of bytes is divided. The steps are coarse, so that most calls
/// do not change their session's place in the order by size.
const STEPS: usize = 1024;

/// The approximate memory of a reply in addition to its bytes, in bytes.
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
    fn a_call_key_identifies_one_request_until_later_keys_replace_it() {
        let mut sessions = self::sessions(1, 1000);
        let keyed = |number| CallId { session: SessionId::KEYED, number };
        for number in 1..=4 {
            assert_eq!(sessions.find_keyed(number, 7), CallRecord::New);
            sessions.record(number, keyed(number), 7, reply("r"));
            assert_eq!(sessions.find_keyed(number, 7), CallRecord::Done(reply("r")));
            assert_eq!(sessions.find_keyed(number, 8), CallRecord::Reused);
        }
        assert_eq!(sessions.find_keyed(1, 7), CallRecord::New, "three are remembered");
        let mut bytes = BytesMut::new();
        sessions.encode(&mut bytes);
        let mut copy = self::sessions(1, 1000);
        copy.record(9, keyed(9), 9, reply("gone"));
        copy.restore(&mut bytes.freeze()).unwrap();
        assert_eq!((&copy.keyed.order, copy.keyed.bytes), (&sessions.keyed.order, sessions.keyed.bytes));
        assert_eq!(copy.find_keyed(4, 7), CallRecord::Done(reply("r")));
        let long = Bytes::from(vec![0; 380]);
        sessions.record(5, keyed(5), 7, long.clone());
        assert_eq!(sessions.find_keyed(5, 7), CallRecord::Done(long));
        assert_eq!(
            (sessions.keyed.table.len(), sessions.keyed.bytes),
            (1, 428),
            "the last one stays, whatever it takes"
        );
    }

    #[test]
    fn a_call_is_known_until_its_client_has_the_answer() {
        let mut sessions = self::sessions(10, 1000);
        assert_eq!(sessions.find(id(1, 0)), CallRecord::Forgotten, "a session must have been opened");
        sessions.open(1);
        assert_eq!(sessions.find(id(1, 0)), CallRecord::New);
        sessions.record(2, id(1, 1), 0, reply("b"));
        sessions.record(3, id(1, 0), 0, reply("a"));
        assert_eq!(sessions.find(id(1, 0)), CallRecord::Done(reply("a")), "out of order is in order");
        sessions.record(4, id(1, 2), 1, reply("c"));
        assert_eq!(sessions.find(id(1, 0)), CallRecord::Forgotten);
        assert_eq!(sessions.find(id(1, 1)), CallRecord::Done(reply("b")));
    }

    #[test]
    fn the_session_used_least_recently_ends() {
        let mut sessions = self::sessions(2, 1000);
        sessions.open(1);
        sessions.open(2);
        sessions.record(2000, id(1, 0), 0, reply("a"));
        sessions.open(2001);
        assert_eq!(sessions.find(id(2, 0)), CallRecord::Forgotten);
        assert_eq!(sessions.find(id(1, 0)), CallRecord::Done(reply("a")));
        let mut bytes = BytesMut::new();
        sessions.encode(&mut bytes);
        let mut copy = self::sessions(2, 1000);
        copy.restore(&mut bytes.freeze()).unwrap();
        assert_eq!(copy.find(id(1, 0)), CallRecord::Done(reply("a")));
        assert_eq!(copy.bytes, sessions.bytes);
        copy.open(2002);
        sessions.open(2002);
        assert_eq!(copy.by_use, sessions.by_use, "a restored table forgets the same");
    }

    #[test]
    fn a_session_beyond_its_share_loses_its_oldest_answers() {
        let mut sessions = self::sessions(10, 10_000);
        sessions.session_bytes_max = 200;
        sessions.open(1);
        sessions.open(2);
        sessions.record(3, id(2, 0), 0, reply("of another"));
        for number in 0..3 {
            sessions.record(4 + number, id(1, number), 0, reply("0123456789012345678901234567890"));
        }
        assert_eq!(sessions.find(id(1, 0)), CallRecord::Forgotten);
        assert_eq!(sessions.find(id(1, 1)), CallRecord::Done(reply("0123456789012345678901234567890")));
        assert_eq!(sessions.find(id(1, 3)), CallRecord::New, "the session goes on");
        assert_eq!(sessions.find(id(2, 0)), CallRecord::Done(reply("of another")));
        let long = Bytes::from(vec![0; 300]);
        sessions.record(7, id(1, 3), 0, long.clone());
        assert_eq!(sessions.find(id(1, 2)), CallRecord::Forgotten);
        assert_eq!(sessions.find(id(1, 3)), CallRecord::Done(long), "the last one stays, whatever it takes");
        assert_eq!(sessions.bytes, 348 + 58);
    }

    #[test]
    fn no_session_ends_because_of_anothers_answers() {
        let mut sessions = self::sessions(10, 64 << 20);
        sessions.open(1);
        sessions.open(2);
        sessions.record(3, id(2, 0), 0, reply("of another"));
        let long = Bytes::from(vec![0; 2 << 20]);
        for number in 0..64 {
            sessions.record(4 + number, id(1, number), 0, long.clone());
        }
        assert_eq!(sessions.find(id(2, 0)), CallRecord::Done(reply("of another")));
        assert!(sessions.is_open(SessionId(1)) && sessions.bytes <= 64 << 20, "{}", sessions.bytes);
    }

    #[test]
    fn beyond_the_common_bound_the_largest_sessions_lose_first_and_copies_lose_the_same() {
        let mut sessions = self::sessions(10, 4096);
        sessions.session_bytes_max = 4096;
        (1..=4).for_each(|session| sessions.open(session));
        for (number, session) in [3, 1, 2].into_iter().enumerate() {
            sessions.record(10 + number as u64, id(session, 0), 0, reply("short"));
        }
        let mut bytes = BytesMut::new();
        sessions.encode(&mut bytes);
        let mut copy = self::sessions(10, 4096);
        copy.session_bytes_max = 4096;
        copy.restore(&mut bytes.freeze()).unwrap();
        for sessions in [&mut sessions, &mut copy] {
            for number in 0..20 {
                sessions.record(20 + number, id(4, number), 0, Bytes::from(vec![0; 500]));
                assert!(sessions.bytes <= 4096, "{}", sessions.bytes);
            }
            for session in 1..=3 {
                assert_eq!(sessions.find(id(session, 0)), CallRecord::Done(reply("short")), "{session}");
            }
        }
        assert_eq!((&copy.by_size, &copy.holders), (&sessions.by_size, &sessions.holders));
        assert_eq!((copy.bytes, copy.find(id(4, 12))), (sessions.bytes, sessions.find(id(4, 12))));
    }

    #[test]
    fn small_sessions_lose_answers_by_least_recent_use() {
        let mut sessions = self::sessions(4000, 204_800);
        for session in 1..=2000 {
            sessions.open(session);
        }
        for session in 1..=2000 {
            sessions.record(10_000 + session, id(session, 0), 0, Bytes::from(vec![0; 100]));
        }
        assert!(sessions.bytes <= 204_800 && sessions.table.len() == 2000, "{}", sessions.bytes);
        assert_eq!(sessions.find(id(1, 0)), CallRecord::Forgotten);
        assert!(matches!(sessions.find(id(2000, 0)), CallRecord::Done(_)));
    }
}
