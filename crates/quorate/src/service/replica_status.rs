//! The present state of a replica of a service.

use quorate_protocol::ProcessId;

/// The state of a service at one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The process that hosts the replica.
    pub me: Option<ProcessId>,
    /// The random number of the replica's set, or `None` while the replica looks for a set.
    pub set: Option<u64>,
    /// The replica that leads, as far as this replica knows.
    pub leader: Option<ProcessId>,
    /// Whether this replica executes calls.
    pub serving: bool,
    /// Whether the thread that serves the links also executes the service's requests
    /// ([`Service::SHORT`](super::Service::SHORT)).
    pub inline: bool,
    /// The replicas and their addresses. This process is one of them once it has been admitted as a replica.
    pub replicas: Vec<(ProcessId, String)>,
    /// Number of changes in the replica's state. At a leader, the replicas may not have agreed on some of
    /// them yet.
    pub changes: u64,
    /// Number of checkpoints of other replicas that replaced this replica's state.
    pub restored: u64,
    /// The address at which other processes reach the replica. It differs from the host's address once the
    /// replica has come back as another process.
    pub address: Option<String>,
    /// Number of replicas of this service that this host has had so far, one after another.
    pub lives: u64,
    /// The reason why the latest replica ended. After a pause another replica replaces it.
    pub last_end: Option<String>,
    /// The reason why the host starts no further replica.
    pub ended: Option<String>,
    /// Former processes of the replica whose journals the host keeps. The set has not voted these processes
    /// out, so it may still count on their journals. The host removes a journal when the set has voted the
    /// process out, or when the service is withdrawn here.
    pub kept: Vec<ProcessId>,
}
