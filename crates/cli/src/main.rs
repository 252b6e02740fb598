//! The quorate command: a local cluster of real processes, one process of a cluster, and the instruments.
//!
//! One file a subcommand; each has its `Args` and a `run`. Those of `bench` are the laboratory's. Exit codes: 0, 1 (failed), 2 (usage); `check` adds 3 (unknown), and
//! `node` 4 (its directory is an older copy).

mod backup;
mod charter;
mod check;
mod cluster;
mod config;
mod confirm;
mod down;
mod group;
mod kill;
mod lab;
mod lifeline;
mod node;
mod operate;
mod quorum;
mod restart;
mod router;
mod service;
mod sim;
mod sql;
mod status;
mod storage;
mod table;
mod tune;
mod up;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// SQL tables on several processes: ordered, replicated, kept on disk, and going on while processes are killed.
#[derive(Parser)]
#[command(name = "quorate", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Args),
    Down(down::Args),
    Status(status::Args),
    Kill(kill::Args),
    Restart(restart::Args),
    Sql(sql::Args),
    Router(router::Args),
    Storage(storage::Args),
    Table(table::Args),
    Backup(backup::Args),
    Restore(backup::RestoreArgs),
    Group(group::Args),
    Service(service::Args),
    Node(node::Args),
    Check(check::Args),
    Tune(tune::Args),
    Sim(sim::Args),
    Bench(quorate_lab::bench::Args),
    Lab(lab::Args),
}

/// A mistake in how the command was used: exits with 2.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The directory of a process is an older copy, put back: exits with [`OlderCopy::CODE`].
#[derive(Debug)]
struct OlderCopy(String);

impl OlderCopy {
    /// A supervisor knows by it that starting again is of no use.
    const CODE: u8 = 4;
}

impl std::fmt::Display for OlderCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OlderCopy {}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Check(args) => match check::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Up(args) => up::run(args),
        Command::Down(args) => down::run(args),
        Command::Status(args) => status::run(args),
        Command::Kill(args) => kill::run(args),
        Command::Restart(args) => restart::run(args),
        Command::Sql(args) => sql::run(args),
        Command::Router(args) => router::run(args),
        Command::Storage(args) => storage::run(args),
        Command::Table(args) => table::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Restore(args) => backup::restore(args),
        Command::Group(args) => group::run(args),
        Command::Service(args) => service::run(args),
        Command::Node(args) => node::run_configured(args),
        Command::Tune(args) => tune::run(args),
        Command::Sim(args) => sim::run_scenario(args),
        Command::Bench(args) => quorate_lab::bench::run(args),
        Command::Lab(args) => lab::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(error)
            if error
                .downcast_ref()
                .is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // `eprintln!` would panic where the disk under the log is full.
            let _ = writeln!(io::stderr(), "quorate: {error:#}");
            if error.is::<Usage>() {
                ExitCode::from(2)
            } else if error.is::<OlderCopy>() {
                ExitCode::from(OlderCopy::CODE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Logs to standard error, at the level that `QUORATE_LOG` names (`info`, or `quorate_runtime=debug,info`).
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("QUORATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let color = io::IsTerminal::is_terminal(&io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(color)
        .with_writer(io::stderr)
        // What can not be written would be told by `eprintln!`, which panics: a full disk would end the process.
        .log_internal_errors(false)
        .init();
}
