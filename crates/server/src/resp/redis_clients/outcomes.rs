//! The outcomes of the operations that clients' requests consist of, and the answers that the outcomes make.

use quorate::maps::{self, OperationKind, strategy};
use quorate_protocol::{
    ProcessId, Time,
    partial::{self, OperationOutcome, Rejection, Scanned, Value, resident},
};
use quorate_runtime::{clock, door::ClientId};

use super::{
    HeldLimits, PART_BYTES, PendingRequest, RedisClients, State, busy,
    quorum_command::{DropReason, OperationDescription, QuorumCommand},
};
use crate::resp::{
    command_plan::{NextStep, PlanShape},
    reply::Reply,
    reply_form::ReplyForm,
};

/// Multiple of a client's bound above which reads drop their values, except for the client's first request.
const DEFERRED_ABOVE: usize = 4;

impl maps::Front for RedisClients {
    fn attach(&mut self, process: ProcessId) {
        self.me = Some(process);
    }

    fn event(&mut self, event: resident::Event, now: Time) {
        match event {
            resident::Event::Cell(partial::Event::Ended { id, outcome }) => self.ended(id, outcome, now),
            resident::Event::Cell(partial::Event::Scanned { id, outcome }) => self.scanned(id, outcome),
            resident::Event::Changed { id, result } => self.changed(id.0, result),
            resident::Event::Roster(roster) => {
                self.roster = Some(roster);
                self.epoch += 1;
            }
            resident::Event::Cell(partial::Event::Lacks(_))
            | resident::Event::NotAdmitted(_)
            | resident::Event::Wedged => {}
        }
    }

    fn answered(&mut self, id: u64, outcome: strategy::Outcome, now: Time) {
        let pending = self.pending.remove(id as usize);
        self.figures.answered(now.since(pending.began), outcome.is_ok());
        let HeldLimits { client_bytes_max, bytes_max, .. } = self.settings.held;
        let Some(client) = self.clients.get_mut(&pending.client) else { return };
        let index = (pending.slot - client.first) as usize;
        let bytes = answer_bytes(&outcome);
        let is_over =
            client.weight + bytes > DEFERRED_ABOVE * client_bytes_max || self.weight + bytes > bytes_max;
        let State::Strategy(asking) = &mut client.slots[index].state else {
            unreachable!("the slot of a request under way has no answer yet")
        };
        if index > 0 && is_over && matches!(asking.form, ReplyForm::Read(_)) {
            asking.deferred = true;
            return self.touch(pending.client);
        }
        let writes = asking.writes;
        let State::Strategy(asking) =
            std::mem::replace(&mut client.slots[index].state, State::Ready(Reply::Null))
        else {
            unreachable!("the state of the slot was checked above")
        };
        let wall = now.0.saturating_add_signed(clock::wall_offset());
        let reply = asking.form.answer(outcome, wall);
        self.conclude(pending.client, pending.slot, reply, !writes);
    }
}

impl RedisClients {
    fn ended(&mut self, id: u64, outcome: OperationOutcome, now: Time) {
        let pending = self.pending.remove(id as usize);
        let had_no_room = outcome == OperationOutcome::Rejected(Rejection::Busy);
        if had_no_room && self.turn_away(&pending) {
            return;
        }
        if let Some(OperationDescription { level, deed, .. }) = &pending.operation {
            let is_done = matches!(
                outcome,
                OperationOutcome::Found { .. }
                    | OperationOutcome::Done { .. }
                    | OperationOutcome::Counted { .. }
            );
            self.figures.ended(*level, *deed == OperationKind::Read, now.since(pending.began), is_done);
        }
        let HeldLimits { answer_bytes_max, client_bytes_max, bytes_max } = self.settings.held;
        let Some(client) = self.clients.get_mut(&pending.client) else { return };
        let index = (pending.slot - client.first) as usize;
        let weight = client.slots[index].weight;
        let waiting = client.slots[index].quorum_command();
        if let Some(asked) = &pending.operation {
            let ended = || asked.ended(client.session.number, (pending.began, now), &outcome);
            self.recent.take(waiting.map, &waiting.keys[pending.part], ended);
        }
        let outcome = waiting.reduced(outcome);
        let bytes = value_bytes(&outcome);
        // A read that is not the first request can drop its value and read again later.
        let may_wait = index > 0 && waiting.only_reads();
        if waiting.refused.is_none() && bytes > 0 {
            waiting.refused = if waiting.gathered + bytes > answer_bytes_max {
                Some(DropReason::TooLarge)
            } else if self.weight + bytes > bytes_max
                || may_wait && client.weight + bytes > DEFERRED_ABOVE * client_bytes_max
            {
                Some(DropReason::Busy)
            } else {
                None
            };
        }
        if may_wait && had_no_room {
            waiting.refused.get_or_insert(DropReason::Busy);
        }
        waiting.left -= 1;
        match waiting.refused {
            None => {
                waiting.gathered += bytes;
                waiting.outcomes[pending.part] = Some(outcome);
                client.weigh(index, weight + bytes, &mut self.weight);
            }
            // The answer will be a refusal, or the command will read again, so this value and the earlier
            // values are not needed.
            Some(_) => {
                let gathered = waiting.drop_values();
                client.weigh(index, weight - gathered, &mut self.weight);
            }
        }
        let waiting = client.slots[index].quorum_command();
        let again = waiting.begin_again(had_no_room);
        if waiting.left > 0 {
            if !again.is_empty() {
                client.due.push((pending.slot, again));
                self.touch(pending.client);
            }
            return;
        }
        let refused = match waiting.refused {
            Some(DropReason::Busy) if may_wait => {
                waiting.defer();
                return self.touch(pending.client);
            }
            Some(DropReason::Busy) => Some(busy()),
            Some(DropReason::TooLarge) => Some(too_large(answer_bytes_max)),
            None => None,
        };
        let shape = std::mem::replace(&mut waiting.shape, PlanShape::Done);
        let (stepped, writes, gathered) = (shape.is_step(), waiting.writes, waiting.gathered);
        let outcomes = std::mem::take(&mut waiting.outcomes).into_iter().flatten();
        let next = match refused {
            Some(reply) => NextStep::Answer(reply),
            None => shape.conclude(&waiting.keys, outcomes, waiting.drawn.levels.write),
        };
        match next {
            NextStep::Answer(reply) => {
                client.writing -= usize::from(writes);
                client.two_step_running &= !stepped;
                self.conclude(pending.client, pending.slot, reply, !writes);
            }
            NextStep::More(work) => {
                *waiting = QuorumCommand::new(&work, waiting.map, waiting.drawn);
                // The memory of the values that the first step found is free now.
                let weight = client.slots[index].weight - gathered;
                client.weigh(index, weight, &mut self.weight);
                client.due.push((pending.slot, work.operations.into_iter().enumerate().collect()));
                self.touch(pending.client);
            }
        }
    }

