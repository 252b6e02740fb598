//! Process groups, judged by what members tell: views, deliveries, states.
//!
//! The checker keeps for each process what it has delivered, as a person would: how far it has got with each sender, and what
//! was ordered, hashed in its order. When two processes begin the same view, these must be equal.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    ecast::Position,
    group::{Mark, Place, SeatId, View},
    wire::{decode_body, encode_body},
};
use quorate_world::Violation;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// What a member has delivered, its predecessors' deliveries included: the state of the replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct History {
    /// The number of each sender's last message.
    pub(crate) last: BTreeMap<ProcessId, u64>,
    /// The hash of what was ordered.
    ordered: u64,
}

impl History {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        encode_body(&mut out, self);
        out.freeze()
    }
}

/// What members send: whose message it is, and which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Word {
    pub(crate) sender: ProcessId,
    /// Counted by the sender over all strengths.
    pub(crate) number: u64,
    /// Its last one before it joined: a group that was empty meanwhile knows none of them.
    pub(crate) since: u64,
    pub(crate) safe: bool,
    /// The place of a safe word that its sender's words follow: nobody delivers this one before that.
    pub(crate) follows: Position,
}

impl Word {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        encode_body(&mut out, self);
        out.freeze()
    }
}

/// What one process told of one group.
#[derive(Debug, Default)]
struct Person {
    history: History,
    view: Option<u64>,
    members: BTreeSet<ProcessId>,
    /// The last place in the order that was delivered.
    at: (Position, u32),
    /// That of the last safe word that was.
    safe_at: Position,
    /// Senders some of whose messages were left out.
    gaps: BTreeSet<ProcessId>,
}

/// A member: its process, and its seat there.
type Seated = (ProcessId, SeatId);

/// What is known of a view.
#[derive(Debug, Default)]
struct Known {
    members: Vec<Seated>,
    state: History,
    /// The view that those who went on began next.
    next: Option<u64>,
    /// What was safe or flushed in it: whoever goes on has it.
    kept: BTreeMap<ProcessId, u64>,
}

/// The checker.
#[derive(Default)]
pub(crate) struct ViewCheck {
    people: BTreeMap<(ProcessId, u64), Person>,
    views: BTreeMap<(u64, u64), Known>,
    places: BTreeMap<(u64, Position, u32), Word>,
    /// The states of checkpoints that were written, by group.
    checkpoints: BTreeMap<(u64, Mark), History>,
    /// Those that a user was told are kept.
    kept: BTreeMap<u64, BTreeSet<Mark>>,
    /// The checkpoint with which a member begins that has not told its view yet.
    begun: BTreeMap<(ProcessId, u64), Option<Mark>>,
    /// Processes that were dropped, or were told that something failed.
    ended: BTreeSet<ProcessId>,
    /// Words of processes in groups that were not sent, by number.
    turned_back: BTreeSet<(ProcessId, u64, u64)>,
    out_of_touch: BTreeSet<ProcessId>,
}

fn judge(holds: bool, rule: &'static str, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(rule, detail())) }
}

impl ViewCheck {
    /// What `me` has delivered in `group`, while it is a member.
    pub(crate) fn history(&self, me: ProcessId, group: u64) -> Option<&History> {
        self.people.get(&(me, group)).filter(|person| person.view.is_some()).map(|person| &person.history)
    }

    fn lives(&self, me: ProcessId) -> Result<(), Violation> {
        judge(!self.ended.contains(&me), "nothing after the end", || format!("{me} tells something"))?;
        judge(!self.out_of_touch.contains(&me), "S11", || format!("{me} goes on, out of touch"))
    }

    /// `me` begins with a state, or without.
    pub(crate) fn restored(
        &mut self,
        me: ProcessId,
        group: u64,
        state: Option<Bytes>,
    ) -> Result<(), Violation> {
        self.lives(me)?;
        let history = match state {
            None => History::default(),
            Some(mut state) => {
                decode_body(&mut state).map_err(|error| Violation::new("state", error.to_string()))?
            }
        };
        self.people.insert((me, group), Person { history, ..Person::default() });
        Ok(())
    }

    /// A member writes a checkpoint.
    pub(crate) fn written(&mut self, group: u64, mark: Mark, state: &History) -> Result<(), Violation> {
        let known = self.checkpoints.entry((group, mark)).or_insert_with(|| state.clone());
        judge(known == state, "checkpoints", || format!("{mark} is {state:?} here, and {known:?} elsewhere"))
    }

