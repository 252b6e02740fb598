//! A write's way here: evaluated, settled, answered, remembered.
//!
//! A write that cannot fail, or is evaluated alike by all who are concerned, takes effect at once. One that can fail and spans
//! ranges is held until the [verdicts](super::verdicts) of all its ranges are known (S15). What it did is
//! [remembered](super::replies), so that one that is repeated is answered from memory (S6).
//!
//! **A repetition that some ranges know and others do not.** All replicas of a range may be lost, and its successor begins
//! empty; the other ranges of a write remember it. Said again, the write is evaluated where it is not known. Whoever
//! remembers it takes part in the exchange of verdicts by what it remembers, under the new position: it tells its verdict when
//! it comes to the write, notes it there, and answers questions from memory. So nobody waits for a verdict of one that has
//! nothing to evaluate.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Storage, Task, TaskKind,
    batch::Purpose,
    direct::tell,
    import::Import,
    replies::{Known, Remembered},
    verdicts::{Decision, FORGOTTEN, OTHER_STATEMENT, Told},
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{DataHeader, Direct, Message, Range, Record, Reply, ReplyContent, Spent, WriteName},
    seam::{Context, Destination, Sink},
};

/// What came of a write at the engine: a result for each range, or why it failed.
pub(super) type Evaluated = Result<Vec<Bytes>, Bytes>;

/// A write that was delivered.
pub(super) struct Write {
    pub(super) at: Position,
    pub(super) client: ProcessId,
    pub(super) header: DataHeader,
    /// What is to be evaluated here, and in which of the ring's segments each part lies.
    pub(super) held: Vec<Range>,
    pub(super) segments: Vec<Range>,
    /// What is held here too, where the write took effect before.
    pub(super) remembered: Vec<Range>,
    pub(super) answers: Vec<Range>,
    /// The other replicas concerned and what they hold of it, when verdicts are exchanged.
    pub(super) others: Vec<(ProcessId, Vec<Range>)>,
    pub(super) operation: Bytes,
}

impl Write {
    /// The segments of what is to be evaluated, each once.
    fn segments(&self) -> SmallVec<[Range; 2]> {
        let mut segments = SmallVec::from_slice(&self.segments);
        segments.sort_unstable();
        segments.dedup();
        segments
    }

    /// What is held here of it, evaluated or remembered.
    fn here(&self) -> impl Iterator<Item = Range> {
        self.held.iter().chain(&self.remembered).copied()
    }
}

impl Storage {
    pub(super) fn push_write(
        &mut self,
        tasks: &mut Vec<Task>,
        mut write: Box<Write>,
        out: &mut dyn Sink<Self>,
    ) -> bool {
        let name = write.header.name;
        let (mut known, mut failed): (Vec<Arc<Remembered>>, Option<Arc<Remembered>>) = (Vec::new(), None);
        let segments = write.segments();
        for segment in &segments {
            match self.replies.known(name, *segment) {
                Known::Nothing => {}
                Known::Done(remembered) => match &remembered.results {
                    Ok(_) => known.push(remembered.clone()),
                    Err(_) => failed = Some(remembered.clone()),
                },
                Known::OtherStatement => {
                    self.repeated += 1;
                    refuse(&write, out);
                    self.speak(&write, Some(OTHER_STATEMENT), out);
                    return true;
                }
            }
        }
        let token = write.header.token;
        if let Some(before) = failed {
            // It failed before, as a whole.
            self.repeated += 1;
            send_remembered(write.client, token, &before, &write.header.ranges, out);
            for segment in segments {
                if self.replies.known(name, segment) == Known::Nothing {
                    let failed = Remembered { at: write.at, ..Remembered::clone(&before) };
                    self.replies.remember(name, segment, failed);
                }
            }
            let why = before.results.as_ref().err().cloned().flatten();
            self.speak(&write, Some(why.unwrap_or(FORGOTTEN)), out);
            return true;
        }
        if !known.is_empty() {
            self.repeated += 1;
            // S6: it took effect before; say again what it did, in every range held here.
            for remembered in &known {
                send_remembered(write.client, token, remembered, &write.header.ranges, out);
            }
            self.cover(&write, out);
            for (range, segment) in
                std::mem::take(&mut write.held).into_iter().zip(write.segments.split_off(0))
            {
                if self.replies.known(name, segment) == Known::Nothing {
                    write.held.push(range);
                    write.segments.push(segment);
                } else {
                    write.remembered.push(range);
                }
            }
            if write.held.is_empty() {
                self.speak(&write, None, out);
                return true;
            }
        }
        self.replies.begin(name);
        let held = !write.others.is_empty();
        let kind = TaskKind::Write { ranges: write.held.clone(), operation: write.operation.clone(), held };
        self.push(tasks, write.at, kind, Purpose::Write(write));
        !held
    }

