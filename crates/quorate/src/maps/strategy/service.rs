//! A map as a replicated service. The state of the service is a [`Keyspace`], and every cell hosts a replica
//! or is a spare host.
//!
//! **Promise.** Commands are linearizable, reads included, and each takes effect once. They are answered
//! while a majority of the replicas lives.
//!
//! **Source.** 003 §VI ([`crate::service`]).
//!
//! **One founder.** A service must be founded once. The order of maps names the founder: the process that
//! requested the map. It founds the service when it learns of the map; all other cells join. If the founder
//! dies before it founds the service, and has no disk, nobody founds the service. In that case nothing was
//! written, and commands fail because there is no replica.

use std::{future::Future, pin::Pin, time::Duration};

use quorate_protocol::partial::MapId;
use tokio::sync::watch;
use tracing::warn;

use super::outcome::OutcomeFuture;
use super::{
    RequestError,
    keyspace::{Keyspace, KeyspaceAnswer, KeyspaceChange, Request},
};
use crate::{
    error::{Error, Name},
    node::Node,
    service::{Begin, Cx, Executed, Kind, Service, Stub},
    timer,
};

impl Service for Keyspace {
    type Request = Request;
    type Reply = KeyspaceAnswer;
    type Delta = Vec<KeyspaceChange>;
    type Undo = Vec<KeyspaceChange>;

    const SHORT: bool = true;

    fn execute(&self, request: &Request, cx: &mut Cx<'_>) -> Executed<Self> {
        let now = cx.clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (answer, changes) = self.decide(request, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        if changes.is_empty() { Executed::Unchanged(answer) } else { Executed::Changed(answer, changes) }
    }

    fn apply(&mut self, changes: &Vec<KeyspaceChange>) -> Vec<KeyspaceChange> {
        self.apply_all(changes)
    }

    fn revert(&mut self, undo: Vec<KeyspaceChange>) {
        self.apply_all(&undo);
    }

    fn kind(request: &Request) -> Kind {
        if request.is_read() { Kind::Read } else { Kind::Write }
    }
}

/// A cell's part in a map that a service keeps.
pub(super) struct ServiceMap {
    node: Node,
    name: String,
    stub: watch::Receiver<Option<Stub<Keyspace>>>,
}

/// Pause before the next attempt to host a replica.
const PAUSE: Duration = Duration::from_secs(1);

/// Time that a command waits for this cell to be a host.
const PATIENCE: Duration = Duration::from_secs(5);

impl ServiceMap {
    /// Begins to host a replica, in the returned future.
    pub(super) fn begin(
        node: Node,
        map: MapId,
        begin: Begin,
    ) -> (ServiceMap, Pin<Box<dyn Future<Output = ()> + Send>>) {
        let name = format!("map-{}", map.0);
        let (stub_sender, stub) = watch::channel(None);
        let host = {
            let (node, name) = (node.clone(), name.clone());
            async move {
                while let Err(error) = node.serve(name.clone(), Keyspace::default(), begin).await {
                    warn!(
                        %error, name,
                        "this cell hosts no replica of the map's service yet, and tries again"
                    );
                    timer::sleep(PAUSE).await;
                    if stub_sender.is_closed() {
                        return;
                    }
                }
                match node.service(&name) {
                    Ok(stub) => {
                        let is_gone = stub_sender.send(Some(stub)).is_err();
                        if is_gone {
                            end(&node, &name);
                        }
                    }
                    Err(error) => warn!(%error, name, "this cell cannot call the map's service"),
                }
            }
        };
        (ServiceMap { node, name, stub }, Box::pin(host))
    }

    pub(super) fn ask(&self, request: Request) -> OutcomeFuture {
        let mut stub = self.stub.clone();
        Box::pin(async move {
            let ready = timer::timeout(PATIENCE, async {
                stub.wait_for(Option::is_some).await.ok().and_then(|stub| stub.clone())
            });
            let Some(Some(stub)) = ready.await else {
                return Err(RequestError::NotDone(String::from(
                    "this cell is no host of the map's service yet",
                )));
            };
            let mut reply = stub.call(&request).await;
            if let Err(Error::MaybeApplied { id: Some(Name::Call(id)), .. }) = &reply {
                // The call took effect before, or takes effect now: once in all.
                reply = stub.again(*id).await;
            }
            reply.map_err(|error| match error {
                // The error of the service names the service by the map's number, which clients do not know.
                Error::NotSent { .. } => {
                    let why = "no replica of the map's service was found, or no replica took the request in \
                             time";
                    RequestError::NotDone(String::from(why))
                }
                other => RequestError::of(other),
            })
        })
    }

    /// Returns whether this cell's replica is in the set, and the number of replicas.
    pub(super) fn status(&self) -> (bool, usize) {
        let status = self.node.replica_status(&self.name).unwrap_or_default();
        let is_one = status.replicas.iter().any(|(process, _)| Some(*process) == status.me);
        (is_one, status.replicas.len())
    }

    /// Withdraws this cell's replica, because the map was dropped.
    pub(super) fn end(self) {
        // A cell that does not host the replica yet ends the replica as soon as it hosts it.
        if self.stub.borrow().is_some() {
            end(&self.node, &self.name);
        }
    }
}

fn end(node: &Node, name: &str) {
    if let Err(error) = node.withdraw(name) {
        warn!(%error, name, "the replica of a dropped map could not be withdrawn");
    }
}