    /// A user was told that a save covers this.
    pub(crate) fn covered(
        &self,
        group: u64,
        mark: Mark,
        delivered: &BTreeMap<ProcessId, u64>,
    ) -> Result<(), Violation> {
        let state = self.checkpoints.get(&(group, mark));
        let has = |sender| state.and_then(|state| state.last.get(sender)).copied().unwrap_or(0);
        let whole = delivered.iter().all(|(sender, number)| has(sender) >= *number);
        judge(whole, "checkpoints", || format!("{mark} is {state:?}, and its asker had {delivered:?}"))
    }

    /// A user was told that a checkpoint is kept.
    pub(crate) fn confirmed(&mut self, group: u64, mark: Mark) {
        self.kept.entry(group).or_default().insert(mark);
    }

    /// `me` begins with its own checkpoint, or with nothing, because nobody has the group's state.
    pub(crate) fn begins(&mut self, me: ProcessId, group: u64, own: Option<Mark>) {
        self.begun.insert((me, group), own);
    }

    /// That was right if no newer one had been kept before the view. The process may have slept since, and others gone on and kept more.
    fn judge_begun(&mut self, me: ProcessId, group: u64, view: Position) -> Result<(), Violation> {
        let Some(own) = self.begun.remove(&(me, group)) else { return Ok(()) };
        let kept = self.kept.get(&group).into_iter().flatten();
        let newest = kept.copied().filter(|kept| kept.view < view).max();
        judge(own >= newest, "checkpoints", || {
            format!("{me} begins view {view} with {own:?}, {newest:?} was kept")
        })
    }

    /// `me` begins a view.
    pub(crate) fn began(
        &mut self,
        me: ProcessId,
        group: u64,
        view: &View,
        (arrived, departed): (&[Seated], &[Seated]),
        missing: &BTreeMap<ProcessId, u64>,
    ) -> Result<(), Violation> {
        self.lives(me)?;
        self.judge_begun(me, group, view.number)?;
        let number = view.number.0;
        let (members, places): (Vec<ProcessId>, Vec<_>) = (view.ids().collect(), view.places().collect());
        let person = self.people.get_mut(&(me, group));
        let person = person.ok_or_else(|| Violation::new("state", format!("{me} begins without a state")))?;
        judge(members.contains(&me), "self-inclusion", || format!("{me} is not in its view {number}"))?;
        judge(person.view < Some(number), "views", || format!("{me}: {number} after {:?}", person.view))?;
        for sender in std::mem::take(&mut person.gaps) {
            let told = missing.contains_key(&sender) && !members.contains(&sender);
            judge(told, "FIFO", || format!("{me} lacks something of {sender} before view {number}"))?;
        }
        let before = person.view.replace(number);
        person.members = members.iter().copied().collect();
        let known = self.views.entry((group, number)).or_insert_with(|| Known {
            members: places.clone(),
            state: person.history.clone(),
            ..Known::default()
        });
        judge(known.members == places, "views", || {
            format!("{me} sees {places:?} in view {number}, others {:?}", known.members)
        })?;
        judge(known.state == person.history, "virtual synchrony", || {
            format!("{me} begins view {number} with {:?}, others with {:?}", person.history, known.state)
        })?;
        let Some(before) = before else { return Ok(()) };
        let known = self.views.get_mut(&(group, before)).expect("it was begun");
        let was: BTreeSet<_> = known.members.iter().copied().collect();
        let (is, arrived): (BTreeSet<_>, BTreeSet<_>) =
            (places.into_iter().collect(), arrived.iter().copied().collect());
        let departed: BTreeSet<_> = departed.iter().copied().collect();
        judge(&is - &was == arrived && &was - &is == departed, "views", || {
            format!("{me}: from {was:?} to {is:?}, and {arrived:?} arrived, {departed:?} departed")
        })?;
        let next = *known.next.get_or_insert(number);
        judge(next == number, "views", || format!("{me} goes from {before} to {number}, others to {next}"))?;
        self.keeps(group, before)
    }

