//! The `quorate` command: runs a local cluster of real processes, or one process of a cluster. It also runs
//! the instruments, which are a separate program.
//!
//! Each subcommand has a file with its `Args` and a `run`. Exit codes: 0, 1 (failed), 2 (usage). `node` adds
//! 4 (its directory is an older copy).

mod backup;
mod charter;
mod cluster;
mod completions;
mod config;
mod confirm;
mod directory;
mod down;
mod group;
mod help;
mod instruments;
mod kill;
mod lifeline;
mod logging;
mod man;
mod node;
mod operate;
mod quorum;
mod reports;
mod restart;
mod router;
mod service;
mod sql;
mod status;
mod storage;
mod table;
mod up;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Replicates SQL tables, maps, services and process groups, and keeps working when processes fail.
#[derive(Parser)]
#[command(name = "quorate", version = quorate_command::version!())]
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
    Watch(watch::Args),
    /// Judges how consistent a recorded history is.
    Check(instruments::Args),
    /// Finds and holds a setting of a quorum store that keeps given bounds on latency and consistency.
    Tune(instruments::Args),
    /// Simulates a cluster under faults and judges the result.
    Sim(instruments::Args),
    /// Measures Quorate. Each measurement starts the processes that it needs.
    Bench(instruments::Args),
    /// Repeats experiments of the research papers on which Quorate is based.
    Lab(instruments::Args),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> ExitCode {
    let matches = help::group_commands(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
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
        Command::Watch(args) => watch::run(args),
        Command::Check(args) => instruments::run("check", args),
        Command::Tune(args) => instruments::run("tune", args),
        Command::Sim(args) => instruments::run("sim", args),
        Command::Bench(args) => instruments::run("bench", args),
        Command::Lab(args) => instruments::run("lab", args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
    };
    quorate_command::exit(outcome.map(|()| ExitCode::SUCCESS))
}
