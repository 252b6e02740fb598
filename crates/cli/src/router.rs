//! `quorate router`: operations on routers that only an operator can decide.

use std::{
    fmt::Display,
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use quorate_command::{Usage, report};
use quorate_protocol::{DomainId, Role, role::State};
use quorate_roles::tables::{operate::AdminOperation, status::MemberStatus};
use quorate_runtime::{config::is_unspecified, discover::discover};
use serde_json::json;

use crate::{
    confirm::confirmed,
    operate::{self, AnsweringProcess, Target},
    quorum::Quorum,
    reports::Report,
};

/// Adds and removes routers, and lets a domain go on after the loss of a majority of its routers.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Makes a running router process a voting router, even beyond the number that the domain keeps.
    ///
    /// A domain that lacks routers accepts new ones by itself, so this is only for additional routers.
    Add {
        /// Address at which the process listens for other processes, host:port.
        address: String,
        #[command(flatten)]
        target: Target,
    },
    /// Removes a router from the domain.
    ///
    /// The router's process ends. Under `quorate up` it starts again as a new router.
    Remove {
        /// Name of the router, as in `quorate status`. In a cluster over machines, a router that does not
        /// answer is named by its process id, like 2.1f2e3d4c.
        process: String,
        #[command(flatten)]
        target: Target,
    },
    /// Lets the domain go on after a majority of its routers was lost for good.
    ///
    /// A new generation of the domain begins with the router that knows most. From then on, processes ignore
    /// all other routers of the old generation.
    ///
    /// The command first shows what may be lost, as `quorate status` does. Use it only if the silent routers
    /// will not come back. If they come back nevertheless, they are refused.
    ///
    /// If no router is left at all, the domain goes on from its members. Storage processes, supers, gateways
    /// and cells hand the messages last delivered to them to a router that has just started and is joining.
    /// Under `quorate up` such a router starts by itself. In a cluster over machines, start one yourself.
    /// More than half of the members have to answer this router. Members that were started again, and members
    /// named with --gone, do not count.
    Reform {
        /// Does not ask for confirmation.
        #[arg(long)]
        yes: bool,
        /// Time in seconds for other processes to report what they have. Processes that do not report in time
        /// are cut off.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
        wait: u64,
        /// Name of a storage process, super, gateway or cell that will not come back. Only for a domain
        /// without any router. Can be repeated.
        #[arg(long, value_name = "NAME")]
        gone: Vec<String>,
        #[command(flatten)]
        target: Target,
    },
}

/// Longest time for which a survivor may still believe in the lost leader.
const OLD_LEADER_BELIEF_MAX: Duration = Duration::from_secs(10);

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
            "other processes cannot connect to {address}: give the name or address of the router's machine"
        ))
        .into());
    }
    let processes = target.answering()?;
    let router = operate::in_role(&processes, Role::Router)?;
    let domain = &router.report.domain;
    let domain = u128::from_str_radix(domain, 16)
        .map(DomainId)
        .with_context(|| format!("the router reports the domain {domain}, which is no hexadecimal number"))?;
    let found = discover(address, domain, Duration::from_secs(2));
    let id = found.with_context(|| format!("no router of this domain answers at {address}"))?.process;
    if router.report.routers.contains(&id.to_string()) {
        bail!("the router at {address} votes already");
    }
    let process = (id.node, id.incarnation.0);
    let after =
        operate::ask(&router.http, &AdminOperation::AddRouter { process, address: address.to_owned() })?;
    report_result(target, &json!({ "added": id.to_string(), "routers": after.routers }), || {
        format!("the router at {address} votes now; the voting routers are {}", after.routers.join(", "))
    })
}

fn remove(process: &str, target: &Target) -> Result<()> {
    let processes = target.answering()?;
    let known = processes.iter().find(|it| it.report.name == process && it.report.role == Role::Router);
    let router = operate::in_role(&processes, Role::Router)?;
    let leads = processes.iter().find(|it| it.report.state == State::Leading).unwrap_or(router);
    let voters = &leads.report.routers;
    // A silent router, or a router that was started again and does not vote yet, is found by its node.
    let node = target.node(process)?.map(|node| format!("{node}."));
    let silent = || voters.iter().find(|voter| node.as_ref().is_some_and(|node| voter.starts_with(node)));
    let shown = match known.map(|it| &it.report.process).filter(|shown| voters.contains(shown)) {
        Some(shown) => shown.clone(),
        None => silent().map_or(process, String::as_str).to_owned(),
    };
    if !voters.contains(&shown) {
        bail!("{process} is not a voting router; the voting routers are {}", voters.join(", "));
    }
    // A router that is asked to remove itself may end before it answers.
    let asked = processes
        .iter()
        .filter(|it| it.report.role == Role::Router && it.report.process != shown)
        .find(|it| leads.report.routers.contains(&it.report.process));
    let Some(asked) = asked else {
        bail!("{process} is the last router that answers: without {process} the domain could not go on");
    };
    let after = operate::ask(&asked.http, &AdminOperation::RemoveRouter { process: shown })?;
    report_result(target, &json!({ "removed": process, "routers": after.routers }), || {
        format!("{process} no longer votes; the voting routers are {}", after.routers.join(", "))
    })
}

