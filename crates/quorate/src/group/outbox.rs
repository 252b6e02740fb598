//! The outbox: updates on their way to the protocol thread.
//!
//! Updates are put into packs, and a *batch* of packs waits for one command. The protocol thread takes the
//! whole batch when it reaches that command. So the busier the thread is, the more updates travel together.
//! Then an update costs only a copy and a place in a pack. If no other update waits, an update travels at
//! once.
//!
//! ```text
//!   callers ── updates ──▶ the last batch ──┐
//!       └── one command for a batch ──▶ protocol thread: takes the first batch
//! ```
//!
//! **Order.** Each waiting batch has one command in the queue; batches and commands have the same order. A
//! thread that issues another kind of command first closes the last batch. Later updates go into a new batch,
//! whose command follows that other command in the queue. So updates and other commands of one caller reach
//! the protocol in the order of the calls.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, future::Shared};
use quorate_protocol::group::{Failure, GroupId, PackWriter, Place, SendStrength};
use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::lock::lock;

/// Upper bound of waiting bytes. Above it, an update for which no caller waits is refused.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Updates of all groups of a process that wait for the protocol thread.
pub(super) struct Outbox {
    bounds: PackBounds,
    waiting: Mutex<WaitingBatches>,
}

/// Upper bounds of the content of a pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackBounds {
    /// Largest size of soft updates in a pack, in bytes; a longer update travels alone.
    pub(super) soft_bytes: usize,
    /// Largest size of ordered or safe updates in a pack, in bytes; a longer update travels alone.
    pub(super) ordered_bytes: usize,
    /// Largest number of updates in a pack.
    pub(super) updates: u32,
}

#[derive(Default)]
struct WaitingBatches {
    batches: VecDeque<PackBatch>,
    /// Whether the last batch accepts more updates.
    open: bool,
    bytes: usize,
    /// Whether the process has ended, so that nothing is accepted.
    over: bool,
}

#[derive(Default)]
struct PackBatch {
    packs: Vec<Packing>,
    /// The index of the last pack of each group.
    last: FxHashMap<GroupId, usize>,
}

/// A pack that is being filled.
pub(super) struct Packing {
    pub(super) group: GroupId,
    pub(super) strength: SendStrength,
    pub(super) writer: PackWriter,
    pub(super) result_sender: oneshot::Sender<Result<Place, Failure>>,
    /// The sender's room that the pack's updates take, released when the updates have ended.
    pub(super) rooms: Vec<OwnedSemaphorePermit>,
    end: Shared<oneshot::Receiver<Result<Place, Failure>>>,
}

/// The end of a sent update, as a future. A receive error means that the process has ended.
pub(super) struct Sent {
    pack: Shared<oneshot::Receiver<Result<Place, Failure>>>,
    index: u32,
}

/// The reason why the outbox did not accept an update.
pub(super) enum PutError<E> {
    /// The process has ended.
    Over,
    /// Too many bytes wait in the outbox.
    Full,
    /// The process refused the command that carries the update's batch.
    Untaken(E),
}

impl PackBounds {
    fn bytes(&self, strength: SendStrength) -> usize {
        match strength {
            SendStrength::Soft => self.soft_bytes,
            SendStrength::Ordered | SendStrength::Safe(_) => self.ordered_bytes,
        }
    }
}

impl Outbox {
    pub(super) fn new(bounds: PackBounds) -> Outbox {
        Outbox { bounds, waiting: Mutex::default() }
    }

    /// Puts an update into the last batch. If there is no open batch, begins a batch, and calls `ask` to
    /// issue the batch's command. An update without `room` has no waiting caller, and is refused if too many
    /// bytes wait.
    pub(super) fn put<E>(
        &self,
        (group, strength): (GroupId, SendStrength),
        update: &[u8],
        room: Option<OwnedSemaphorePermit>,
        ask: impl FnOnce() -> Result<(), E>,
    ) -> Result<Sent, PutError<E>> {
        let mut waiting = lock(&self.waiting);
        if waiting.over {
            return Err(PutError::Over);
        }
        if room.is_none() && waiting.bytes + update.len() > WAITING_BYTES_MAX {
            return Err(PutError::Full);
        }
        if !waiting.open {
            // The lock is held during `ask`, so the protocol thread cannot take the batch before it exists.
            ask().map_err(PutError::Untaken)?;
            waiting.batches.push_back(PackBatch::default());
            waiting.open = true;
        }
        waiting.bytes += update.len();
        let batch = waiting.batches.back_mut().expect("one is open");
        Ok(batch.put(&self.bounds, (group, strength), update, room))
    }

