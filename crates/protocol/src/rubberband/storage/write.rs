//! A write's way here: evaluated, settled, answered, remembered.
//!
//! A write that cannot fail, or is evaluated alike by all who are concerned, takes effect at once. One that can fail and spans
//! ranges is held until the [verdicts](super::verdicts) of all its ranges are known (S15). What it did is
//! [remembered](super::replies), so that one that is repeated is answered from memory (S6).

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    Storage, Task, TaskKind,
    batch::Purpose,
    direct::tell,
    replies::{Known, Remembered},
    verdicts::{Decision, OTHER_STATEMENT},
};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{DataHeader, Direct, Message, Range, Reply, ReplyContent, Spent},
    seam::{Context, Destination, Sink},
};

/// A write that was delivered.
pub(super) struct Write {
    pub(super) at: Position,
    pub(super) client: ProcessId,
    pub(super) header: DataHeader,
    pub(super) held: Vec<Range>,
    pub(super) answers: Vec<Range>,
    /// The other replicas concerned and what they hold of it, when verdicts are exchanged.
    pub(super) others: Vec<(ProcessId, Vec<Range>)>,
    pub(super) operation: Bytes,
}

impl Storage {
    pub(super) fn push_write(
        &mut self,
        tasks: &mut Vec<Task>,
        write: Write,
        out: &mut impl Sink<Self>,
    ) -> bool {
        match self.replies.known(write.header.name) {
            Known::Nothing => {}
            Known::Pending => unreachable!("what is pending is waited for"),
            Known::Done(known) => {
                // S6: it took effect before; say again what it did, in every range held here.
                self.repeated += 1;
                let failure = known.results.as_ref().err().cloned();
                send_remembered(write.client, write.header.token, known, &write.header.ranges, out);
                self.speak(&write, failure, out);
                return true;
            }
            Known::OtherStatement => {
                self.repeated += 1;
                refuse(&write, out);
                self.speak(&write, Some(OTHER_STATEMENT), out);
                return true;
            }
        }
        self.replies.begin(write.header.name);
        let held = !write.others.is_empty();
        let kind = TaskKind::Write { ranges: write.held.clone(), operation: write.operation.clone(), held };
        self.push(tasks, write.at, kind, Purpose::Write(write));
        !held
    }

    /// Tells the other replicas concerned the verdict on a write that is not evaluated here, because it is remembered.
    /// Those who do not remember it wait for that, and ask for it if they miss it.
    fn speak(&mut self, write: &Write, failure: Option<Bytes>, out: &mut impl Sink<Self>) {
        if write.others.is_empty() {
            return;
        }
        // Noted at this position, it can be told when the write is not remembered any more.
        self.verdicts.settle(write.at, (write.held.clone(), failure.clone()), self.receiving());
        let verdict = Direct::Verdict { at: write.at, ranges: write.held.clone(), failure };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
    }

    /// A write was evaluated here: answer, or wait for the others' verdicts.
    pub(super) fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        write: Write,
        result: Result<Vec<Bytes>, Bytes>,
        done: Position,
        out: &mut impl Sink<Self>,
    ) -> Position {
        let at = write.at;
        if write.others.is_empty() {
            self.answer(&write, result, out);
            return done.max(at);
        }
        let failure = result.as_ref().err().cloned();
        let verdict = Direct::Verdict { at, ranges: write.held.clone(), failure: failure.clone() };
        let others = write.others.iter().map(|(process, _)| *process).collect();
        out.send(Destination::Many(others), Message::Direct(verdict), None);
        self.verdicts.add(at, &write.held, failure);
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
    pub(super) fn decide(&mut self, out: &mut impl Sink<Self>) {
        let Some((write, _)) = &self.holding else { return };
        let receiving = self.receiving();
        let Some(decision) = self.verdicts.decide(write.at, &write.header.ranges, receiving) else { return };
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

    /// Who may know more of a held write: all that were concerned and live, and who replicates its ranges by now.
    pub(super) fn may_know(&self, write: &Write) -> Vec<ProcessId> {
        let Some(config) = self.membership.config() else { return Vec::new() };
        let concerned = write.others.iter().map(|(process, _)| *process);
        let mut all: Vec<ProcessId> = concerned.chain(config.replicas_of(&write.header.ranges)).collect();
        all.retain(|process| *process != self.membership.me && config.members.contains_key(process));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Voids the held write if those that were to tell a verdict are all out, and nobody alive knows it.
    pub(super) fn give_up(&mut self) {
        let Some((write, _)) = &self.holding else { return };
        let at = write.at;
        let missing = self.verdicts.missing(at, &write.header.ranges);
        let alive = self.may_know(write);
        let will_speak = |(process, held): &(ProcessId, Vec<Range>)| {
            let concerned = |range: &Range| missing.iter().any(|gap| gap.intersect(*range).is_some());
            alive.contains(process) && held.iter().any(concerned)
        };
        let unknowing = |process: &ProcessId| self.verdicts.is_unknowing(at, *process, self.departed);
        if at > self.departed || write.others.iter().any(will_speak) || !alive.iter().all(unknowing) {
            return;
        }
        let (write, _) = self.holding.take().expect("just seen");
        self.ask_at = None;
        self.settle = Some((at, false));
        self.verdicts.drop(at);
        // Its client learns that a range is lost; said again under its name, the write is a new one.
        self.replies.cancel(write.header.name);
    }

    fn answer(&mut self, write: &Write, result: Result<Vec<Bytes>, Bytes>, out: &mut impl Sink<Self>) {
        let token = write.header.token;
        if result.as_ref().err() == Some(&OTHER_STATEMENT) {
            // Another range knows the id as another statement's. It is as if this one had never been.
            refuse(write, out);
            return self.replies.cancel(write.header.name);
        }
        let remembered = match result {
            Ok(results) => {
                let results: Vec<(Range, Bytes)> = write.held.iter().copied().zip(results).collect();
                Remembered { at: write.at, results: Ok(results) }
            }
            Err(failure) => Remembered { at: write.at, results: Err(failure) },
        };
        send_remembered(write.client, token, &remembered, &write.answers, out);
        self.replies.finish(write.header.name, remembered);
    }
}

/// Tells a client that its write's id is that of another statement.
fn refuse<S: Sink<Storage>>(write: &Write, out: &mut S) {
    tell(write.client, write.header.token, write.at, ReplyContent::OtherStatement, out);
}

/// Tells a client what a write did in those of `ranges` that are remembered here.
pub(super) fn send_remembered<S: Sink<Storage>>(
    client: ProcessId,
    token: u64,
    known: &Remembered,
    ranges: &[Range],
    out: &mut S,
) {
    let mut send = |covered: SmallVec<[Range; 2]>, content: Bytes| {
        let (content, spent) = (ReplyContent::Answer(content), Spent::default());
        let reply = Reply { token, at: known.at, ranges: covered, piece: 0, last: true, spent, content };
        out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
    };
    match &known.results {
        Ok(results) => {
            for (range, result) in results {
                if ranges.iter().any(|wanted| wanted.intersect(*range).is_some()) {
                    send(SmallVec::from_slice(&[*range]), result.clone());
                }
            }
        }
        // A write fails as a whole: any one answer will do.
        Err(failure) if !ranges.is_empty() => send(SmallVec::from_slice(ranges), failure.clone()),
        Err(_) => {}
    }
}
