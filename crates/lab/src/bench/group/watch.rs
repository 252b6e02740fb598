//! A replica without a state, which watches deliveries, and a helper with which several members join at once.

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use quorate::{
    Pending,
    group::{Answer, Corrupt, Member, Object, Origin, Replica, Share, Snapshot, View},
};
use serde::{Serialize, de::DeserializeOwned};

/// An observer of updates and views. It has no state that a joining member would need.
pub(super) trait Watch: Default + Send + 'static {
    const NAME: &'static str;
    type Update: Serialize + DeserializeOwned + Send;

    fn apply(&mut self, update: Self::Update, origin: &Origin);

    fn view(&mut self, view: &View);
}

/// The replica that carries the observer.
#[derive(Default)]
pub(super) struct Watcher<W>(pub(super) W);

impl<W: Watch> Replica for Watcher<W> {
    const NAME: &'static str = W::NAME;
    type Update = W::Update;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, update: W::Update, origin: &Origin) {
        self.0.apply(update, origin);
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&())
    }

    fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Watcher(W::default()))
    }

    fn view(&mut self, view: &View) {
        self.0.view(view);
    }
}

/// Returns the members once all of them have joined.
pub(super) fn joined<O: Object>(
    joining: impl Iterator<Item = Pending<'static, Member<O>>>,
) -> Result<Vec<Member<O>>> {
    let (mut joining, mut members) = (joining.collect::<FuturesUnordered<_>>(), Vec::new());
    let threads = tokio::runtime::Builder::new_current_thread().build()?;
    threads.block_on(async {
        while let Some(joined) = joining.next().await {
            members.push(joined.context("a member could not join its group")?);
        }
        Ok(members)
    })
}
