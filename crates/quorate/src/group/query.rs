//! Queries: what members say to one, and who does not.
//!
//! A query goes through the group as an update does, so all members answer in the state that the same messages brought about (an
//! ordered or safe one: in the very same state). Replies go straight to who asked, which knows from the view in which its query was
//! delivered whom to expect. A query ends once enough have replied, once nobody is left who might, or at its deadline.

use std::{
    cell::Cell,
    collections::{BTreeMap, btree_map::Entry},
    future::IntoFuture,
    marker::PhantomData,
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
    inbox::{lock, opened},
    key::Ring,
    lock::{CLAIM, RELEASE},
    member::Member,
};
use crate::{error::Error, pending::Pending, timer};

/// How many members are to reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Every member.
    All,
    /// More than half.
    Majority,
    /// So many, or all if there are fewer.
    Count(usize),
    /// The first that does.
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
    /// Members that did not reply: those that will not, and, if fewer replied than were wanted, those that are late.
    pub missing: Vec<Missing>,
    /// Whether as many replied as were wanted.
    pub complete: bool,
}

/// One member's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied<T> {
    /// Who.
    pub member: ProcessId,
    /// Its place in the view in which it answered.
    pub rank: usize,
    /// Its answer.
    pub reply: T,
}

/// A member that did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Who.
    pub member: ProcessId,
    /// Its place in the view in which it was asked.
    pub rank: usize,
    /// Why not.
    pub why: Absence,
}

/// Why a member did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It had not by the deadline.
    Late,
    /// It is in the group no more.
    Gone,
    /// It had nothing to say.
    Declined,
    /// Its `query` or the thread that was to answer panicked, or its reply is of another type.
    Failed(String),
}

/// A query that is about to be asked.
#[must_use = "it is asked once it is awaited"]
pub struct Query<R: Object> {
    pub(super) member: Member<R>,
    pub(super) query: Result<Vec<u8>, String>,
    pub(super) want: Want,
    pub(super) strength: Strength,
    pub(super) deadline: Duration,
    pub(super) replica: PhantomData<fn() -> R>,
}

/// How long members may take to reply, unless said otherwise.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);

/// An asker whose replies are ahead of the group's new key looks so often for that.
const AHEAD_EVERY: Duration = Duration::from_millis(1);

impl<R: Object> Query<R> {
    /// How long members may take: 1 s unless said otherwise. Who has not replied by then is named.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    async fn ask(self) -> Result<Replies<R::Reply>, Error> {
        let Query { member, query, want, strength, deadline, .. } = self;
        let until = Instant::now() + deadline;
        let query = query.map_err(|why| Error::invalid(format!("the query: {why}")))?;
        let seat = member.seat().clone();
        let (number, enough) = lock(&seat.asked).ask(want);
        // Given up, by whoever drops this, it is forgotten.
        let asking = Asking { member: &member, number };
        let sent = member.submit(strength, &with_number(number, &query));
        if let Some(sent) = timer::timeout(deadline, sent).await {
            sent?;
            // An error says that the member has ended: what came is what there is.
            let _ = timer::timeout(until.saturating_duration_since(Instant::now()), enough).await;
            while asking.is_ahead() && Instant::now() < until {
                timer::sleep(AHEAD_EVERY).await;
            }
        }
        asking.take(want)
    }
}

impl<R: Object> IntoFuture for Query<R> {
    type Output = Result<Replies<R::Reply>, Error>;
    type IntoFuture = Pending<'static, Replies<R::Reply>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

/// A query under way, for the one who asks.
struct Asking<'a, R: Object> {
    member: &'a Member<R>,
    number: u64,
}

