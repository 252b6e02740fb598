//! Queries: the answers of members, and the reasons of members that do not answer.
//!
//! A query goes through the group like an update, so all members answer in a state that the same messages
//! produced (for an ordered or safe query, in the very same state). Replies go straight to the asker. The
//! view in which its query was delivered tells the asker which members to expect. A query ends once enough
//! members have replied, once no more replies are possible, or at its deadline.

use std::{
    cell::Cell,
    collections::{BTreeMap, btree_map::Entry},
    future::IntoFuture,
    marker::PhantomData,
    mem,
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    group::{self, SeatId, Strength},
};
use tokio::sync::oneshot;

use super::{
    Key, Object,
    inbox::decode,
    key::GroupKeys,
    lock::{CLAIM, RELEASE},
    member::Member,
};
use crate::{error::Error, lock::lock, pending::Pending, timer};

/// The number of members that have to reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Every member.
    All,
    /// More than half.
    Majority,
    /// The given number of members, or all if there are fewer.
    Count(usize),
    /// The first member that replies.
    One,
}

impl Want {
    fn of(self, members: usize) -> usize {
        match self {
            Want::All => members,
            Want::Majority => members / 2 + 1,
            Want::Count(count) => count.min(members),
            Want::One => members.min(1),
        }
    }
}

/// The members' answers to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replies<T> {
    /// The replies, by rank.
    pub replies: Vec<Replied<T>>,
    /// Members that did not reply: those that will not, and, if fewer replied than were wanted, those that
    /// are late.
    pub missing: Vec<Missing>,
    /// Whether as many replied as were wanted.
    pub complete: bool,
}

/// One member's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied<T> {
    /// The member's process.
    pub member: ProcessId,
    /// The member's index in the view in which it was asked.
    pub rank: usize,
    /// The member's answer.
    pub reply: T,
}

/// A member that did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The member's process.
    pub member: ProcessId,
    /// The member's index in the view in which it was asked.
    pub rank: usize,
    /// The reason.
    pub why: Absence,
}

/// The reason why a member did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The member had not replied by the deadline.
    Late,
    /// The member has left the group.
    Gone,
    /// The member declined to reply.
    Declined,
    /// The member's `query` or the answering thread panicked, its reply does not decode, or its answer was
    /// too long.
    Failed(String),
}

/// A query that has not been asked yet.
#[must_use = "a query is asked only when its future is awaited"]
pub struct Query<R: Object> {
    pub(super) member: Member<R>,
    pub(super) query: Result<Vec<u8>, String>,
    pub(super) want: Want,
    pub(super) strength: Strength,
    pub(super) deadline: Duration,
    pub(super) replica: PhantomData<fn() -> R>,
}

/// Time that members have to reply, by default.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);

/// Interval at which an asker checks whether the group's new key has arrived, if a reply needs it.
const AHEAD_EVERY: Duration = Duration::from_millis(1);

impl<R: Object> Query<R> {
    /// Sets the time that members have to reply; the default is 1 s. The result names the members that are
    /// late.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    async fn ask(self) -> Result<Replies<R::Reply>, Error> {
        let Query { member, query, want, strength, deadline, .. } = self;
        let until = Instant::now() + deadline;
        let query = query.map_err(|why| Error::invalid(format!("the query cannot be encoded: {why}")))?;
        let seat = member.seat().clone();
        let (number, enough) = lock(&seat.open_queries).ask(want);
        // Dropping the future forgets the query.
        let guard = QueryGuard { member: &member, number };
        let sent = member.submit(strength, &with_number(number, &query));
        if let Some(sent) = timer::timeout(deadline, sent).await {
            sent?;
            // An error says that the member has ended, so no more replies come.
            let _ = timer::timeout(until.saturating_duration_since(Instant::now()), enough).await;
            while guard.is_ahead() && Instant::now() < until {
                timer::sleep(AHEAD_EVERY).await;
            }
        }
        guard.take(want)
    }
}

impl<R: Object> IntoFuture for Query<R> {
    type Output = Result<Replies<R::Reply>, Error>;
    type IntoFuture = Pending<'static, Replies<R::Reply>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// A query in progress, for its asker.
struct QueryGuard<'a, R: Object> {
    member: &'a Member<R>,
    number: u64,
}

