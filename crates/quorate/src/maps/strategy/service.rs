//! A map as a replicated service: [`Keyspace`] is its state, and every cell hosts a replica, or is spare.
//!
//! **Promise.** Commands are linearizable, reads too, and each takes effect once; while a majority of the replicas lives they are answered.
//!
//! **Source.** 003 §VI ([`crate::service`]).
//!
//! **One founder.** A service must be founded once. The order of maps says by whom: the process that asked for the map. It founds the service
//! when it learns of the map; all others join. If it dies in between and has no disk, nobody founds the service, nothing was written
//! yet, and commands say that no replica was found.

use std::{future::Future, pin::Pin, time::Duration};

use quorate_protocol::partial::MapId;
use tokio::sync::watch;
use tracing::warn;

use super::{
    Asked, Undone,
    keyspace::{Answer, Change, Keyspace, Request},
};
use crate::{
    error::{Error, Name},
    node::Node,
    service::{Begin, Cx, Executed, Kind, Service, Stub},
    timer,
};

impl Service for Keyspace {
    type Request = Request;
    type Reply = Answer;
    type Delta = Vec<Change>;
    type Undo = Vec<Change>;

    const SHORT: bool = true;

    fn execute(&self, request: &Request, cx: &mut Cx<'_>) -> Executed<Self> {
        let now = cx.clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (answer, changes) = self.decide(request, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        if changes.is_empty() { Executed::Unchanged(answer) } else { Executed::Changed(answer, changes) }
    }

    fn apply(&mut self, changes: &Vec<Change>) -> Vec<Change> {
        self.apply_all(changes)
    }

    fn revert(&mut self, undo: Vec<Change>) {
        self.apply_all(&undo);
    }

    fn kind(request: &Request) -> Kind {
        if request.is_read() { Kind::Read } else { Kind::Write }
    }
}

/// This cell's part in a map that a service keeps.
pub(super) struct ServiceMap {
    node: Node,
    name: String,
    stub: watch::Receiver<Option<Stub<Keyspace>>>,
}

/// A pause before hosting is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A command waits so long for this cell to be a host.
const PATIENCE: Duration = Duration::from_secs(5);

impl ServiceMap {
    /// Begins to host a replica, on the future that is returned.
    pub(super) fn begin(
        node: Node,
        map: MapId,
        begin: Begin,
    ) -> (ServiceMap, Pin<Box<dyn Future<Output = ()> + Send>>) {
        let name = format!("map-{}", map.0);
        let (told, stub) = watch::channel(None);
        let host = {
            let (node, name) = (node.clone(), name.clone());
            async move {
                while let Err(error) = node.serve(name.clone(), Keyspace::default(), begin).await {
                    warn!(%error, name, "this cell hosts no replica yet, and tries again");
                    timer::sleep(PAUSE).await;
                    if told.is_closed() {
                        return;
                    }
                }
                match node.service(&name) {
                    Ok(stub) => {
                        let is_gone = told.send(Some(stub)).is_err();
                        if is_gone {
                            end(&node, &name);
                        }
                    }
                    Err(error) => warn!(%error, name, "this cell cannot call the service"),
                }
            }
        };
        (ServiceMap { node, name, stub }, Box::pin(host))
    }

    pub(super) fn ask(&self, request: Request) -> Asked {
        let mut stub = self.stub.clone();
        Box::pin(async move {
            let ready = timer::timeout(PATIENCE, async {
                stub.wait_for(Option::is_some).await.ok().and_then(|stub| stub.clone())
            });
            let Some(Some(stub)) = ready.await else {
                return Err(Undone::NotDone(String::from("this cell is no host of the map's service yet")));
            };
            let mut reply = stub.call(&request).await;
            if let Err(Error::MaybeApplied { id: Some(Name::Call(id)), .. }) = &reply {
                // It took effect, or does now: once in all.
                reply = stub.again(*id).await;
            }
            reply.map_err(|error| match error {
                // The service's own words name it by its number.
                Error::NotSent { .. } => {
                    let why = "no replica of the map's service was found, or took it in time";
                    Undone::NotDone(String::from(why))
                }
                other => Undone::of(other),
            })
        })
    }

    /// True if this cell's replica is one of them, and the number of them.
    pub(super) fn standing(&self) -> (bool, usize) {
        let standing = self.node.standing(&self.name).unwrap_or_default();
        let is_one = standing.replicas.iter().any(|(process, _)| Some(*process) == standing.me);
        (is_one, standing.replicas.len())
    }

    /// The map is gone: the replica here is one no more.
    pub(super) fn end(self) {
        // One that is not there yet ends as soon as it is.
        if self.stub.borrow().is_some() {
            end(&self.node, &self.name);
        }
    }
}

fn end(node: &Node, name: &str) {
    if let Err(error) = node.withdraw(name) {
        warn!(%error, name, "a replica of a map that is gone stays");
    }
}