impl<R: Object> Asking<'_, R> {
    /// Whether a member has replied with a key that has not come here yet.
    fn is_ahead(&self) -> bool {
        let seat = self.member.seat();
        let Some(ring) = seat.ring.as_ref().filter(|_| seat.over().is_none()) else { return false };
        lock(&seat.asked).words(self.number).any(|word| match word {
            Word::Reply(sealed) | Word::Failed(sealed) => ring.is_ahead(sealed),
            Word::Declined | Word::Gone => false,
        })
    }

    fn take(self, want: Want) -> Result<Replies<R::Reply>, Error> {
        let seat = self.member.seat();
        let Some(Question { members: Some(members), words, .. }) = lock(&seat.asked).take(self.number) else {
            // Not even here was it delivered, and it may be yet.
            return Err(seat
                .over()
                .unwrap_or_else(|| Error::not_sent("the group did not take the query before its deadline")));
        };
        let words: BTreeMap<(ProcessId, SeatId), Word> = match &seat.ring {
            None => words,
            Some(ring) => words
                .into_iter()
                .map(|(member, word)| (member, word.opened(member.0, self.number, ring)))
                .collect(),
        };
        let (mut replies, mut missing, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, place) in members.iter().enumerate() {
            let member = place.0;
            let why = match words.get(place) {
                Some(Word::Reply(reply)) => match opened(reply) {
                    Ok(reply) => {
                        replies.push(Replied { member, rank, reply });
                        continue;
                    }
                    Err(why) => Absence::Failed(why),
                },
                Some(Word::Declined) => Absence::Declined,
                Some(Word::Failed(why)) => Absence::Failed(String::from_utf8_lossy(why).into_owned()),
                Some(Word::Gone) => Absence::Gone,
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

impl<R: Object> Drop for Asking<'_, R> {
    fn drop(&mut self) {
        lock(&self.member.seat().asked).take(self.number);
    }
}

/// A member's word on a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Reply(Vec<u8>),
    Declined,
    /// With the reason, a text.
    Failed(Vec<u8>),
    /// It will say nothing.
    Gone,
}

const REPLY: u8 = 1;
const DECLINED: u8 = 2;
const FAILED: u8 = 3;
/// The number of the query, the seat of the member that says it, and the kind of the word.
const WORD_HEAD_BYTES: usize = 13;

impl Word {
    /// Its bytes, as the member in this seat says it to who asked under this number.
    pub(super) fn encode(&self, number: u64, seat: SeatId) -> Bytes {
        let (kind, rest): (u8, &[u8]) = match self {
            Word::Reply(reply) => (REPLY, reply),
            Word::Declined => (DECLINED, &[]),
            Word::Failed(why) => (FAILED, why),
            Word::Gone => unreachable!("nobody says that of itself"),
        };
        let mut bytes = BytesMut::with_capacity(WORD_HEAD_BYTES + rest.len());
        bytes.put_u64_le(number);
        bytes.put_u32_le(seat.0);
        bytes.put_u8(kind);
        bytes.put_slice(rest);
        bytes.freeze()
    }

    /// The same, with what it tells sealed.
    pub(super) fn sealed(self, number: u64, ring: &Ring) -> Word {
        if self == Word::Declined {
            return self;
        }
        let encoded = ring.seal(WORD_HEAD_BYTES, &self.encode(number, SeatId(0)));
        Word::decode(&encoded).map_or(Word::Declined, |(.., word)| word)
    }

    /// A word of `member` that was sealed.
    fn opened(self, member: ProcessId, number: u64, ring: &Ring) -> Word {
        let encoded = match &self {
            // Nothing in it is secret.
            Word::Gone | Word::Declined => return self,
            // Of a group with a key each process has one member.
            word => word.encode(number, SeatId(0)),
        };
        let (head, sealed) = encoded.split_at(WORD_HEAD_BYTES);
        let plain = ring.open(member, head, sealed);
        let word = plain.ok().and_then(|plain| Word::decode(&[head, &plain[..]].concat()));
        word.map_or_else(
            || Word::Failed(b"its word is not sealed with the group's key".to_vec()),
            |(.., word)| word,
        )
    }

    /// The number of the query, the seat of who says it, and the word. `None`: it is none.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<(u64, SeatId, Word)> {
        let (number, seat) = (bytes.try_get_u64_le().ok()?, SeatId(bytes.try_get_u32_le().ok()?));
        let kind = bytes.try_get_u8().ok()?;
        let word = match kind {
            REPLY => Word::Reply(bytes.to_vec()),
            DECLINED => Word::Declined,
            FAILED => Word::Failed(bytes.to_vec()),
            _ => return None,
        };
        Some((number, seat, word))
    }
}

