//! `quorate service`: replicated services hosted, called and looked after.
//!
//! Two kinds of commands. `host` and `restore` are a host themselves, of one of the services that are ready-made (`host`): the services of a
//! program are hosted by that program. The others speak to the HTTP door of any running host (`door`), of whatever program it is part.

mod door;
mod host;

use std::{io::Read, path::PathBuf};

use anyhow::{Context, Result};

use self::{
    door::{Doors, Method},
    host::{HostArgs, RestoreArgs},
};
use quorate_command::{Usage, say};

/// Replicated services: hosts of ready-made ones, calls, and who has the replicas.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Host(HostArgs),
    List(ListArgs),
    Call(CallArgs),
    Add(AddArgs),
    Replace(ReplaceArgs),
    Withdraw(WithdrawArgs),
    Export(ExportArgs),
    Restore(RestoreArgs),
}

/// Shows the services of hosts, and how their replicas stand.
///
/// Exits with 1 if no host answers.
#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    doors: Doors,
    /// One JSON object a line for each service of each host.
    #[arg(long)]
    json: bool,
}

/// Calls a service, and prints its reply as JSON.
///
/// Of several hosts the first that takes the call is asked. Without a key the call is sent once: if its answer is lost, it may have taken
/// effect, and the command says so. With a key it is sent to one host after the other until there is an answer, and takes effect once.
#[derive(clap::Args)]
struct CallArgs {
    /// The service.
    name: String,
    /// The request, as JSON; `-` reads it from standard input.
    request: String,
    /// A name of your choice for this call: sent again under it, also later, the call takes effect once in all.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    doors: Doors,
}

/// Makes a host a replica, beyond the wanted number too. It serves the service already, as a spare.
#[derive(clap::Args)]
struct AddArgs {
    /// The service.
    name: String,
    /// Its address, as `quorate service list` shows it.
    #[arg(value_name = "HOST:PORT")]
    new: String,
    #[command(flatten)]
    doors: Doors,
    /// The service as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Makes a host a replica, and then another one none, whether that lives or not.
#[derive(clap::Args)]
struct ReplaceArgs {
    /// The service.
    name: String,
    /// The address of the old one, as `quorate service list` shows it.
    #[arg(value_name = "OLD")]
    old: String,
    /// The address of the new one; it serves the service already, as a spare.
    #[arg(value_name = "NEW")]
    new: String,
    #[command(flatten)]
    doors: Doors,
    /// The service as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Ends a host's replica of a service for good, as if it had been killed: the others go on, and a spare takes its place.
#[derive(clap::Args)]
struct WithdrawArgs {
    /// The service.
    name: String,
    /// Where that host serves HTTP.
    #[arg(long, value_name = "HOST:PORT")]
    at: String,
}

/// Copies the state of a service into a file, from which another set may be founded.
///
/// Of several hosts the one that leads is asked, if it answers: its copy holds all that was answered before.
#[derive(clap::Args)]
struct ExportArgs {
    /// The service.
    name: String,
    /// The file, which is there whole or not at all.
    file: PathBuf,
    #[command(flatten)]
    doors: Doors,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Host(args) => host::host(args),
        Command::Restore(args) => host::restore(args),
        Command::List(args) => door::list(&args.doors, args.json),
        Command::Call(args) => call(&args),
        Command::Add(AddArgs { name, new, doors, json }) => door::change(&doors, &name, None, &new, json),
        Command::Replace(ReplaceArgs { name, old, new, doors, json }) => {
            door::change(&doors, &name, Some(&old), &new, json)
        }
        Command::Withdraw(args) => {
            Doors::one(args.at).ask(&Method::Delete, &door::path(&args.name, ""))?;
            say!("{} is served there no longer", args.name)?;
            Ok(())
        }
        Command::Export(args) => door::export(&args.doors, &args.name, &args.file, args.json),
    }
}

fn call(args: &CallArgs) -> Result<()> {
    let request = match args.request.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            text
        }
        text => text.to_owned(),
    };
    // A shell that took the quotes away is the usual mistake.
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&request) {
        return Err(Usage(format!("the request is no JSON ({error}): {request}")).into());
    }
    let ask = Method::Post { body: request, key: args.key.clone() };
    let reply = args.doors.ask(&ask, &door::path(&args.name, "/call"))?;
    say!("{}", String::from_utf8_lossy(&reply))?;
    Ok(())
}