    /// A statement need not have the same keys when it is repeated (`now()`). A segment that did it does it for none of
    /// them again, and its client is told so.
    fn cover(&self, write: &Write, out: &mut dyn Sink<Self>) {
        for (range, segment) in write.held.iter().zip(&write.segments) {
            let Known::Done(known) = self.replies.known(write.header.name, *segment) else { continue };
            let Ok(answers) = &known.results else { continue };
            let told: Vec<Range> = answers.iter().map(|(range, _)| *range).collect();
            if let Some((_, answer)) = answers.first()
                && !told.iter().any(|told| told.intersect(*range).is_some())
            {
                let answer = Remembered { at: known.at, results: Ok(vec![(*range, answer.clone())]) };
                send_remembered(write.client, write.header.token, &answer, &[*range], out);
            }
        }
    }

    /// Tells the other replicas concerned the verdict on a write that is not evaluated here, because it is remembered.
    /// Those who do not remember it wait for that, and ask for it if they miss it.
    fn speak(&mut self, write: &Write, failure: Option<Bytes>, out: &mut dyn Sink<Self>) {
        if write.others.is_empty() {
            return;
        }
        let ranges: Vec<Range> = write.here().collect();
        // Noted at this position, it can be told when the write is not remembered any more.
        self.verdicts.settle(write.at, (ranges.clone(), failure.clone()), self.receiving());
        let verdict = Direct::Verdict { at: write.at, ranges, failure };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
    }

    /// A write was evaluated here: answer, or wait for the others' verdicts.
    pub(super) fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        write: Box<Write>,
        result: Evaluated,
        done: Position,
        out: &mut dyn Sink<Self>,
    ) -> Position {
        let at = write.at;
        if write.others.is_empty() {
            self.answer(&write, result, out);
            return done.max(at);
        }
        if self.is_dismissed() {
            // Its rows go, whatever the others say.
            self.replies.finish(write.header.name);
            self.settle = Some((at, false));
            return done.max(at);
        }
        let failure = result.as_ref().err().cloned();
        let ranges: Vec<Range> = write.here().collect();
        let verdict = Direct::Verdict { at, ranges: ranges.clone(), failure: failure.clone() };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
        self.verdicts.add(at, &ranges, failure);
        self.holding = Some((write, result));
        self.ask_at = Some(cx.now + self.settings.ask_after);
        self.decide(out);
        // The position counts as executed once it is settled; `decide` has advanced it if that was at once.
        if self.holding.is_none() { done.max(at) } else { done }
    }

    /// Whoever takes over ranges may ask for verdicts from here on.
    fn receiving(&self) -> Option<Position> {
        self.membership.config().and_then(|config| config.receiving().map(|(_, at)| at).min())
    }

    /// Settles the held write if the verdicts suffice.
    pub(super) fn decide(&mut self, out: &mut dyn Sink<Self>) {
        let Some((write, _)) = &self.holding else { return };
        let (at, receiving) = (write.at, self.receiving());
        let known = self.verdicts.is_decided(at);
        let Some(decision) = self.verdicts.decide(at, &write.header.ranges, receiving) else { return };
        if !known {
            let failure = match &decision {
                Decision::Publish => None,
                Decision::Void(failure) => Some(failure.clone()),
            };
            self.write_decision(at, failure, out);
        }
        let (write, result) = self.holding.take().expect("just seen");
        self.ask_at = None;
        self.settle = Some((write.at, decision == Decision::Publish));
        let result = match decision {
            Decision::Publish => {
                assert!(result.is_ok(), "S15: published at {} what failed here", write.at);
                result
            }
            Decision::Void(failure) => Err(failure),
        };
        self.answer(&write, result, out);
    }

    /// Who may know more of a held write: all that were concerned and live, who replicates its ranges by now, and keepers.
    pub(super) fn may_know(&self, write: &Write) -> Vec<ProcessId> {
        let Some(config) = self.membership.config() else { return Vec::new() };
        let concerned = write.others.iter().map(|(process, _)| *process);
        let keepers = config.keepers().map(|(keeper, _)| keeper);
        let concerned = concerned.chain(keepers);
        let mut all: Vec<ProcessId> = concerned.chain(config.replicas_of(&write.header.ranges)).collect();
        all.retain(|process| *process != self.membership.me && config.members.contains_key(process));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Publishes the held write if those that were to tell a verdict are all out, and nobody alive knows it.
    pub(super) fn give_up(&mut self, out: &mut dyn Sink<Self>) {
        let (Some((write, _)), Some(config)) = (&self.holding, self.membership.config()) else { return };
        let at = write.at;
        let missing = self.verdicts.missing(at, &write.header.ranges);
        let alive = self.may_know(write);
        let will_speak = |(process, held): &(ProcessId, Vec<Range>)| {
            let concerned = |range: &Range| missing.iter().any(|gap| gap.intersect(*range).is_some());
            (alive.contains(process) || config.is_kept_of(*process, at)) && held.iter().any(concerned)
        };
        let unknowing = |process: &ProcessId| self.verdicts.is_unknowing(at, *process, self.departed);
        if at > self.departed || write.others.iter().any(will_speak) || !alive.iter().all(unknowing) {
            return;
        }
        let (write, result) = self.holding.take().expect("just seen");
        assert!(result.is_ok(), "S15: what failed here at {at} was voided at once");
        self.ask_at = None;
        self.settle = Some((at, true));
        self.verdicts.settle(at, (vec![Range::ALL], None), self.receiving());
        self.write_decision(at, None, out);
        self.answer(&write, result, out);
    }

    /// Those who told their verdicts may have forgotten them by the time that this process comes back.
    fn write_decision(&self, at: Position, failure: Option<Bytes>, out: &mut dyn Sink<Self>) {
        if self.settings.checkpoint_bytes.is_some() {
            out.persist(Record::Decided { at, failure });
        }
    }

    /// What is remembered here of a write that somebody evaluates at this position.
    pub(super) fn remembered_verdict(&self, at: Position, name: WriteName) -> Option<Told> {
        let mut favourable = Vec::new();
        let imported = self.import.as_ref().map(Import::replies);
        let memories = [Some(&self.replies), imported].into_iter().flatten();
        for (replies, range) in
            memories.flat_map(|replies| replies.concerned(&[Range::ALL]).map(move |range| (replies, range)))
        {
            match replies.known(name, range) {
                Known::Nothing => {}
                Known::OtherStatement => return Some((vec![Range::ALL], Some(OTHER_STATEMENT))),
                Known::Done(known) => match &known.results {
                    Err(why) => {
                        return Some((vec![Range::ALL], Some(why.clone().unwrap_or(FORGOTTEN))));
                    }
                    // Published there, it was favourable everywhere.
                    Ok(_) if known.at == at => return Some((vec![Range::ALL], None)),
                    Ok(_) => favourable.push(range),
                },
            }
        }
        (!favourable.is_empty()).then_some((favourable, None))
    }

    /// Answers a client that asks what became of a write here.
    pub(super) fn tell_remembered(
        &self,
        client: ProcessId,
        name: WriteName,
        token: u64,
        ranges: &[Range],
        out: &mut dyn Sink<Self>,
    ) {
        let mut told = false;
        for range in self.replies.concerned(ranges) {
            match self.replies.known(name, range) {
                Known::Nothing => {}
                Known::Done(known) => {
                    told = true;
                    send_remembered(client, token, known, ranges, out);
                }
                Known::OtherStatement => {
                    return tell(client, token, Position(0), ReplyContent::OtherStatement, out);
                }
            }
        }
        if !told {
            // Still to be executed here: the client asks again.
            tell(client, token, Position(0), ReplyContent::Unknown, out);
        }
    }

    fn answer(&mut self, write: &Write, result: Evaluated, out: &mut dyn Sink<Self>) {
        let (name, token, at) = (write.header.name, write.header.token, write.at);
        self.replies.finish(name);
        let results = match result {
            // Another range knows the id as another statement's. It is as if this one had never been.
            Err(why) if why == OTHER_STATEMENT => return refuse(write, out),
            Err(why) => Err(Some(why).filter(|why| *why != FORGOTTEN)),
            Ok(answers) => {
                let answers = answers.into_iter().map(Some);
                Ok(write.held.iter().copied().zip(answers).collect::<Vec<(Range, Option<Bytes>)>>())
            }
        };
        let answered = Remembered { at, results };
        send_remembered(write.client, token, &answered, &write.answers, out);
        let segments = write.segments();
        if let [segment] = segments[..] {
            return self.replies.remember(name, segment, answered);
        }
        for segment in segments {
            let inside = |(range, _): &&(Range, Option<Bytes>)| segment.intersect(*range).is_some();
            let results = answered.results.as_ref();
            let results = results.map(|answers| answers.iter().filter(inside).cloned().collect());
            let remembered = Remembered { at, results: results.map_err(Option::clone) };
            self.replies.remember(name, segment, remembered);
        }
    }
}