impl<R: Object> QueryGuard<'_, R> {
    /// Whether a member has replied with a key that has not arrived here.
    fn is_ahead(&self) -> bool {
        let seat = self.member.seat();
        let Some(group_keys) = seat.group_keys.as_ref().filter(|_| seat.over().is_none()) else {
            return false;
        };
        lock(&seat.open_queries).answers(self.number).any(|answer| match answer {
            QueryAnswer::Reply(sealed) | QueryAnswer::Failed(sealed) => group_keys.is_ahead(sealed),
            QueryAnswer::Declined | QueryAnswer::Gone => false,
        })
    }

    fn take(self, want: Want) -> Result<Replies<R::Reply>, Error> {
        let seat = self.member.seat();
        let Some(OpenQuery { members: Some(members), answers, .. }) =
            lock(&seat.open_queries).take(self.number)
        else {
            // The query was not delivered even here. It may still be.
            return Err(seat
                .over()
                .unwrap_or_else(|| Error::not_sent("the group did not take the query before its deadline")));
        };
        let answers: BTreeMap<(ProcessId, SeatId), QueryAnswer> = match &seat.group_keys {
            None => answers,
            Some(group_keys) => answers
                .into_iter()
                .map(|(member, answer)| (member, answer.opened(member.0, self.number, group_keys)))
                .collect(),
        };
        let (mut replies, mut missing, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, place) in members.iter().enumerate() {
            let member = place.0;
            let why = match answers.get(place) {
                Some(QueryAnswer::Reply(reply)) => match decode(reply) {
                    Ok(reply) => {
                        replies.push(Replied { member, rank, reply });
                        continue;
                    }
                    Err(why) => Absence::Failed(why),
                },
                Some(QueryAnswer::Declined) => Absence::Declined,
                Some(QueryAnswer::Failed(why)) => Absence::Failed(String::from_utf8_lossy(why).into_owned()),
                Some(QueryAnswer::Gone) => Absence::Gone,
                None => {
                    late.push(Missing { member, rank, why: Absence::Late });
                    continue;
                }
            };
            missing.push(Missing { member, rank, why });
        }
        let complete = replies.len() >= want.of(members.len());
        if !complete {
            missing.extend(late);
            missing.sort_by_key(|missing| missing.rank);
        }
        Ok(Replies { replies, missing, complete })
    }
}

impl<R: Object> Drop for QueryGuard<'_, R> {
    fn drop(&mut self) {
        lock(&self.member.seat().open_queries).take(self.number);
    }
}

/// A member's answer to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueryAnswer {
    Reply(Vec<u8>),
    Declined,
    /// The reason, as text.
    Failed(Vec<u8>),
    /// The member has left, so it will not answer.
    Gone,
}

const REPLY: u8 = 1;
const DECLINED: u8 = 2;
const FAILED: u8 = 3;
/// Upper bound of the bytes that a seal adds to an answer.
const SEAL_BYTES: usize = 64;
/// Size of the number of the query, the seat of the answering member, and the kind of the answer.
const ANSWER_HEAD_BYTES: usize = 13;

impl QueryAnswer {
    /// Returns the answer's memory at the asker, in bytes.
    fn bytes(&self) -> usize {
        let content = match self {
            QueryAnswer::Reply(content) | QueryAnswer::Failed(content) => content.len(),
            QueryAnswer::Declined | QueryAnswer::Gone => 0,
        };
        mem::size_of::<QueryAnswer>() + content
    }

    /// Encodes the answer of the member in this seat to the query of this number.
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

