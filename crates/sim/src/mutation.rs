//! Mutations: rules broken on purpose, to see that the checkers see it.
//!
//! Most are adapters around a process that is as it should be: they forge, drop or repeat what it receives and sends, so
//! that to the others it looks like one that breaks the rule. The rest break it where the simulator stands in for the
//! world: ids, settings, engines, users. Product code has no switch for any of them. Every mutation is caught within
//! [`SEEDS_MAX`] seeds of its scenario; a test sees to that.
//!
//! | rule | asserted | tested | mutated |
//! |---|---|---|---|
//! | S1 founding, incarnations | an id lives once (`World::start`); `Paxos::found` is called once | `paxos` scripts `founding_and_growth`, `old_incarnation`; the hello between processes | `FoundsAgain`, `NoIncarnations` |
//! | S1 going on | the survivor alone begins, once (`ecast::reform`); scenario `reform` | `a_generation_goes_on`, `reform_goes_on_from_what_is_chosen`; unit tests of members | `FenceOpen`, `TailKeptBack`, `TailUnheard` |
//! | S1 going on from members | one founder, a majority of the members (`ecast::refound`); scenario `refound` | `all_routers_gone`, `two_new_routers_told_at_once`, `a_founder_dies`, `routers_that_live_are_left_alone`; unit tests of the ground | `BaseForged`, `NumbersForgotten` |
//! | S2 changing routers | nothing behind an open change, one at a time, accepted or promised below the promise (`paxos::core`) | `stop_command_cut_off`, `newcomer_alone_holds_the_change`, `leader_leaves`; random schedules | `VoteWithoutHolding`, `AcceptBelowPromise`, `PromiseEmptied`, `BelowTheFloor` |
//! | S3 learning | appended iff next (`ecast::order`) | `forwarded_in_order`; unit tests of the order | `SequenceUnchecked`, `NotProposedAgain`, `StableTooEarly`, `ForeignConfirmation` |
//! | S4 delivering | stability after the last confirmation (`ecast::dispatch`) | `link_breaks_and_resend`, `leader_change_with_unstable_messages` | `ConfirmBeyond`, `RepairLost`, `PreviousUnchecked`, `DeliverTwice` |
//! | S5 outcomes | one outcome per token (checkers *stable*, *outcome*) | `wedged_member`, `lost_for_good` | `OutcomeForged` |
//! | S6 ids | a request begins and ends once (`rubberband::replies`) | `same_request_takes_effect_once`, `another_statement_under_a_known_id`, `replies_move_in_sections`; unit tests of the replies | `RepeatedUnderNewName`, `RepetitionDenied`, `RepliesLost`, `RepliesInOnePiece` |
//! | S7 credits | nothing in product code; checker *credits* | unit tests of the dispatcher | `CreditsOnConfirmation` |
//! | S8 versions of routing | the placement is compared in `Storage::on_direct`; checker *answer* | cluster schedules with basic reads | `RetryAnswered` |
//! | S9 views | virtual synchrony, nothing beyond the cut (`group::member`) | scripts and schedules of groups; checker *views* | `DeliversLate`, `PredecessorsForgotten`, `StreamTorn`, `StateBehind` |
//! | groups: casts | a report tells what is held without a gap; checker *views* | unit tests of streams and lanes; `casts_do_not_pass`, `casts_late_and_twice`, `casts_behind_a_gap` | `AheadTakenForNext`, `DoubleTaken` |
//! | groups: receipts of branches | nothing in product code; checker *views* | unit tests of the tree and of receipts; `receipts_in_a_tree` | `BranchForgotten` |
//! | groups: following | nothing in product code; checker *following* (`check::views`) | `follows`; `a_key_is_rotated_under_load_and_nothing_is_lost` | `FollowsNothing` |
//! | groups: checkpoints | nothing in product code; checker *checkpoints* (`check::views`) | `stale_is_refused`, `the_newest_returns_second`; unit tests of the routing | `StaleCheckpoint` |
//! | S10 safe | nothing in product code; checker *views* | scripts of groups | `ReceiptForged` |
//! | S11 time | nothing in product code; checker *S11* | unit tests of the detector; clocks drift in every seed | `LateTickCounts` |
//! | S14 suspicion | `Change::depart` refuses; the twin of the routing; checker *S14* (`check::holders`), which knows who holds all rows | unit tests of the configuration; `suspects_are_judged_together`, `suspicions_are_withdrawn`, `a_bad_moment_of_a_super`, `unreachable_is_waited_for`, `unreachable_is_replaced`, `lost_for_good`, `keeper_is_dismissed`, `keeper_is_taken_up`, `the_later_keeper_is_taken_up`, `keeper_dies` | `LossUndeclared`, `SuspectsOneByOne`, `StaleSuspicionObeyed` |
//! | S14 reads that kill | nothing in product code; checker *query of death* (`system::table::deadly`) | `a_read_that_kills`, `a_read_that_kills_one_of_two`, `a_read_of_all_that_kills`, `a_read_is_probed`, `a_cut_is_no_death` | `ReadAskedAgain` |
//! | S15 statements are atomic | published only what is favourable here (`Storage::decide`) | `atomic_or_void`, `verdict_of_the_dead`, `verdict_from_memory` | `VoidedPublished`, `VerdictUnanswered`, `WriteSkipped`, `ImportLost`, `RetryAnswered` |
//! | S16 reads of services | every change that a read saw is chosen, a round covers what came before it (`service::reads`) | `a_read_is_confirmed`, `a_read_waits_for_what_it_saw`, `a_new_leader_waits_until_it_is_settled`, `a_told_read_is_asked_for`, `a_stale_leader_is_told_nothing` | `AnsweredUnchosen`, `ReadUnconfirmed`, `AnsweredUnsettled`, `ReadUnchosen`, `ConfirmedBefore`, `ToldBefore` |
//! | services: one line of states | a change rests on the state that it was computed in (`Replica::learn`); checker *same states* | `deposed_with_a_full_pipeline`, `deposed_while_the_host_executes`, `a_joiner_gets_a_checkpoint` | `LeftUnreverted`, `ExecutedByBackups`, `ForwardedDelta` |
//! | services: transactions | what one touched stands until it ends (`service::locks`), what it changed goes when it is aborted; checkers *serializable*, *together* | `a_transaction_commits`, `a_deposed_leader_reverts_transactions`, `plain_calls_wait_for_transactions`, `a_transaction_that_reads_is_confirmed` | `LocksIgnored`, `AbortUnreverted`, `CheckpointUncommitted`, `CommitUnconfirmed` |
//! | S6 ids of calls | a call takes effect once (`service::sessions`); checker *exactly once* | `a_reply_is_lost`, `the_same_call_twice`, `a_session_ends` | `CallsForgotten`, `CalledUnderNewName` |
//! | maps: stamps | above every stamp that was told, never issued twice (`partial::operation`, `partial::clock`); checker *quorum* | `a_quorum_write_goes_above_the_stamp_of_a_fast_clock`, `a_clock_that_is_too_far_ahead_writes_nothing`; random schedules | `StampNotRaised`, `SkewUnbounded` |
//! | maps: quorums meet | an owner counts once (`partial::ring::Share`); checker *quorum* | `quorums_meet`, `a_read_leaves_what_it_saw_at_a_quorum`; random schedules | `ReplicaCountedTwice`, `DigestMismatchIgnored` |
//! | maps: nothing is forgotten | nothing in product code; checker *quorum* | `who_was_away_gets_hints`, `a_cell_that_takes_a_place_counts_for_nothing_until_it_has_everything` | `TombstoneForgotten`, `ArrivingLeftOut`, `ArrivesEmpty` |
//! | maps: deletions are forgotten once all replicas have them | no unfinished write at or below what was told (`partial::horizon`); checker *quorum* | `a_delete_is_forgotten_once_every_cell_has_it`, `a_hint_of_an_old_write_holds_the_horizon_back` | `TombstoneCollectedEarly`, `BarrierIgnored` |
//! | maps: counters | nothing in product code; checker *counters* | `increments_through_all_cells_are_counted_once`, `a_coordinator_remembers_what_not_all_owners_have`, `the_next_life_begins_another_tally`, `what_was_taken_in_does_not_count_again`; `counters_have_one_outcome_in_whatever_order` | `TalliesAdded`, `TalliesShared`, `TakenInCountedAgain` |
//! | maps on disks | nothing is acknowledged or shown before its record is durable, stamps are reserved (`partial::journal`); checker *quorum* | `a_read_does_not_show_what_a_power_cut_would_take`, `stamps_go_on_above_those_of_before_though_the_clock_was_set_back`, `a_cell_comes_back_with_what_it_had` | `StampsReissued`, `SentBeforeDurable` |
//! | S19 partial partitions | nothing in product code; scenario `graphs`, which computes from the graph who is promised what | `half_deaf_leader`, `heard_by_another`, `who_cannot_be_heard_reaches_nobody` | `HearsEverybody`, `GoesNoWayRound` |
//! | disk (`seam`) | what is recovered follows from itself (`paxos::record`); the simulator's host numbers what it sends | unit tests of the journal; `recovery` tests of the log | `SentBeforeDurable`, `OvertakesDurable`, `RecoversHalf`, `RotTakenForTail` |
//! | tables on disks | what is delivered again is what it was: replicas are compared (`system::table::replicas`); no range is lost (`system::table::disks`) | unit tests of the dispatcher, the member, journals and checkpoints; all processes of a real cluster are killed at once | `CollectedBeforeDurable`, `CheckpointWithoutReplies`, `IncarnationKeptAfterRot`, `OlderCopyAccepted` |

