//! Altering: a table gets a new definition at one position.
//!
//! **Promise.** An operation is executed by the definition with which its gateway bound it, or it is refused.
//! All replicas change at the same position, without a pause in which the table could not be used. Nobody
//! copies rows.
//!
//! **Source.** None that we know. Rae et al. (*Online, Asynchronous Schema Change in F1*, 2013) let two
//! definitions hold at once, because servers there learn of a change at different times. Here the order
//! says which definition holds at a position.
//!
//! ```text
//!  gateway                       order                      storage processes
//!    │ Define{Alter 7: t, …} ──▶ @50  t is table 9           end 7, begin 9 with the same rows
//!    ┆ another gateway, before it delivers @50:
//!    │ write to 7 ─────────────▶ refused: no such table      (never delivered)
//!    │ delivers @50, binds the
//!    │ statement by table 9 ───▶ @52  write to 9             execute
//! ```
//!
//! **Message.** An `Alter` in [`Control::Define`](super::Control::Define) names the table that ends, and the
//! name, the definition and the sources of the columns of the table that begins in its place. If one table
//! names another, as an index names its table, one message changes both.
//!
//! **Rules.**
//! - *The number changes.* A data message names its table by number, so routers refuse a message to a table
//!   that ended, as they do after DROP TABLE. A transaction names its tables inside its operation, and
//!   storage processes refuse it. In both cases nothing was executed, and the gateway may bind it by the new
//!   definition.
//! - *Every range is held.* Routers refuse the message while a range has no complete replica, because the
//!   rows of such a range may come back from a process that has not delivered the message
//!   ([keeping](super::keeping)). The session tries again later.
//! - *The alteration is a step* of the storage processes like any other. It waits behind a write that is held
//!   and behind the import of rows. It is executed again after a crash.
//! - *Only in domains that know it.* Routers refuse the message in a domain of a version before
//!   [`DEFINITIONS_SINCE`](super::DEFINITIONS_SINCE), with the reason that earlier builds give.
//!
//! **Attacks considered.**
//! - *Two sessions alter a table at once:* the second message names a number that is gone, and is refused.
//! - *A process imports ranges meanwhile:* it gets rows as of the placement change. If that change came
//!   before the alteration, the rows have the earlier table's number. The process's own alteration step
//!   follows the import.
//! - *A process is away, or crashed:* routers keep the message for it, and it executes the step before it
//!   serves again.
//! - *A process was removed before the alteration and comes back after it:* its rows are those of a table
//!   that ended, so it drops them. All ranges were held when the table was altered, so others have the rows.
//!   If these others are lost later, the kept rows cannot serve.
//! - *A load is being staged:* its rows end with the earlier table. Publishing them is refused.
//! - *A read continues page by page:* its pinned version has the earlier table.