    /// Notes that another command was issued: later updates go into a new batch, behind that command.
    pub(super) fn close(&self) {
        lock(&self.waiting).open = false;
    }

    /// Returns the packs for the next command.
    pub(super) fn take(&self) -> Vec<Packing> {
        let mut waiting = lock(&self.waiting);
        let batch = waiting.batches.pop_front().unwrap_or_default();
        if waiting.batches.is_empty() {
            (waiting.open, waiting.bytes) = (false, 0);
        }
        drop(waiting);
        batch.packs
    }

    /// Ends the outbox together with its process. Reports that the waiting updates were not sent.
    pub(super) fn end(&self) {
        let batches = {
            let mut waiting = lock(&self.waiting);
            (waiting.over, waiting.open) = (true, false);
            mem::take(&mut waiting.batches)
        };
        for packing in batches.into_iter().flat_map(|batch| batch.packs) {
            // The caller may no longer wait.
            let _ = packing.result_sender.send(Err(Failure::NotSent));
        }
    }
}

impl PackBatch {
    fn put(
        &mut self,
        bounds: &PackBounds,
        (group, strength): (GroupId, SendStrength),
        update: &[u8],
        room: Option<OwnedSemaphorePermit>,
    ) -> Sent {
        let (most, updates) = (bounds.bytes(strength), bounds.updates);
        let fits = |packing: &Packing| {
            let Packing { writer, .. } = packing;
            packing.strength == strength && writer.count() < updates && writer.fits(update, most)
        };
        // Most often the last pack of the batch belongs to this group.
        let is_last = self.packs.last().is_some_and(|last| last.group == group);
        let last = if is_last { Some(self.packs.len() - 1) } else { self.last.get(&group).copied() };
        let place = last.filter(|place| fits(&self.packs[*place])).unwrap_or_else(|| {
            self.packs.push(Packing::new(group, strength));
            self.last.insert(group, self.packs.len() - 1);
            self.packs.len() - 1
        });
        self.packs[place].put(update, room)
    }
}

impl Packing {
    fn new(group: GroupId, strength: SendStrength) -> Packing {
        let (result_sender, end) = oneshot::channel();
        let writer = PackWriter::default();
        Packing { group, strength, writer, result_sender, rooms: Vec::new(), end: end.shared() }
    }

    fn put(&mut self, update: &[u8], room: Option<OwnedSemaphorePermit>) -> Sent {
        let index = self.writer.count();
        self.writer.push(update);
        if let Some(room) = room {
            match self.rooms.last_mut().filter(|last| same_room(last, &room)) {
                Some(last) => last.merge(room),
                None => self.rooms.push(room),
            }
        }
        Sent { pack: self.end.clone(), index }
    }
}

fn same_room(one: &OwnedSemaphorePermit, other: &OwnedSemaphorePermit) -> bool {
    std::sync::Arc::ptr_eq(one.semaphore(), other.semaphore())
}