mod tamper;

pub(crate) use tamper::Tamper;

use quorate_world::Breach;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// A router that comes back founds a domain instead of joining (S1).
    FoundsAgain,
    /// A process that restarts without its memory is taken for the one it was (S1).
    NoIncarnations,
    /// A router votes for what it does not hold (S2).
    VoteWithoutHolding,
    /// A router accepts below its promise (S2).
    AcceptBelowPromise,
    /// A promise keeps back what was accepted (S2).
    PromiseEmptied,
    /// Processes of different generations are linked as any others (S1).
    FenceOpen,
    /// A member keeps back what it has delivered from a generation that begins (S1).
    TailKeptBack,
    /// A generation begins without having listened to members (S1).
    TailUnheard,
    /// A member tells a founder that more is stable than is (S1).
    BaseForged,
    /// A member does not say which of its numbers it has used to a founder (S1).
    NumbersForgotten,
    /// Routers are removed until too few are left (S2).
    BelowTheFloor,
    /// Nobody looks whether a submission is its sender's next (S3).
    SequenceUnchecked,
    /// What was proposed is not proposed again when the leader changes (S3).
    NotProposedAgain,
    /// Stability is told before the last confirmation (S3).
    StableTooEarly,
    /// A confirmation of one member is counted for another, too (S4).
    ForeignConfirmation,
    /// A member confirms what it has not got (S4).
    ConfirmBeyond,
    /// A delivery is lost, and so is the request for its repair (S4).
    RepairLost,
    /// A member delivers without looking at `previous` (S4).
    PreviousUnchecked,
    /// A member delivers twice (S4).
    DeliverTwice,
    /// What is refused or perhaps lost is told to be stable (S5).
    OutcomeForged,
    /// A write is repeated under a new name (S6).
    RepeatedUnderNewName,
    /// A repetition that comes to nothing is told as if nothing had been applied before (S5).
    RepetitionDenied,
    /// A range moves without the replies that it remembers (S6).
    RepliesLost,
    /// What a range remembers moves in one message, however long (S6).
    RepliesInOnePiece,
    /// Credits return on confirmation (S7).
    CreditsOnConfirmation,
    /// What should be refused for another placement or stamp is answered with what there is: nothing (S8, S15).
    RetryAnswered,
    /// A detector counts the time in which it slept itself (S11).
    LateTickCounts,
    /// An unreachable process is declared lost, and no operator said so (S14).
    LossUndeclared,
    /// Suspects of one message are judged one after the other (S14).
    SuspectsOneByOne,
    /// A suspicion that was refuted is obeyed all the same (S14).
    StaleSuspicionObeyed,
    /// A member delivers soft messages of a view in the next (S9).
    DeliversLate,
    /// Soft messages do not say which ordered ones their sender sent before them (S9).
    PredecessorsForgotten,
    /// A message is taken out of a stream, and those behind it take its number (S9).
    StreamTorn,
    /// A message that came ahead of others is taken for the next (groups).
    AheadTakenForNext,
    /// A message that comes twice is taken twice (groups).
    DoubleTaken,
    /// A member tells the one above it in the tree what it holds itself for what its whole branch does (groups).
    BranchForgotten,
    /// Members of a group take multicasts of another group that has the same address (groups).
    ForeignGroupTaken,
    /// Soft messages are said to follow what was safe, and the protocol is not told so (groups).
    FollowsNothing,
    /// A joiner gets the state of an earlier view (S9).
    StateBehind,
    /// A group that was idle begins with an older checkpoint than the newest (groups).
    StaleCheckpoint,
    /// A member confirms what it does not hold (S10).
    ReceiptForged,
    /// A read at which processes died is asked elsewhere without limit (S14).
    ReadAskedAgain,
    /// A replica publishes a write that all others void (S15).
    VoidedPublished,
    /// A replica that knows a verdict does not answer who asks for it (S15).
    VerdictUnanswered,
    /// A replica skips a write (S15).
    WriteSkipped,
    /// A migration loses rows (S15).
    ImportLost,
    /// A leader answers a write when it is executed, chosen or not (S16).
    AnsweredUnchosen,
    /// A leader answers a read when it is executed, though nobody confirmed its ballot (S16).
    ReadUnconfirmed,
    /// A new leader answers reads before it is settled (S16).
    AnsweredUnsettled,
    /// A leader answers a read that is confirmed, though a change that it saw is not chosen (S16).
    ReadUnchosen,
    /// A leader takes a confirmation that it got before it asked for this read's (S16).
    ConfirmedBefore,
    /// A leader takes it that replicas follow which told so before they were told of this read (S16).
    ToldBefore,
    /// A leader proposes what another one executed, which has been deposed (services).
    ForwardedDelta,
    /// A checkpoint is taken before what aborted transactions have changed is taken back (services).
    CheckpointUncommitted,
    /// A host keeps what a reign that has ended changed and had not chosen (services).
    LeftUnreverted,
    /// A backup draws lots anew when it applies a change (services).
    ExecutedByBackups,
    /// Backups do not remember which calls have taken effect (S6).
    CallsForgotten,
    /// A client calls again under another name (S6).
    CalledUnderNewName,
    /// A replica does not say that it holds a newer stamp (maps).
    StampNotRaised,
    /// The answer of one replica is counted for another, too (maps).
    ReplicaCountedTwice,
    /// A read takes digests that differ for equal ones (maps).
    DigestMismatchIgnored,
    /// Replicas forget that a key was deleted while older copies are about (maps).
    TombstoneForgotten,
    /// A cell forgets what was deleted though not every replica has the deletion (maps).
    TombstoneCollectedEarly,
    /// A cell takes writes that are on their way for ended, and passes over them when they arrive (maps).
    BarrierIgnored,
    /// A cell that is arriving does not take what is written (maps).
    ArrivingLeftOut,
    /// A cell that is arriving says at once that it has everything (maps).
    ArrivesEmpty,
    /// A stamp may be ahead of the clocks by any amount (maps).
    SkewUnbounded,
    /// A replica adds the states of a tally of a counter, instead of keeping the later one (maps).
    TalliesAdded,
    /// All coordinators write one tally of a counter (maps).
    TalliesShared,
    /// Replicas count tallies that another one has taken in (maps).
    TakenInCountedAgain,
    /// A cell that comes back from its disk does not know which stamps it issued (maps).
    StampsReissued,
    /// A leader executes requests of transactions whatever others have touched (services).
    LocksIgnored,
    /// A host keeps what an aborted transaction changed (services).
    AbortUnreverted,
    /// A leader answers the commit of a transaction that changed nothing, though nobody confirmed its ballot (S16).
    CommitUnconfirmed,
    /// A router tells the others that it hears and reaches all of them, so that elections know of no cut (S19).
    HearsEverybody,
    /// Routers hand nothing on that is not for themselves (S19).
    GoesNoWayRound,
    /// A message leaves before the record that it needs is durable (disk).
    SentBeforeDurable,
    /// A message overtakes one that waits for a record (disk).
    OvertakesDurable,
    /// A process is made again from the first half of its records (disk).
    RecoversHalf,
    /// Rot is cut off as if it were a torn tail (disk).
    RotTakenForTail,
    /// A storage process says of what it delivers that it is durable (S15).
    CollectedBeforeDurable,
    /// A storage process comes back without what its checkpoint says that ranges remember (S6).
    CheckpointWithoutReplies,
    /// A storage process keeps its incarnation after rot (S15).
    IncarnationKeptAfterRot,
    /// A process goes on from an older copy of its disk, which others know to be one (disk).
    OlderCopyAccepted,
}

