//! What a process shows over HTTP.

use std::{sync::Arc, time::Duration};

use quorate_protocol::ProcessId;
use quorate_runtime::{metrics::Metrics, process::Process};
use serde_json::{Value, json};

use crate::config::NodeConfig;

/// How long the protocol thread may take to say where it stands.
const PATIENCE: Duration = Duration::from_millis(800);

/// One process.
pub(crate) struct Exhibit {
    name: String,
    role: &'static str,
    me: ProcessId,
    process: Arc<Process>,
    metrics: Metrics,
}

impl Exhibit {
    pub(crate) fn new(config: &NodeConfig, me: ProcessId, process: Arc<Process>, metrics: Metrics) -> Self {
        Exhibit { name: config.name.clone(), role: config.role.as_str(), me, process, metrics }
    }
}

impl quorate_server::http::Exhibit for Exhibit {
    fn health(&self) -> Result<(), String> {
        match self.process.status(PATIENCE) {
            None => Err(String::from("the protocol thread does not answer")),
            Some(status) if status.state == "joining" => Err(String::from("joining")),
            Some(_) => Ok(()),
        }
    }

    fn status(&self) -> String {
        let mut status = match self.process.status(PATIENCE) {
            Some(status) => serde_json::to_value(status).unwrap_or_default(),
            None => json!({ "state": "silent", "position": 0 }),
        };
        if let Value::Object(fields) = &mut status {
            fields.insert(String::from("name"), json!(self.name));
            fields.insert(String::from("role"), json!(self.role));
            fields.insert(String::from("node"), json!(self.me.node));
            fields.insert(String::from("incarnation"), json!(format!("{:032x}", self.me.incarnation.0)));
        }
        status.to_string()
    }

    fn metrics(&self) -> String {
        self.metrics.render()
    }
}
