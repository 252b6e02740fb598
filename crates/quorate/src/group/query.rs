//! Queries: the answers of members, and the reasons of members that do not answer.
//!
//! A query goes through the group like an update. So all members answer from a state that the same messages
//! produced, and from equal states if the query is ordered or safe. Replies go straight to the asker. The
//! view in which a query was delivered tells its asker from which members to expect a reply. A query ends
//! once enough members have replied, once no more replies are possible, or at its deadline.

use std::{
    collections::BTreeMap,
    future::IntoFuture,
    marker::PhantomData,
    time::{Duration, Instant},
};

use quorate_protocol::{
    ProcessId,
    group::{Phi, SeatId, SendStrength},
};

use super::{
    Object,
    member::Member,
    message::{decode, encode, with_number},
    open_queries::{OpenQuery, QueryAnswer, Want},
};
use crate::{error::Error, lock::lock, pending::Pending, timer};

/// The members' answers to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replies<T> {
    /// The replies, by rank.
    pub replies: Vec<Replied<T>>,
    /// The members that will not reply. If fewer members replied than were wanted, also the members that are
    /// late.
    pub missing: Vec<Missing>,
    /// Whether the wanted number of members replied.
    pub complete: bool,
}

/// One member's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied<T> {
    /// The member's process.
    pub member: ProcessId,
    /// The member's index in the view in which the query was delivered.
    pub rank: usize,
    /// The member's answer.
    pub reply: T,
}

/// A member that did not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The member's process.
    pub member: ProcessId,
    /// The member's index in the view in which the query was delivered.
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
    /// The member's `query` or the answering thread panicked, the member's reply does not decode, or its
    /// answer was too long.
    Failed(String),
}

/// A query that has not been asked yet.
#[must_use = "a query is asked only when its future is awaited"]
pub struct Query<R: Object> {
    member: Member<R>,
    query: Result<Vec<u8>, String>,
    want: Want,
    strength: SendStrength,
    deadline: Duration,
    replica: PhantomData<fn() -> R>,
}

/// Time that members have to reply, by default.
const DEADLINE: Duration = Duration::from_secs(1);

/// Interval at which an asker checks for the group's new key, if a reply is sealed with a key that has not
/// arrived.
const AHEAD_EVERY: Duration = Duration::from_millis(1);

impl<R: Object> Member<R> {
    /// Asks members. Each member answers from its own state, which includes the asking member's earlier
    /// sends.
    pub fn query(&self, query: R::Query, want: Want) -> Query<R> {
        self.query_as(SendStrength::Soft, &query, want)
    }

    /// Asks members. All members answer from the same state as far as ordered and safe updates are concerned.
    pub fn ordered_query(&self, query: R::Query, want: Want) -> Query<R> {
        self.query_as(SendStrength::Ordered, &query, want)
    }

    /// Asks members like [`Member::ordered_query`], but no member replies before all members have the query.
    pub fn safe_query(&self, query: R::Query, want: Want) -> Query<R> {
        self.query_as(SendStrength::Safe(Phi::All), &query, want)
    }

    fn query_as(&self, strength: SendStrength, query: &R::Query, want: Want) -> Query<R> {
        let query = encode(query);
        Query { member: self.clone(), query, want, strength, deadline: DEADLINE, replica: PhantomData }
    }
}

impl<R: Object> Query<R> {
    /// Sets the time that members have to reply; the default is 1 s. The result names the members that did
    /// not reply in time.
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
        // The guard removes the query if the caller drops the future.
        let guard = QueryGuard { member: &member, number };
        let sent = member.submit(strength, &with_number(number, &query));
        if let Some(sent) = timer::timeout(deadline, sent).await {
            sent?;
            // An error means that the member has ended, so no more replies come.
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

/// A guard that removes a query in progress when the query's future is dropped.
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
            // The query was not delivered even at this member, but may be delivered later.
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