/// Within so many seeds every mutation is caught.
pub const SEEDS_MAX: u64 = 200;

impl Mutation {
    /// All of them: the seeds must catch each.
    pub const ALL: [Mutation; 84] = [
        Mutation::FoundsAgain,
        Mutation::NoIncarnations,
        Mutation::FenceOpen,
        Mutation::TailKeptBack,
        Mutation::TailUnheard,
        Mutation::BaseForged,
        Mutation::NumbersForgotten,
        Mutation::VoteWithoutHolding,
        Mutation::AcceptBelowPromise,
        Mutation::PromiseEmptied,
        Mutation::BelowTheFloor,
        Mutation::SequenceUnchecked,
        Mutation::NotProposedAgain,
        Mutation::StableTooEarly,
        Mutation::ForeignConfirmation,
        Mutation::ConfirmBeyond,
        Mutation::RepairLost,
        Mutation::PreviousUnchecked,
        Mutation::DeliverTwice,
        Mutation::OutcomeForged,
        Mutation::RepeatedUnderNewName,
        Mutation::RepetitionDenied,
        Mutation::RepliesLost,
        Mutation::RepliesInOnePiece,
        Mutation::CreditsOnConfirmation,
        Mutation::RetryAnswered,
        Mutation::LateTickCounts,
        Mutation::LossUndeclared,
        Mutation::SuspectsOneByOne,
        Mutation::StaleSuspicionObeyed,
        Mutation::DeliversLate,
        Mutation::PredecessorsForgotten,
        Mutation::StreamTorn,
        Mutation::AheadTakenForNext,
        Mutation::DoubleTaken,
        Mutation::BranchForgotten,
        Mutation::ForeignGroupTaken,
        Mutation::FollowsNothing,
        Mutation::StateBehind,
        Mutation::StaleCheckpoint,
        Mutation::ReceiptForged,
        Mutation::ReadAskedAgain,
        Mutation::VoidedPublished,
        Mutation::VerdictUnanswered,
        Mutation::WriteSkipped,
        Mutation::ImportLost,
        Mutation::AnsweredUnchosen,
        Mutation::ReadUnconfirmed,
        Mutation::AnsweredUnsettled,
        Mutation::ReadUnchosen,
        Mutation::ConfirmedBefore,
        Mutation::ToldBefore,
        Mutation::ForwardedDelta,
        Mutation::CheckpointUncommitted,
        Mutation::LeftUnreverted,
        Mutation::ExecutedByBackups,
        Mutation::CallsForgotten,
        Mutation::CalledUnderNewName,
        Mutation::StampNotRaised,
        Mutation::ReplicaCountedTwice,
        Mutation::DigestMismatchIgnored,
        Mutation::TombstoneForgotten,
        Mutation::TombstoneCollectedEarly,
        Mutation::BarrierIgnored,
        Mutation::ArrivingLeftOut,
        Mutation::ArrivesEmpty,
        Mutation::SkewUnbounded,
        Mutation::TalliesAdded,
        Mutation::TalliesShared,
        Mutation::TakenInCountedAgain,
        Mutation::StampsReissued,
        Mutation::LocksIgnored,
        Mutation::AbortUnreverted,
        Mutation::CommitUnconfirmed,
        Mutation::HearsEverybody,
        Mutation::GoesNoWayRound,
        Mutation::SentBeforeDurable,
        Mutation::OvertakesDurable,
        Mutation::RecoversHalf,
        Mutation::RotTakenForTail,
        Mutation::CollectedBeforeDurable,
        Mutation::CheckpointWithoutReplies,
        Mutation::IncarnationKeptAfterRot,
        Mutation::OlderCopyAccepted,
    ];

