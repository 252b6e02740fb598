//! A host of a ready-made service.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Context, Result, bail};
use quorate::{
    Error, Node, Pending, Wait,
    node::Builder,
    service::{
        Begin, Export,
        ready::{Counter, KeyValue, Lottery, Matchmaker, Scheduler},
    },
};
use quorate_command::report;

/// Hosts a replica of a ready-made service until the command is ended. A service of your own is hosted by
/// your program (docs/services.md).
///
/// The first host founds the set of replicas, once. All other hosts join this set, and so do hosts that were
/// killed. With --directory the replica is on disk, and the same command continues from there. The host
/// prints its addresses. Then it prints the number of replicas, and `led from here` if its own replica leads,
/// whenever either changes.
#[derive(clap::Args)]
pub(super) struct HostArgs {
    /// Service to host.
    #[arg(value_enum)]
    service: ReadyMadeService,
    #[command(flatten)]
    place: ServiceArgs,
    /// Founds the set of replicas. Do this only once for a service.
    #[arg(long, required_unless_present = "join", conflicts_with = "join")]
    found: bool,
    /// Joins the set of replicas of a host at one of these addresses. Can be repeated.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// Wanted number of replicas, set by the founder: 1 to 15, preferably an odd number. Further hosts are
    /// spare.
    #[arg(long, default_value_t = 3, conflicts_with = "join")]
    replicas: u8,
}

/// Founds a new set from an exported state and hosts its first replica. Other hosts join the set as usual.
#[derive(clap::Args)]
pub(super) struct RestoreArgs {
    /// File from `quorate service export`.
    file: PathBuf,
    /// Service to host. It must be the one that was exported.
    #[arg(value_enum)]
    service: ReadyMadeService,
    #[command(flatten)]
    place: ServiceArgs,
    /// Wanted number of replicas.
    #[arg(long, default_value_t = 3)]
    replicas: u8,
}

/// The addresses and the directory of a host.
#[derive(clap::Args)]
struct ServiceArgs {
    /// Name of the service. By default the name of its kind.
    #[arg(long)]
    name: Option<String>,
    /// Address for other hosts and for clients of the library.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Address under which others reach the host, if it differs from --listen.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Address that serves HTTP, for calls and the other commands.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    http: String,
    /// Keeps the replica on disk, in this directory. Either all replicas of a set have disks, or none has.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Allows addresses other than loopback. Nothing is encrypted, and there are no passwords.
    #[arg(long)]
    insecure: bool,
}

/// The ready-made services.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ReadyMadeService {
    /// A number: {"add": 1}, "read".
    Counter,
    /// Keys and values: {"put": ["colour", "blue"]}, {"get": "colour"}, {"delete": "colour"}.
    KeyValue,
    /// Draws that depend on chance and the clock: "draw", "last".
    Lottery,
    /// Jobs by priority: {"submit": {"job": "render", "priority": 5}}, {"work": {"worker": "w"}}.
    Scheduler,
    /// Machines for jobs: {"advertise": {"address": "10.0.0.5", "size": {"megahertz": 3000, "memory_gb": 16,
    /// "disk_gb": 500}, "capability": "x"}}, {"submit": {"job": "render", "size": {…}, "priority": 5}}.
    Matchmaker,
}

impl ReadyMadeService {
    fn serve(self, node: &Node, name: &str, begin: Begin) -> Pending<'static, ()> {
        match self {
            ReadyMadeService::Counter => node.serve(name, Counter::default(), begin),
            ReadyMadeService::KeyValue => node.serve(name, KeyValue::default(), begin),
            ReadyMadeService::Lottery => node.serve(name, Lottery::default(), begin),
            ReadyMadeService::Scheduler => node.serve(name, Scheduler::default(), begin),
            ReadyMadeService::Matchmaker => node.serve_loop(name, Matchmaker::default(), begin),
        }
    }

    fn restore(self, node: &Node, name: &str, export: Export, replicas: u8) -> Pending<'static, ()> {
        match self {
            ReadyMadeService::Counter => node.restore(name, Counter::default(), export, replicas),
            ReadyMadeService::KeyValue => node.restore(name, KeyValue::default(), export, replicas),
            ReadyMadeService::Lottery => node.restore(name, Lottery::default(), export, replicas),
            ReadyMadeService::Scheduler => node.restore(name, Scheduler::default(), export, replicas),
            ReadyMadeService::Matchmaker => node.restore_loop(name, Matchmaker::default(), export, replicas),
        }
    }

    fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self)
            .expect("every service can be named on the command line");
        value.get_name().to_owned()
    }
}

impl ServiceArgs {
    fn builder(&self) -> Builder {
        let builder = Node::builder().listen(&self.listen).http(&self.http).insecure(self.insecure);
        let builder = match &self.advertise {
            Some(address) => builder.advertise(address),
            None => builder,
        };
        match &self.directory {
            Some(directory) => builder.directory(directory).durable(),
            None => builder,
        }
    }
}

pub(super) fn host(args: HostArgs) -> Result<()> {
    let HostArgs { service, place, found, join, replicas } = args;
    let begin = if found { Begin::Found { replicas } } else { Begin::Join };
    let name = place.name.clone().unwrap_or_else(|| service.name());
    host_until_end(place.builder().seeds(join), &name, |node| service.serve(node, &name, begin))
}

pub(super) fn restore(args: RestoreArgs) -> Result<()> {
    let RestoreArgs { file, service, place, replicas } = args;
    let export = Export::read(&file)?;
    let name = place.name.clone().unwrap_or_else(|| export.name().to_owned());
    host_until_end(place.builder(), &name, |node| service.restore(node, &name, export, replicas))
}

/// Hosts a service and prints its state until the service ends for good. Keeps hosting even if nobody reads
/// the output.
fn host_until_end(
    builder: Builder,
    name: &str,
    serve: impl FnOnce(&Node) -> Pending<'static, ()>,
) -> Result<()> {
    crate::logging::log_to_stderr();
    let node = builder.start().wait()?;
    serve(&node).wait().with_context(|| format!("cannot host the service {name}"))?;
    let http = node.http_address().expect("a host that serves has an HTTP address");
    report!("{name} listens at {}, HTTP at {http}", node.address());
    let mut shown = None;
    loop {
        // An operator may have withdrawn the replica.
        let Some(status) = node.replica_status(name) else {
            report!("{name} was withdrawn");
            return Ok(());
        };
        if let Some(why) = status.ended {
            bail!(Error::Start { why });
        }
        let now = (status.replicas.len(), status.serving);
        // While the host looks for the other hosts, it knows no replicas.
        if now.0 > 0 && shown.replace(now) != Some(now) {
            let (count, leads) = now;
            let word = if count == 1 { "replica" } else { "replicas" };
            report!("{count} {word}{}", if leads { ", led from here" } else { "" });
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Interval at which a host checks its replica.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