/// Tells a client that its write's id is that of another statement.
fn refuse(write: &Write, out: &mut dyn Sink<Storage>) {
    tell(write.client, write.header.token, write.at, ReplyContent::OtherStatement, out);
}

/// Tells a client what a write did in those of `ranges` that are remembered here.
pub(super) fn send_remembered(
    client: ProcessId,
    token: u64,
    known: &Remembered,
    ranges: &[Range],
    out: &mut dyn Sink<Storage>,
) {
    let mut send = |covered: SmallVec<[Range; 2]>, content: Option<Bytes>| {
        let forgotten = ReplyContent::Forgotten { applied: known.results.is_ok() };
        let (content, spent) = (content.map_or(forgotten, ReplyContent::Answer), Spent::default());
        let reply = Reply { token, at: known.at, ranges: covered, piece: 0, last: true, spent, content };
        out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
    };
    match &known.results {
        Ok(answers) => {
            for (range, answer) in answers {
                if ranges.iter().any(|wanted| wanted.intersect(*range).is_some()) {
                    send(SmallVec::from_slice(&[*range]), answer.clone());
                }
            }
        }
        // A write fails as a whole: any one answer will do.
        Err(failure) if !ranges.is_empty() => send(SmallVec::from_slice(ranges), failure.clone()),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests;
