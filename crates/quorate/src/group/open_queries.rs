//! The queries of a member that are in progress, and the answers to them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    group::{self, SeatId},
};
use tokio::sync::oneshot;

use super::key::GroupKeys;

/// The number of members that have to reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Every member.
    All,
    /// More than half of the members.
    Majority,
    /// The given number of members, or all if there are fewer.
    Count(usize),
    /// The first member that replies.
    One,
}

impl Want {
    pub(super) fn of(self, members: usize) -> usize {
        match self {
            Want::All => members,
            Want::Majority => members / 2 + 1,
            Want::Count(count) => count.min(members),
            Want::One => members.min(1),
        }
    }
}

/// A member's answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueryAnswer {
    Reply(Vec<u8>),
    Declined,
    /// The member failed: the reason, as text.
    Failed(Vec<u8>),
    /// The member has left, so it will not answer.
    Gone,
}

const REPLY: u8 = 1;
const DECLINED: u8 = 2;
const FAILED: u8 = 3;
/// Upper bound of the bytes that a seal adds to an answer.
const SEAL_BYTES: usize = 64;
/// Size of an answer's head, in bytes: the number of the query, the number of the answering member in its
/// process, and the kind of the answer.
const ANSWER_HEAD_BYTES: usize = 13;

impl QueryAnswer {
    /// Returns the memory that the answer takes at the asker, in bytes.
    fn bytes(&self) -> usize {
        let content = match self {
            QueryAnswer::Reply(content) | QueryAnswer::Failed(content) => content.len(),
            QueryAnswer::Declined | QueryAnswer::Gone => 0,
        };
        mem::size_of::<QueryAnswer>() + content
    }

    /// Encodes the answer of the member with the number `seat` in its process to the query `number`.
    pub(super) fn encode(&self, number: u64, seat: SeatId) -> Bytes {
        let (kind, rest): (u8, &[u8]) = match self {
            QueryAnswer::Reply(reply) => (REPLY, reply),
            QueryAnswer::Declined => (DECLINED, &[]),
            QueryAnswer::Failed(why) => (FAILED, why),
            QueryAnswer::Gone => unreachable!("a member never reports itself as gone"),
        };
        let mut bytes = BytesMut::with_capacity(ANSWER_HEAD_BYTES + rest.len());
        bytes.put_u64_le(number);
        bytes.put_u32_le(seat.0);
        bytes.put_u8(kind);
        bytes.put_slice(rest);
        bytes.freeze()
    }

    /// Returns this answer. If the answer with its head and its seal would be longer than a message may be,
    /// returns a failure that names the limit instead.
    pub(super) fn within(self, bytes_max: usize) -> QueryAnswer {
        let limit = bytes_max.saturating_sub(ANSWER_HEAD_BYTES + SEAL_BYTES);
        match &self {
            QueryAnswer::Reply(bytes) | QueryAnswer::Failed(bytes) if bytes.len() > limit => {
                QueryAnswer::Failed(
                    format!("the answer has {} bytes, and at most {limit} are allowed", bytes.len())
                        .into_bytes(),
                )
            }
            _ => self,
        }
    }

    /// Returns the answer with its content sealed.
    pub(super) fn sealed(self, number: u64, group_keys: &GroupKeys) -> QueryAnswer {
        if self == QueryAnswer::Declined {
            return self;
        }
        let encoded = group_keys.seal(ANSWER_HEAD_BYTES, &self.encode(number, SeatId(0)));
        QueryAnswer::decode(&encoded).map_or(QueryAnswer::Declined, |(.., answer)| answer)
    }

    /// Opens a sealed answer of `member`.
    pub(super) fn opened(self, member: ProcessId, number: u64, group_keys: &GroupKeys) -> QueryAnswer {
        let encoded = match &self {
            // The answer has no secret content.
            QueryAnswer::Gone | QueryAnswer::Declined => return self,
            // In a group with a key, each process has one member.
            answer => answer.encode(number, SeatId(0)),
        };
        let (head, sealed) = encoded.split_at(ANSWER_HEAD_BYTES);
        let plain = group_keys.open(member, head, sealed);
        let answer = plain.ok().and_then(|plain| QueryAnswer::decode(&[head, &plain[..]].concat()));
        answer.map_or_else(
            || QueryAnswer::Failed(b"the answer is not sealed with the group's key".to_vec()),
            |(.., answer)| answer,
        )
    }

    /// Decodes the number of the query, the number of the answering member in its process, and the answer.
    /// `None` if the bytes are invalid.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<(u64, SeatId, QueryAnswer)> {
        let (number, seat) = (bytes.try_get_u64_le().ok()?, SeatId(bytes.try_get_u32_le().ok()?));
        let kind = bytes.try_get_u8().ok()?;
        let answer = match kind {
            REPLY => QueryAnswer::Reply(bytes.to_vec()),
            DECLINED => QueryAnswer::Declined,
            FAILED => QueryAnswer::Failed(bytes.to_vec()),
            _ => return None,
        };
        Some((number, seat, answer))
    }
}

