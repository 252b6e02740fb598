//! A host of a ready-made service.

use std::{
    io::{self, Write},
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quorate::{
    Error, Node, Pending, Wait,
    node::Builder,
    service::{
        Begin, Export,
        ready::{Counter, KeyValue, Lottery, Matchmaker, Scheduler},
    },
};

/// Hosts a replica of a ready-made service, until it is ended. A service of your own is hosted by your program (docs/services.md).
///
/// The first host founds the set, once; others join it, as do hosts that were killed. With --directory the replica is on disk, and goes on from there
/// if the same command is given again. It prints where it listens, and then how many replicas there are and whether it leads, whenever
/// that changes.
#[derive(clap::Args)]
pub(super) struct HostArgs {
    /// What it hosts.
    #[arg(value_enum)]
    service: Ready,
    #[command(flatten)]
    place: Place,
    /// Founds the set: once, ever.
    #[arg(long, required_unless_present = "join", conflicts_with = "join")]
    found: bool,
    /// Joins the set that a host at one of these addresses shows. Can be repeated.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    join: Vec<String>,
    /// How many replicas the set should have, as its founder says: 1 to 15, best an odd number. Hosts beyond it are spare.
    #[arg(long, default_value_t = 3, conflicts_with = "join")]
    replicas: u8,
}

/// Founds another set that begins with an exported state, and hosts its first replica. Others join it as ever.
#[derive(clap::Args)]
pub(super) struct RestoreArgs {
    /// The file of `quorate service export`.
    file: PathBuf,
    /// What it hosts: the service that the state is of.
    #[arg(value_enum)]
    service: Ready,
    #[command(flatten)]
    place: Place,
    /// How many replicas the set should have.
    #[arg(long, default_value_t = 3)]
    replicas: u8,
}

/// Where a host is.
#[derive(clap::Args)]
struct Place {
    /// The service's name, if not that of its kind.
    #[arg(long)]
    name: Option<String>,
    /// Where it listens for other hosts and for clients of the library.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Where others reach it, if not where it listens.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Where it serves HTTP, for calls and the other commands.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    http: String,
    /// Keeps the replica on disk, in this directory. All replicas of a set have disks, or none has.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Allows addresses other than loopback. Nothing is encrypted, and nobody is asked for a password.
    #[arg(long)]
    insecure: bool,
}

/// The services that are ready-made.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ready {
    /// A number: {"add": 1}, "read".
    Counter,
    /// Keys and values: {"put": ["colour", "blue"]}, {"get": "colour"}, {"delete": "colour"}.
    KeyValue,
    /// Draws by chance and clock: "draw", "last".
    Lottery,
    /// Jobs by priority: {"submit": {"job": "render", "priority": 5}}, {"work": {"worker": "w"}}.
    Scheduler,
    /// Machines for jobs: {"advertise": {"address": "10.0.0.5", "size": {"megahertz": 3000, "memory_gb": 16, "disk_gb": 500}, "capability": "x"}},
    /// {"submit": {"job": "render", "size": {…}, "priority": 5}}.
    Matchmaker,
}

impl Ready {
    fn serve(self, node: &Node, name: &str, begin: Begin) -> Pending<'static, ()> {
        match self {
            Ready::Counter => node.serve(name, Counter::default(), begin),
            Ready::KeyValue => node.serve(name, KeyValue::default(), begin),
            Ready::Lottery => node.serve(name, Lottery::default(), begin),
            Ready::Scheduler => node.serve(name, Scheduler::default(), begin),
            Ready::Matchmaker => node.serve_loop(name, Matchmaker::default(), begin),
        }
    }

    fn restore(self, node: &Node, name: &str, export: Export, replicas: u8) -> Pending<'static, ()> {
        match self {
            Ready::Counter => node.restore(name, Counter::default(), export, replicas),
            Ready::KeyValue => node.restore(name, KeyValue::default(), export, replicas),
            Ready::Lottery => node.restore(name, Lottery::default(), export, replicas),
            Ready::Scheduler => node.restore(name, Scheduler::default(), export, replicas),
            Ready::Matchmaker => node.restore_loop(name, Matchmaker::default(), export, replicas),
        }
    }

    fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self).expect("none is hidden");
        value.get_name().to_owned()
    }
}

impl Place {
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
    begin_at(place.builder().seeds(join), &name, |node| service.serve(node, &name, begin))
}

pub(super) fn restore(args: RestoreArgs) -> Result<()> {
    let RestoreArgs { file, service, place, replicas } = args;
    let export = Export::read(&file)?;
    let name = place.name.clone().unwrap_or_else(|| export.name().to_owned());
    begin_at(place.builder(), &name, |node| service.restore(node, &name, export, replicas))
}

/// Hosts a service, and tells how it stands, until it ends for good.
fn begin_at(builder: Builder, name: &str, serve: impl FnOnce(&Node) -> Pending<'static, ()>) -> Result<()> {
    crate::log_to_stderr();
    let node = builder.start().wait()?;
    serve(&node).wait().with_context(|| format!("service {name}"))?;
    let http = node.http_address().expect("a host that serves has its door");
    say(format_args!("{name} listens at {}, HTTP at {http}", node.address()))?;
    let mut told = None;
    loop {
        // It may have been withdrawn by an operator.
        let Some(standing) = node.standing(name) else {
            say(format_args!("{name} was withdrawn"))?;
            return Ok(());
        };
        if let Some(why) = standing.ended {
            bail!(Error::Start { why });
        }
        let now = (standing.replicas.len(), standing.serving);
        // It knows of none while it looks for the others.
        if now.0 > 0 && told.replace(now) != Some(now) {
            let (count, leads) = now;
            let word = if count == 1 { "replica" } else { "replicas" };
            say(format_args!("{count} {word}{}", if leads { ", led from here" } else { "" }))?;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Prints a line at once, for those who read it through a pipe.
fn say(line: std::fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// How often a host looks how its replica stands.
const LOOK_EVERY: Duration = Duration::from_millis(100);
