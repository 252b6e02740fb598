//! The messages and the commands of a client. The watch judges the client's reports about calls by them.
//!
//! [`Fate::MaybeApplied`] is right in two cases only. Either the client sent the call and its time was over,
//! or the client sent the call more than once and a replica answered that it had forgotten the call.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{
    CommandId, Time,
    service::{Body, CallOutcome, ClientCommand, ClientEvent, Fate, Message, SessionId},
};

/// The history of one client's life.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The time of each command, by the client's own clock.
    asked: BTreeMap<CommandId, Time>,
    /// Number of times that each call was sent.
    sent: BTreeMap<(SessionId, u64), u32>,
    /// Calls that a replica reported as forgotten.
    expired: BTreeSet<(SessionId, u64)>,
}

impl Watch {
    pub(super) fn asked(&mut self, command: &ClientCommand, now: Time) {
        if let Some(command) = command.command() {
            self.asked.insert(command, now);
        }
    }

    pub(super) fn sends(&mut self, message: &Message) {
        if let Body::Calls { session, calls, .. } = &message.body {
            for call in calls {
                *self.sent.entry((*session, call.number)).or_default() += 1;
            }
        }
    }

    /// Returns the calls that a message reports as forgotten.
    pub(super) fn hears(&mut self, message: &Message) -> Vec<(SessionId, u64)> {
        let Body::Answers { session, answers } = &message.body else { return Vec::new() };
        let expired = answers.iter().filter(|(_, outcome)| *outcome == CallOutcome::Expired);
        let expired: Vec<_> = expired.map(|(number, _)| (*session, *number)).collect();
        self.expired.extend(&expired);
        expired
    }

    /// Judges the outcome of a command, and returns the error in it.
    pub(super) fn ended(&self, event: &ClientEvent, now: Time, wait: Duration) -> Result<(), String> {
        let Fate::MaybeApplied { id } = event.fate else { return Ok(()) };
        let call = (id.session, id.number);
        let (asked, sent) = (self.asked.get(&event.command), self.sent.get(&call).copied().unwrap_or(0));
        let is_late = asked.is_some_and(|asked| now >= *asked + wait);
        match sent {
            0 => Err(format!(
                "the client was told that call {id:?} may have taken effect, but the client never sent \
                 this call"
            )),
            1 if !is_late => Err(format!(
                "the client was told that call {id:?} may have taken effect, but the call was sent only \
                 once and its time is not over"
            )),
            _ if !is_late && !self.expired.contains(&call) => Err(format!(
                "the client was told that call {id:?} may have taken effect, but the call has time left \
                 and no replica said that the call is forgotten"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::service::{Call, CallId, GroupId, Kind};

    use super::*;

    const WAIT: Duration = Duration::from_secs(3);

    fn message(body: Body) -> Message {
        Message { group: GroupId(7), body }
    }

    #[test]
    fn a_call_may_have_taken_effect_if_it_was_sent_and_nobody_knows_more() {
        let mut watch = Watch::default();
        let (session, begun) = (SessionId(1), Time(1_000_000_000));
        let judge = |watch: &Watch, now| {
            let id = CallId { session, number: 1 };
            watch.ended(&ClientEvent { command: CommandId(1), fate: Fate::MaybeApplied { id } }, now, WAIT)
        };
        watch.asked(&ClientCommand::Commit { command: CommandId(1), transaction: 1 }, begun);
        assert!(judge(&watch, begun + WAIT).is_err(), "it was never sent");
        let call = Call { number: 1, kind: Kind::Write, scope: None, request: Default::default() };
        let calls = message(Body::Calls { session, done: 0, calls: vec![call] });
        watch.sends(&calls);
        assert!(judge(&watch, begun).is_err(), "it has time left");
        assert!(judge(&watch, begun + WAIT).is_ok());
        watch.sends(&calls);
        assert!(judge(&watch, begun).is_err(), "nobody said anything");
        let answers = message(Body::Answers { session, answers: vec![(1, CallOutcome::Expired)] });
        assert_eq!(watch.hears(&answers), [(session, 1)]);
        assert!(judge(&watch, begun).is_ok());
    }
}
