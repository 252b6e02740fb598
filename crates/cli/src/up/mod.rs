//! `quorate up`: runs a whole cluster on this machine, each process as an operating-system process of its
//! own.
//!
//! This file starts or continues the cluster, and greets its user.
//!
//! | file | subject |
//! |---|---|
//! | `start` | the flags, and the cluster that they and the directory describe |
//! | `plan` | the processes and their addresses |
//! | `supervisor` | keeps the processes running |
//! | `cells` | the cells and their first map |
//! | `records` | the files that describe the running processes |
//! | `program` | this program, as it is started again |
//!
//! With `--detach`, a second `quorate up` in its own session supervises the cluster. The first one only
//! waits, loads the sample and ends.

mod cells;
mod plan;
mod program;
mod records;
mod start;
mod supervisor;

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quorate_command::{Usage, report};
use quorate_protocol::{Role, role::State};
use quorate_sample as sample;
use quorate_server::resp;
use rustix::process::Signal;
use tokio_postgres::Client;

pub(crate) use self::start::Args;
use self::{
    plan::{check_ports, warn_of_clients_ports},
    program::{this_command, this_program},
    records::ProcessRecords,
    start::{ClusterStart, DEFAULT_SIZE, PATIENCE, ROUTERS_PATIENCE, SizeFlag},
    supervisor::Supervisor,
};
use crate::{
    charter::{Charter, ClusterContent, Sample},
    directory::Directory,
    kill::signal,
    reports::{self, Report},
    sql,
};

pub(crate) fn run(args: Args) -> Result<()> {
    if let Some(level) = &args.level {
        resp::level(level).map_err(|why| Usage(format!("--level: {why}")))?;
    }
    let directory = args.directory.directory()?;
    if directory.is_held()? {
        directory.acquire()?;
    }
    let start = ClusterStart::of(&args, &directory)?;
    if !args.detached && args.port.is_some() && !start.resumes {
        warn_of_clients_ports(&start.plan.processes()?, start.plan.first_port);
    }
    if args.detach {
        return detach(&args, &start, &directory);
    }
    let lock = directory.acquire()?;
    if args.detached {
        rustix::process::setsid().context("cannot detach from the terminal")?;
    }
    crate::logging::log_to_stderr();
    // Another `up` may have run before this process got the lock.
    let mut start = ClusterStart::of(&args, &directory)?;
    let processes = start.prepare(&directory)?;
    let durable = start.charter.is_some();
    let supervisor = Supervisor::new(ProcessRecords::new(directory.clone(), lock), processes, durable)?;
    if !args.detached {
        let failures = supervisor.failures();
        thread::Builder::new().name("welcome".into()).spawn(move || {
            if let Err(error) = await_and_greet(&args, &start, &directory, || Ok(())) {
                let _ = failures.send(error);
            }
        })?;
    }
    supervisor.run()
}

/// Starts the supervisor in its own session and waits until the cluster answers.
fn detach(args: &Args, start: &ClusterStart, directory: &Directory) -> Result<()> {
    // If ports have to be drawn, the supervisor draws them, so they cannot be checked here.
    check_ports(&start.plan.processes()?, start.resumes)?;
    directory.make()?;
    let log = directory.create("up.log")?;
    let mut command = Command::new(this_program()?);
    command.arg0("quorate").arg("up").arg("--detached");
    for SizeFlag { flag, given, .. } in args.given(&DEFAULT_SIZE) {
        if let Some(given) = given {
            command.arg(flag).arg(given.to_string());
        }
    }
    for distance in &args.distances {
        command.arg("--distance").arg(distance.to_string());
    }
    if let Some(level) = &args.level {
        command.arg("--level").arg(level);
    }
    if let Some(bytes) = args.hint_bytes_max {
        command.arg("--hint-bytes-max").arg(bytes.to_string());
    }
    for (flag, is_set) in
        [("--memory", args.memory), ("--empty", args.empty), ("--late-files", args.late_files)]
    {
        if is_set {
            command.arg(flag);
        }
    }
    if let Some(path) = &args.directory.data_dir {
        command.arg("--data-dir").arg(std::path::absolute(path)?);
    }
    let mut supervisor: Child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the supervisor")?;
    let pid = supervisor.id();
    let alive = || match supervisor.try_wait()? {
        None => Ok(()),
        Some(_) => {
            let said = fs::read_to_string(directory.join("up.log")).unwrap_or_default();
            bail!(
                "{}",
                said.lines()
                    .last()
                    .unwrap_or("the supervisor of the cluster ended without an error message")
                    .trim_start_matches("quorate: ")
            )
        }
    };
    await_and_greet(args, start, directory, alive).inspect_err(|_| {
        let _ = signal(pid, Signal::TERM);
    })
}