    /// What was kept in a view is in the state of the next.
    fn keeps(&self, group: u64, view: u64) -> Result<(), Violation> {
        let known = &self.views[&(group, view)];
        let Some(next) = known.next.and_then(|next| self.views.get(&(group, next))) else { return Ok(()) };
        for (sender, number) in &known.kept {
            let has = next.state.last.get(sender).copied().unwrap_or(0);
            judge(has >= *number, "safe is never lost", || {
                format!("{number} of {sender} was safe in view {view}; those who went on have {has}")
            })?;
        }
        Ok(())
    }

    /// `me` delivers.
    pub(crate) fn delivered(
        &mut self,
        me: ProcessId,
        group: u64,
        (sender, place): (ProcessId, Place),
        mut body: Bytes,
    ) -> Result<Word, Violation> {
        self.lives(me)?;
        let word: Word =
            decode_body(&mut body).map_err(|error| Violation::new("integrity", error.to_string()))?;
        let person = self.people.entry((me, group)).or_default();
        let what = || format!("{me} delivers {word:?} at {place:?} in view {:?}", person.view);
        judge(word.sender == sender, "integrity", what)?;
        judge(person.members.contains(&sender), "firewall", what)?;
        let reached = person.at.0.max(Position(person.view.unwrap_or(0)));
        let follows = matches!(place, Place::Ordered(..)) || reached >= word.follows;
        judge(follows, "following", || format!("{}, has reached {reached}", what()))?;
        // A checkpoint may lack some of what it sent before it left.
        let last = person.history.last.get(&sender).copied().unwrap_or(0).max(word.since);
        judge(word.number > last, "FIFO", || format!("{} after {last}", what()))?;
        let is_back = |number| self.turned_back.contains(&(sender, group, number));
        judge(!is_back(word.number), "one outcome", || format!("{}, which was turned back", what()))?;
        if (last + 1..word.number).any(|number| !is_back(number)) {
            person.gaps.insert(sender);
        }
        if let Place::Ordered(at, index) = place {
            judge((at, index) > person.at, "order", || format!("{} after {:?}", what(), person.at))?;
            let first = self.places.entry((group, at, index)).or_insert_with(|| word.clone());
            judge(*first == word, "order", || format!("{}, others {first:?}", what()))?;
            person.at = (at, index);
            person.safe_at = if word.safe { at } else { person.safe_at };
            let mut bytes = word.encode().to_vec();
            bytes.extend_from_slice(&person.history.ordered.to_le_bytes());
            person.history.ordered = xxh3_64(&bytes);
        }
        person.history.last.insert(sender, word.number);
        let view = person.view;
        if word.safe {
            self.keep(group, view, [(sender, word.number)])?;
        }
        Ok(word)
    }

    /// This was safe, or flushed, in a view.
    pub(crate) fn keep(
        &mut self,
        group: u64,
        view: Option<u64>,
        words: impl IntoIterator<Item = (ProcessId, u64)>,
    ) -> Result<(), Violation> {
        let Some(view) = view else { return Ok(()) };
        let known = self.views.get_mut(&(group, view)).expect("it was begun");
        for (sender, number) in words {
            let kept = known.kept.entry(sender).or_default();
            *kept = (*kept).max(number);
        }
        self.keeps(group, view)
    }

    /// The place of the last safe word that `me` delivered since it joined.
    pub(crate) fn safe_at(&self, me: ProcessId, group: u64) -> Position {
        self.people.get(&(me, group)).map(|person| person.safe_at).unwrap_or_default()
    }

    /// The view that `me` is in.
    pub(crate) fn view(&self, me: ProcessId, group: u64) -> Option<u64> {
        self.people.get(&(me, group))?.view
    }

    /// `me` is out of a group.
    pub(crate) fn left(&mut self, me: ProcessId, group: u64) {
        self.people.remove(&(me, group));
    }

    /// `me` was told that it did not send this word of a group.
    pub(crate) fn turned_back(&mut self, me: ProcessId, group: u64, number: u64) {
        self.turned_back.insert((me, group, number));
    }

    /// `me` tells no more.
    pub(crate) fn ended(&mut self, me: ProcessId) {
        self.ended.insert(me);
    }

    /// Whether `me` is in touch with the order.
    pub(crate) fn touched(&mut self, me: ProcessId, in_touch: bool) {
        if in_touch {
            self.out_of_touch.remove(&me);
        } else {
            self.out_of_touch.insert(me);
        }
    }
}
