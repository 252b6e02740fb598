//! The HTTP door of a running host, from outside.
//!
//! **What may have happened.** A host that cannot be reached, or says that nothing was done, is followed by the next one. A request whose answer is lost may have
//! taken effect. So it goes to the next one only if it can be asked twice: it looks only, or has a key.

use std::{
    io::{self, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use quorate::service::Export;
use quorate_command::say;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Where hosts serve HTTP.
#[derive(clap::Args)]
pub(super) struct Doors {
    /// Where a host serves HTTP, `host:port`. Can be repeated: the others are asked if one does not answer.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    at: Vec<String>,
}

/// What is asked.
pub(super) enum Method {
    Get,
    Delete,
    Post { body: String, key: Option<String> },
}

impl Method {
    /// Whether it comes to the same if it is asked twice.
    fn can_be_repeated(&self) -> bool {
        match self {
            Method::Get => true,
            Method::Post { key, .. } => key.is_some(),
            Method::Delete => false,
        }
    }
}

/// Why a host did not do it.
struct Failure {
    why: String,
    /// Whether it may have done it all the same.
    lost: bool,
    then: Then,
}

/// What may come behind a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Nothing: another host would say the same, or it may have been done.
    Stop,
    /// Another host.
    Next,
    /// Another host, and this one again: it passes.
    Again,
}

/// An error, as a door tells it.
#[derive(Deserialize)]
struct Words {
    error: String,
    why: String,
}

/// A service of a host, as its door tells it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Listed {
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
}

impl Listed {
    /// What its replica is.
    fn state(&self) -> String {
        match self {
            Listed { ended: Some(why), .. } => format!("ended: {why}"),
            Listed { serving: true, .. } => String::from("leads"),
            Listed { set: None, .. } => String::from("looks for others"),
            Listed { replicas, address: Some(address), .. } if replicas.contains(address) => {
                String::from("follows")
            }
            _ => String::from("spare"),
        }
    }
}

/// The path of a service, and of something of it.
pub(super) fn path(name: &str, of: &str) -> String {
    // All but the bytes that a path holds as they are.
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

    /// Asks the hosts, one after the other, and again for some time while that helps: a set whose leader died has another one soon.
    pub(super) fn ask(&self, method: &Method, path: &str) -> Result<Vec<u8>> {
        let until = Instant::now() + ROUNDS_MAX;
        let (mut last, mut lost) = (String::new(), None);
        loop {
            let mut again = false;
            for at in &self.at {
                let Failure { why, lost: may_have, then } = match ask_one(at, method, path) {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => failure,
                };
                if may_have {
                    lost.get_or_insert_with(|| why.clone());
                }
                match then {
                    Then::Stop => bail!(why),
                    Then::Next => {}
                    Then::Again => again = true,
                }
                last = why;
            }
            if !again || Instant::now() >= until {
                bail!(lost.unwrap_or(last));
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Asks one host.
fn ask_one(at: &str, method: &Method, path: &str) -> Result<Vec<u8>, Failure> {
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
    let repeated = |then| if method.can_be_repeated() { then } else { Then::Stop };
    let failed = |error: ureq::Error| match is_unsent(&error) {
        true => Failure { why: format!("{at} does not answer: {error}"), lost: false, then: Then::Next },
        false => {
            let why =
                format!("maybe_applied: {at} has not answered ({error}); it may have been done, or will be");
            Failure { why, lost: true, then: repeated(Then::Next) }
        }
    };
    let mut response = sent.map_err(failed)?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec().map_err(failed)?;
    if status.is_success() {
        return Ok(body);
    }
    let Ok(Words { error, why }) = serde_json::from_slice(&body) else {
        let said = String::from_utf8_lossy(&body);
        let why = format!("{at} answers {status}: {said}");
        return Err(Failure { why, lost: false, then: Then::Stop });
    };
    let (lost, then) = match error.as_str() {
        "not_sent" | "busy" => (false, Then::Again),
        "unknown" => (false, Then::Next),
        "maybe_applied" => (true, repeated(Then::Again)),
        _ => (false, Then::Stop),
    };
    Err(Failure { why: format!("{error}: {why}"), lost, then })
}

/// Whether the host was not reached at all.
fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(phase) => matches!(phase, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

/// The services of one host.
fn services(at: &str) -> Result<Vec<Listed>, String> {
    let body = ask_one(at, &Method::Get, "/services").map_err(|failure| failure.why)?;
    serde_json::from_slice(&body).map_err(|error| format!("{at} is no host of services: {error}"))
}

pub(super) fn list(doors: &Doors, json: bool) -> Result<()> {
    let answers: Vec<_> = doors.at.iter().map(|at| (at, services(at))).collect();
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["HTTP", "SERVICE", "STATE", "CHANGES", "SET", "ADDRESS", "REPLICAS"]);
    table.column_mut(3).expect("it has a header").set_cell_alignment(CellAlignment::Right);
    let mut out = io::stdout().lock();
    for (at, answer) in &answers {
        match answer {
            Ok(services) => {
                for service in services {
                    if json {
                        let told = serde_json::to_value(service)?;
                        let serde_json::Value::Object(mut told) = told else {
                            unreachable!("it is a struct")
                        };
                        told.insert(String::from("http"), json!(at));
                        told.insert(String::from("state"), json!(service.state()));
                        writeln!(out, "{}", serde_json::Value::Object(told))?;
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
            Err(why) => writeln!(io::stderr(), "quorate: {why}")?,
        }
    }
    if answers.iter().all(|(_, answer)| answer.is_err()) {
        bail!("no host answers");
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
        say!("{}", String::from_utf8_lossy(&answer))?;
        return Ok(());
    }
    let service: Listed = serde_json::from_slice(&answer).context("the host's answer")?;
    say!("the replicas of {name} are {}", service.replicas.join(", "))?;
    Ok(())
}

pub(super) fn export(doors: &Doors, name: &str, file: &Path, json: bool) -> Result<()> {
    let leads = |at: &&String| {
        services(at).is_ok_and(|services| services.iter().any(|it| it.name == name && it.serving))
    };
    // The one that leads is asked first; it may die meanwhile.
    let leader = doors.at.iter().find(leads).into_iter();
    let at = leader.chain(&doors.at).cloned().collect();
    let bytes = Doors { at }.ask(&Method::Get, &path(name, "/export"))?;
    let length = bytes.len();
    let export = Export::decode(bytes.into()).map_err(anyhow::Error::msg).context("the host's export")?;
    export.write(file)?;
    if json {
        let told = json!({
            "service": export.name(), "set": format!("{:016x}", export.set()), "changes": export.changes(),
            "led": export.led(), "bytes": length, "file": file.display().to_string(),
        });
        say!("{told}")?;
        return Ok(());
    }
    let behind = if export.led() { "" } else { ", of a replica that does not lead: it may lag" };
    say!(
        "{} holds {} changes of set {:016x}, {length} bytes{behind}",
        file.display(),
        export.changes(),
        export.set()
    )?;
    Ok(())
}

/// How long something may take: longer than a host itself waits for it.
const PATIENCE: Duration = Duration::from_secs(70);

/// How long a host may take to be reached.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// How long hosts that did nothing are asked again.
const ROUNDS_MAX: Duration = Duration::from_secs(10);

/// Between two rounds of the hosts.
const PAUSE: Duration = Duration::from_millis(100);