fn reform(yes: bool, wait: u64, gone: &[String], target: &Target) -> Result<()> {
    let processes = target.answering()?;
    let quorum = Quorum::of(processes.iter().map(|it| &it.report));
    let Some(survivor) = quorum.survivor.clone() else {
        return refound(yes, wait, gone, &processes, &quorum, target);
    };
    if !gone.is_empty() {
        bail!(
            "the voting router {} answers, so the domain goes on from this router: leave --gone out",
            survivor.name
        );
    }
    if !quorum.is_lost() {
        let (answering, voters) = (quorum.answering.len(), quorum.voters.len());
        bail!(
            "{answering} of {voters} voting routers answer, which is a majority: no new generation is needed"
        );
    }
    let chosen = processes.iter().find(|it| it.report.process == survivor.process);
    let http = &chosen.context("the router from which the domain would go on reports no HTTP address")?.http;
    warn(format_args!(
        "the domain would go on from {}, without its {} other voting routers:",
        survivor.name,
        quorum.voters.len() - 1
    ));
    warn(quorum.losses());
    if !quorum.silent.is_empty() {
        let silent = quorum.silent.join(", ");
        warn(format_args!("  routers that do not answer, and that are refused if they come back: {silent}"));
    }
    if !yes && !confirmed("router reform", "Begin a new generation?")? {
        bail!("nothing was changed");
    }
    begin(http, &survivor.name, &AdminOperation::Reform { patience_ms: wait * 1000 }, target)
}

/// Begins a generation without any surviving router: a new router goes on from the members.
fn refound(
    yes: bool,
    wait: u64,
    gone: &[String],
    processes: &[AnsweringProcess],
    quorum: &Quorum,
    target: &Target,
) -> Result<()> {
    let Some(witness) = &quorum.witness else {
        bail!("no voting router and no member of the domain answers, so the domain cannot go on");
    };
    let Some(founder) = &quorum.founder else {
        bail!(
            "no router answers: start a router that joins this domain, and run this command again; the domain then goes on \
             from its members, of which {} knows most",
            witness.name
        );
    };
    let unknown = gone.iter().find(|name| !quorum.known_members().any(|member| member.name == **name));
    if let Some(name) = unknown {
        bail!("--gone {name}: the domain has no member of this name");
    }
    let answers: Vec<&Report> = processes.iter().map(|it| &it.report).collect();
    let named = quorum.founder_members(&answers, gone);
    let members: Option<Vec<(u64, u128, String)>> = named.into_iter().map(identity).collect();
    let members = members.with_context(|| {
        format!("{} runs another version of quorate and does not report the members", witness.name)
    })?;
    let generations = answers.iter().filter(|report| report.role != Role::Router);
    let before = generations
        .map(|report| {
            (report.generation, u128::from_str_radix(&report.generation_of, 16).unwrap_or_default())
        })
        .max()
        .unwrap_or_default();
    let chosen = processes.iter().find(|it| it.report.process == founder.process);
    let http = &chosen.context("the router with which the domain would go on reports no HTTP address")?.http;
    let count = members.len();
    warn(format_args!(
        "no voting router answers; the domain would go on from {count} members, with {} as its router:",
        founder.name
    ));
    warn(quorum.losses());
    warn("  an old router that comes back is refused");
    if !yes && !confirmed("router reform", "Begin a new generation from the members?")? {
        bail!("nothing was changed");
    }
    begin(http, &founder.name, &AdminOperation::Refound { patience_ms: wait * 1000, before, members }, target)
}

/// Returns a member's node, incarnation and address.
fn identity(member: &MemberStatus) -> Option<(u64, u128, String)> {
    let node = member.process.split('.').next()?.parse().ok()?;
    Some((node, u128::from_str_radix(&member.incarnation, 16).ok()?, member.address.clone()))
}

/// Makes this router begin a generation, and prints the result.
fn begin(http: &str, name: &str, operation: &AdminOperation, target: &Target) -> Result<()> {
    let began = Instant::now();
    let after = loop {
        match operate::ask(http, operation) {
            Ok(after) => break after,
            // The router, or a member, has not noticed yet that the leader is gone.
            Err(error) if error.to_string().contains("leader") && began.elapsed() < OLD_LEADER_BELIEF_MAX => {
                thread::sleep(Duration::from_millis(200));
            }
            Err(error) => return Err(error.context(name.to_owned())),
        }
    };
    let reformed =
        after.reformed.with_context(|| format!("{name} does not report how the new generation began"))?;
    report_result(
        target,
        &json!({ "generation": after.generation, "survivor": name, "reform": reformed }),
        || {
            let mut text = format!("generation {} of the domain began with {name}", after.generation);
            if reformed.from_members {
                text += &format!(
                    ", from its members, all of which had every message up to position {}",
                    reformed.behind
                );
            }
            if reformed.recovered > 0 {
                text += &format!("; {} messages were recovered from other processes", reformed.recovered);
            }
            if reformed.missing > 0 {
                text += &format!(
                    "; the messages at {} positions up to {} are lost",
                    reformed.missing, reformed.through
                );
            }
            if !reformed.fenced.is_empty() {
                text += &format!(
                    "; cut off, because they did not answer in time: {}",
                    reformed.fenced.join(", ")
                );
            }
            text
        },
    )
}

/// Prints a consequence before the question that decides it.
fn warn(what: impl Display) {
    let _ = writeln!(io::stderr(), "{what}");
}

fn report_result(target: &Target, json: &serde_json::Value, text: impl Fn() -> String) -> Result<()> {
    if target.json {
        report!("{json}");
    } else {
        report!("{}", text());
    }
    Ok(())
}
