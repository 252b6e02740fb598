//! `quorate kill`: one process of the local cluster, without warning.

use anyhow::{Context, Result};
use quorate_command::say;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::DirectoryArgs;

/// Kills one process of the local cluster without warning (kill -9), to see the cluster go on.
///
/// `quorate up` starts it again. A router, storage process or cell goes on from its disk, unless the others have replaced it; one
/// without a disk is a new process that remembers nothing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Its name, as `quorate status` shows it: router-1, storage-2, super-1, gateway-1, cell-3.
    process: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let cluster = args.directory.directory()?.running()?;
    let entry = cluster.process(&args.process)?;
    let pid = entry.pid.with_context(|| format!("{} does not run at the moment", entry.name))?;
    signal(pid, Signal::KILL).with_context(|| entry.name.clone())?;
    say!("{} (pid {pid}) was killed", entry.name)?;
    Ok(())
}

/// Sends a signal to a process that `cluster.json` or a child handle names.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid =
        i32::try_from(pid).ok().and_then(Pid::from_raw).with_context(|| format!("{pid} is no process id"))?;
    Ok(kill_process(pid, signal)?)
}
