//! `quorate kill`: kills one process of the local cluster.

use anyhow::{Context, Result, bail};
use quorate_command::{Usage, report};
use rustix::process::{Pid, Signal, kill_process};

use crate::directory::DirectoryArgs;

/// Kills one process of the local cluster without warning (kill -9), to see the cluster survive it.
///
/// `quorate up` starts the process again. A router, storage process or cell with a disk continues from it,
/// unless others have replaced the process. A process without a disk is a new one, which remembers nothing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the process, as in `quorate status`: router-1, storage-2, super-1, gateway-1, cell-3. Without
    /// a name the command lists the names.
    process: Option<String>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let cluster = args.directory.directory()?.running()?;
    let Some(name) = &args.process else {
        bail!(Usage(format!("give the name of a process: {}", cluster.names())));
    };
    let entry = cluster.process(name)?;
    let pid = entry
        .pid
        .with_context(|| format!("{} is not running at the moment; see `quorate status`", entry.name))?;
    signal(pid, Signal::KILL).with_context(|| format!("cannot kill {}", entry.name))?;
    report!("{} (pid {pid}) was killed", entry.name);
    Ok(())
}

/// Sends a signal to a process whose id comes from `cluster.json` or a child handle.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is not a process id"))?;
    Ok(kill_process(pid, signal)?)
}
