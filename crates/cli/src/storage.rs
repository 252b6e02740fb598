//! `quorate storage`: what only an operator can say about storage processes.

use anyhow::{Result, bail};
use quorate_command::say;
use quorate_protocol::Role;
use quorate_tables::operate::Operation;
use serde_json::json;

use crate::{
    confirm::confirmed,
    operate::{self, Target},
};

/// What only an operator can say about storage processes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Declares an unreachable storage process lost: what only it held is gone, and its ranges go on without.
    ///
    /// A range goes on from the rows of a process that was removed and keeps them (`keeping` in `quorate status`), as of its position,
    /// or begins empty if there is none.
    ///
    /// A process that died or is cut off is replaced without anybody's doing, unless it alone held some range whole. Then
    /// `quorate status` calls it unreachable, and writes to that range are refused until it comes back or is declared lost.
    Lost {
        /// Its name, as `quorate status` shows it.
        process: String,
        /// Do not ask.
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
    let mut question = format!("What only {process} holds is gone for good then.");
    for (name, through) in superior.report.keepers() {
        question += &format!(
            " {name} keeps rows as of position {through}: a range of them that nobody else has goes on from there, and lacks \
             what was acknowledged behind it."
        );
    }
    question += " Declare it lost?";
    if !yes && !confirmed("storage lost", &question)? {
        bail!("nothing was declared lost");
    }
    operate::ask(&superior.http, &Operation::DeclareLost { process: process.clone() })?;
    if target.json {
        say!("{}", json!({ "lost": process }))?;
    } else {
        say!("{process} is declared lost; a standby takes its place as soon as there is one")?;
    }
    Ok(())
}