/// Waits until the cluster answers, makes its first contents and prints what to do next. `alive` fails if
/// waiting longer is useless.
fn await_and_greet(
    args: &Args,
    start: &ClusterStart,
    directory: &Directory,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    let size = &start.plan.size;
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar.set_message("starting the processes");
    let mut has_sample = None;
    if size.has(ClusterContent::Tables) {
        has_sample = Some(sql::runtime()?.block_on(async {
            let client = first_answer(directory, size.storage.into(), &mut alive).await?;
            bar.finish_and_clear();
            load_sample(args, start, directory, &client).await
        })?);
    }
    let mut cells = None;
    if size.has(ClusterContent::Maps) {
        cells = Some(cells::await_and_prepare(start, directory, alive)?);
    }
    bar.finish_and_clear();
    let quorate = this_command();
    let flag = args.directory.as_flag();
    if let Some(has_sample) = has_sample {
        greet(start, directory, has_sample, &format!("{quorate} sql{flag}"))?;
    }
    if let Some(cells) = &cells {
        cells::greet(args, start, cells)?;
    }
    let victim = if size.has(ClusterContent::Tables) { "storage-2" } else { "cell-2" };
    report!("  {quorate} status{flag}\n  {quorate} kill{flag} {victim}\n  {quorate} down{flag}");
    let kept = match (start.charter.is_some(), size.contents()) {
        (false, _) => "Logs",
        (true, "tables") => "Tables, logs",
        (true, "maps") => "Keys, logs",
        (true, _) => "Tables, keys, logs",
    };
    report!("\n{kept} and state are in {}.", directory.shown());
    Ok(())
}

/// Prints what to do next with the tables. `sql` is the command for a query.
fn greet(start: &ClusterStart, directory: &Directory, has_sample: bool, sql: &str) -> Result<()> {
    let cluster = directory.running()?;
    let (host, port) = cluster.sql()?.rsplit_once(':').context("the gateway's address has no port")?;
    let count = cluster.processes.len();
    let does = if start.resumes { "continues where it stopped" } else { "is up" };
    report!(
        "\nA cluster of {count} processes {does}; SQL is spoken at {host}:{port}, and nothing is encrypted. {}",
        if cluster.durable { "Its tables are kept on disk." } else { MEMORY }
    );
    report!(
        "Programs that use process groups connect to the routers of the cluster: {}.\n",
        cluster.routers().join(", ")
    );
    if has_sample {
        report!("  psql -h {host} -p {port} -U quorate -d quorate -c \"{}\"", sample::FIRST_QUERY);
        report!("  {sql} \"{}\"", sample::FIRST_QUERY);
    } else {
        report!("  psql -h {host} -p {port} -U quorate -d quorate");
    }
    Ok(())
}

const MEMORY: &str = "Its tables live in memory: when the cluster stops, they are gone.";

/// Loads the sample if it is wanted and was never loaded. Returns whether it has been loaded, now or earlier.
async fn load_sample(
    args: &Args,
    start: &ClusterStart,
    directory: &Directory,
    client: &Client,
) -> Result<bool> {
    // A cluster in memory ignores what is kept in its directory.
    let charter = if start.charter.is_some() { Charter::read(directory)? } else { None };
    match charter {
        None if args.empty => Ok(false),
        None => sample::load(client).await.map(|_| true),
        Some(Charter { sample: Sample::Loaded, .. }) => Ok(true),
        Some(mut charter) if charter.sample == Sample::Wanted && !args.empty => {
            sample::load_once(client).await?;
            charter.sample = Sample::Loaded;
            charter.write(directory)?;
            Ok(true)
        }
        Some(_) => Ok(false),
    }
}

/// Waits until SQL is answered, `storage` storage processes hold rows, and the routers are in place.
async fn first_answer(
    directory: &Directory,
    storage: usize,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Client> {
    let began = Instant::now();
    let mut answered = None;
    loop {
        alive()?;
        let error = match directory.running().and_then(|cluster| Ok(cluster.sql()?.to_string())) {
            Err(error) => error,
            Ok(address) => match sql::connect(&address).await {
                Err(error) => error,
                Ok(client) => match sql::single(&client, "select 1").await {
                    Ok(_) => {
                        let reports = reports::reports(&directory.running()?);
                        let waited = answered.get_or_insert_with(Instant::now).elapsed();
                        if serving(&reports) < storage {
                            anyhow!("fewer than {storage} storage processes hold rows so far")
                        } else if waited > ROUTERS_PATIENCE || routers_are_in_place(&reports) {
                            return Ok(client);
                        } else {
                            anyhow!("a router does not know the lead router yet")
                        }
                    }
                    Err(error) => error,
                },
            },
        };
        if began.elapsed() > PATIENCE {
            return Err(error.context(format!("the cluster does not answer after {} s", PATIENCE.as_secs())));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the number of storage processes that hold rows.
fn serving(reports: &[Option<Report>]) -> usize {
    let serves = |report: &&Report| report.role == Role::Storage && report.state == State::Serving;
    reports.iter().flatten().filter(serves).count()
}

/// Whether every router leads, knows the leader, or does not vote. A router that starts from an older copy of
/// its directory knows no leader until it has met the other routers.
fn routers_are_in_place(reports: &[Option<Report>]) -> bool {
    reports.iter().all(|report| {
        report.as_ref().is_some_and(|report| {
            report.role != Role::Router
                || report.hindrance.is_none()
                || matches!(report.state, State::Joining | State::Removed)
        })
    })
}