/// The kind of a message in a group, by its first byte.
pub(super) enum Kind {
    /// Of the member in this seat.
    Update(SeatId),
    /// Under this number.
    Query(u64),
    /// For a lock, under this number; its name follows.
    Claim(u64),
    /// Of a lock, or of a claim for it.
    Release(u64),
    /// A new key of the group follows.
    Rekey,
    /// No member sends it.
    Strange,
}

const UPDATE: u8 = 0;
const QUERY: u8 = 1;
const REKEY: u8 = 4;
/// Of a member in another seat than the first, whose number follows.
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

/// The number of the query that this message is, if it is one.
pub(super) fn number_of(mut body: &[u8]) -> Option<u64> {
    match kind_of(&mut body) {
        Kind::Query(number) => Some(number),
        Kind::Update(_) | Kind::Claim(_) | Kind::Release(_) | Kind::Rekey | Kind::Strange => None,
    }
}

/// How many bytes of a message come before what may be sealed: its kind, and its number if it has one.
pub(super) fn head_bytes(body: &[u8]) -> usize {
    match body.first() {
        Some(&(QUERY | CLAIM | RELEASE)) => 9,
        Some(&UPDATE_OF) => 5,
        _ => 1,
    }
}

/// The message that a new key of the group is.
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
    /// The buffer in which this thread's updates are encoded: it has the length of the longest so far.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A scratch that has become longer is not kept.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// Hands over the message that an update of the member in this seat is.
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
    let bytes = bytes.map_err(|error| format!("it does not serialise: {error}"))?;
    let handed = hand_over(&bytes);
    if bytes.capacity() <= SCRATCH_BYTES_MAX {
        SCRATCH.set(bytes);
    }
    Ok(handed)
}

/// The queries of a member that are under way.
pub(super) struct Asked {
    seat: SeatId,
    last: u32,
    questions: BTreeMap<u64, Question>,
}

struct Question {
    want: Want,
    /// Those asked, by rank, once the query is delivered here.
    members: Option<Vec<(ProcessId, SeatId)>>,
    words: BTreeMap<(ProcessId, SeatId), Word>,
    enough: Option<oneshot::Sender<()>>,
}

impl Question {
    fn look(&mut self) {
        let Some(members) = &self.members else { return };
        let replies = self.words.values().filter(|word| matches!(word, Word::Reply(_))).count();
        if (replies >= self.want.of(members.len()) || self.words.len() >= members.len())
            && let Some(enough) = self.enough.take()
        {
            // The one who asked may have lost interest.
            let _ = enough.send(());
        }
    }
}

impl Asked {
    /// Of the member in this seat.
    pub(super) fn new(seat: SeatId) -> Asked {
        Asked { seat, last: 0, questions: BTreeMap::new() }
    }

    /// A query begins. It has enough answers when the second is told.
    fn ask(&mut self, want: Want) -> (u64, oneshot::Receiver<()>) {
        self.last += 1;
        let number = self.seat.number(self.last);
        let (enough, told) = oneshot::channel();
        let question = Question { want, members: None, words: BTreeMap::new(), enough: Some(enough) };
        self.questions.insert(number, question);
        (number, told)
    }

    /// The words on a query so far.
    fn words(&self, number: u64) -> impl Iterator<Item = &Word> {
        self.questions.get(&number).into_iter().flat_map(|question| question.words.values())
    }

