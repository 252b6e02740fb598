//! `quorate group`: lists process groups, and joins one at the terminal.

use std::{
    fmt,
    io::{self, BufRead, IsTerminal, Write},
    mem,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use quorate::{
    Error, Node, Wait,
    group::{Answer, Corrupt, Member, Origin, Replica, Share, Snapshot, View},
};
use quorate_protocol::{Role, role::State};
use quorate_roles::tables::status::{GroupMemberStatus, GroupStatus};

use crate::{
    cluster::RoutersArgs,
    operate::{self, Target},
    reports,
};

/// Lists process groups and their members, and joins a group that exchanges texts.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists the groups of the domain.
    ///
    /// The list shows the number of members, the newest checkpoint that the routers know of, the multicast
    /// address (for busy, large groups), and whether the view is about to change. An empty group is listed if
    /// it has a checkpoint.
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Shows the members of a group: rank, process, address, and whether the member has the group's state.
    ///
    /// The command also shows the newest checkpoint that the routers know of, and the multicast address if
    /// there is one.
    Show {
        /// Name of the group.
        name: String,
        #[command(flatten)]
        target: Target,
    },
    /// Joins a group, shows the delivered texts, and sends the lines of standard input.
    ///
    /// Lines are `soft TEXT`, `ordered TEXT`, `safe TEXT` or `flush`. The command answers each line once its
    /// outcome is known. At the end of the input it leaves the group. If the other members dropped this one,
    /// for example because it was stopped for too long, the command says so and exits with 1.
    ///
    /// To a pipe or a file it prints `state COUNT` after joining, with the number of texts in the group's
    /// state. It prints `view NUMBER COUNT RANK` at the start of a view, `text TEXT` for each delivered text,
    /// and `done LINE` or `failed LINE: WHY` for each line of input. All members have every text that was
    /// printed before `done flush`.
    Join {
        /// Name of the group.
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

/// Returns the groups that the lead router knows. If no router leads, returns the groups that another router
/// knows.
fn groups(target: &Target) -> Result<Vec<GroupStatus>> {
    let processes = target.answering()?;
    let lead = processes.iter().find(|it| it.report.state == State::Leading);
    let router = lead.map_or_else(|| operate::in_role(&processes, Role::Router), Ok)?;
    reports::fetch(&router.http, "groups")
        .with_context(|| format!("the router at {} does not answer", router.http))
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

/// Whether the group has no members and no process is joining.
fn is_idle(group: &GroupStatus) -> bool {
    group.members.is_empty() && group.joining.is_empty()
}

fn exhibit(name: &str, target: &Target) -> Result<()> {
    let group = groups(target)?.into_iter().find(|group| group.name == name);
    let group = group.with_context(|| {
        format!("there is no group `{name}`: it has no members, and the routers know no checkpoint of it")
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
            "{name}, idle{checkpoint}\nthe group has no members; the first process that joins goes on from its file with this checkpoint or a newer one"
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
    let member = node
        .group(name)
        .join(Texts::new(Vec::new()))
        .wait()
        .with_context(|| format!("cannot join the group {name}"))?;
    let lines = read_input_lines()?;
    loop {
        let line = match lines.recv_timeout(CHECK_INTERVAL) {
            Ok(line) => line.context("cannot read standard input")?,
            // The input has ended, so its thread has closed the channel.
            Err(RecvTimeoutError::Disconnected) => break,
            // The library does not notify a member that was dropped, for example because it was stopped for
            // too long. So the command checks whether the member has ended.
            Err(RecvTimeoutError::Timeout) => match member.ended() {
                Some(why) => bail!("this process is no longer in the group {name}: {why}"),
                None => continue,
            },
        };
        // Deliveries are printed in their order, before the answer to this line.
        match perform(&member, &line).and_then(|()| Ok(member.read(|_| ())?)) {
            Ok(()) => say(format_args!("done {line}"))?,
            Err(error) => say(format_args!("failed {line}: {error:#}"))?,
        }
        // A member that was dropped cannot send again, so the command ends. After any other failed line the
        // command continues.
        if let Some(why) = member.ended() {
            bail!("this process is no longer in the group {name}: {why}");
        }
    }
    Ok(node.leave().wait()?)
}

/// Reads the lines of standard input on a separate thread, one line ahead. The channel disconnects after the
/// last line.
fn read_input_lines() -> Result<Receiver<io::Result<String>>> {
    let (said, lines) = mpsc::sync_channel(0);
    thread::Builder::new().name(String::from("input")).spawn(move || {
        for line in io::stdin().lock().lines() {
            // No receiver is left once the command has ended.
            if said.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Performs a line, and retries while the member is out of touch with the routers.
fn perform(member: &Member<Texts>, line: &str) -> Result<()> {
    let (verb, text) = line.split_once(' ').unwrap_or((line, ""));
    loop {
        let done = match verb.parse() {
            Ok(strength) => member.send_as(strength, text.to_owned()).wait().map(drop),
            Err(_) if verb == "flush" => member.flush().wait(),
            Err(_) => bail!("a line must begin with soft, ordered, safe or flush"),
        };
        match done {
            // The loss of touch ends, or a later attempt fails with a permanent error. So the command tries
            // the line again.
            Err(Error::OutOfTouch) => thread::sleep(CHECK_INTERVAL),
            done => return Ok(done?),
        }
    }
}

/// Interval at which the member's state is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The state of the group: all texts so far.
struct Texts {
    texts: Vec<String>,
    /// Whether this member has printed the number of texts in its first state.
    begun: bool,
    /// Whether the output is a terminal and not a program.
    for_people: bool,
}

impl Texts {
    fn new(texts: Vec<String>) -> Texts {
        Texts { texts, begun: false, for_people: io::stdout().is_terminal() }
    }
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
        Ok(Texts::new(snapshot.read()?))
    }

    fn view(&mut self, view: &View) {
        if !mem::replace(&mut self.begun, true) {
            let count = self.texts.len();
            match self.for_people {
                true => show(format_args!(
                    "joined the group, which has {count} earlier texts. Type `soft TEXT`, `ordered TEXT`, `safe TEXT` or `flush`."
                )),
                false => show(format_args!("state {count}")),
            }
        }
        let rank = view.rank().expect("a member is in its view");
        let (number, members) = (view.number, view.members.len());
        if self.for_people {
            let others =
                if members == 1 { "nobody else".to_owned() } else { format!("{} others", members - 1) };
            return show(format_args!("view {number}: with {others}, this member has rank {rank}"));
        }
        show(format_args!("view {number} {members} {rank}"));
    }
}

/// Prints a line and ignores a failure. If the reader is gone, the answer to the next line ends the command.
fn show(line: fmt::Arguments<'_>) {
    let _ = say(line);
}

fn say(line: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
