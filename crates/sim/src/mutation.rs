//! Mutations: rules broken on purpose, to test that the checkers notice.
//!
//! Most mutations are adapters around a correct process. They forge, drop or repeat the messages that the
//! process receives and sends, so that it looks to the other processes like a process that breaks the rule.
//! The other mutations break the rule where the simulator stands in for the world: ids, settings, engines,
//! users. Product code has no switch for any mutation. A test makes sure that every mutation is caught within
//! [`SEEDS_MAX`] seeds of its scenario.
//!
//! # The rules
//!
//! For each rule the list gives the assertion or checker that watches it, its tests, and its mutations.
//!
//! - **S1, founding and incarnations**
//!   - asserted: an id lives once (`World::start`); `Paxos::found` is called once
//!   - tested: paxos scripts `founding_and_growth` and `old_incarnation`; the hello between processes
//!   - mutated: `FoundsAgain`, `NoIncarnations`
//! - **S1, a generation from a router**
//!   - asserted: only the survivor begins the generation, and begins it once (`ecast::reform`); scenario
//!     `reform`
//!   - tested: scripts `a_generation_goes_on` and `reform_continues_from_chosen_slots`; unit tests of members
//!   - mutated: `FenceOpen`, `TailKeptBack`, `TailUnheard`
//! - **S1, a generation from members**
//!   - asserted: one founder and a majority of the members begin it (`ecast::refound`); scenario `refound`
//!   - tested: scripts `all_routers_gone`, `two_routers_refound_at_the_same_instant`, `a_founder_dies` and
//!     `refounding_is_refused_while_routers_live`; unit tests of the ground
//!   - mutated: `BaseForged`, `NumbersForgotten`
//! - **S2, changing routers**
//!   - asserted: no entry follows an open change, one change is open at a time, and no router accepts or
//!     promises below its promise (`paxos::core`)
//!   - tested: scripts `stop_command_cut_off`, `newcomer_alone_holds_the_change` and `leader_leaves`; random
//!     schedules
//!   - mutated: `VoteWithoutHolding`, `AcceptBelowPromise`, `PromiseEmptied`, `BelowTheFloor`
//! - **S3, learning**
//!   - asserted: a router appends only the next entry (`ecast::order`)
//!   - tested: script `forwarded_in_order`; unit tests of the order
//!   - mutated: `SequenceUnchecked`, `NotProposedAgain`, `StableTooEarly`, `ForeignConfirmation`
//! - **S4, delivering**
//!   - asserted: a message becomes stable only after its last confirmation (`ecast::dispatch`)
//!   - tested: scripts `link_breaks_and_resend` and `leader_change_with_unstable_messages`
//!   - mutated: `ConfirmBeyond`, `RepairLost`, `PreviousUnchecked`, `DeliverTwice`
//! - **S5, outcomes**
//!   - asserted: a token has one outcome (checkers *stable* and *outcome*)
//!   - tested: scripts `wedged_member` and `lost_for_good`
//!   - mutated: `OutcomeForged`
//! - **S6, ids of requests**
//!   - asserted: a request begins and ends once (`rubberband::replies`)
//!   - tested: scripts `same_request_takes_effect_once`, `another_statement_under_a_known_id` and
//!     `replies_move_in_sections`; unit tests of the replies
//!   - mutated: `RepeatedUnderNewName`, `RepetitionDenied`, `RepliesLost`, `RepliesInOnePiece`
//! - **S7, credits**
//!   - asserted: nothing in product code; checker *credits*
//!   - tested: unit tests of the dispatcher
//!   - mutated: `CreditsOnConfirmation`
//! - **S8, versions of the routing**
//!   - asserted: a process compares the placement (`Storage::on_direct`); checker *answer*
//!   - tested: schedules of clusters with basic reads
//!   - mutated: `RetryAnswered`
//! - **S9, views**
//!   - asserted: views are virtually synchronous, and no member delivers beyond the cut (`group::member`)
//!   - tested: scripts and schedules of groups; checker *views*
//!   - mutated: `DeliversLate`, `PredecessorsForgotten`, `StreamTorn`, `StateBehind`
//! - **S10, safe messages**
//!   - asserted: nothing in product code; checker *views*, and checker *S10*, which knows up to where each
//!     member has the order (`check::views`)
//!   - tested: scripts of groups
//!   - mutated: `ReceiptForged`, `ReceiptOverrated`
//! - **S11, time**
//!   - asserted: nothing in product code; checker *S11*
//!   - tested: unit tests of the detector; clocks drift in every seed
//!   - mutated: `LateTickCounts`
//! - **S14, suspicion**
//!   - asserted: `Change::depart` refuses; the twin of the routing agrees; checker *S14* (`check::holders`),
//!     which knows the holders of all rows
//!   - tested: unit tests of the configuration; scripts `suspects_are_judged_together`,
//!     `suspicions_are_withdrawn`, `a_super_without_links_suspects_in_vain`, `unreachable_is_waited_for`,
//!     `unreachable_is_replaced`, `lost_for_good`, `keeper_is_dismissed`, `keeper_is_taken_up`,
//!     `the_later_keeper_is_taken_up` and `keeper_dies`
//!   - mutated: `LossUndeclared`, `SuspectsOneByOne`, `StaleSuspicionObeyed`
//! - **S14, reads that kill**
//!   - asserted: nothing in product code; checker *query of death* (`system::table::deadly`)
//!   - tested: scripts `a_read_that_kills`, `a_read_that_kills_one_of_two`, `a_read_of_all_that_kills`,
//!     `a_read_is_probed` and `a_read_survives_lost_links`
//!   - mutated: `ReadAskedAgain`
//! - **S15, statements are atomic**
//!   - asserted: a replica publishes only a write whose verdict is favourable here (`Storage::decide`)
//!   - tested: scripts `atomic_or_void`, `verdict_of_the_dead` and `verdict_from_memory`; unit tests
//!     `decisions_that_a_member_may_have_lost_are_kept` and `a_debt_outlives_the_bound_of_bytes`
//!   - mutated: `VoidedPublished`, `VerdictUnanswered`, `ReasonsUnbounded`, `ResultsNotCompared`,
//!     `WriteSkipped`, `ImportLost`, `RetryAnswered`
//! - **S16, reads of tables**
//!   - asserted: nothing in product code (`ecast::latest` has the argument)
//!   - tested: unit tests of `ecast::latest` and of the client; random schedules of clusters; the histories
//!     of accounts
//!   - mutated: nothing. A storage process that has delivered later messages answers no read of an earlier
//!     stamp, and a deposed leader soon steps down. So 200 seeds showed no wrong read when a leader confirmed
//!     without asking
//! - **S16, reads of services**
//!   - asserted: every change that a read saw is chosen, and a round covers only what came before the round
//!     (`service::reads`)
//!   - tested: scripts `a_read_is_confirmed`, `a_read_waits_for_the_changes_it_saw`,
//!     `a_new_leader_waits_until_it_is_settled`, `an_unconfirmed_read_is_asked_about`,
//!     `a_stale_leader_gets_no_confirmation` and `a_stale_leader_ends_no_session`
//!   - mutated: `AnsweredUnchosen`, `ReadUnconfirmed`, `AnsweredUnsettled`, `ReadUnchosen`,
//!     `ConfirmedBefore`, `ToldBefore`, `ExpiredUnconfirmed`
//! - **S19, partial partitions**
//!   - asserted: nothing in product code; scenario `graphs`, which computes from the graph who is promised
//!     what
//!   - tested: scripts `half_deaf_leader`, `heard_by_another` and `a_stale_reach_report_is_not_used`
//!   - mutated: `HearsEverybody`, `GoesNoWayRound`
//! - **Groups, casts**
//!   - asserted: a report covers only messages without a gap before them; checker *views*
//!   - tested: unit tests of streams and lanes; scripts `casts_do_not_pass`, `casts_late_and_twice` and
//!     `casts_behind_a_gap`
//!   - mutated: `AheadTakenForNext`, `DoubleTaken`, `ForeignGroupTaken`
//! - **Groups, receipts of branches**
//!   - asserted: nothing in product code; checker *views*
//!   - tested: unit tests of the tree and of receipts; script `receipts_in_a_tree`
//!   - mutated: `BranchForgotten`
//! - **Groups, following**
//!   - asserted: nothing in product code; checker *following* (`check::views`)
//!   - tested: script `follows`; test `a_key_is_rotated_under_load_and_nothing_is_lost`
//!   - mutated: `FollowsNothing`
//! - **Groups, checkpoints**
//!   - asserted: nothing in product code; checker *checkpoints* (`check::views`)
//!   - tested: scripts `stale_is_refused` and `the_newest_returns_second`; unit tests of the routing
//!   - mutated: `StaleCheckpoint`
//! - **Groups, quitting**
//!   - asserted: nothing in product code; checker *one outcome* (`check::views`, `system::group::quits`)
//!   - tested: scripts `quits`, `quits_in_mid_change`, `quits_and_joins_in_one_view`,
//!     `a_member_quits_before_its_admission` and `a_returning_process_has_one_seat`
//!   - mutated: `SendsDenied`
//! - **Groups, locks**
//!   - asserted: a lock has one holder at each place of the order, and its numbers grow with the place
//!     (`group::lock`); checkers *locks* and *fences* (`check::locks`)
//!   - tested: unit tests of locks
//!   - mutated: `LockOutlivesHolder`, `FenceRepeated`
//! - **Services, one line of states**
//!   - asserted: a change rests on the state in which it was computed (`Replica::learn`); checker *same
//!     states*
//!   - tested: scripts `deposed_with_a_full_pipeline`, `deposed_while_the_host_executes`,
//!     `a_joiner_gets_a_checkpoint` and `results_wait_for_room_in_the_log`
//!   - mutated: `LeftUnreverted`, `ExecutedByBackups`, `ForwardedDelta`, `ResultLost`
//! - **Services, transactions**
//!   - asserted: nobody else changes the keys of a transaction until it ends (`service::locks`), and an abort
//!     reverts its changes; checkers *serializable* and *together*
//!   - tested: scripts `a_transaction_commits`, `a_deposed_leader_reverts_transactions`,
//!     `plain_calls_wait_for_transactions` and `a_transaction_that_reads_is_confirmed`
//!   - mutated: `LocksIgnored`, `AbortUnreverted`, `CheckpointUncommitted`, `UndoKeptBehindCommit`,
//!     `CommitUnconfirmed`
//! - **S6, ids of calls**
//!   - asserted: a call takes effect once (`service::sessions`); checkers *exactly once* and *memory*
//!   - tested: scripts `a_reply_is_lost`, `the_same_call_twice` and `a_session_ends`; unit tests of the
//!     sessions
//!   - mutated: `CallsForgotten`, `CalledUnderNewName`, `RepliesUnbounded`
//! - **Maps, stamps**
//!   - asserted: a new stamp exceeds every stamp that the client has seen, and no stamp is issued twice
//!     (`partial::running`, `partial::clock`); checker *quorum*
//!   - tested: tests `a_quorum_write_goes_above_the_stamp_of_a_fast_clock` and
//!     `a_clock_that_is_too_far_ahead_writes_nothing`; random schedules
//!   - mutated: `StampNotRaised`, `SkewUnbounded`
//! - **Maps, quorums meet**
//!   - asserted: an owner counts once (`partial::owner::Share`); checker *quorum*
//!   - tested: tests `quorums_meet` and `a_read_leaves_what_it_saw_at_a_quorum`; random schedules
//!   - mutated: `ReplicaCountedTwice`, `DigestMismatchIgnored`
//! - **Maps, no write is forgotten**
//!   - asserted: nothing in product code; checker *quorum*
//!   - tested: tests `a_cell_that_was_away_receives_hints` and
//!     `a_replacing_cell_counts_for_no_quorum_until_it_has_every_entry`
//!   - mutated: `TombstoneForgotten`, `ArrivingLeftOut`, `ArrivesEmpty`
//! - **Maps, cells forget a deletion once all replicas have it**
//!   - asserted: no unfinished write is at or below the reported horizon (`partial::horizon`); checker
//!     *quorum*
//!   - tested: tests `a_delete_is_forgotten_once_every_cell_has_it` and
//!     `a_hint_of_an_old_write_holds_the_horizon_back`
//!   - mutated: `TombstoneCollectedEarly`, `TombstoneKept`, `BarrierIgnored`
//! - **Maps, every accepted value reaches all replicas**
//!   - asserted: nothing in product code; in the end all replicas are equal, and all horizons have passed the
//!     last write
//!   - tested: tests `replicas_become_equal_though_their_sum_is_above_the_limit_of_an_entry` and
//!     `a_cell_is_replaced_though_the_others_are_full`
//!   - mutated: `CopiesLimited`
//! - **Maps, counters**
//!   - asserted: nothing in product code; checker *counters*
//!   - tested: tests `increments_through_all_cells_are_counted_once`,
//!     `a_coordinator_remembers_increments_that_some_owners_lack`, `the_next_life_begins_another_tally`,
//!     `merged_tallies_do_not_count_again` and `counters_have_one_outcome_in_any_order`
//!   - mutated: `TalliesAdded`, `TalliesShared`, `TakenInCountedAgain`
//! - **Maps on disks**
//!   - asserted: a cell acknowledges and shows a value only after its record is durable, and reserves its
//!     stamps (`partial::journal`); checker *quorum*
//!   - tested: tests `a_read_shows_no_write_that_a_power_cut_would_take`,
//!     `stamps_continue_above_earlier_stamps_although_the_clock_was_set_back` and
//!     `a_cell_comes_back_with_its_content`
//!   - mutated: `StampsReissued`, `SentBeforeDurable`
//! - **Disks (`seam`)**
//!   - asserted: recovered records follow from each other (`paxos::record`); the simulator's host numbers its
//!     messages
//!   - tested: unit tests of the journal; `recovery` tests of the log
//!   - mutated: `SentBeforeDurable`, `OvertakesDurable`, `RecoversHalf`, `RotTakenForTail`
//! - **Tables, altering**
//!   - asserted: nothing in product code; checkers *replicas* and *definition* (`system::table::accounts`)
//!   - tested: unit tests of the configuration, of alterations and of both engines
//!   - mutated: `AlteredWithoutRows`, `AddedValueForgotten`
//! - **Tables on disks**
//!   - asserted: a repeated delivery equals the first one, so all replicas agree (`system::table::replicas`);
//!     no range is lost (`system::table::disks`)
//!   - tested: unit tests of the dispatcher, the member, journals and checkpoints; a test kills all processes
//!     of a real cluster at once
//!   - mutated: `CollectedBeforeDurable`, `CheckpointWithoutReplies`, `IncarnationKeptAfterRot`,
//!     `OlderCopyAccepted`

