//! A node's client of the cluster's tables.

use std::time::Instant;

use quorate_protocol::{DomainId, Role};

use super::{Member, Node, NodeShared};
use crate::{
    address::ask_domain,
    db::Db,
    error::Error,
    lock::lock,
    pending::{Pending, on_a_thread},
};

impl Node {
    /// Returns the tables of the cluster. The first call makes the node a client of them, a
    /// [gateway](crate::Role::Gateway). The future ends when the cluster has admitted the client, and fails
    /// if the admission takes longer than the node's [patience](super::Builder::patience).
    pub fn db(&self) -> Pending<'static, Db> {
        self.tables(None)
    }

    /// Returns the node's client of tables, for doors with clients of their own. The client is ready as soon
    /// as it listens, and waits for its cluster without a limit. If the node has another role than that of a
    /// gateway, the client is a further member with its own number.
    pub fn gateway(&self) -> Pending<'static, Member> {
        let node = self.clone();
        on_a_thread("start", move || node.become_client(None))
    }

    fn become_client(&self, domain: Option<DomainId>) -> Result<Member, Error> {
        let _starting = lock(&self.0.capabilities.starting);
        let NodeShared { settings, directory_lock, address, member, client, .. } = &*self.0;
        if let Some(member) = member.clone().filter(|member| member.role() == Role::Gateway) {
            return Ok(member);
        }
        if let Some(client) = &*lock(client) {
            return Ok(client.clone());
        }
        let mut settings = settings.clone().at_further_address(*address);
        settings.domain = settings.domain.or(domain);
        // A durable node without a role has disks for its replicas; its client of tables needs none.
        settings.durable = false;
        let started = match member {
            None => settings.member(Role::Gateway, directory_lock.clone())?,
            Some(member) => settings.beside_role(member).member(Role::Gateway, None)?,
        };
        *lock(client) = Some(started.clone());
        Ok(started)
    }

    /// Connects to the tables of this domain, if the domain is known already.
    fn tables(&self, domain: Option<DomainId>) -> Pending<'static, Db> {
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

    /// Connects to the processes at the node's addresses: to tables if they are routers, to services alone if
    /// they are hosts.
    pub(crate) fn client(&self) -> Pending<'static, Db> {
        let (node, settings) = (self.clone(), self.0.settings.clone());
        let asked = on_a_thread("start", move || ask_domain(&settings.routers, settings.patience));
        Box::pin(async move {
            let domain = asked.await?;
            #[cfg(feature = "services")]
            if domain == crate::service::domain(&node.0.settings.options.services.services) {
                return Ok(Db::of_services(node));
            }
            node.tables(Some(domain)).await
        })
    }

    /// Stops like [`Node::abandon`], without waiting.
    pub(crate) fn abandon_unwaited(&self) {
        self.0.capabilities.abandon();
        for member in self.members() {
            member.abandon_unwaited();
        }
    }
}
