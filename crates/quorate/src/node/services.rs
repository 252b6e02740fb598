//! The services that a node hosts and calls.

use std::{net::SocketAddr, sync::Arc};

use quorate_protocol::service::Pipelining;

use super::{Node, NodeShared, options::services::ServiceOptions};
use crate::{
    address::{advertised, bind},
    error::Error,
    lock::lock,
    pending::{Pending, on_a_thread},
    service::{
        Begin, Export, ReplicaStatus, Service, ServiceLoop, Stub,
        host::{Host, HostSettings},
        stub::Connection,
    },
};

impl Node {
    /// Hosts a replica of a service that begins in `state`. All replicas of a set begin in the same state,
    /// byte for byte. Clients know the service only by its name and its type.
    ///
    /// A founder first asks the [seeds](super::Builder::seeds), for about 2 s at most. If one of them shows a
    /// set of this name, founding fails. A joiner's future is ready at once, and its replica joins later
    /// ([`Node::replica_status`]). A replica whose log is on the node's disk
    /// ([durable](super::Builder::durable)) continues from its log, whatever `begin` says.
    pub fn serve<S: Service>(&self, name: impl Into<String>, state: S, begin: Begin) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("start", move || node.become_host()?.serve(&name, state, begin))
    }

    /// Hosts a replica of a service that completes its requests by [threads of its own](ServiceLoop). All
    /// replicas of a set must be hosted this way.
    pub fn serve_loop<S: ServiceLoop>(
        &self,
        name: impl Into<String>,
        state: S,
        begin: Begin,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("start", move || node.become_host()?.serve_loop(&name, state, begin))
    }

    /// Copies the state of this node's replica of a service. The copy has only changes that the replicas have
    /// agreed on, and nothing of open transactions. A leader's copy has all changes that were answered before
    /// this call; the copy of another replica may lag behind ([`Export::led`]).
    pub fn export(&self, name: &str) -> Pending<'static, Export> {
        let (host, name) = (self.hosting(name), name.to_owned());
        on_a_thread("export", move || host?.export(&name))
    }

    /// Founds a new set of a service, which begins with the exported state of another set. `first` is the
    /// usual first state of the service, as for replicas that [join](Begin::Join). The future is ready when
    /// the state is restored. If restoring fails, the node does not serve the service.
    pub fn restore<S: Service>(
        &self,
        name: impl Into<String>,
        first: S,
        export: Export,
        replicas: u8,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("restore", move || node.become_host()?.restore(&name, first, &export, replicas))
    }

    /// Restores a service that completes its requests by [threads of its own](ServiceLoop), like
    /// [`Node::restore`].
    pub fn restore_loop<S: ServiceLoop>(
        &self,
        name: impl Into<String>,
        first: S,
        export: Export,
        replicas: u8,
    ) -> Pending<'static, ()> {
        let (node, name) = (self.clone(), name.into());
        on_a_thread("restore", move || node.become_host()?.restore_loop(&name, first, &export, replicas))
    }

    fn become_host(&self) -> Result<Arc<Host>, Error> {
        let mut host = lock(&self.0.capabilities.services.host);
        if let Some(host) = &*host {
            return Ok(host.clone());
        }
        let NodeShared { settings, listener, address, directory_lock, .. } = &*self.0;
        let (listener, advertised) = match listener {
            Some(listener) => (listener.clone(), settings.advertised(*address)),
            None => {
                let (listen, advertise) = settings.further_addresses(*address);
                let (listener, bound) = bind(&listen)?;
                (listener, advertised(advertise.as_deref(), bound))
            }
        };
        let options = &settings.options.services;
        let terms = HostSettings {
            domain: options.services.clone(),
            listener,
            advertised,
            further_addresses: settings.further_addresses(*address),
            insecure: settings.insecure,
            seeds: options.seeds.clone(),
            log_bytes_kept: options.log_bytes_kept,
            checks: options.checks,
            state_bytes_max: options.state_bytes_max,
            pipelining: match options.one_at_a_time {
                true => Pipelining::OneAtATime,
                false => Pipelining::Speculative,
            },
            directory: settings.hosts_directory(directory_lock.as_deref()),
            http: options.http.clone(),
        };
        Ok(host.insert(Arc::new(Host::start(terms)?)).clone())
    }

    /// Ends this node's replica of a service for good, as if it had been killed: the other replicas go on,
    /// and a spare host replaces this node. The node may serve the service again later.
    pub fn withdraw(&self, name: &str) -> Result<(), Error> {
        self.hosting(name)?.withdraw(name)
    }

    /// Makes the host at this address a replica, even beyond the wanted number. The host must already serve
    /// the service, as a spare, at the address of its [`ReplicaStatus`]. Any node with a replica can make
    /// this change. The future ends when the new replica has all changes that the replicas have agreed on.
    pub fn add_replica(&self, name: &str, new: &str) -> Pending<'static, ()> {
        self.change_replicas(name, None, new)
    }

    /// Adds a replica like [`Node::add_replica`], and then removes the replica at the address `old`, whether
    /// that replica lives or not. A living replica becomes a spare.
    pub fn replace_replica(&self, name: &str, old: &str, new: &str) -> Pending<'static, ()> {
        self.change_replicas(name, Some(old.to_owned()), new)
    }

    fn change_replicas(&self, name: &str, old: Option<String>, new: &str) -> Pending<'static, ()> {
        let (host, name, new) = (self.hosting(name), name.to_owned(), new.to_owned());
        on_a_thread("replace", move || host?.host_shared().change(&name, old.as_deref(), &new))
    }

    /// Returns the host for a request about a service. Fails if the node hosts no service.
    fn hosting(&self, name: &str) -> Result<Arc<Host>, Error> {
        lock(&self.0.capabilities.services.host)
            .clone()
            .ok_or_else(|| Error::start(format!("this node serves no service `{name}`")))
    }

    /// Returns the present state of this node's replica of a service, or `None` if the node hosts none.
    pub fn replica_status(&self, name: &str) -> Option<ReplicaStatus> {
        lock(&self.0.capabilities.services.host).clone()?.replica_status(name)
    }

    /// Returns the names of the services that the node hosts, and the present states of their replicas.
    pub fn services(&self) -> Vec<(String, ReplicaStatus)> {
        lock(&self.0.capabilities.services.host).clone().map_or_else(Vec::new, |host| host.services())
    }

    /// Returns the address of the node's HTTP door, if it [has one](super::Builder::http) and hosts a
    /// service.
    pub fn http_address(&self) -> Option<SocketAddr> {
        lock(&self.0.capabilities.services.host).clone()?.http_address()
    }

    /// Returns the stub of a service that is hosted at the node's [seeds](super::Builder::seeds) or at this
    /// node. The first call finds out whether there is a service of this name.
    pub fn service<S: Service>(&self, name: &str) -> Result<Stub<S>, Error> {
        let mut calls = lock(&self.0.capabilities.services.calls);
        if calls.is_none() {
            let ServiceOptions { services, seeds, call_wait, .. } = &self.0.settings.options.services;
            let own =
                lock(&self.0.capabilities.services.host).as_ref().map(|host| host.address().to_string());
            let addresses = seeds.iter().cloned().chain(own).collect();
            *calls = Some(Connection::start(services, addresses, *call_wait)?);
        }
        Ok(calls.as_ref().expect("just started").service(name))
    }
}
