//! Starts a node.

use std::{sync::Arc, time::Instant};

use quorate_protocol::Role;

use crate::{
    address::{self, bind},
    error::Error,
    pending::{Pending, on_a_thread},
};

use super::{Node, NodeListener, builder::Builder, directory};

impl Builder {
    /// Starts the node. A node without a role is ready at once, and starts processes when they are needed. A
    /// gateway is ready when the cluster has admitted it, and a process of another role when it listens.
    ///
    /// A separate thread starts the node. If the future is dropped, the node leaves as soon as it has
    /// started.
    pub fn start(self) -> Pending<'static, Node> {
        let (begun, patience) = (Instant::now(), self.patience);
        let waits = self.role == Some(Role::Gateway) && !self.ready_at_listen;
        let started = on_a_thread("start", move || self.begin());
        Box::pin(async move {
            let node = started.await?;
            if let Some(member) = node.member().filter(|_| waits) {
                member.admitted(patience.saturating_sub(begun.elapsed())).await?;
            }
            Ok(node)
        })
    }

    pub(super) fn begin(self) -> Result<Node, Error> {
        self.options.check()?;
        self.routers.iter().try_for_each(|router| address::check("a router", router))?;
        let directory_lock = match &self.directory {
            Some(path) => Some(Arc::new(directory::claim(path, self.number)?)),
            None => None,
        };
        match self.role {
            Some(role) => {
                let member = self.clone().member(role, directory_lock.clone())?;
                Ok(Node::with(self, directory_lock, NodeListener::Member(member)))
            }
            None if self.found => Err(Error::start("only a router can found a domain")),
            None if self.durable && self.directory.is_none() => {
                Err(Error::start("a durable host of services needs a directory"))
            }
            None => {
                let (listener, address) = bind(&self.listen)?;
                Ok(Node::with(self, directory_lock, NodeListener::Open { listener, address }))
            }
        }
    }
}
