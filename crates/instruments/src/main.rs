//! The instruments: `quorate watch`, `check`, `tune`, `sim`, `bench` and `lab`.
//!
//! The instruments are a separate program, which `quorate` runs, so that a cluster's machines need neither
//! the simulator nor the laboratory. Each subcommand has a file with its `Args` and a `run`; for the
//! measurements of `bench` these files are in the laboratory. Exit codes: 0, 1 (failed), 2 (usage). `check`
//! adds 3 (unknown).

mod check;
mod lab;
mod sim;
mod tune;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use quorate_command::{CommandDescription, print_line};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Instruments of Quorate: watches clients, judges histories, tunes stores, simulates faults and measures.
#[derive(Parser)]
#[command(name = "quorate", version = quorate_command::version!())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Watch(watch::Args),
    Check(check::Args),
    Tune(tune::Args),
    Sim(sim::Args),
    Bench(quorate_lab::bench::Args),
    Lab(lab::Args),
    /// Prints these commands as JSON, for the completions and manual pages of `quorate`.
    #[command(hide = true)]
    Describe,
}

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    quorate_command::exit(match Cli::parse().command {
        Command::Watch(args) => watch::run(&args).map(done),
        Command::Check(args) => check::run(&args),
        Command::Tune(args) => tune::run(args).map(done),
        Command::Sim(args) => sim::run_scenario(args).map(done),
        Command::Bench(args) => quorate_lab::bench::run(args).map(done),
        Command::Lab(args) => lab::run(args).map(done),
        Command::Describe => describe().map(done),
    })
}

fn describe() -> anyhow::Result<()> {
    print_line!("{}", serde_json::to_string(&CommandDescription::of(&Cli::command()))?)?;
    Ok(())
}
