//! Away: a storage process stops for a moment, of its own will, and comes back from its disk.
//!
//! **Promise.** Users notice nothing. No statement waits for the process or fails because of it. Supers do
//! not suspect it for [`SuperSettings::away_max`](super::SuperSettings::away_max), and no row moves. It comes
//! back under the same id, gets what it missed from the routers, and then serves again.
//!
//! **Source.** None, because no process comes back in 002. The routers send what was missed, as after a crash
//! (002 §5.6, disk recovery).
//!
//! ```text
//!  storage process                order                   others
//!    │ Away ───────────────────▶ @40  state: away         send it no reads; stability, credit and answers
//!    │ executes and answers all                            do not count on it; supers do not suspect it
//!    │ up to @40, then stops
//!    ┆                            @41 … @90  writes        routers keep them for it
//!    │ starts, reads its journal
//!    │ Back{caught_up: false} ─▶ @91
//!    │ gets and executes @41 … @91
//!    │ Back{caught_up: true} ──▶ @95  state: active        count on it again, and send it reads
//! ```
//!
//! **Rules.**
//! - *Another process has the rows.* `Away` has no effect if a range would keep no other complete,
//!   unsuspected replica that is not itself away (`State::can_lose`). So at least one replica of each range
//!   is never away. The process learns of a refusal, and its operator waits.
//! - *The away process remains a replica.* Routers keep its writes for it until they are durable there. A
//!   range is not lost if its other replicas die while the process is away: the process becomes unreachable
//!   instead of being removed, and the cluster waits for it.
//! - *It holds nobody back.* A message that is routed while the process is away waits for the other
//!   destinations' confirmations alone ([`Pace::Away`](crate::ecast::Pace::Away)). Routers waive the
//!   confirmations that the process still owed.
//! - *It is not forgotten.* After `away_max` supers suspect and remove it like any other process.
//! - *It reports back in two steps.* `Back { caught_up: false }` changes nothing: it is ordered after all
//!   that the process missed, and marks where to catch up to. `Back { caught_up: true }` follows when the
//!   process has executed all of that. So no read waits for the process to catch up.
//! - *A running process is not away.* If a process comes back and only then delivers its own `Away`, it
//!   reports back at once.
//!
//! **Why nothing is lost.** Stability without the process rests on the others. Each group of a write has a
//! replica that confirmed the write, and the process is in no group while it is away. Routers keep each
//! message until it is durable at every member, this process included. A new leader routes unstable messages
//! again under the newest configuration, in which the process is away.
//!
//! **Attacks considered.**
//! - *The process never comes back:* supers suspect, remove and replace it, only later than a process that
//!   was killed.
//! - *The process is killed between `Away` and its end:* it comes back from its disk, as after stopping.
//! - *Its disk is damaged:* it comes back as another process, which waits until its former life is removed.
//! - *Two replicas of three are away at once:* the third may neither go away nor be removed. If it dies, it
//!   becomes unreachable, and the range refuses writes until one of the other two is back.
//! - *`Back` comes late, or twice:* it has no effect on a process that is not away.
//! - *An operator replaces the process meanwhile:* it keeps its rows, like every process that makes way.