mod tamper;

pub(crate) use tamper::Tamper;

use quorate_world::Breach;

/// A rule that a simulated run breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// A router that comes back founds a domain instead of joining (S1).
    FoundsAgain,
    /// Other processes take a process that restarts without its memory for its former life (S1).
    NoIncarnations,
    /// A router votes for values that it does not hold (S2).
    VoteWithoutHolding,
    /// A router accepts below its promise (S2).
    AcceptBelowPromise,
    /// A promise omits the values that the router accepted (S2).
    PromiseEmptied,
    /// Processes of different generations are linked like processes of the same generation (S1).
    FenceOpen,
    /// A member withholds its last deliveries from a generation that begins (S1).
    TailKeptBack,
    /// A generation begins without the members' last deliveries (S1).
    TailUnheard,
    /// A member reports to a founder a higher stable position than the true one (S1).
    BaseForged,
    /// A member does not report its used numbers to a founder (S1).
    NumbersForgotten,
    /// Routers are removed until too few are left (S2).
    BelowTheFloor,
    /// No router checks whether a submission is its sender's next (S3).
    SequenceUnchecked,
    /// Routers do not propose their open proposals again when the leader changes (S3).
    NotProposedAgain,
    /// Members are notified that a message is stable before its last confirmation (S3).
    StableTooEarly,
    /// A confirmation of one member is counted for another member, too (S4).
    ForeignConfirmation,
    /// A member confirms messages that it does not have (S4).
    ConfirmBeyond,
    /// A delivery is lost, and so is the request for its repair (S4).
    RepairLost,
    /// A member delivers without looking at `previous` (S4).
    PreviousUnchecked,
    /// A member delivers twice (S4).
    DeliverTwice,
    /// A member is notified that refused or perhaps lost submissions are stable (S5).
    OutcomeForged,
    /// A write is repeated under a new name (S6).
    RepeatedUnderNewName,
    /// A failed repetition is reported as if nothing had been applied before (S5).
    RepetitionDenied,
    /// A range moves without the replies that it remembers (S6).
    RepliesLost,
    /// The remembered replies of a range move in one message of any length (S6).
    RepliesInOnePiece,
    /// Credits return when a message is confirmed, although it is not executed yet (S7).
    CreditsOnConfirmation,
    /// A process answers with an empty result where it should refuse because of another placement or stamp
    /// (S8, S15).
    RetryAnswered,
    /// A detector counts the time during which it slept itself (S11).
    LateTickCounts,
    /// An unreachable process is declared lost without an operator (S14).
    LossUndeclared,
    /// Suspects of one message are judged one after the other instead of together (S14).
    SuspectsOneByOne,
    /// A refuted suspicion is obeyed (S14).
    StaleSuspicionObeyed,
    /// A member delivers soft messages of a view in the next view (S9).
    DeliversLate,
    /// Soft messages do not name the ordered messages that their sender sent before them (S9).
    PredecessorsForgotten,
    /// A message is removed from a stream, and the later messages take over its number (S9).
    StreamTorn,
    /// A message that overtook other messages is taken for the next message (groups).
    AheadTakenForNext,
    /// A duplicate message is taken twice (groups).
    DoubleTaken,
    /// A member sends its own receipts up the tree, as if they were the receipts of its whole branch
    /// (groups).
    BranchForgotten,
    /// Members of a group take multicasts of another group that has the same address (groups).
    ForeignGroupTaken,
    /// The protocol does not learn that soft messages follow a safe message (groups).
    FollowsNothing,
    /// A joiner gets the state of an earlier view (S9).
    StateBehind,
    /// An idle group begins with a checkpoint older than the newest (groups).
    StaleCheckpoint,
    /// A member confirms messages that it does not hold (S10).
    ReceiptForged,
    /// A member treats each receipt as if it covered every message that will ever be ordered (S10).
    ReceiptOverrated,
    /// A process that quits a group denies sends that the order already has (groups).
    SendsDenied,
    /// A lock stays with a holder that is no longer a member (groups).
    LockOutlivesHolder,
    /// All grants of a pack get the number of its first update (groups).
    FenceRepeated,
    /// A read that killed processes is sent to other replicas without limit (S14).
    ReadAskedAgain,
    /// A replica publishes a write that all other replicas void (S15).
    VoidedPublished,
    /// A replica that knows a verdict does not answer questions about it (S15).
    VerdictUnanswered,
    /// Reasons of failures are kept without a bound on their length or number (S15).
    ReasonsUnbounded,
    /// A gateway commits a transaction without the results that its client received (S15).
    ResultsNotCompared,
    /// A replica skips a write (S15).
    WriteSkipped,
    /// A migration loses rows (S15).
    ImportLost,
    /// A storage process begins an altered table without the rows that the table had before.
    AlteredWithoutRows,
    /// A storage process forgets the declared value of an added column, and gives its rows another value.
    AddedValueForgotten,
    /// A leader answers a write after its execution, though the write is not chosen (S16).
    AnsweredUnchosen,
    /// A leader answers a read after its execution, though nobody confirmed the ballot (S16).
    ReadUnconfirmed,
    /// A new leader answers reads before it is settled (S16).
    AnsweredUnsettled,
    /// A leader answers a confirmed read, though a change that the read saw is not chosen (S16).
    ReadUnchosen,
    /// A leader accepts a confirmation that arrived before the leader asked for it on behalf of this read
    /// (S16).
    ConfirmedBefore,
    /// A leader answers an announced read by notices that followers had sent before they heard of this read
    /// (S16).
    ToldBefore,
    /// A leader reports a session as ended, though nobody confirmed the ballot (S16).
    ExpiredUnconfirmed,
    /// A leader proposes a change that another, deposed leader executed (services).
    ForwardedDelta,
    /// A checkpoint is taken before the changes of aborted transactions are undone (services).
    CheckpointUncommitted,
    /// A host keeps changes of an ended reign that were not chosen (services).
    LeftUnreverted,
    /// A host keeps the undo of a chosen change that stands behind a commit which is not chosen (services).
    UndoKeptBehindCommit,
    /// A backup draws new random numbers when it applies a change (services).
    ExecutedByBackups,
    /// Backups do not remember which calls have taken effect (S6).
    CallsForgotten,
    /// A client calls again under a different name (S6).
    CalledUnderNewName,
    /// A session's remembered replies have no bound in bytes (S6).
    RepliesUnbounded,
    /// A replica does not report that it holds a newer stamp (maps).
    StampNotRaised,
    /// The answer of one replica is counted for another replica, too (maps).
    ReplicaCountedTwice,
    /// A read treats different digests as equal (maps).
    DigestMismatchIgnored,
    /// Replicas forget a deletion while older copies of the key exist (maps).
    TombstoneForgotten,
    /// A cell forgets a deletion that some replica does not have (maps).
    TombstoneCollectedEarly,
    /// No cell believes that the other cells have a deletion, so no deletion is ever forgotten (maps).
    TombstoneKept,
    /// The size limits of clients apply to copies between cells, too (maps).
    CopiesLimited,
    /// A cell treats writes under way as ended, and ignores them when they arrive (maps).
    BarrierIgnored,
    /// A cell that is arriving ignores writes (maps).
    ArrivingLeftOut,
    /// A cell that is arriving reports at once that it has all entries (maps).
    ArrivesEmpty,
    /// A stamp may be ahead of the clocks by any amount (maps).
    SkewUnbounded,
    /// A replica adds the states of a counter's tally, instead of keeping the later state (maps).
    TalliesAdded,
    /// All coordinators write the same tally of a counter (maps).
    TalliesShared,
    /// Replicas count tallies that another tally has taken in (maps).
    TakenInCountedAgain,
    /// A cell that recovers from its disk does not know the stamps that it issued (maps).
    StampsReissued,
    /// A result is lost between a host and the log, and the reign continues (services).
    ResultLost,
    /// A leader executes requests of transactions on keys that other transactions have locked (services).
    LocksIgnored,
    /// A host keeps the changes of an aborted transaction (services).
    AbortUnreverted,
    /// A leader answers the commit of a transaction without changes, though nobody confirmed its ballot
    /// (S16).
    CommitUnconfirmed,
    /// A router claims to hear and reach all other routers, so elections know of no cut (S19).
    HearsEverybody,
    /// Routers do not relay messages for other processes (S19).
    GoesNoWayRound,
    /// A message leaves before the record that it needs is durable (disk).
    SentBeforeDurable,
    /// A message overtakes a message that waits for a record (disk).
    OvertakesDurable,
    /// A process recovers from the first half of its records (disk).
    RecoversHalf,
    /// Rot is cut off as if it were a torn tail (disk).
    RotTakenForTail,
    /// A storage process reports its deliveries as durable at once (S15).
    CollectedBeforeDurable,
    /// A storage process recovers without the remembered replies of its checkpoint (S6).
    CheckpointWithoutReplies,
    /// A storage process keeps its incarnation after rot (S15).
    IncarnationKeptAfterRot,
    /// A process continues from an older copy of its disk, though other processes know that the copy is older
    /// (disk).
    OlderCopyAccepted,
}

