//! Many groups: the time to join them, their cost at rest, and the time until all groups continue without a
//! member that died.

use std::{
    io::{self, BufRead},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use quorate::{
    Node, Wait,
    group::{Origin, View},
};
use serde_json::json;

use super::{
    args::Args,
    report::say,
    routers::routers,
    spec::{GroupProcessSpec, MemberPart, spec},
    watch::{Watch, Watcher, joined},
};
use crate::bench::child::Child;

/// Time in which groups come to rest before their cost is measured.
const SETTLED: Duration = Duration::from_secs(3);
/// Time after which a member stops waiting for its groups.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(args.members >= 2 && args.groups > 0, "--members must be at least 2, and --groups at least 1");
    let (routers, addresses) = routers(args)?;
    let mut members = Vec::new();
    for number in 1..=args.members {
        let spec = spec(args, MemberPart::Many { groups: args.groups }, number, &addresses);
        members.push(Child::start(format!("member-{number}"), "group-process", &spec)?);
    }
    let began = Instant::now();
    for member in &mut members {
        member.send_line("join")?;
    }
    for member in &mut members {
        ensure!(member.line()? == "joined", "{} did not join its groups", member.name);
    }
    whole(&mut members, args.members)?;
    let joined = began.elapsed();
    thread::sleep(SETTLED);
    let used = |processes: &[Child]| processes.iter().map(Child::cpu).collect::<Result<Vec<_>>>();
    let (routers_before, members_before, resting) = (used(&routers)?, used(&members)?, Instant::now());
    thread::sleep(Duration::from_secs_f64(args.seconds));
    let (routers_after, members_after, rested) = (used(&routers)?, used(&members)?, resting.elapsed());
    let cores = |before: Vec<Duration>, after: Vec<Duration>| {
        let each = before.into_iter().zip(after).map(|(before, after)| after - before);
        each.map(|used| used.as_secs_f64() / rested.as_secs_f64()).fold(0.0, f64::max)
    };
    let (router_cores, member_cores) =
        (cores(routers_before, routers_after), cores(members_before, members_after));
    let killed = Instant::now();
    drop(members.pop());
    whole(&mut members, args.members - 1)?;
    let views = killed.elapsed();
    if args.json {
        let figures = json!({
            "bench": "group", "what": args.what, "groups": args.groups, "routers": args.routers,
            "members": args.members, "joined_s": joined.as_secs_f64(), "idle_cores_of_a_router": router_cores,
            "idle_cores_of_a_member": member_cores, "seconds": args.seconds,
            "new_views_ms": views.as_secs_f64() * 1e3,
        });
        println!("{figures}");
        return Ok(());
    }
    println!(
        "{} groups of {} members: joined in {:.2} s; while idle, a member takes {:.2} % of a core and a \
         router {:.2} %; {:.0} ms after one member was killed, all other members had views without the \
         killed one",
        args.groups,
        args.members,
        joined.as_secs_f64(),
        member_cores * 1e2,
        router_cores * 1e2,
        views.as_secs_f64() * 1e3
    );
    Ok(())
}

/// Waits until all groups have `size` members, at all members.
fn whole(members: &mut [Child], size: usize) -> Result<()> {
    for member in &mut *members {
        member.send_line(&format!("until {size}"))?;
    }
    for member in members {
        let said = member.line()?;
        ensure!(said == "so it is", "{}: {said}", member.name);
    }
    Ok(())
}

/// Maximum number of members of a view.
const SIZE_MAX: usize = 16;

/// Number of groups with views of each size. The counters are static, because a restored replica has no other
/// way to reach its process.
static SIZES: [AtomicU64; SIZE_MAX + 1] = [const { AtomicU64::new(0) }; SIZE_MAX + 1];

/// The size of a member's view.
#[derive(Default)]
struct Sizes {
    size: Option<usize>,
}

impl Watch for Sizes {
    const NAME: &'static str = "watcher/1";
    type Update = ();

    fn apply(&mut self, (): (), _: &Origin) {}

    fn view(&mut self, view: &View) {
        let size = view.members.len().min(SIZE_MAX);
        if let Some(before) = self.size.replace(size) {
            SIZES[before].fetch_sub(1, Ordering::Relaxed);
        }
        SIZES[size].fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn take_part(spec: &GroupProcessSpec, groups: usize) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).start().wait()?;
    let mut members = Vec::with_capacity(groups);
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("join", _) => {
                let join = |group| node.group(format!("group {group}")).join(Watcher::<Sizes>::default());
                members.extend(joined((0..groups).map(join))?);
                say("joined")?;
            }
            ("until", size) => {
                let (size, until): (usize, _) = (size.parse()?, Instant::now() + PATIENCE);
                ensure!(size <= SIZE_MAX, "--members must be at most {SIZE_MAX}");
                let count = || SIZES[size].load(Ordering::Relaxed);
                while count() < groups as u64 && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                match count() {
                    all if all == groups as u64 => say("so it is")?,
                    some => say(format_args!("only {some} of {groups} groups have {size} members"))?,
                }
            }
            _ => bail!("a process of the bench received the unknown command {line:?}"),
        }
    }
    Ok(())
}