impl Future for Sent {
    type Output = Result<Result<Place, Failure>, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.index;
        self.pack.poll_unpin(cx).map(|sent| sent.map(|ended| ended.map(|first| first.behind(index))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: PackBounds = PackBounds { soft_bytes: 8000, ordered_bytes: 16_000, updates: u32::MAX };
    const A: GroupId = GroupId(1);
    const B: GroupId = GroupId(2);

    fn put(outbox: &Outbox, group: GroupId, strength: SendStrength, text: &str, asked: &mut usize) -> Sent {
        let ask = || {
            *asked += 1;
            Ok::<(), ()>(())
        };
        outbox.put((group, strength), text.as_bytes(), None, ask).ok().expect("it is taken")
    }

    /// Returns the packs of the next batch as text.
    fn taken(outbox: &Outbox) -> Vec<(u64, String)> {
        let text = |packing: Packing| {
            let pack = packing.writer.finish().expect("none is empty");
            let texts: Vec<_> = pack.iter().map(String::from_utf8_lossy).collect();
            (packing.group.0, texts.join(" "))
        };
        outbox.take().into_iter().map(text).collect()
    }

    #[test]
    fn one_command_is_for_all_that_gathers() {
        let (outbox, mut asked) = (Outbox::new(BOUNDS), 0);
        let soft = |text, asked: &mut usize| drop(put(&outbox, A, SendStrength::Soft, text, asked));
        soft("a", &mut asked);
        soft("b", &mut asked);
        put(&outbox, B, SendStrength::Soft, "x", &mut asked);
        soft("c", &mut asked);
        put(&outbox, A, SendStrength::Ordered, "o", &mut asked);
        soft("d", &mut asked);
        assert_eq!(asked, 1);
        let all = [(1, "a b c"), (2, "x"), (1, "o"), (1, "d")].map(|(group, text)| (group, text.to_owned()));
        assert_eq!(taken(&outbox), all);
        assert!(taken(&outbox).is_empty());
        soft("e", &mut asked);
        assert_eq!(asked, 2);
        assert_eq!(taken(&outbox), [(1, String::from("e"))]);
    }

    #[test]
    fn updates_after_another_command_wait_for_their_own_command() {
        let (outbox, mut asked) = (Outbox::new(BOUNDS), 0);
        put(&outbox, A, SendStrength::Soft, "before", &mut asked);
        outbox.close();
        put(&outbox, A, SendStrength::Soft, "behind", &mut asked);
        put(&outbox, A, SendStrength::Soft, "too", &mut asked);
        assert_eq!(asked, 2);
        assert_eq!(taken(&outbox), [(1, String::from("before"))]);
        put(&outbox, A, SendStrength::Soft, "still", &mut asked);
        assert_eq!(asked, 2);
        assert_eq!(taken(&outbox), [(1, String::from("behind too still"))]);
    }

    #[test]
    fn packs_are_bounded_in_bytes() {
        let (outbox, mut asked) = (Outbox::new(BOUNDS), 0);
        let long = "x".repeat(BOUNDS.soft_bytes / 2 - 4);
        for text in [&long, &long, "y", &"z".repeat(BOUNDS.soft_bytes), "y"] {
            put(&outbox, A, SendStrength::Soft, text, &mut asked);
        }
        let counts: Vec<u32> = outbox.take().iter().map(|packing| packing.writer.count()).collect();
        assert_eq!(counts, [2, 1, 1, 1]);
    }

    #[test]
    fn packs_are_bounded_in_updates() {
        let (outbox, mut asked) = (Outbox::new(PackBounds { updates: 2, ..BOUNDS }), 0);
        for text in ["a", "b", "c", "d", "e"] {
            put(&outbox, A, SendStrength::Ordered, text, &mut asked);
        }
        let packs = [(1, "a b"), (1, "c d"), (1, "e")].map(|(group, text)| (group, text.to_owned()));
        assert_eq!((taken(&outbox), asked), (packs.into(), 1));
    }

    #[test]
    fn no_update_is_queued_when_commands_are_refused() {
        let outbox = Outbox::new(BOUNDS);
        let untaken = outbox.put((A, SendStrength::Soft), b"a", None, || Err("full"));
        assert!(matches!(untaken, Err(PutError::Untaken("full"))));
        assert!(outbox.take().is_empty());
        let long = vec![0; WAITING_BYTES_MAX];
        assert!(outbox.put((A, SendStrength::Soft), &long, None, || Ok::<(), ()>(())).is_ok());
        let more = outbox.put((A, SendStrength::Soft), b"a", None, || Ok::<(), ()>(()));
        assert!(matches!(more, Err(PutError::Full)));
    }

    #[test]
    fn updates_of_a_pack_end_together() {
        let (outbox, mut asked) = (Outbox::new(BOUNDS), 0);
        let sent = ["a", "b"].map(|text| put(&outbox, A, SendStrength::Soft, text, &mut asked));
        let [packing] = <[Packing; 1]>::try_from(outbox.take()).ok().expect("one pack");
        packing.result_sender.send(Ok(Place::Soft(7))).expect("they wait");
        let places = sent.map(|sent| sent.now_or_never().expect("it has ended"));
        assert_eq!(places, [Ok(Ok(Place::Soft(7))), Ok(Ok(Place::Soft(8)))]);
        let late = put(&outbox, A, SendStrength::Soft, "c", &mut asked);
        outbox.end();
        assert_eq!(late.now_or_never(), Some(Ok(Err(Failure::NotSent))));
        let none = outbox.put((A, SendStrength::Soft), b"d", None, || Ok::<(), ()>(()));
        assert!(matches!(none, Err(PutError::Over)));
    }
}