/// Number of seeds within which every mutation is caught.
pub const SEEDS_MAX: u64 = 200;

impl Mutation {
    /// All mutations. The seeds must catch each.
    pub const ALL: [Mutation; 98] = [
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
        Mutation::ReceiptOverrated,
        Mutation::SendsDenied,
        Mutation::LockOutlivesHolder,
        Mutation::FenceRepeated,
        Mutation::ReadAskedAgain,
        Mutation::VoidedPublished,
        Mutation::VerdictUnanswered,
        Mutation::ReasonsUnbounded,
        Mutation::ResultsNotCompared,
        Mutation::WriteSkipped,
        Mutation::ImportLost,
        Mutation::AlteredWithoutRows,
        Mutation::AddedValueForgotten,
        Mutation::AnsweredUnchosen,
        Mutation::ReadUnconfirmed,
        Mutation::AnsweredUnsettled,
        Mutation::ReadUnchosen,
        Mutation::ConfirmedBefore,
        Mutation::ToldBefore,
        Mutation::ExpiredUnconfirmed,
        Mutation::ForwardedDelta,
        Mutation::CheckpointUncommitted,
        Mutation::LeftUnreverted,
        Mutation::ExecutedByBackups,
        Mutation::CallsForgotten,
        Mutation::CalledUnderNewName,
        Mutation::RepliesUnbounded,
        Mutation::ResultLost,
        Mutation::StampNotRaised,
        Mutation::ReplicaCountedTwice,
        Mutation::DigestMismatchIgnored,
        Mutation::TombstoneForgotten,
        Mutation::TombstoneCollectedEarly,
        Mutation::TombstoneKept,
        Mutation::CopiesLimited,
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
        Mutation::UndoKeptBehindCommit,
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

    /// Returns the scenario whose seeds catch the mutation, or `graphs`, whose cases do
    /// ([`graphs`](crate::graphs)).
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
            Mutation::ResultsNotCompared => "transactions",
            Mutation::AlteredWithoutRows | Mutation::AddedValueForgotten => "alterations",
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
            | Mutation::ReasonsUnbounded
            | Mutation::WriteSkipped
            | Mutation::ImportLost => "table",
            Mutation::AnsweredUnchosen
            | Mutation::ReadUnconfirmed
            | Mutation::LeftUnreverted
            | Mutation::ExecutedByBackups
            | Mutation::CallsForgotten
            | Mutation::CalledUnderNewName
            | Mutation::RepliesUnbounded
            | Mutation::ExpiredUnconfirmed
            | Mutation::ResultLost => "service",
            Mutation::AnsweredUnsettled | Mutation::ReadUnchosen | Mutation::ForwardedDelta => "service_far",
            Mutation::ConfirmedBefore | Mutation::ToldBefore => "service_reads",
            Mutation::LocksIgnored
            | Mutation::AbortUnreverted
            | Mutation::CheckpointUncommitted
            | Mutation::CommitUnconfirmed => "service_transactions",
            Mutation::UndoKeptBehindCommit => "service_transactions_far",
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
            | Mutation::ReceiptForged
            | Mutation::ReceiptOverrated
            | Mutation::SendsDenied
            | Mutation::LockOutlivesHolder
            | Mutation::FenceRepeated => "group",
            Mutation::StampNotRaised
            | Mutation::ReplicaCountedTwice
            | Mutation::DigestMismatchIgnored
            | Mutation::TombstoneForgotten
            | Mutation::TombstoneKept
            | Mutation::CopiesLimited
            | Mutation::BarrierIgnored
            | Mutation::ArrivingLeftOut
            | Mutation::ArrivesEmpty
            | Mutation::SkewUnbounded => "quorum",
            Mutation::TombstoneCollectedEarly => "deletions",
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

    /// Returns all scenarios whose seeds catch the mutation. Most mutations have one scenario. A rule about
    /// disks concerns logs, tables and maps, so its mutation may have a scenario for each.
    pub fn scenarios(self) -> Vec<&'static str> {
        let also: &[&str] = match self {
            Mutation::SentBeforeDurable => &["power", "quorum_disk"],
            Mutation::RotTakenForTail => &["power"],
            _ => &[],
        };
        std::iter::once(self.scenario()).chain(also.iter().copied()).collect()
    }

    /// Returns the mutation's name on the command line.
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

    /// Returns the rule of disks that this mutation breaks, if it breaks one.
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

    /// Returns the mutation with this name.
    pub fn named(name: &str) -> Option<Self> {
        Mutation::ALL.into_iter().find(|mutation| mutation.name() == name)
    }
}
