//! The state of a process, served over HTTP.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::node::Member;
use quorate_protocol::{DomainId, Role};
use quorate_roles::tables::{operate::AdminOperation, status::GroupStatus};
use quorate_runtime::{
    discover::{DiscoveredProcess, DomainAnswer, DomainState, discover},
    metrics::Metrics,
};
use quorate_server::http::AdminPage;
use quorate_table::engine::Usage;
use serde_json::{Value, json};

use crate::config::NodeConfig;

/// Longest time that the protocol thread may take to report its state.
const PATIENCE: Duration = Duration::from_millis(800);

/// Longest time for an operation to be ordered.
const OPERATE_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time of an operation for which a new process must also get rows or keys.
const MOVE_PATIENCE: Duration = Duration::from_secs(30);

/// A member whose state is served.
pub(crate) struct NodeView {
    name: String,
    role: Role,
    domain: DomainId,
    member: Member,
    /// Counters of the process's doors.
    doors: Metrics,
    /// Start of the process, in milliseconds of Unix time.
    started: u64,
}

impl NodeView {
    pub(crate) fn new(config: &NodeConfig, member: Member, doors: Metrics) -> Self {
        let (name, role) = (name_of(config, member.role()), member.role());
        NodeView { name, role, domain: config.domain, member, doors, started: unix_ms() }
    }
}

/// Returns the present time in milliseconds of Unix time.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Returns the name, for display, of the member in this role. A second member in the process gets the role as
/// a suffix.
pub(crate) fn name_of(config: &NodeConfig, role: Role) -> String {
    if role == config.role { config.name.clone() } else { format!("{}-{role}", config.name) }
}

/// Returns the longest time that an operation may take.
fn patience(operation: &AdminOperation) -> Duration {
    match *operation {
        AdminOperation::AddRouter { .. } => MOVE_PATIENCE,
        AdminOperation::Reform { patience_ms } | AdminOperation::Refound { patience_ms, .. } => {
            OPERATE_PATIENCE + Duration::from_millis(patience_ms)
        }
        AdminOperation::RemoveRouter { .. }
        | AdminOperation::DeclareLost { .. }
        | AdminOperation::Replace { .. } => OPERATE_PATIENCE,
    }
}

impl quorate_server::http::AdminView for NodeView {
    fn name(&self) -> String {
        format!("{} ({})", self.name, self.role)
    }

    fn has(&self, view: AdminPage) -> bool {
        match view {
            AdminPage::Health | AdminPage::Status | AdminPage::Metrics => true,
            AdminPage::Tables => self.role == Role::Storage,
            AdminPage::Groups => self.role == Role::Router,
            AdminPage::Recent => false,
        }
    }

    fn health(&self) -> Result<(), String> {
        let status = self
            .member
            .process()
            .status(PATIENCE)
            .ok_or("the protocol thread of this process does not answer")?;
        if let Some(why) = status.hindrance {
            return Err(why);
        }
        let Some(address) = status.leader_address else { return Ok(()) };
        // If the leader is frozen or has lost its majority, no message tells this process so. Therefore this
        // process asks the leader.
        match discover(&address, self.domain, PATIENCE) {
            Ok(DiscoveredProcess { answer: DomainAnswer { presence: DomainState::Settled, .. }, .. }) => {
                Ok(())
            }
            Ok(_) => Err(format!(
                "the lead router at {address} has no majority of the routers: nothing can be written"
            )),
            Err(error) => Err(format!("the lead router does not answer at {address}: {error}")),
        }
    }

    fn status(&self) -> String {
        let me = self.member.id();
        let mut status = match self.member.process().status(PATIENCE) {
            Some(status) => serde_json::to_value(status).unwrap_or_default(),
            None => json!({ "state": "silent", "position": 0 }),
        };
        if let Value::Object(fields) = &mut status {
            fields.insert(String::from("name"), json!(self.name));
            fields.insert(String::from("role"), json!(self.role));
            fields.insert(String::from("domain"), json!(self.domain.to_string()));
            fields.insert(String::from("node"), json!(me.node));
            fields.insert(String::from("incarnation"), json!(format!("{:032x}", me.incarnation.0)));
            fields.insert(String::from("started"), json!(self.started));
            fields.insert(String::from("disk"), json!(self.member.disk()));
            let (lives, former_end) = self.member.lives();
            fields.insert(String::from("lives"), json!(lives));
            fields.insert(String::from("former_end"), json!(former_end.as_deref()));
        }
        status.to_string()
    }

    fn metrics(&self) -> String {
        // `disk` measures the used space, which updates one of the gauges.
        let _ = self.member.disk();
        // The text joins two registries, so the end mark of the first is removed.
        let doors = self.doors.render();
        doors.trim_end_matches("# EOF\n").to_owned() + &self.member.metrics().render()
    }

    fn tables(&self) -> String {
        let usage = self.member.process().usage(PATIENCE).unwrap_or_default();
        let table =
            |usage: &Usage| json!({ "table": usage.table.0, "rows": usage.rows, "bytes": usage.bytes });
        Value::Array(usage.iter().map(table).collect()).to_string()
    }

    fn groups(&self) -> String {
        if self.role != Role::Router {
            return String::from("[]");
        }
        let roster = self.member.process().groups(PATIENCE).unwrap_or_default();
        json!(GroupStatus::of(&roster)).to_string()
    }

    fn operate(&self, operation: &str) -> Result<String, String> {
        let operation: AdminOperation = serde_json::from_str(operation)
            .map_err(|error| format!("the request is not an operation of this process: {error}"))?;
        let patience = patience(&operation);
        self.member.operate(&operation, patience)?;
        Ok(quorate_server::http::AdminView::status(self))
    }
}