/// The queries of a member that are in progress. [`Waiters`](crate::waiters::Waiters) cannot keep the
/// queries, because each query gathers the answers of many members.
pub(super) struct OpenQueries {
    seat: SeatId,
    last: u32,
    queries: BTreeMap<u64, OpenQuery>,
    /// Memory of the answers to all queries, in bytes.
    bytes: usize,
    /// Upper bound of `bytes`. An answer beyond this bound counts as failed.
    bytes_max: usize,
}

/// Upper bound of answers that wait at a member for its queries to end, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 128 << 20;

pub(super) struct OpenQuery {
    want: Want,
    /// The members that were asked, by rank. `None` until the query is delivered here.
    pub(super) members: Option<Vec<(ProcessId, SeatId)>>,
    pub(super) answers: BTreeMap<(ProcessId, SeatId), QueryAnswer>,
    enough: Option<oneshot::Sender<()>>,
}

impl OpenQuery {
    fn look(&mut self) {
        let Some(members) = &self.members else { return };
        let replies = self.answers.values().filter(|answer| matches!(answer, QueryAnswer::Reply(_))).count();
        if (replies >= self.want.of(members.len()) || self.answers.len() >= members.len())
            && let Some(enough) = self.enough.take()
        {
            // The caller may no longer wait.
            let _ = enough.send(());
        }
    }
}

