//! An operator who lets the domain continue after the loss of a majority of its routers (rule S1), and the
//! promises of the domain after that.
//!
//! Once or several times a run, a majority of the routers is lost at once. Some of these routers die for good
//! and come back as fresh processes. The others are only silent: they are cut off together with some members,
//! and may continue by themselves with a majority that nobody else sees. After a while the operator asks one
//! of the routers that vote and answer to begin another generation. The operator picks any of them, and not
//! the most advanced router as the tool would, so that more is lost than need be. Fresh routers join this
//! generation, as supervisors start them.
//!
//! In some runs all routers die at once. Then the operator asks a fresh router to continue from the members,
//! and another fresh router if the first one dies, too.
//!
//! **Promises afterwards**, judged for each generation by itself
//! ([`Generations`](crate::check::order::Generations)):
//!
//! - *Everything that the survivor had learned stays* at its position: the generation's order equals the
//!   earlier one up to there.
//! - *Facts keep their positions.* Suppose that a member has delivered a message, is still a member, and was
//!   not cut off. Then the message is complete at its position in the new order. Nothing else is between the
//!   survivor's end and the last of these messages, and each message there is also in the earlier order.
//!   All destinations that had not departed deliver an acknowledged message, so the message is kept if one of
//!   these destinations stays.
//! - *A healthy member is not cut off.* A member stays if neither it nor the survivor nor the links between
//!   them had a fault.
//! - *A process that is cut off learns of it,* and so does a router that the domain left behind.
//! - *Nothing comes twice.* A submission has one position in each order. Its number may be skipped, if its
//!   submitter had received its outcome before, or if a later submission was recovered; then the submitter is
//!   never notified that the skipped submission is stable.
//! - *The other rules hold in the new generation:* the seven predicates, one outcome for each submission,
//!   stability. The earlier order is judged, too, by the processes that have not followed, as long as they
//!   continue in it.
//! - *The domain answers again.* When faults end, it has all its routers and members, and orders all
//!   submissions.
//!
//! The domain may lose, and does lose, messages that nobody had delivered, or only members that were cut off.
//! Credits (S7) are not judged here, because they concern a single order.
//!
//! Where all routers die, everybody who had delivered anything may be dead before a fresh router can
//! begin. Such a run cannot recover, and is judged only until then. It is rare: 8 of the first 1,000 seeds
//! of `refound` (113, 219, 245, 362, 653, 710, 760, 948) when this case was first recognised.

mod actions;

use std::time::Duration;

use quorate_protocol::{
    Generation, Time,
    ecast::{Ordered, Position},
};

use quorate_world::Chance;

/// The operator, and the accidents that make one necessary.
pub(super) struct Operator {
    /// The times at which majorities are lost, the next one last.
    losses: Vec<Time>,
    /// The times at which all routers die, the next one last.
    extinctions: Vec<Time>,
    /// The time at which the founder that got the operator's command dies, if it is going to die.
    doomed_founder: Option<Time>,
    /// The machines that are lost next, and the time of the loss. Until then messages to the routers that
    /// remain are delayed.
    next_loss: Option<(Time, Vec<usize>)>,
    /// The time at which the operator, who sees a majority lost, will act on it.
    acts_at: Option<Time>,
    open_command: Option<OperatorCommand>,
    /// Whether a founder died between the operator's command to it and the beginning of its generation. The
    /// processes that followed this founder turn all other processes away.
    founder_died: bool,
    /// The position of the survivor and the messages that it has learned, reported before the check of the
    /// new generation's order begins.
    pub(super) learned: (Position, Vec<(Position, Ordered)>),
    chance: Chance,
}

/// A command to a router to begin a generation.
#[derive(Clone, Copy)]
struct OperatorCommand {
    machine: usize,
    life: u64,
    /// The generation to which the router belonged.
    before: Generation,
    at: Time,
    /// Time that members have to answer.
    patience: Duration,
}

impl Operator {
    /// Plans the accidents of a run: `losses` of a majority of the routers, and `extinctions` of all, within
    /// the time of faults.
    pub(super) fn new(seed: u64, (losses, extinctions): (u32, u32), safety: Duration) -> Self {
        let mut chance = Chance::new(seed, "operator");
        let (first, last) = (Duration::from_secs(1), safety.saturating_sub(Duration::from_secs(1)));
        let mut losses: Vec<Time> = (0..losses).map(|_| Time::ZERO + chance.between(first, last)).collect();
        losses.sort_unstable_by(|one, other| other.cmp(one));
        // The extinctions are spread over the run, so that a domain continues more than once.
        let each = last.saturating_sub(first) / extinctions.max(1);
        let mut extinctions: Vec<Time> = (0..extinctions)
            .map(|number| Time::ZERO + first + each * number + chance.between(Duration::ZERO, each / 2))
            .collect();
        extinctions.reverse();
        Operator {
            losses,
            extinctions,
            doomed_founder: None,
            next_loss: None,
            acts_at: None,
            open_command: None,
            founder_died: false,
            learned: Default::default(),
            chance,
        }
    }

    /// Returns the loss in a run in which no router is left to continue from.
    pub(super) fn lost(&self) -> &'static str {
        if self.founder_died { "lost: a survivor before its generation began" } else { "lost: all routers" }
    }

    /// Notes that the router refused the command; the operator may ask another router, or the same one again.
    pub(super) fn refused(&mut self) {
        self.open_command = None;
    }
}
