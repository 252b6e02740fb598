//! Outcomes: a member receives the true outcome of each submission.

use quorate_protocol::{
    Generation,
    ecast::{Class, MessageId, Outcome},
};
use quorate_world::Violation;

use super::order::{Generations, Twin};

/// Checks the outcome that a member of `generation` received for its submission `id`.
pub(crate) fn outcome<T: Twin>(
    orders: &mut Generations<T>,
    generation: Generation,
    id: MessageId,
    class: Class,
    outcome: Outcome,
) -> Result<(), Violation> {
    let broken = |what: String| Err(Violation::new("outcome", what));
    let submission = (id.sender, id.number - 1);
    let judge = orders.judge_of(generation);
    if judge != generation && outcome != Outcome::MaybeApplied {
        let what = format!(
            "process {} received the outcome {outcome:?} in {generation:?}, which has not begun",
            id.sender
        );
        return Err(Violation::new("silence before the cut", what));
    }
    let out = orders.is_out(judge, id.sender);
    let order = orders.of(judge).expect("the judging generation has begun");
    let position = order.check.position_of(submission);
    let refused = position.is_some_and(|position| order.is_refused(position));
    match outcome {
        Outcome::Stable => {
            order.check.stable(submission, class == Class::Data)?;
            if refused {
                return broken(format!(
                    "message {id:?} was refused by the routing, but its sender was told that the message \
                     is stable"
                ));
            }
        }
        Outcome::MaybeApplied if !out && !order.check.may_be_lost(submission) => {
            return broken(format!(
                "the sender of message {id:?} was told that the message may be lost, but not all \
                 destinations have departed"
            ));
        }
        Outcome::Rejected(_) if !refused => {
            return broken(format!(
                "the sender of message {id:?} (at position {position:?}) was told that the message was \
                 rejected, but the message had destinations"
            ));
        }
        Outcome::Wedged if position.is_some() => {
            return broken(format!(
                "the sender of message {id:?} was told that the message has no position, but the message \
                 is at position {position:?}"
            ));
        }
        _ => {}
    }
    Ok(())
}
