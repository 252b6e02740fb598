//! `quorate router`: what only an operator can say about routers.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quorate_command::{Usage, say};
use quorate_protocol::{DomainId, Role, role::State};
use quorate_runtime::{config::is_unspecified, discover::discover};
use quorate_tables::{operate::Operation, status::MemberStatus};
use serde_json::json;

use crate::{
    confirm::confirmed,
    operate::{self, Answering, Target},
    quorum::Quorum,
    status::Report,
};

/// What only an operator can say about routers.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Makes a router process that runs and joins a router that votes, beyond the number that the domain keeps too.
    ///
    /// A domain that lacks routers takes in by itself whichever asks; this is for more than that.
    Add {
        /// Where it listens for other processes, host:port.
        address: String,
        #[command(flatten)]
        target: Target,
    },
    /// Takes a router out. Its process ends; under `quorate up` it comes back as a fresh one.
    Remove {
        /// Its name, as `quorate status` shows it; over machines, one that does not answer is named as routers name it,
        /// like 2.1f2e3d4c.
        process: String,
        #[command(flatten)]
        target: Target,
    },
    /// Goes on after a majority of the routers was lost for good: a new generation of the domain begins with the one that
    /// knows most, and no router of the old one is listened to any more.
    ///
    /// What may be lost is shown first, as `quorate status` does. Do this only if those that are silent will not come back:
    /// should they, they are turned away.
    ///
    /// If no router is left at all, the domain goes on from its members: storage processes, supers and gateways hand over
    /// what was delivered to them last, to a router that has just started and joins. Under `quorate up` there is one; over
    /// machines, start one. More than half of the members have to answer it, not counting those that were started anew and
    /// those named with --gone.
    Reform {
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        /// How many seconds other processes may take to say what they have; those that do not are cut off.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
        wait: u64,
        /// If no router is left: this storage process, super or gateway will not come back either. Can be repeated.
        #[arg(long, value_name = "NAME")]
        gone: Vec<String>,
        #[command(flatten)]
        target: Target,
    },
}

/// How long a survivor may go on believing in a leader that is gone.
const DISBELIEF: Duration = Duration::from_secs(10);

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Add { address, target } => add(&address, &target),
        Command::Remove { process, target } => remove(&process, &target),
        Command::Reform { yes, wait, gone, target } => reform(yes, wait, &gone, &target),
    }
}

fn add(address: &str, target: &Target) -> Result<()> {
    if is_unspecified(address) {
        return Err(Usage(format!(
            "{address} is where a router may listen, not where others reach it: give its name or address"
        ))
        .into());
    }
    let processes = target.answering()?;
    let router = operate::in_role(&processes, Role::Router)?;
    let domain = &router.report.domain;
    let domain =
        u128::from_str_radix(domain, 16).map(DomainId).with_context(|| format!("domain {domain}"))?;
    let found = discover(address, domain, Duration::from_secs(2));
    let id = found.with_context(|| format!("no router of this domain answers at {address}"))?.process;
    if router.report.routers.contains(&id.to_string()) {
        bail!("{address} is a router already");
    }
    let process = (id.node, id.incarnation.0);
    let after = operate::ask(&router.http, &Operation::AddRouter { process, address: address.to_owned() })?;
    tell(target, &json!({ "added": id.to_string(), "routers": after.routers }), || {
        format!("{address} votes now; the routers are {}", after.routers.join(", "))
    })
}

fn remove(process: &str, target: &Target) -> Result<()> {
    let processes = target.answering()?;
    let known = processes.iter().find(|it| it.report.name == process && it.report.role == Role::Router);
    let router = operate::in_role(&processes, Role::Router)?;
    let leads = processes.iter().find(|it| it.report.state == State::Leading).unwrap_or(router);
    let voters = &leads.report.routers;
    // One that is silent, or was started anew and does not vote yet, is known by its node.
    let node = target.node(process)?.map(|node| format!("{node}."));
    let silent = || voters.iter().find(|voter| node.as_ref().is_some_and(|node| voter.starts_with(node)));
    let shown = match known.map(|it| &it.report.process).filter(|shown| voters.contains(shown)) {
        Some(shown) => shown.clone(),
        None => silent().map_or(process, String::as_str).to_owned(),
    };
    if !voters.contains(&shown) {
        bail!("{process} is no router that votes; those are {}", voters.join(", "));
    }
    // One that is taken out itself may end before it can answer.
    let asked = processes
        .iter()
        .filter(|it| it.report.role == Role::Router && it.report.process != shown)
        .find(|it| leads.report.routers.contains(&it.report.process));
    let Some(asked) = asked else {
        bail!("{process} is the last router that answers: taking it out would end the domain");
    };
    let after = operate::ask(&asked.http, &Operation::RemoveRouter { process: shown })?;
    tell(target, &json!({ "removed": process, "routers": after.routers }), || {
        format!("{process} votes no more; the routers are {}", after.routers.join(", "))
    })
}