    /// Records that the cell had no room for a part, if the part can begin again later. A part can begin
    /// again if it reads or deletes its key, and if other parts of its command will end and free room.
    /// Returns whether the part can begin again.
    fn turn_away(&mut self, pending: &PendingRequest) -> bool {
        let Some(OperationDescription { deed: OperationKind::Read | OperationKind::Delete, .. }) =
            &pending.operation
        else {
            return false;
        };
        let Some(client) = self.clients.get_mut(&pending.client) else { return false };
        let index = (pending.slot - client.first) as usize;
        let waiting = client.slots[index].quorum_command();
        let can_begin_again = waiting.running() > 1 && waiting.refused.is_none();
        if can_begin_again {
            waiting.turned_away.push(pending.part);
        }
        can_begin_again
    }

    fn changed(&mut self, id: u64, result: Result<(), resident::Unchanged>) {
        let PendingRequest { client: id, slot, .. } = self.pending.remove(id as usize);
        let reply = match result {
            Ok(()) => Reply::OK,
            Err(why) => Reply::Error(format!("ERR {why}")),
        };
        self.conclude(id, slot, reply, false);
    }

    fn scanned(&mut self, id: u64, outcome: Scanned) {
        let PendingRequest { client: id, slot, .. } = self.pending.remove(id as usize);
        let Some(client) = self.clients.get(&id) else { return };
        let State::Scanning(request) = &client.slots[(slot - client.first) as usize].state else {
            unreachable!("the slot of a pending request has no answer yet")
        };
        let reply = request.answer(outcome);
        self.conclude(id, slot, reply, true);
    }

    /// Puts an answer into its slot. If the clients hold too much memory, an answer that `may_fail` is
    /// replaced by a refusal. Only the answer of a command that wrote nothing may fail.
    fn conclude(&mut self, id: ClientId, slot: u64, reply: Reply, may_fail: bool) {
        let HeldLimits { answer_bytes_max, bytes_max, .. } = self.settings.held;
        let Some(client) = self.clients.get_mut(&id) else { return };
        let index = (slot - client.first) as usize;
        let bytes = reply.bytes();
        let others = self.weight - client.slots[index].weight;
        let reply = if bytes > answer_bytes_max {
            too_large(answer_bytes_max)
        } else if may_fail && bytes > PART_BYTES && others + bytes > bytes_max {
            busy()
        } else {
            reply
        };
        let weight = reply.bytes();
        client.slots[index].state = State::Ready(reply);
        client.weigh(index, weight, &mut self.weight);
        self.touch(id);
    }
}

/// Returns the size of the value in an outcome, in bytes.
fn value_bytes(outcome: &OperationOutcome) -> usize {
    match outcome {
        OperationOutcome::Found { value, .. } => bytes_of(value),
        _ => 0,
    }
}

/// Returns the size of the values in an outcome of a strategy other than partial quorums, in bytes.
fn answer_bytes(outcome: &strategy::Outcome) -> usize {
    match outcome {
        Ok(strategy::keyspace::KeyspaceAnswer::Found(found)) => {
            found.iter().map(|(value, _)| bytes_of(value)).sum()
        }
        _ => 0,
    }
}

fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Nothing => 0,
        Value::String(value) => value.len(),
        Value::Hash(fields) => {
            fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len()).sum()
        }
    }
}

/// Memory of a field in addition to the field's name and value, in bytes.
const FIELD_BYTES: usize = 64;

fn too_large(most: usize) -> Reply {
    Reply::Error(format!(
        "TOOLARGE the answer would have more than {most} bytes: read fewer keys or fields at once"
    ))
}
