//! `quorate down`: stops the local cluster, and on request removes its tables or maps.

use std::{
    fs::{File, TryLockError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quorate_command::report;
use rustix::process::Signal;

use crate::{
    charter::{self, Charter},
    confirm::confirmed,
    directory::{Directory, DirectoryArgs},
    kill::signal,
};

/// Stops the local cluster. Its tables or maps are kept, and the next `quorate up` continues with them.
///
/// If the cluster was started with `--memory`, its tables or maps are lost, so the command asks first.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Removes the tables or maps for good, even if the cluster is down. The command asks first.
    #[arg(long)]
    destroy: bool,
    /// Does not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// Longest time of an orderly stop, after which the processes are killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest time until the processes of a killed cluster must have ended.
const PROCESS_END_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let (durable, content) = if args.destroy && !directory.is_held()? {
        if !charter::has_cluster_files(&directory)? {
            bail!("no cluster is kept in {}", directory.shown());
        }
        // An unreadable or missing charter does not prevent the removal.
        let charter = Charter::read(&directory).ok().flatten();
        (true, charter.map_or("tables and maps", |charter| charter.made_with.contents()))
    } else {
        let cluster = directory.running()?;
        (cluster.durable, cluster.contents())
    };
    let question = match (args.destroy, durable) {
        (true, true) => {
            Some(format!("All {content} in {} are removed for good. Destroy them?", directory.shown()))
        }
        (_, false) => Some(format!(
            "The {content} live in memory: stopping the cluster destroys them. Stop the cluster?"
        )),
        (false, true) => None,
    };
    if let Some(question) = question
        && !args.yes
        && !confirmed("down", &question)?
    {
        bail!("nothing was {}", if args.destroy && durable { "destroyed" } else { "stopped" });
    }
    let began = Instant::now();
    stop(&directory)?;
    if args.destroy && durable {
        let _lock = directory.acquire()?;
        await_ends(&directory)?;
        charter::remove(&directory)?;
        directory.clear()?;
    }
    match (args.destroy, durable) {
        (false, true) => report!(
            "the cluster is down after {:.1} s; its {content} are kept in {}, and `quorate up` goes on with them",
            began.elapsed().as_secs_f64(),
            directory.shown()
        ),
        _ => report!("the cluster is down; its {content} are gone"),
    }
    Ok(())
}

/// Stops the running cluster, if there is one.
fn stop(directory: &Directory) -> Result<()> {
    if !directory.is_held()? {
        return Ok(());
    }
    let cluster = directory.running()?;
    let processes = cluster.processes.len();
    report!(
        "stopping {processes} processes: gateways finish what their clients began, then all end together"
    );
    signal(cluster.pid, Signal::TERM)?;
    let began = Instant::now();
    while directory.is_held()? {
        if began.elapsed() > PATIENCE {
            // The other processes end by themselves, because their supervisor is gone.
            signal(cluster.pid, Signal::KILL)?;
            bail!("the cluster did not stop within {} s and was killed", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until no process uses the files in the directory.
fn await_ends(directory: &Directory) -> Result<()> {
    let began = Instant::now();
    for name in directory.names()?.into_iter().filter(|name| name.starts_with(charter::LOCK)) {
        let lock = File::open(directory.join(&name))
            .with_context(|| format!("cannot open {name} in {}", directory.shown()))?;
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            if began.elapsed() > PROCESS_END_MAX {
                bail!(
                    "nothing was removed, because a process of the cluster still holds {name} in {}; try again",
                    directory.shown()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}