    fn take(&mut self, number: u64) -> Option<Question> {
        self.questions.remove(&number)
    }

    /// A query is delivered here, in this view.
    pub(super) fn delivered(&mut self, number: u64, view: &group::View) {
        if let Some(question) = self.questions.get_mut(&number) {
            question.members = Some(view.places().collect());
            question.look();
        }
    }

    /// A member says something. Says whether that was awaited: the query has not ended, and nothing was known of this member.
    pub(super) fn said(&mut self, from: (ProcessId, SeatId), number: u64, word: Word) -> bool {
        let Some(question) = self.questions.get_mut(&number) else { return false };
        let Entry::Vacant(place) = question.words.entry(from) else { return false };
        place.insert(word);
        question.look();
        true
    }

    /// Members that are not in this view will not answer.
    pub(super) fn view(&mut self, view: &group::View) {
        let stays =
            |(member, seat): &(ProcessId, SeatId)| view.has(*member, *seat) && !view.joined.contains(member);
        for question in self.questions.values_mut() {
            let Some(members) = &question.members else { continue };
            for gone in members.iter().filter(|it| !stays(it)) {
                question.words.entry(*gone).or_insert(Word::Gone);
            }
            question.look();
        }
    }

    /// Nobody answers any more.
    pub(super) fn end(&mut self) {
        for question in self.questions.values_mut() {
            question.enough = None;
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
        for word in [Word::Reply(vec![1, 2]), Word::Declined, Word::Failed(b"no".to_vec())] {
            assert_eq!(Word::decode(&word.encode(7, SeatId(2))), Some((7, SeatId(2), word)));
        }
        for garbage in [&[][..], &[1; 8], &[0; 9], &[9; 12]] {
            assert_eq!(Word::decode(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn words_are_sealed_and_opened_and_others_are_no_words() {
        let process = |node| ProcessId { node, incarnation: Incarnation(0) };
        let ring = |node, key: &Key| Ring::new(group::GroupId(1), process(node), key.clone());
        let key = Key::generate();
        let (here, there) = (ring(1, &key), ring(2, &key));
        for word in
            [Word::Reply(vec![1, 2]), Word::Declined, Word::Failed(vec![0xff, 0]), Word::Reply(Vec::new())]
        {
            let sent = word.clone().sealed(7, &there);
            assert_eq!(sent == word, word == Word::Declined, "{sent:?}");
            assert_eq!(sent.clone().opened(process(2), 7, &here), word);
            if word != Word::Declined {
                for (sender, number) in [(2, 8), (3, 7)] {
                    let strange = sent.clone().opened(process(sender), number, &here);
                    assert!(
                        matches!(&strange, Word::Failed(why) if why.starts_with(b"its word")),
                        "{strange:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_reply_that_overtakes_the_query_counts() {
        let process = |node| ProcessId { node, incarnation: Incarnation(0) };
        let mut asked = Asked::new(SeatId(0));
        let (number, mut enough) = asked.ask(Want::One);
        assert!(asked.said((process(2), SeatId(0)), number, Word::Declined));
        assert!(!asked.said((process(2), SeatId(0)), number, Word::Declined), "it has said so");
        assert!(enough.try_recv().is_err(), "nobody knows yet whom it went to");
        let members = [1, 2].map(|node| group::Entry {
            peer: quorate_protocol::Peer { id: process(node), address: String::new() },
            standing: group::Standing::Whole,
        });
        let mut view = group::View { members: members.into(), ..group::View::default() };
        asked.delivered(number, &view);
        assert!(enough.try_recv().is_err(), "one may still reply");
        view.members.remove(0);
        asked.view(&view);
        assert!(enough.try_recv().is_ok(), "and then nobody is left");
        assert!(!asked.said((process(1), SeatId(0)), number, Word::Declined), "it is gone");
        asked.take(number);
        assert!(!asked.said((process(3), SeatId(0)), number, Word::Declined), "nobody waits");
    }
}
