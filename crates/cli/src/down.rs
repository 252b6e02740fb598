//! `quorate down`: stops the local cluster.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use rustix::process::Signal;

use crate::{cluster::DirectoryArgs, confirm::confirmed, kill::signal};

/// Stops the local cluster. Its tables live in memory: they are gone then.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// How long an orderly stop may take before the processes are killed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let cluster = directory.running()?;
    let question = "Tables live in memory: stopping the cluster destroys them. Stop it?";
    if !args.yes && !confirmed("down", question)? {
        bail!("nothing was stopped");
    }
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
    println!("the cluster is down; its tables are gone");
    Ok(())
}