fn reform(yes: bool, wait: u64, gone: &[String], target: &Target) -> Result<()> {
    let processes = target.answering()?;
    let quorum = Quorum::of(processes.iter().map(|it| &it.report));
    let Some(survivor) = quorum.survivor.clone() else {
        return refound(yes, wait, gone, &processes, &quorum, target);
    };
    if !gone.is_empty() {
        bail!("{} answers and votes: the domain goes on from it, and --gone says nothing", survivor.name);
    }
    if !quorum.is_lost() {
        let (answering, voters) = (quorum.answering.len(), quorum.voters.len());
        bail!("{answering} of {voters} routers that vote answer: a majority is there, and nothing is lost");
    }
    let chosen = processes.iter().find(|it| it.report.process == survivor.process);
    let http = &chosen.context("the survivor has no address")?.http;
    eprintln!("going on from {}, without {} other routers:", survivor.name, quorum.voters.len() - 1);
    eprintln!("{}", quorum.price());
    if !quorum.silent.is_empty() {
        let silent = quorum.silent.join(", ");
        eprintln!("  silent routers, which are turned away should they come back: {silent}");
    }
    if !yes && !confirmed("router reform", "Begin a new generation?")? {
        bail!("nothing was changed");
    }
    begin(http, &survivor.name, &Operation::Reform { patience_ms: wait * 1000 }, target)
}

/// No router is left that knows anything: a fresh one goes on from the members.
fn refound(
    yes: bool,
    wait: u64,
    gone: &[String],
    processes: &[Answering],
    quorum: &Quorum,
    target: &Target,
) -> Result<()> {
    let Some(witness) = &quorum.witness else {
        bail!("neither a router that votes nor a member answers: there is nothing to go on from");
    };
    let Some(founder) = &quorum.founder else {
        bail!(
            "no router answers: start one that joins this domain, and try again; it will go on from the members, the furthest \
             of which is {}",
            witness.name
        );
    };
    let unknown = gone.iter().find(|name| !witness.members.iter().any(|member| member.name == **name));
    if let Some(name) = unknown {
        bail!("{name} is no member of the domain");
    }
    let answers: Vec<&Report> = processes.iter().map(|it| &it.report).collect();
    let named = quorum.named(&answers, gone);
    let members: Option<Vec<(u64, u128, String)>> = named.into_iter().map(identity).collect();
    let members =
        members.with_context(|| format!("{} is of another build: it does not name members", witness.name))?;
    let generations = answers.iter().filter(|report| report.role != Role::Router);
    let before = generations
        .map(|report| {
            (report.generation, u128::from_str_radix(&report.generation_of, 16).unwrap_or_default())
        })
        .max()
        .unwrap_or_default();
    let chosen = processes.iter().find(|it| it.report.process == founder.process);
    let http = &chosen.context("the router has no address")?.http;
    eprintln!(
        "no router that votes answers; going on from {} members, with {}:",
        members.len(),
        founder.name
    );
    eprintln!("{}", quorum.price());
    eprintln!("  should one of the old routers live, it is turned away");
    if !yes && !confirmed("router reform", "Begin a new generation from the members?")? {
        bail!("nothing was changed");
    }
    begin(http, &founder.name, &Operation::Refound { patience_ms: wait * 1000, before, members }, target)
}

/// A member's node, life and address.
fn identity(member: &MemberStatus) -> Option<(u64, u128, String)> {
    let node = member.process.split('.').next()?.parse().ok()?;
    Some((node, u128::from_str_radix(&member.incarnation, 16).ok()?, member.address.clone()))
}

/// Has this router begin a generation, and tells what came of it.
fn begin(http: &str, name: &str, operation: &Operation, target: &Target) -> Result<()> {
    let began = Instant::now();
    let after = loop {
        match operate::ask(http, operation) {
            Ok(after) => break after,
            // It, or a member, has not noticed yet that the leader is gone.
            Err(error) if error.to_string().contains("leader") && began.elapsed() < DISBELIEF => {
                thread::sleep(Duration::from_millis(200));
            }
            Err(error) => return Err(error.context(name.to_owned())),
        }
    };
    let reformed = after.reformed.context("the router does not say what its generation began with")?;
    tell(target, &json!({ "generation": after.generation, "survivor": name, "reform": reformed }), || {
        let mut text = format!("generation {} of the domain began with {name}", after.generation);
        if reformed.from_members {
            text += &format!(", from its members, who lacked nothing up to position {}", reformed.behind);
        }
        if reformed.recovered > 0 {
            text += &format!("; {} messages were recovered from other processes", reformed.recovered);
        }
        if reformed.missing > 0 {
            text += &format!("; {} positions up to {} are lost", reformed.missing, reformed.through);
        }
        if !reformed.fenced.is_empty() {
            text += &format!("; cut off: {}", reformed.fenced.join(", "));
        }
        text
    })
}

fn tell(target: &Target, json: &serde_json::Value, text: impl Fn() -> String) -> Result<()> {
    if target.json {
        say!("{json}")?;
    } else {
        say!("{}", text())?;
    }
    Ok(())
}
