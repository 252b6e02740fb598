//! A client of the HTTP door of a running host.
//!
//! **Retries.** If a host cannot be reached, or says that it did nothing, the client asks the next host. A
//! request whose answer is lost may have taken effect. In that case the client asks the next host only if the
//! request may be repeated, because it only reads or has a key.

use std::{
    io::{self, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use quorate::service::Export;
use quorate_command::{log_stderr, report};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The HTTP addresses of hosts.
#[derive(clap::Args)]
pub(super) struct Doors {
    /// HTTP address of a host, `host:port`. Can be repeated: if a host does not answer, the next one is
    /// asked.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    at: Vec<String>,
}

/// The method of a request.
pub(super) enum Method {
    Get,
    Delete,
    Post { body: String, key: Option<String> },
}

impl Method {
    /// Whether repeating the request has no further effect.
    fn can_be_repeated(&self) -> bool {
        match self {
            Method::Get => true,
            Method::Post { key, .. } => key.is_some(),
            Method::Delete => false,
        }
    }
}

/// The reason why a host did not perform a request.
struct HostFailure {
    why: String,
    /// Whether the host may have performed the request nevertheless.
    lost: bool,
    then: NextStep,
}

/// The next step after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// Stop: another host would give the same answer, or the request may have taken effect.
    Stop,
    /// Ask the next host.
    Next,
    /// Ask the next host, and this host again later, because the failure is temporary.
    Again,
}

/// An error in the answer of a door.
#[derive(Deserialize)]
struct DoorError {
    error: String,
    why: String,
}

/// A service of a host, as in the answer of its door.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ServiceEntry {
    name: String,
    set: Option<String>,
    leader: Option<String>,
    serving: bool,
    replicas: Vec<String>,
    address: Option<String>,
    changes: u64,
    lives: u64,
    last_end: Option<String>,
    ended: Option<String>,
    /// Ids of processes that ended at the host and whose journals are kept.
    #[serde(default)]
    kept: Vec<String>,
}

impl ServiceEntry {
    /// Returns the state of the host's replica, for display.
    fn state(&self) -> String {
        let state = self.role();
        if self.kept.is_empty() { state } else { format!("{state}, keeps a journal") }
    }

    fn role(&self) -> String {
        match self {
            ServiceEntry { ended: Some(why), .. } => format!("ended: {why}"),
            ServiceEntry { serving: true, .. } => String::from("leads"),
            ServiceEntry { set: None, .. } => String::from("looks for others"),
            ServiceEntry { replicas, address: Some(address), .. } if replicas.contains(address) => {
                String::from("follows")
            }
            _ => String::from("spare"),
        }
    }
}

/// Returns the path of a service, followed by `of`.
pub(super) fn path(name: &str, of: &str) -> String {
    // Bytes that a path cannot contain are percent-encoded.
    let mut path = String::from("/services/");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => path.push(byte.into()),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path + of
}

impl Doors {
    pub(super) fn one(at: String) -> Doors {
        Doors { at: vec![at] }
    }

    /// Asks one host after another. Repeats the round for up to `ROUNDS_MAX` while failures are temporary: a
    /// set whose leader died soon has a new leader.
    pub(super) fn ask(&self, method: &Method, path: &str) -> Result<Vec<u8>> {
        let until = Instant::now() + ROUNDS_MAX;
        let (mut last, mut lost) = (String::new(), None);
        loop {
            let mut again = false;
            for at in &self.at {
                let HostFailure { why, lost: may_have, then } = match ask_one(at, method, path) {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => failure,
                };
                if may_have {
                    lost.get_or_insert_with(|| why.clone());
                }
                match then {
                    NextStep::Stop => bail!(why),
                    NextStep::Next => {}
                    NextStep::Again => again = true,
                }
                last = why;
            }
            if !again || Instant::now() >= until {
                bail!(lost.unwrap_or(last));
            }
            thread::sleep(ROUND_PAUSE);
        }
    }
}

/// Asks one host.
fn ask_one(at: &str, method: &Method, path: &str) -> Result<Vec<u8>, HostFailure> {
    let agent = ureq::Agent::config_builder()
        .timeout_connect(Some(CONNECT_PATIENCE))
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false);
    let agent: ureq::Agent = agent.build().into();
    let url = format!("http://{at}{path}");
    let sent = match method {
        Method::Get => agent.get(&url).call(),
        Method::Delete => agent.delete(&url).call(),
        Method::Post { body, key } => {
            let post = agent.post(&url).content_type("application/json");
            let post = match key {
                Some(key) => post.header("Idempotency-Key", key),
                None => post,
            };
            post.send(body)
        }
    };
    let repeated = |then| if method.can_be_repeated() { then } else { NextStep::Stop };
    let failed = |error: ureq::Error| match is_unsent(&error) {
        true => HostFailure {
            why: format!("the host at {at} does not answer: {error}"),
            lost: false,
            then: NextStep::Next,
        },
        false => {
            let why = format!(
                "maybe_applied: the host at {at} has not answered ({error}); the request may take effect, or may have done so"
            );
            HostFailure { why, lost: true, then: repeated(NextStep::Next) }
        }
    };
    let mut response = sent.map_err(failed)?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec().map_err(failed)?;
    if status.is_success() {
        return Ok(body);
    }
    let Ok(DoorError { error, why }) = serde_json::from_slice(&body) else {
        let said = String::from_utf8_lossy(&body);
        let why = format!("the host at {at} answers {status}: {said}");
        return Err(HostFailure { why, lost: false, then: NextStep::Stop });
    };
    let (lost, then) = match error.as_str() {
        "not_sent" | "busy" => (false, NextStep::Again),
        "unknown" => (false, NextStep::Next),
        "maybe_applied" => (true, repeated(NextStep::Again)),
        _ => (false, NextStep::Stop),
    };
    Err(HostFailure { why: format!("{error}: {why}"), lost, then })
}

