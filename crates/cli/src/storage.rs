//! `quorate storage`: operations on storage processes that only an operator can decide.

use anyhow::{Result, bail};
use quorate_command::report;
use quorate_protocol::Role;
use quorate_roles::tables::operate::AdminOperation;
use serde_json::json;

use crate::{
    confirm::confirmed,
    operate::{self, Target},
};

/// Declares storage processes lost.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Declares an unreachable storage process lost.
    ///
    /// Rows that only this process held are lost, and its ranges go on without them.
    ///
    /// If a removed process keeps rows of a range (`keeping` in `quorate status`), the range goes on from
    /// these rows, as of their position. Otherwise the range begins empty.
    ///
    /// A process that died or is cut off is replaced automatically, unless it alone held some range
    /// completely. Then `quorate status` shows it as unreachable, and writes to that range are refused until
    /// the process comes back or is declared lost.
    Lost {
        /// Name of the process, as in `quorate status`.
        process: String,
        /// Does not ask for confirmation.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        target: Target,
    },
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Command::Lost { process, yes, target } = args.command;
    let processes = target.answering()?;
    let superior = operate::in_role(&processes, Role::Super)?;
    let mut question = format!("Rows that only {process} holds will be lost for good.");
    for (name, through) in superior.report.keepers() {
        question += &format!(
            " The removed process {name} keeps rows as of position {through}: a range that no other process holds goes on from \
             these rows, and loses the writes that were acknowledged after this position."
        );
    }
    question += &format!(" Declare {process} lost?");
    if !yes && !confirmed("storage lost", &question)? {
        bail!("nothing was declared lost");
    }
    operate::ask(&superior.http, &AdminOperation::DeclareLost { process: process.clone() })?;
    if target.json {
        report!("{}", json!({ "lost": process }));
    } else {
        report!("{process} is declared lost; a standby takes its place as soon as a standby exists");
    }
    Ok(())
}