    /// Returns this answer, or one that names the limit if it would be longer than a message may be, with its
    /// head and its seal.
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
    fn opened(self, member: ProcessId, number: u64, group_keys: &GroupKeys) -> QueryAnswer {
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

    /// Decodes the number of the query, the seat of the answering member, and the answer. `None` if the bytes
    /// are invalid.
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

/// The kind of a message in a group, by its first byte.
pub(super) enum Kind {
    /// An update of the member in this seat.
    Update(SeatId),
    /// A query of this number.
    Query(u64),
    /// A claim of this number for a lock; the lock's name follows.
    Claim(u64),
    /// A release of the claim of this number; the lock's name follows.
    Release(u64),
    /// A new key of the group, which follows.
    Rekey,
    /// A kind that no member sends.
    Strange,
}

const UPDATE: u8 = 0;
const QUERY: u8 = 1;
const REKEY: u8 = 4;
/// An update of a member in another seat than the first; the seat's number follows.
const UPDATE_OF: u8 = 5;

/// Takes the kind off a message.
pub(super) fn kind_of(body: &mut &[u8]) -> Kind {
    match body.try_get_u8() {
        Ok(UPDATE) => Kind::Update(SeatId(0)),
        Ok(UPDATE_OF) => body.try_get_u32_le().map_or(Kind::Strange, |seat| Kind::Update(SeatId(seat))),
        Ok(QUERY) => body.try_get_u64_le().map_or(Kind::Strange, Kind::Query),
        Ok(CLAIM) => body.try_get_u64_le().map_or(Kind::Strange, Kind::Claim),
        Ok(RELEASE) => body.try_get_u64_le().map_or(Kind::Strange, Kind::Release),
        Ok(REKEY) => Kind::Rekey,
        _ => Kind::Strange,
    }
}

/// Returns the number of the query in this message, if it is a query.
pub(super) fn number_of(mut body: &[u8]) -> Option<u64> {
    match kind_of(&mut body) {
        Kind::Query(number) => Some(number),
        Kind::Update(_) | Kind::Claim(_) | Kind::Release(_) | Kind::Rekey | Kind::Strange => None,
    }
}

/// Returns the length of the part that stays unsealed: the kind, and the number if there is one, in bytes.
pub(super) fn head_bytes(body: &[u8]) -> usize {
    match body.first() {
        Some(&(QUERY | CLAIM | RELEASE)) => 9,
        Some(&UPDATE_OF) => 5,
        _ => 1,
    }
}

/// Returns the message that carries a new key of the group.
pub(super) fn rekey(key: &Key) -> Vec<u8> {
    let mut body = vec![REKEY];
    body.extend_from_slice(key.as_bytes());
    body
}

fn with_number(number: u64, query: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(9 + query.len());
    body.put_u8(QUERY);
    body.put_u64_le(number);
    body.put_slice(query);
    body.freeze()
}

thread_local! {
    /// The buffer in which this thread's updates are encoded.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Upper bound of the buffer that a thread keeps, in bytes.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// Encodes an update of the member in this seat as a message, and passes it on.
pub(super) fn update<T>(
    seat: SeatId,
    update: &impl serde::Serialize,
    hand_over: impl FnOnce(&[u8]) -> T,
) -> Result<T, String> {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    if seat == SeatId(0) {
        scratch.push(UPDATE);
    } else {
        scratch.push(UPDATE_OF);
        scratch.put_u32_le(seat.0);
    }
    let bytes = postcard::to_extend(update, scratch);
    let bytes = bytes.map_err(|error| format!("the value does not serialise: {error}"))?;
    let handed = hand_over(&bytes);
    if bytes.capacity() <= SCRATCH_BYTES_MAX {
        SCRATCH.set(bytes);
    }
    Ok(handed)
}

/// The queries of a member that are in progress.
pub(super) struct OpenQueries {
    seat: SeatId,
    last: u32,
    queries: BTreeMap<u64, OpenQuery>,
    /// Memory of the answers to all queries, in bytes.
    bytes: usize,
    /// The limit of `bytes`. An answer beyond it counts as failed.
    bytes_max: usize,
}

/// Upper bound of answers that wait at a member for its queries to end, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 128 << 20;

struct OpenQuery {
    want: Want,
    /// The members that were asked, by rank, once the query is delivered here.
    members: Option<Vec<(ProcessId, SeatId)>>,
    answers: BTreeMap<(ProcessId, SeatId), QueryAnswer>,
    enough: Option<oneshot::Sender<()>>,
}

impl OpenQuery {
    fn look(&mut self) {
        let Some(members) = &self.members else { return };
        let replies = self.answers.values().filter(|answer| matches!(answer, QueryAnswer::Reply(_))).count();
        if (replies >= self.want.of(members.len()) || self.answers.len() >= members.len())
            && let Some(enough) = self.enough.take()
        {
            // The caller may have lost interest.
            let _ = enough.send(());
        }
    }
}

impl OpenQueries {
    /// Makes the queries of the member in this seat.
    pub(super) fn new(seat: SeatId, bytes_max: usize) -> OpenQueries {
        OpenQueries { seat, last: 0, queries: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Begins a query. The receiver reports that it has enough answers.
    fn ask(&mut self, want: Want) -> (u64, oneshot::Receiver<()>) {
        self.last += 1;
        let number = self.seat.number(self.last);
        let (enough, told) = oneshot::channel();
        let query = OpenQuery { want, members: None, answers: BTreeMap::new(), enough: Some(enough) };
        self.queries.insert(number, query);
        (number, told)
    }

    /// Returns the answers to a query so far.
    fn answers(&self, number: u64) -> impl Iterator<Item = &QueryAnswer> {
        self.queries.get(&number).into_iter().flat_map(|query| query.answers.values())
    }

    fn take(&mut self, number: u64) -> Option<OpenQuery> {
        let query = self.queries.remove(&number)?;
        self.bytes -= query.answers.values().map(QueryAnswer::bytes).sum::<usize>();
        Some(query)
    }

    /// Notes that a query is delivered here, in this view.
    pub(super) fn delivered(&mut self, number: u64, view: &group::View) {
        if let Some(query) = self.queries.get_mut(&number) {
            query.members = Some(view.places().collect());
            query.look();
        }
    }

    /// Takes an answer of a member. Returns whether it was awaited: the query has not ended, and this is the
    /// member's first answer.
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

    #[test]
    fn wants_are_counted_of_the_members_that_there_are() {
        let of = |want: Want| [0, 1, 2, 3, 5].map(|members| want.of(members));
        assert_eq!(of(Want::All), [0, 1, 2, 3, 5]);
        assert_eq!(of(Want::Majority), [1, 1, 2, 2, 3]);
        assert_eq!(of(Want::Count(2)), [0, 1, 2, 2, 2]);
        assert_eq!(of(Want::One), [0, 1, 1, 1, 1]);
    }

    #[test]
    fn words_come_back_from_their_bytes_and_nothing_else_does() {
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
    fn words_are_sealed_and_opened_and_others_are_no_words() {
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
    fn an_answer_that_is_too_long_is_told_in_few_words() {
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
            standing: group::Standing::Whole,
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
