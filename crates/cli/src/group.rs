//! `quorate group`: which process groups there are, and a member of one at the terminal.

use std::{
    fmt,
    io::{self, BufRead, Write},
    mem, thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use quorate::{
    Error, Node, Wait,
    group::{Answer, Corrupt, Member, Origin, Replica, Share, Snapshot, View},
};
use quorate_protocol::{Role, role::State};
use quorate_tables::status::{GroupMemberStatus, GroupStatus};

use crate::{
    cluster::RoutersArgs,
    operate::{self, Target},
    status,
};

/// Process groups: which there are, who is in one, and a group of texts of which this command is a member.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists the groups of the domain: how many members each has, the newest checkpoint that the routers know of, its multicast address if it is busy and large
    /// enough for one, and whether its view is about to change. A group that nobody is in is listed if it goes on from a checkpoint.
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Shows who is in a group: rank, process, where it listens, and whether it has the group's state; the newest checkpoint that the
    /// routers know of, and the multicast address if it has one.
    Show {
        /// The group.
        name: String,
        #[command(flatten)]
        target: Target,
    },
    /// Joins a group, shows what is delivered, and sends what it is told on standard input: `soft TEXT`, `ordered TEXT`, `safe TEXT`, `flush`,
    /// one a line. Each line is answered once it has come about; at the end of the input it leaves.
    ///
    /// It prints `state COUNT` when it is in, with so many texts from before; `view NUMBER COUNT RANK` when a view begins; `text TEXT` for each
    /// that is delivered; `done LINE` and `failed LINE: WHY` for each line of input. What is printed before `done flush` is at all members.
    Join {
        /// The group.
        name: String,
        #[command(flatten)]
        routers: RoutersArgs,
    },
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::List { target } => list(&target),
        Command::Show { name, target } => exhibit(&name, &target),
        Command::Join { name, routers } => join(&name, routers),
    }
}

/// The groups, as the lead router has them, or else any.
fn groups(target: &Target) -> Result<Vec<GroupStatus>> {
    let processes = target.answering()?;
    let lead = processes.iter().find(|it| it.report.state == State::Leading);
    let router = lead.map_or_else(|| operate::in_role(&processes, Role::Router), Ok)?;
    status::fetch(&router.http, "groups").with_context(|| format!("{} does not answer", router.http))
}

fn list(target: &Target) -> Result<()> {
    let groups = groups(target)?;
    if target.json {
        for group in &groups {
            say(format_args!("{}", serde_json::to_string(group)?))?;
        }
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "GROUP",
        "MEMBERS",
        "VIEW",
        "CHECKPOINT",
        "MULTICAST",
        "",
    ]);
    for group in &groups {
        let news = match (group.changing, group.joining.len()) {
            (false, _) if is_idle(group) => String::from("idle"),
            (false, _) => String::new(),
            (true, 0) => String::from("changing"),
            (true, joining) => format!("changing, {joining} joining"),
        };
        let view = if is_idle(group) { String::from("-") } else { group.view.to_string() };
        let checkpoint = group.checkpoint.clone().unwrap_or_else(|| String::from("-"));
        let multicast = group.multicast.clone().unwrap_or_else(|| String::from("-"));
        table.add_row([
            group.name.clone(),
            group.members.len().to_string(),
            view,
            checkpoint,
            multicast,
            news,
        ]);
    }
    Ok(say(format_args!("{table}"))?)
}

/// Whether nobody is in it, or about to be.
fn is_idle(group: &GroupStatus) -> bool {
    group.members.is_empty() && group.joining.is_empty()
}

fn exhibit(name: &str, target: &Target) -> Result<()> {
    let group = groups(target)?.into_iter().find(|group| group.name == name);
    let group = group.with_context(|| {
        format!("nobody is in a group `{name}`, and the routers know no checkpoint of it")
    })?;
    if target.json {
        return Ok(say(format_args!("{}", serde_json::to_string(&group)?))?);
    }
    let checkpoint = match &group.checkpoint {
        None => String::new(),
        Some(checkpoint) => format!(", checkpoint: {checkpoint}"),
    };
    if is_idle(&group) {
        return Ok(say(format_args!(
            "{name}, idle{checkpoint}\nthe first to join goes on from the file with this checkpoint, or a newer one"
        ))?);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["RANK", "PROCESS", "ADDRESS", ""]);
    for (rank, member) in group.members.iter().enumerate() {
        let state = match member {
            GroupMemberStatus { dropped: true, .. } => "suspected",
            GroupMemberStatus { leaving: true, .. } => "leaving",
            GroupMemberStatus { whole: false, .. } => "awaits the state",
            _ => "",
        };
        table.add_row([&rank.to_string(), &member.process, &member.address, state]);
    }
    for process in &group.joining {
        table.add_row(["", process, "", "joining"]);
    }
    let multicast = match &group.multicast {
        None => String::new(),
        Some(address) => format!(", multicast: {address}"),
    };
    Ok(say(format_args!("{name}, view {}{checkpoint}{multicast}\n{table}", group.view))?)
}

fn join(name: &str, routers: RoutersArgs) -> Result<()> {
    let node = Node::builder().routers(routers.addresses()?).start().wait()?;
    let member = node.group(name).join(Texts::default()).wait().with_context(|| format!("group {name}"))?;
    for line in io::stdin().lock().lines() {
        let line = line.context("standard input")?;
        // Deliveries are shown in their order, before what is asked now.
        match perform(&member, &line).and_then(|()| Ok(member.read(|_| ())?)) {
            Ok(()) => say(format_args!("done {line}"))?,
            Err(error) => say(format_args!("failed {line}: {error:#}"))?,
        }
        // A member that is out stays out; else the next line may fare better.
        if let Some(why) = member.ended() {
            bail!("{why}");
        }
    }
    Ok(node.leave().wait()?)
}

/// Does what a line says, as soon as the member is in touch with the routers.
fn perform(member: &Member<Texts>, line: &str) -> Result<()> {
    let (verb, text) = line.split_once(' ').unwrap_or((line, ""));
    loop {
        let done = match verb {
            "soft" => member.send(text.to_owned()).wait().map(drop),
            "ordered" => member.ordered_send(text.to_owned()).wait().map(drop),
            "safe" => member.safe_send(text.to_owned()).wait().map(drop),
            "flush" => member.flush().wait(),
            _ => bail!("a line begins with soft, ordered, safe or flush"),
        };
        match done {
            // It passes, or ends in an error that does not.
            Err(Error::OutOfTouch) => thread::sleep(LOOK_EVERY),
            done => return Ok(done?),
        }
    }
}

/// How often one that is out of touch looks whether it is so still.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// All texts so far, and whether this member has said how many it began with.
#[derive(Default)]
struct Texts {
    texts: Vec<String>,
    begun: bool,
}

impl Replica for Texts {
    const NAME: &'static str = "texts/1";
    type Update = String;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, text: String, _: &Origin) {
        show(format_args!("text {text}"));
        self.texts.push(text);
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::later(self.texts.clone())
    }

    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Texts { texts: snapshot.read()?, begun: false })
    }

    fn view(&mut self, view: &View) {
        if !mem::replace(&mut self.begun, true) {
            show(format_args!("state {}", self.texts.len()));
        }
        let rank = view.rank().expect("it is a member");
        show(format_args!("view {} {} {rank}", view.number, view.members.len()));
    }
}

/// Prints a line; a reader that has gone ends the command where it sends, not where it shows.
fn show(line: fmt::Arguments<'_>) {
    let _ = say(line);
}

fn say(line: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
