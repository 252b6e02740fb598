//! A write's way through a storage process: it is evaluated, settled, answered and remembered.
//!
//! A write that cannot fail, or that all its replicas evaluate alike, takes effect at once. A write that can
//! fail and spans ranges is held until the [verdicts](super::verdicts) of all its ranges are known (S15). Its
//! result is [remembered](super::replies), so that a repetition is answered from memory (S6).
//!
//! **A repetition that some ranges remember and other ranges do not.** All replicas of a range may be lost,
//! so that its successor begins empty. The other ranges of a write still remember it. On a repetition, the
//! ranges that do not know the write evaluate it. A range that remembers the write takes part in the exchange
//! under the new position, with its old verdict. The range sends this verdict when it reaches the write,
//! notes it at the position, and answers questions from memory. So nobody waits for the verdict of a range
//! that has nothing to evaluate.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Storage, Task, TaskKind,
    import::Import,
    replies::{KnownReply, Remembered},
    reply::send_content,
    verdicts::{DecidedRanges, Decision, FORGOTTEN, OTHER_STATEMENT},
    work::{Evaluated, Purpose, Write},
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Direct, Message, Range, ReadCost, Record, Reply, ReplyContent, WriteName},
    seam::{Context, Destination, Sink},
};

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
                KnownReply::Nothing => {}
                KnownReply::Done(remembered) => match &remembered.results {
                    Ok(_) => known.push(remembered.clone()),
                    Err(_) => failed = Some(remembered.clone()),
                },
                KnownReply::OtherStatement => {
                    self.repeated += 1;
                    refuse(&write, out);
                    self.speak(&write, Some(OTHER_STATEMENT), out);
                    return true;
                }
            }
        }
        let token = write.header.token;
        if let Some(before) = failed {
            // An earlier attempt at the write failed, as a whole.
            self.repeated += 1;
            send_remembered(write.client, token, &before, &write.header.ranges, out);
            for segment in segments {
                if self.replies.known(name, segment) == KnownReply::Nothing {
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
            // S6: an earlier attempt took effect. Its results are sent again for every range held here.
            for remembered in &known {
                send_remembered(write.client, token, remembered, &write.header.ranges, out);
            }
            self.cover(&write, out);
            for (range, segment) in
                std::mem::take(&mut write.held).into_iter().zip(write.segments.split_off(0))
            {
                if self.replies.known(name, segment) == KnownReply::Nothing {
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
        self.queue.run(tasks, write.at, kind, Purpose::Write(write));
        !held
    }

    /// Answers parts of a write whose segment executed the write under other keys: a repeated statement may
    /// have other keys (`now()`). The segment executes the write for none of the new keys, and the client
    /// gets the remembered answer for them.
    fn cover(&self, write: &Write, out: &mut dyn Sink<Self>) {
        for (range, segment) in write.held.iter().zip(&write.segments) {
            let KnownReply::Done(known) = self.replies.known(write.header.name, *segment) else { continue };
            let Ok(answers) = &known.results else { continue };
            let answered: Vec<Range> = answers.iter().map(|(range, _)| *range).collect();
            if let Some((_, answer)) = answers.first()
                && !answered.iter().any(|answered| answered.intersect(*range).is_some())
            {
                let answer = Remembered { at: known.at, results: Ok(vec![(*range, answer.clone())]) };
                send_remembered(write.client, write.header.token, &answer, &[*range], out);
            }
        }
    }

    /// Sends the other replicas the verdict on a write that is remembered here instead of evaluated. Replicas
    /// that do not remember the write wait for this verdict, and ask for it if it does not come.
    fn speak(&mut self, write: &Write, failure: Option<Bytes>, out: &mut dyn Sink<Self>) {
        if write.others.is_empty() {
            return;
        }
        let ranges: Vec<Range> = write.here().collect();
        // Because the verdict is noted at this position, it can be sent even after the write is forgotten.
        let failure = failure.map(|failure| self.verdicts.cut(&failure));
        let (decided, receiving) = ((ranges.clone(), failure.clone()), self.receiving());
        self.verdicts.settle(write.at, decided, write.members(&self.membership), receiving);
        let verdict = Direct::Verdict { at: write.at, ranges, failure, settled: self.decided_through() };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
    }

    /// Handles an evaluated write: answers it, or waits for the verdicts of other replicas.
    pub(super) fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        write: Box<Write>,
        result: Evaluated,
        done: Position,
        out: &mut dyn Sink<Self>,
    ) -> Position {
        let at = write.at;
        let result = result.map_err(|failure| self.verdicts.cut(&failure));
        if write.others.is_empty() {
            self.answer(&write, result, out);
            return done.max(at);
        }
        if self.is_dismissed() {
            // The rows of this write are dropped, whatever the other replicas' verdicts.
            self.replies.finish(write.header.name);
            self.decisions.void(at);
            return done.max(at);
        }
        let failure = result.as_ref().err().cloned();
        let ranges: Vec<Range> = write.here().collect();
        let settled = self.decided_through();
        let verdict = Direct::Verdict { at, ranges: ranges.clone(), failure: failure.clone(), settled };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
        self.verdicts.add(at, &ranges, failure);
        self.decisions.hold(write, result, cx.now + self.settings.ask_after);
        self.decide(out);
        // The position counts as executed once the write is settled, which `decide` may have done at once.
        if self.decisions.is_holding() { done } else { done.max(at) }
    }

    /// Returns the first position for which a receiving process may ask for verdicts.
    fn receiving(&self) -> Option<Position> {
        self.membership.config().and_then(|config| config.receiving().map(|(_, at)| at).min())
    }

    /// Settles the held write if the verdicts suffice.
    pub(super) fn decide(&mut self, out: &mut dyn Sink<Self>) {
        let Some(write) = self.decisions.held() else { return };
        let (at, receiving) = (write.at, self.receiving());
        let known = self.verdicts.is_decided(at);
        let others = write.members(&self.membership);
        let decision = self.verdicts.decide(at, &write.header.ranges, others, receiving);
        let Some(decision) = decision else { return };
        if !known {
            let failure = match &decision {
                Decision::Publish => None,
                Decision::Void(failure) => Some(failure.clone()),
            };
            self.write_decision(at, failure, out);
        }
        let (write, result) = self.decisions.release(decision == Decision::Publish).expect("just seen");
        let result = match decision {
            Decision::Publish => {
                assert!(
                    result.is_ok(),
                    "S15: no write that failed here is published, but that of {} was",
                    write.at
                );
                result
            }
            Decision::Void(failure) => Err(failure),
        };
        self.answer(&write, result, out);
    }

    /// Publishes the held write if every process that owes a verdict is no longer a member, and no live
    /// process knows the verdict.
    pub(super) fn give_up(&mut self, out: &mut dyn Sink<Self>) {
        let (Some(write), Some(config)) = (self.decisions.held(), self.membership.config()) else { return };
        let at = write.at;
        let missing = self.verdicts.missing(at, &write.header.ranges);
        let alive = write.may_know(&self.membership);
        let will_speak = |(process, held): &(ProcessId, Vec<Range>)| {
            let concerned = |range: &Range| missing.iter().any(|gap| gap.intersect(*range).is_some());
            (alive.contains(process) || config.has_keeper_of(*process, at)) && held.iter().any(concerned)
        };
        let unknowing =
            |process: &ProcessId| self.verdicts.is_unknowing(at, *process, self.decisions.departed);
        if at > self.decisions.departed || write.others.iter().any(will_speak) || !alive.iter().all(unknowing)
        {
            return;
        }
        let (write, result) = self.decisions.release(true).expect("just seen");
        assert!(
            result.is_ok(),
            "S15: a write that is voided at once has not failed here, but that of {at} had"
        );
        let receiving = self.receiving();
        self.verdicts.settle(at, (vec![Range::ALL], None), write.members(&self.membership), receiving);
        self.write_decision(at, None, out);
        self.answer(&write, result, out);
    }

    /// Writes a decision to the journal: when this process comes back from its disk, the senders of the
    /// verdicts may have forgotten their verdicts.
    fn write_decision(&mut self, at: Position, failure: Option<Bytes>, out: &mut dyn Sink<Self>) {
        if self.settings.checkpoint_bytes.is_some() {
            let record = out.persist(Record::Decided { at, failure });
            self.decisions.wrote(record, at);
        }
    }

    /// Returns the position through which this process will ask for no verdict, even after a crash. A process
    /// without a disk never comes back after a crash.
    pub(super) fn decided_through(&self) -> Position {
        if self.settings.checkpoint_bytes.is_some() { self.decisions.decided() } else { self.executed }
    }

    /// Returns the verdict that this process remembers of a write which another replica evaluates at `at`.
    pub(super) fn remembered_verdict(&self, at: Position, name: WriteName) -> Option<DecidedRanges> {
        let mut favourable = Vec::new();
        let imported = self.import.as_ref().map(Import::replies);
        let memories = [Some(&self.replies), imported].into_iter().flatten();
        for (replies, range) in
            memories.flat_map(|replies| replies.concerned(&[Range::ALL]).map(move |range| (replies, range)))
        {
            match replies.known(name, range) {
                KnownReply::Nothing => {}
                KnownReply::OtherStatement => return Some((vec![Range::ALL], Some(OTHER_STATEMENT))),
                KnownReply::Done(known) => match &known.results {
                    Err(why) => {
                        return Some((vec![Range::ALL], Some(why.clone().unwrap_or(FORGOTTEN))));
                    }
                    // The write was published at this position, so all verdicts were favourable.
                    Ok(_) if known.at == at => return Some((vec![Range::ALL], None)),
                    Ok(_) => favourable.push(range),
                },
            }
        }
        (!favourable.is_empty()).then_some((favourable, None))
    }

    /// Answers a client that asks for the result of a write.
    pub(super) fn answer_from_memory(
        &self,
        client: ProcessId,
        name: WriteName,
        token: u64,
        ranges: &[Range],
        out: &mut dyn Sink<Self>,
    ) {
        let mut is_answered = false;
        for range in self.replies.concerned(ranges) {
            match self.replies.known(name, range) {
                KnownReply::Nothing => {}
                KnownReply::Done(known) => {
                    is_answered = true;
                    send_remembered(client, token, known, ranges, out);
                }
                KnownReply::OtherStatement => {
                    return send_content(client, token, Position(0), ReplyContent::OtherStatement, out);
                }
            }
        }
        if !is_answered {
            // The write is still to be executed here, so the client asks again.
            send_content(client, token, Position(0), ReplyContent::Unknown, out);
        }
    }

    fn answer(&mut self, write: &Write, result: Evaluated, out: &mut dyn Sink<Self>) {
        let (name, token, at) = (write.header.name, write.header.token, write.at);
        self.replies.finish(name);
        let results = match result {
            // Another range knows the id under a different statement. This write is treated as if it had
            // never been sent.
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

/// Notifies a client that its write's id belongs to a different statement.
fn refuse(write: &Write, out: &mut dyn Sink<Storage>) {
    send_content(write.client, write.header.token, write.at, ReplyContent::OtherStatement, out);
}

/// Sends a client the remembered results of a write for `ranges`.
pub(super) fn send_remembered(
    client: ProcessId,
    token: u64,
    known: &Remembered,
    ranges: &[Range],
    out: &mut dyn Sink<Storage>,
) {
    let mut send = |covered: SmallVec<[Range; 2]>, content: Option<Bytes>| {
        let forgotten = ReplyContent::Forgotten { applied: known.results.is_ok() };
        let (content, spent) = (content.map_or(forgotten, ReplyContent::Answer), ReadCost::default());
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
        // A write fails as a whole, so one answer serves for all ranges.
        Err(failure) if !ranges.is_empty() => send(SmallVec::from_slice(ranges), failure.clone()),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests;
