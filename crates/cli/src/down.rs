//! `quorate down`: stops the local cluster, and removes its tables or maps if told to.

use std::{
    fs::{File, TryLockError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quorate_command::say;
use rustix::process::Signal;

use crate::{
    charter::{self, Charter},
    cluster::{Directory, DirectoryArgs},
    confirm::confirmed,
    kill::signal,
};

/// Stops the local cluster. Its tables or maps are kept, and the next `quorate up` goes on with them.
///
/// Those of a cluster that was started with `--memory` are gone then, so it asks first.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Remove them for good, also of a cluster that is down. It asks first.
    #[arg(long)]
    destroy: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// How long an orderly stop may take before the processes are killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the processes of a cluster that was killed may take to end.
const END: Duration = Duration::from_secs(10);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let (durable, content) = if args.destroy && !directory.is_held()? {
        if !charter::has_anything(&directory)? {
            bail!("no cluster is kept here: {}", directory.shown());
        }
        // A charter that nobody can read, or that is gone, is destroyed all the same.
        let charter = Charter::read(&directory).ok().flatten();
        (true, charter.map_or("tables and maps", |charter| charter.made_with.content().name()))
    } else {
        let cluster = directory.running()?;
        (cluster.durable, cluster.content().name())
    };
    let question = match (args.destroy, durable) {
        (true, true) => {
            Some(format!("All {content} in {} are removed for good. Destroy them?", directory.shown()))
        }
        (_, false) => {
            Some(format!("Its {content} live in memory: stopping the cluster destroys them. Stop it?"))
        }
        (false, true) => None,
    };
    if let Some(question) = question
        && !args.yes
        && !confirmed("down", &question)?
    {
        bail!("nothing was {}", if args.destroy && durable { "destroyed" } else { "stopped" });
    }
    stop(&directory)?;
    if args.destroy && durable {
        let _lock = directory.acquire()?;
        await_ends(&directory)?;
        charter::remove(&directory)?;
        directory.clear()?;
    }
    match (args.destroy, durable) {
        (false, true) => say!(
            "the cluster is down; its {content} are kept in {}, and `quorate up` goes on with them",
            directory.shown()
        )?,
        _ => say!("the cluster is down; its {content} are gone")?,
    }
    Ok(())
}

/// Stops what runs, if anything does.
fn stop(directory: &Directory) -> Result<()> {
    if !directory.is_held()? {
        return Ok(());
    }
    let cluster = directory.running()?;
    signal(cluster.pid, Signal::TERM)?;
    let began = Instant::now();
    while directory.is_held()? {
        if began.elapsed() > PATIENCE {
            // The processes follow by themselves: each ends when its supervisor is gone.
            signal(cluster.pid, Signal::KILL)?;
            bail!("it did not stop within {} s and was killed", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until no process uses what is kept in the directory.
fn await_ends(directory: &Directory) -> Result<()> {
    let began = Instant::now();
    for name in directory.names()?.into_iter().filter(|name| name.starts_with(charter::LOCK)) {
        let lock = File::open(directory.join(&name)).with_context(|| directory.shown())?;
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            if began.elapsed() > END {
                bail!("a process still uses {}: {name} is held", directory.shown());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}