/// Whether the request certainly did not reach the host.
fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(phase) => matches!(phase, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

/// Returns the services of one host.
fn services(at: &str) -> Result<Vec<ServiceEntry>, String> {
    let body = ask_one(at, &Method::Get, "/services").map_err(|failure| failure.why)?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("the answer from {at} is not a list of services: {error}"))
}

pub(super) fn list(doors: &Doors, json: bool) -> Result<()> {
    let answers: Vec<_> = doors.at.iter().map(|at| (at, services(at))).collect();
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["HTTP", "SERVICE", "STATE", "CHANGES", "SET", "ADDRESS", "REPLICAS"]);
    table.column_mut(3).expect("the header has seven columns").set_cell_alignment(CellAlignment::Right);
    let mut out = io::stdout().lock();
    for (at, answer) in &answers {
        match answer {
            Ok(services) => {
                for service in services {
                    if json {
                        let description = serde_json::to_value(service)?;
                        let serde_json::Value::Object(mut description) = description else {
                            unreachable!("a struct is serialized as an object")
                        };
                        description.insert(String::from("http"), json!(at));
                        description.insert(String::from("state"), json!(service.state()));
                        writeln!(out, "{}", serde_json::Value::Object(description))?;
                        continue;
                    }
                    let mut replicas = service.replicas.clone();
                    replicas.sort_unstable();
                    table.add_row([
                        (*at).clone(),
                        service.name.clone(),
                        service.state(),
                        service.changes.to_string(),
                        service.set.clone().unwrap_or_else(|| String::from("-")),
                        service.address.clone().unwrap_or_else(|| String::from("-")),
                        replicas.join(", "),
                    ]);
                }
            }
            Err(why) => log_stderr(why),
        }
    }
    if answers.iter().all(|(_, answer)| answer.is_err()) {
        bail!("no host answers at the addresses given with --at");
    }
    if !json {
        writeln!(out, "{table}")?;
    }
    Ok(())
}

pub(super) fn change(doors: &Doors, name: &str, old: Option<&str>, new: &str, json: bool) -> Result<()> {
    let wish = match old {
        Some(old) => json!({ "new": new, "old": old }),
        None => json!({ "new": new }),
    };
    let ask = Method::Post { body: wish.to_string(), key: None };
    let answer = doors.ask(&ask, &path(name, "/replicas"))?;
    if json {
        report!("{}", String::from_utf8_lossy(&answer));
        return Ok(());
    }
    let service: ServiceEntry = serde_json::from_slice(&answer).context("cannot read the host's answer")?;
    report!("the replicas of {name} are {}", service.replicas.join(", "));
    Ok(())
}

pub(super) fn export(doors: &Doors, name: &str, file: &Path, json: bool) -> Result<()> {
    let leads = |at: &&String| {
        services(at).is_ok_and(|services| services.iter().any(|it| it.name == name && it.serving))
    };
    // The client asks the leading host first. That host may have died in the meantime.
    let leader = doors.at.iter().find(leads).into_iter();
    let at = leader.chain(&doors.at).cloned().collect();
    let bytes = Doors { at }.ask(&Method::Get, &path(name, "/export"))?;
    let length = bytes.len();
    let export =
        Export::decode(bytes.into()).map_err(anyhow::Error::msg).context("cannot read the host's export")?;
    export.write(file)?;
    if json {
        let summary = json!({
            "service": export.name(), "set": format!("{:016x}", export.set()), "changes": export.changes(),
            "led": export.led(), "bytes": length, "file": file.display().to_string(),
        });
        report!("{summary}");
        return Ok(());
    }
    let behind =
        if export.led() { "" } else { "; the replica that exported them does not lead and may lag behind" };
    report!(
        "{} holds {} changes of set {:016x}, {length} bytes{behind}",
        file.display(),
        export.changes(),
        export.set()
    );
    Ok(())
}

/// Longest time of a request. The host itself waits for less.
const PATIENCE: Duration = Duration::from_secs(70);

/// Longest time to connect to a host.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Time after which the client stops asking hosts that did nothing.
const ROUNDS_MAX: Duration = Duration::from_secs(10);

/// Pause between two rounds.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
