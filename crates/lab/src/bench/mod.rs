//! `quorate bench`: measurements, one command each.
//!
//! A bench starts its own processes with the default configuration, and prints one figure a line, or one JSON
//! object with `--json`.

mod backup;
mod check;
mod check_transactions;
mod child;
mod converge;
mod ecast;
mod endpoints;
mod failover;
mod group;
mod keys;
mod load;
mod machine;
mod paxos;
mod peak;
mod postgres;
mod power;
mod processor;
mod quorum;
mod restart;
mod result;
mod scan;
mod service;
mod spawned;
mod sql_load;
mod tickets;
mod tpcc;
mod transactions;
mod tune;
mod wire;
mod zipf;

use anyhow::Result;
use clap::Subcommand;

pub use self::quorum::rig::Running;
pub(crate) use self::{
    group::source as group_source, quorum::rig as quorum_rig, service::source as service_source,
};

/// Measurements; each starts the processes that it needs.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Backup(backup::Args),
    Load(load::Args),
    Result(result::Args),
    Failover(failover::Args),
    Restart(restart::Args),
    Check(check::Args),
    Converge(converge::Args),
    Scan(scan::Args),
    Ecast(ecast::Args),
    #[command(hide = true)]
    EcastProcess(ecast::EcastProcessArgs),
    Endpoints(endpoints::Args),
    Group(group::Args),
    #[command(hide = true)]
    GroupProcess(group::GroupProcessArgs),
    Keys(keys::Args),
    #[command(hide = true)]
    KeysLoad(sql_load::LoadArgs),
    #[command(hide = true)]
    MirrorProcess(machine::MirrorArgs),
    Paxos(paxos::Args),
    #[command(hide = true)]
    PaxosProcess(paxos::PaxosProcessArgs),
    Power(power::Args),
    Quorum(quorum::Args),
    Service(service::Args),
    #[command(hide = true)]
    ServiceProcess(service::ServiceProcessArgs),
    Tpcc(tpcc::Args),
    Transactions(transactions::Args),
    #[command(hide = true)]
    TransactionsLoad(sql_load::LoadArgs),
    Tune(tune::Args),
    Wire(wire::Args),
    #[command(hide = true)]
    WireLoad(wire::LoadArgs),
}

/// Runs the chosen bench, and prints its figures.
///
/// # Errors
/// If the bench could not run, or if it found something lost, duplicated or larger than allowed.
pub fn run(args: Args) -> Result<()> {
    match args.bench {
        Bench::Backup(args) => backup::run(&args),
        Bench::Load(args) => load::run(args),
        Bench::Result(args) => result::run(args),
        Bench::Failover(args) => failover::run(args),
        Bench::Restart(args) => restart::run(&args),
        Bench::Check(args) => check::run(&args),
        Bench::Converge(args) => converge::run(&args),
        Bench::Scan(args) => scan::run(&args),
        Bench::Ecast(args) => ecast::run(args),
        Bench::EcastProcess(args) => ecast::run_process(args),
        Bench::Endpoints(args) => endpoints::run(&args),
        Bench::Group(args) => group::run(args),
        Bench::GroupProcess(args) => group::run_process(args),
        Bench::Keys(args) => keys::run(&args),
        Bench::KeysLoad(args) => sql_load::run_load::<keys::KeysLoad>(&args),
        Bench::MirrorProcess(args) => machine::run_mirror(&args),
        Bench::Paxos(args) => paxos::run(args),
        Bench::PaxosProcess(args) => paxos::run_process(args),
        Bench::Power(args) => power::run(&args),
        Bench::Quorum(args) => quorum::run(&args),
        Bench::Service(args) => service::run(&args),
        Bench::ServiceProcess(args) => service::run_process(&args),
        Bench::Tpcc(args) => tpcc::run(&args),
        Bench::Transactions(args) => transactions::run(&args),
        Bench::TransactionsLoad(args) => sql_load::run_load::<transactions::TransactionsLoad>(&args),
        Bench::Tune(args) => tune::run(&args),
        Bench::Wire(args) => wire::run(args),
        Bench::WireLoad(args) => wire::run_load(&args),
    }
}
