//! `quorate service`: hosts, calls and administers replicated services.
//!
//! There are two kinds of commands. `host` and `restore` host a ready-made service themselves (`host`).
//! Services of a program are hosted by that program. All other commands use the HTTP door of any running host
//! (`door`), in whatever program it runs.

mod door;
mod host;

use std::{io::Read, path::PathBuf};

use anyhow::{Context, Result};

use self::{
    door::{Doors, Method},
    host::{HostArgs, RestoreArgs},
};
use quorate_command::{Usage, report};

/// Hosts ready-made replicated services, calls services, and administers their replicas.
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

/// Lists the services of hosts, with the states of their replicas.
///
/// Exits with 1 if no host answers.
#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    doors: Doors,
    /// Prints one JSON object for each service of each host, each on a line.
    #[arg(long)]
    json: bool,
}

/// Calls a service and prints its reply as JSON.
///
/// The command asks the hosts in order until one takes the call. Without a key, the call is sent once. If its
/// answer is lost, the call may have taken effect, and the command says so. With a key, the call is sent to
/// one host after another until one answers, and takes effect once.
#[derive(clap::Args)]
struct CallArgs {
    /// Name of the service.
    name: String,
    /// Request as JSON. `-` reads it from standard input.
    request: String,
    /// Name of your choice for this call. However often the call is sent under the same name, it takes effect
    /// only once.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    doors: Doors,
}

/// Makes a host a replica, even beyond the wanted number. The host must already serve the service as a spare.
#[derive(clap::Args)]
struct AddArgs {
    /// Name of the service.
    name: String,
    /// Address of the host, as in `quorate service list`.
    #[arg(value_name = "HOST:PORT")]
    new: String,
    #[command(flatten)]
    doors: Doors,
    /// Prints the service as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Makes one host a replica and then removes another replica, even if that replica does not answer.
#[derive(clap::Args)]
struct ReplaceArgs {
    /// Name of the service.
    name: String,
    /// Address of the old replica, as in `quorate service list`.
    #[arg(value_name = "OLD")]
    old: String,
    /// Address of the new replica. Its host must already serve the service as a spare.
    #[arg(value_name = "NEW")]
    new: String,
    #[command(flatten)]
    doors: Doors,
    /// Prints the service as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Ends a host's replica of a service for good. The effect is that of a kill: the others go on, and a spare
/// takes its place.
#[derive(clap::Args)]
struct WithdrawArgs {
    /// Name of the service.
    name: String,
    /// HTTP address of the host.
    #[arg(long, value_name = "HOST:PORT")]
    at: String,
}

/// Copies the state of a service to a file, from which another set of replicas can be founded.
///
/// If several hosts are given, the leading host is asked if it answers. Its copy contains the effects of all
/// earlier answers.
#[derive(clap::Args)]
struct ExportArgs {
    /// Name of the service.
    name: String,
    /// File for the copy. If the command fails, there is no file.
    file: PathBuf,
    #[command(flatten)]
    doors: Doors,
    /// Prints one JSON object.
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
            report!("the host no longer has a replica of {}", args.name);
            Ok(())
        }
        Command::Export(args) => door::export(&args.doors, &args.name, &args.file, args.json),
    }
}

fn call(args: &CallArgs) -> Result<()> {
    let request = match args.request.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            text
        }
        text => text.to_owned(),
    };
    // Usually a shell has removed the quotes from the request.
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&request) {
        return Err(Usage(format!("the request is not valid JSON ({error}): {request}")).into());
    }
    let ask = Method::Post { body: request, key: args.key.clone() };
    let reply = args.doors.ask(&ask, &door::path(&args.name, "/call"))?;
    report!("{}", String::from_utf8_lossy(&reply));
    Ok(())
}