impl OpenQueries {
    /// Creates the empty list of open queries of the member with the number `seat` in its process.
    pub(super) fn new(seat: SeatId, bytes_max: usize) -> OpenQueries {
        OpenQueries { seat, last: 0, queries: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Begins a query. Returns its number, and a receiver that reports when the query has enough answers.
    pub(super) fn ask(&mut self, want: Want) -> (u64, oneshot::Receiver<()>) {
        self.last += 1;
        let number = self.seat.number(self.last);
        let (enough, receiver) = oneshot::channel();
        let query = OpenQuery { want, members: None, answers: BTreeMap::new(), enough: Some(enough) };
        self.queries.insert(number, query);
        (number, receiver)
    }

    /// Returns the answers to a query so far.
    pub(super) fn answers(&self, number: u64) -> impl Iterator<Item = &QueryAnswer> {
        self.queries.get(&number).into_iter().flat_map(|query| query.answers.values())
    }

    pub(super) fn take(&mut self, number: u64) -> Option<OpenQuery> {
        let query = self.queries.remove(&number)?;
        self.bytes -= query.answers.values().map(QueryAnswer::bytes).sum::<usize>();
        Some(query)
    }

    /// Notes that the query is delivered here, in this view.
    pub(super) fn delivered(&mut self, number: u64, view: &group::View) {
        if let Some(query) = self.queries.get_mut(&number) {
            query.members = Some(view.places().collect());
            query.look();
        }
    }

    /// Takes an answer of a member. Returns whether the answer was awaited: the query has not ended, and the
    /// member has not answered before.
    pub(super) fn take_answer(
        &mut self,
        from: (ProcessId, SeatId),
        number: u64,
        answer: QueryAnswer,
    ) -> bool {
        let Some(query) = self.queries.get_mut(&number) else { return false };
        let Entry::Vacant(place) = query.answers.entry(from) else { return false };
        let limit = self.bytes_max;
        let answer = if self.bytes + answer.bytes() > limit
            && matches!(answer, QueryAnswer::Reply(_) | QueryAnswer::Failed(_))
        {
            QueryAnswer::Failed(
                format!("more than {limit} bytes of answers wait at the member that asks").into_bytes(),
            )
        } else {
            answer
        };
        self.bytes += answer.bytes();
        place.insert(answer);
        query.look();
        true
    }

    /// Notes that members outside this view will not answer.
    pub(super) fn view(&mut self, view: &group::View) {
        let stays =
            |(member, seat): &(ProcessId, SeatId)| view.has(*member, *seat) && !view.joined.contains(member);
        for query in self.queries.values_mut() {
            let Some(members) = &query.members else { continue };
            for gone in members.iter().filter(|it| !stays(it)) {
                query.answers.entry(*gone).or_insert_with(|| {
                    self.bytes += QueryAnswer::Gone.bytes();
                    QueryAnswer::Gone
                });
            }
            query.look();
        }
    }

    /// Ends all queries: no more answers come.
    pub(super) fn end(&mut self) {
        for query in self.queries.values_mut() {
            query.enough = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;
    use crate::group::Key;

    #[test]
    fn the_wanted_number_of_answers_counts_present_members() {
        let of = |want: Want| [0, 1, 2, 3, 5].map(|members| want.of(members));
        assert_eq!(of(Want::All), [0, 1, 2, 3, 5]);
        assert_eq!(of(Want::Majority), [1, 1, 2, 2, 3]);
        assert_eq!(of(Want::Count(2)), [0, 1, 2, 2, 2]);
        assert_eq!(of(Want::One), [0, 1, 1, 1, 1]);
    }

    #[test]
    fn query_answers_survive_encoding_and_garbage_is_refused() {
        for answer in
            [QueryAnswer::Reply(vec![1, 2]), QueryAnswer::Declined, QueryAnswer::Failed(b"no".to_vec())]
        {
            assert_eq!(QueryAnswer::decode(&answer.encode(7, SeatId(2))), Some((7, SeatId(2), answer)));
        }
        for garbage in [&[][..], &[1; 8], &[0; 9], &[9; 12]] {
            assert_eq!(QueryAnswer::decode(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn query_answers_are_sealed_and_opened_and_forgeries_are_refused() {
        let process = |node| ProcessId { node, incarnation: Incarnation(0) };
        let group_keys = |node, key: &Key| {
            GroupKeys::new(group::GroupId(1), process(node), key.clone(), std::sync::Arc::default())
        };
        let key = Key::generate();
        let (here, there) = (group_keys(1, &key), group_keys(2, &key));
        for answer in [
            QueryAnswer::Reply(vec![1, 2]),
            QueryAnswer::Declined,
            QueryAnswer::Failed(vec![0xff, 0]),
            QueryAnswer::Reply(Vec::new()),
        ] {
            let sent = answer.clone().sealed(7, &there);
            assert_eq!(sent == answer, answer == QueryAnswer::Declined, "{sent:?}");
            assert_eq!(sent.clone().opened(process(2), 7, &here), answer);
            if answer != QueryAnswer::Declined {
                for (sender, number) in [(2, 8), (3, 7)] {
                    let strange = sent.clone().opened(process(sender), number, &here);
                    assert!(
                        matches!(&strange, QueryAnswer::Failed(why) if why.starts_with(b"the answer is not")),
                        "{strange:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_answer_that_is_too_long_becomes_a_short_error() {
        let long = QueryAnswer::Reply(vec![0; 1_000]);
        assert_eq!(long.clone().within(2_000), long);
        let QueryAnswer::Failed(why) = long.within(1_000) else { panic!("it is too long") };
        assert_eq!(
            String::from_utf8(why).as_deref(),
            Ok("the answer has 1000 bytes, and at most 923 are allowed")
        );
    }

    #[test]
    fn answers_that_wait_are_bounded_in_bytes() {
        let member = |node| (ProcessId { node, incarnation: Incarnation(0) }, SeatId(0));
        let mut open_queries = OpenQueries::new(SeatId(0), 2_500);
        let (first, _) = open_queries.ask(Want::All);
        let (second, _) = open_queries.ask(Want::All);
        for node in 1..=2 {
            assert!(open_queries.take_answer(member(node), first, QueryAnswer::Reply(vec![0; 1_000])));
        }
        assert!(open_queries.take_answer(member(1), second, QueryAnswer::Reply(vec![0; 1_000])));
        let is_kept = |answer: &QueryAnswer| matches!(answer, QueryAnswer::Reply(_));
        assert_eq!(open_queries.answers(first).filter(|answer| is_kept(answer)).count(), 2);
        assert_eq!(open_queries.answers(second).filter(|answer| is_kept(answer)).count(), 0, "it says why");
        open_queries.take(first);
        assert!(open_queries.take_answer(member(2), second, QueryAnswer::Reply(vec![0; 1_000])));
        assert_eq!(open_queries.answers(second).filter(|answer| is_kept(answer)).count(), 1);
        open_queries.take(second);
        assert_eq!(open_queries.bytes, 0);
    }

    #[test]
    fn a_reply_that_overtakes_the_query_counts() {
        let process = |node| ProcessId { node, incarnation: Incarnation(0) };
        let mut open_queries = OpenQueries::new(SeatId(0), ANSWER_BYTES_MAX);
        let (number, mut enough) = open_queries.ask(Want::One);
        assert!(open_queries.take_answer((process(2), SeatId(0)), number, QueryAnswer::Declined));
        assert!(
            !open_queries.take_answer((process(2), SeatId(0)), number, QueryAnswer::Declined),
            "it has said so"
        );
        assert!(enough.try_recv().is_err(), "nobody knows yet whom it went to");
        let members = [1, 2].map(|node| group::ViewMember {
            peer: quorate_protocol::Peer { id: process(node), address: String::new() },
            transfer: group::StateTransfer::Complete,
        });
        let mut view = group::View { members: members.into(), ..group::View::default() };
        open_queries.delivered(number, &view);
        assert!(enough.try_recv().is_err(), "one may still reply");
        view.members.remove(0);
        open_queries.view(&view);
        assert!(enough.try_recv().is_ok(), "and then nobody is left");
        assert!(
            !open_queries.take_answer((process(1), SeatId(0)), number, QueryAnswer::Declined),
            "it is gone"
        );
        open_queries.take(number);
        assert!(
            !open_queries.take_answer((process(3), SeatId(0)), number, QueryAnswer::Declined),
            "nobody waits"
        );
    }
}