    /// The scenario whose seeds catch it, or `graphs`, whose cases do ([`graphs`](crate::graphs)).
    pub fn scenario(self) -> &'static str {
        match self {
            Mutation::FoundsAgain
            | Mutation::VoteWithoutHolding
            | Mutation::AcceptBelowPromise
            | Mutation::PromiseEmptied
            | Mutation::BelowTheFloor
            | Mutation::NotProposedAgain => "paxos",
            Mutation::NoIncarnations
            | Mutation::SequenceUnchecked
            | Mutation::StableTooEarly
            | Mutation::ForeignConfirmation
            | Mutation::ConfirmBeyond
            | Mutation::RepairLost
            | Mutation::PreviousUnchecked
            | Mutation::DeliverTwice
            | Mutation::OutcomeForged
            | Mutation::CreditsOnConfirmation => "ecast",
            Mutation::FenceOpen | Mutation::TailKeptBack | Mutation::TailUnheard => "reform",
            Mutation::BaseForged | Mutation::NumbersForgotten => "refound",
            Mutation::RepeatedUnderNewName
            | Mutation::RepetitionDenied
            | Mutation::RepliesLost
            | Mutation::RetryAnswered
            | Mutation::LateTickCounts
            | Mutation::LossUndeclared
            | Mutation::StaleSuspicionObeyed
            | Mutation::ReadAskedAgain
            | Mutation::VoidedPublished
            | Mutation::VerdictUnanswered
            | Mutation::WriteSkipped
            | Mutation::ImportLost => "table",
            Mutation::AnsweredUnchosen
            | Mutation::ReadUnconfirmed
            | Mutation::LeftUnreverted
            | Mutation::ExecutedByBackups
            | Mutation::CallsForgotten
            | Mutation::CalledUnderNewName => "service",
            Mutation::AnsweredUnsettled | Mutation::ReadUnchosen | Mutation::ForwardedDelta => "service_far",
            Mutation::ConfirmedBefore | Mutation::ToldBefore => "service_reads",
            Mutation::LocksIgnored
            | Mutation::AbortUnreverted
            | Mutation::CheckpointUncommitted
            | Mutation::CommitUnconfirmed => "service_transactions",
            Mutation::DeliversLate
            | Mutation::PredecessorsForgotten
            | Mutation::StreamTorn
            | Mutation::AheadTakenForNext
            | Mutation::DoubleTaken
            | Mutation::BranchForgotten
            | Mutation::ForeignGroupTaken
            | Mutation::FollowsNothing
            | Mutation::StateBehind
            | Mutation::StaleCheckpoint
            | Mutation::ReceiptForged => "group",
            Mutation::StampNotRaised
            | Mutation::ReplicaCountedTwice
            | Mutation::DigestMismatchIgnored
            | Mutation::TombstoneForgotten
            | Mutation::TombstoneCollectedEarly
            | Mutation::BarrierIgnored
            | Mutation::ArrivingLeftOut
            | Mutation::ArrivesEmpty
            | Mutation::SkewUnbounded => "quorum",
            Mutation::TalliesAdded | Mutation::TalliesShared => "counters",
            Mutation::TakenInCountedAgain => "counters_disk",
            Mutation::StampsReissued => "quorum_disk",
            Mutation::SuspectsOneByOne => "accidents",
            Mutation::RepliesInOnePiece => "replies",
            Mutation::HearsEverybody | Mutation::GoesNoWayRound => "graphs",
            Mutation::SentBeforeDurable
            | Mutation::OvertakesDurable
            | Mutation::RecoversHalf
            | Mutation::RotTakenForTail => "paxos_disk",
            Mutation::CollectedBeforeDurable
            | Mutation::CheckpointWithoutReplies
            | Mutation::IncarnationKeptAfterRot
            | Mutation::OlderCopyAccepted => "power",
        }
    }

    /// All scenarios whose seeds catch it: rules of disks hold for logs alone, for tables and for maps.
    pub fn scenarios(self) -> Vec<&'static str> {
        let also: &[&str] = match self {
            Mutation::SentBeforeDurable => &["power", "quorum_disk"],
            Mutation::RotTakenForTail => &["power"],
            _ => &[],
        };
        std::iter::once(self.scenario()).chain(also.iter().copied()).collect()
    }

    /// How the command line calls it.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// The rule of disks that this breaks, if it is one.
    pub(crate) fn breach(self) -> Option<Breach> {
        match self {
            Mutation::SentBeforeDurable => Some(Breach::SentBeforeDurable),
            Mutation::OvertakesDurable => Some(Breach::OvertakesDurable),
            Mutation::RecoversHalf => Some(Breach::RecoversHalf),
            Mutation::OlderCopyAccepted => Some(Breach::OlderCopyAccepted),
            Mutation::RotTakenForTail | Mutation::IncarnationKeptAfterRot => Some(Breach::RotTakenForTail),
            _ => None,
        }
    }

    /// The mutation of this name.
    pub fn named(name: &str) -> Option<Self> {
        Mutation::ALL.into_iter().find(|mutation| mutation.name() == name)
    }
}
