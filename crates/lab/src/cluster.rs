//! Real processes of a cluster, each started from its own configuration and stopped singly.
//!
//! `quorate up` restarts processes that die. An experiment about the time before such a restart starts its
//! processes itself.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

/// Time within which a cluster must be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster, and the directory of its configurations and logs. Dropping it ends all processes.
pub struct Cluster {
    place: TempDir,
    program: PathBuf,
    processes: Vec<Process>,
}

/// One process.
struct Process {
    name: String,
    role: &'static str,
    listen: SocketAddr,
    http: SocketAddr,
    sql: SocketAddr,
    child: Option<Child>,
}

impl Cluster {
    /// Starts `routers` routers and `storage` storage processes, two supers and a gateway, and waits until
    /// they answer.
    pub fn start(program: PathBuf, routers: usize, storage: usize) -> Result<Cluster> {
        let place = tempfile::tempdir()?;
        let roles = [("router", routers), ("super", 2), ("storage", storage), ("gateway", 1)];
        let names = roles.into_iter().flat_map(|(role, count)| (1..=count).map(move |number| (role, number)));
        // All ports stay bound until all are known, so that no port is assigned twice.
        let held: Vec<(&'static str, usize, [TcpListener; 3])> = names
            .map(|(role, number)| Ok((role, number, [free_port()?, free_port()?, free_port()?])))
            .collect::<Result<_>>()?;
        let processes = held
            .iter()
            .map(|(role, number, ports)| {
                let [listen, http, sql] = ports.each_ref().map(TcpListener::local_addr);
                let name = format!("{role}-{number}");
                Ok(Process { name, role, listen: listen?, http: http?, sql: sql?, child: None })
            })
            .collect::<Result<Vec<_>>>()?;
        drop(held);
        let mut cluster = Cluster { place, program, processes };
        cluster.configure(routers, storage)?;
        for index in 0..cluster.processes.len() {
            cluster.spawn(index)?;
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    fn configure(&self, routers: usize, storage: usize) -> Result<()> {
        let domain = format!("{:032x}", std::process::id());
        let all: Vec<String> = self.of("router").map(|process| process.listen.to_string()).collect();
        for (node, process) in (1..).zip(&self.processes) {
            let own = process.listen.to_string();
            let others: Vec<&String> = all.iter().filter(|router| **router != own).collect();
            let mut lines = vec![
                format!("domain = {domain:?}"),
                format!("node = {node}"),
                format!("name = {:?}", process.name),
                format!("role = {:?}", process.role),
                format!("listen = {own:?}"),
                format!("http_listen = {:?}", process.http.to_string()),
                format!("found = {}", node == 1),
                format!("routers = {others:?}"),
                format!("wanted_routers = {routers}"),
                format!("wanted_storage = {storage}"),
                String::from("supervised = true"),
            ];
            if process.role == "gateway" {
                lines.push(format!("sql_listen = {:?}", process.sql.to_string()));
            }
            fs::write(self.path(&process.name, "toml"), lines.join("\n") + "\n")?;
        }
        Ok(())
    }

    fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.place.path().join(format!("{name}.{kind}"))
    }

    fn of(&self, role: &'static str) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| process.role == role)
    }

    fn spawn(&mut self, index: usize) -> Result<()> {
        let name = self.processes[index].name.clone();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path(&name, "log"))?;
        let child = Command::new(&self.program)
            .args(["node", "--config"])
            .arg(self.path(&name, "toml"))
            // The pipe closes when this process ends, however it ends, and the child ends with it.
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        self.processes[index].child = Some(child.with_context(|| self.program.display().to_string())?);
        Ok(())
    }

    /// Waits until routers, storage processes and gateway are ready.
    fn wait_until_whole(&self) -> Result<()> {
        let states = |role| self.of(role).map(state).collect::<Vec<_>>();
        let began = Instant::now();
        loop {
            let is = |state: &Option<String>, wanted: &str| state.as_deref() == Some(wanted);
            let routers = states("router");
            let leading = routers.iter().filter(|state| is(state, "leading")).count();
            let following = routers.iter().filter(|state| is(state, "following")).count();
            let serving = states("storage").iter().all(|state| is(state, "serving"));
            if leading == 1 && following + 1 == routers.len() && serving && self.is_well() {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!(
                    "the cluster is not ready after {} s; the states of its routers are {routers:?}",
                    PATIENCE.as_secs()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the gateway reports that it is ready.
    fn is_well(&self) -> bool {
        self.of("gateway").all(|gateway| ask(gateway, "health").is_ok())
    }

    /// Returns the gateway's SQL address.
    pub fn sql(&self) -> SocketAddr {
        self.of("gateway").next().expect("every cluster has a gateway").sql
    }

    /// Returns the name of the leading router.
    pub fn lead(&self) -> Result<String> {
        self.router("leading")
    }

    /// Returns the name of a following router.
    pub fn follower(&self) -> Result<String> {
        self.router("following")
    }

    fn router(&self, wanted: &str) -> Result<String> {
        let found = self.of("router").find(|process| state(process).as_deref() == Some(wanted));
        Ok(found.with_context(|| format!("no router of the cluster is in the state {wanted}"))?.name.clone())
    }

    /// Ends a process without warning.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        let process = self.named(name)?;
        let mut child = process
            .child
            .take()
            .with_context(|| format!("the process {name} does not run, so it cannot be killed"))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Starts a process again, as a new one at the same addresses, and waits until it reports the state
    /// `until`.
    pub fn replace(&mut self, name: &str, until: &str) -> Result<()> {
        let index = self.processes.iter().position(|process| process.name == name);
        let index = index.with_context(|| format!("the cluster has no process named {name}"))?;
        ensure!(
            self.processes[index].child.is_none(),
            "the process {name} still runs, so it cannot be replaced"
        );
        self.spawn(index)?;
        let began = Instant::now();
        while state(&self.processes[index]).as_deref() != Some(until) {
            ensure!(
                began.elapsed() < PATIENCE,
                "the process {name} is not in the state {until} after {} s",
                PATIENCE.as_secs()
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn named(&mut self, name: &str) -> Result<&mut Process> {
        let found = self.processes.iter_mut().find(|process| process.name == name);
        found.with_context(|| format!("the cluster has no process named {name}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().filter_map(|process| process.child.as_mut()) {
            // The process may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> Result<TcpListener> {
    TcpListener::bind("127.0.0.1:0").context("cannot find a free port on 127.0.0.1")
}

/// Returns the state that a process reports, if it answers.
fn state(process: &Process) -> Option<String> {
    let status: Value = serde_json::from_str(&ask(process, "status").ok()?).ok()?;
    Some(status.get("state")?.as_str()?.to_owned())
}

fn ask(process: &Process, what: &str) -> Result<String> {
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(1))).build();
    let url = format!("http://{}/{what}", process.http);
    Ok(ureq::Agent::new_with_config(config).get(&url).call()?.body_mut().read_to_string()?)
}
