//! The clients of tables and services that a node gives to its program.

use std::time::Instant;

use quorate_protocol::DomainId;

use crate::{
    address::ask_domain,
    db::Db,
    pending::{Pending, on_a_thread},
    service,
};

use super::Node;

impl Node {
    /// Returns the tables of the cluster. The first call makes the node a client of them, a
    /// [gateway](crate::Role::Gateway). The call ends when the cluster has admitted the client, and fails if
    /// that takes longer than the node's [patience](super::Builder::patience).
    pub fn db(&self) -> Pending<'static, Db> {
        self.tables(None)
    }

    /// Connects to the tables of this domain, if it is known already.
    pub(super) fn tables(&self, domain: Option<DomainId>) -> Pending<'static, Db> {
        let (node, begun) = (self.clone(), Instant::now());
        let member = on_a_thread("start", {
            let node = node.clone();
            move || node.become_client(domain)
        });
        Box::pin(async move {
            let member = member.await?;
            let tables = member.backend().expect("a client of tables has them");
            member.admitted(node.0.settings.patience.saturating_sub(begun.elapsed())).await?;
            Ok(Db::of_tables(node, member, tables))
        })
    }

    /// Connects to the processes at its addresses: to tables if they are routers, to services alone if they
    /// are hosts.
    pub(crate) fn client(&self) -> Pending<'static, Db> {
        let (node, settings) = (self.clone(), self.0.settings.clone());
        let asked = on_a_thread("start", move || ask_domain(&settings.routers, settings.patience));
        Box::pin(async move {
            let domain = asked.await?;
            if domain == service::domain(&node.0.settings.services) {
                return Ok(Db::of_services(node));
            }
            node.tables(Some(domain)).await
        })
    }
}
