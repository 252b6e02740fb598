//! Away: a storage process stops for a moment, of its own will, and comes back from its disk.
//!
//! **Promise.** Nobody notices. No statement waits for the process or fails because of it, nobody suspects it for
//! [`SuperSettings::away_max`](super::SuperSettings::away_max), and no row moves. It comes back as the process that it was, gets what
//! it missed from the routers, and serves once it has that.
//!
//! **Source.** None: 002 knows no process that comes back. What is missed is repaired as after a crash (002 §5.6, disk recovery).
//!
//! ```text
//!  storage process                 order                         others
//!    │ Away ────────────────────▶ @40   state: away              reads go to others; stability, credit and answers
//!    │ executes and answers all                                  do not count on it; supers do not suspect it
//!    │ up to @40, then stops
//!    ┆                             @41 … @90  writes             routers keep them for it
//!    │ starts, reads its journal
//!    │ Back { caught_up: false } ▶ @91
//!    │ gets and executes @41 … @91
//!    │ Back { caught_up: true } ─▶ @95   state: as before        it counts again, and reads go to it
//! ```
//!
//! **Rules.**
//! - *Another has the rows.* `Away` has no effect where a range would be without another complete, unsuspected replica that is not
//!   away itself (`State::can_lose`). So of a range at most all replicas but one are away. A process
//!   that is refused is told so, and its operator waits.
//! - *It is a replica still.* Writes are delivered to it, and collected only once they are durable there. A range whose other
//!   replicas die meanwhile is not lost: the process becomes unreachable where it would be removed, and is waited for.
//! - *It holds nobody back.* A message that is routed while it is away waits for the confirmations of others alone
//!   ([`Pace::Away`](crate::ecast::Pace::Away)). What it had not confirmed by then is waived.
//! - *It is not forgotten.* After its time is over supers suspect it like any other, and remove it as they would.
//! - *It says that it is back when it has caught up.* Its first word has no effect. It is delivered behind all that was missed, and
//!   what came after it is little. So no read waits for what was missed.
//! - *Who lives is not away.* A process to which its own `Away` is delivered after it came back says at once that it is back.
//!
//! **Why nothing is lost.** Stability told without the process rests on the others: each group of a write has a replica that
//! confirmed it, and the process is in no group while it is away. Routers keep what is not durable at every member,
//! the process included. What a new leader routes anew it routes under the newest configuration, in which the process is away.
//!
//! **Attacks considered.**
//! - *It never comes back:* it is suspected, removed and replaced, later than one that was killed.
//! - *It is killed between its word and its end:* the same as stopping. It comes back from its disk.
//! - *Its disk is damaged:* it comes back as another process, which waits until its former life is removed.
//! - *Two replicas of three at once:* the second is away, too, and the third is not, and can not be removed either: it becomes
//!   unreachable if it dies, and the range refuses writes until one of the others is back.
//! - *`Back` comes late, or twice:* it is of no effect on a process that is not away.
//! - *It is replaced by an operator meanwhile:* it keeps its rows, as anybody who made way.
