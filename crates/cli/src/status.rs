//! `quorate status`: shows the reports of all processes of the local cluster in one table.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use quorate::node::DiskStatus;
use quorate_protocol::{Role, role::State};
use quorate_roles::tables::status::MemberStatus;
use serde::Serialize;

use crate::{
    cluster::{Cluster, ProcessEntry, end_of},
    directory::{Directory, DirectoryArgs},
    quorum::{LostRanges, Quorum},
    reports::{Report, reports},
};

/// Shows all processes, how far each is in the total order of messages, and how far behind.
///
/// For processes with a disk it also shows the used space, the duration of syncs, the age of the last
/// checkpoint, and how much a restart would read.
///
/// Exits with 1 if no majority of the routers answers, because nothing can be written then. It shows whether
/// the silent routers are gone for good, and what going on without them would lose. Also exits with 1 if none
/// of the storage processes that hold some range answers, because the rows of this range can be neither read
/// nor written then. A storage process that the cluster has given up on but still waits for has its own row,
/// `unreachable`, in addition to the row of its next life. Below the table the command lists the processes
/// that are not well, and the reasons. It also lists processes that were cut off and came back or are
/// starting, and says whether the disk is full.
///
/// POSITION is the position of the last message that concerned a process. Gateways, supers and standbys get
/// few messages and show none. LAG is the number of positions that a process still has to execute, or that a
/// router still has to learn. LIVES counts how often a process was started, or was cut off and came back as a
/// new process without a start.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prints one JSON object for each process, each on a line.
    #[arg(long)]
    json: bool,
    /// Repeats every 2 seconds, or at the given interval, until the cluster stops.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// The row of a process: the supervisor's entry, and values from the process's report.
#[derive(Serialize)]
struct StatusRow<'a> {
    #[serde(flatten)]
    entry: Cow<'a, ProcessEntry>,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    hindrance: Option<String>,
    incarnation: Option<String>,
    position: Option<u64>,
    lag: Option<u64>,
    /// Number of lives in the present program.
    lives: Option<u64>,
    /// Note that the process came back, ended, or is starting.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskStatus>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let directory = args.directory.directory()?;
    let Some(seconds) = args.watch else {
        let StatusOutput { text, trouble } = look(&directory, args.json)?;
        let printed = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
        // The trouble decides the exit code, even if the table could not be printed.
        if let Some(why) = trouble {
            bail!(why);
        }
        return Ok(printed?);
    };
    let clears = !args.json && io::stdout().is_terminal();
    loop {
        let StatusOutput { mut text, trouble } = look(&directory, args.json)?;
        if let (Some(why), false) = (trouble, args.json) {
            let _ = writeln!(text, "\n{why}");
        }
        let mut out = io::stdout().lock();
        if clears {
            // Moves the cursor to the top and clears the screen below it.
            out.write_all(b"\x1b[H\x1b[J")?;
        }
        out.write_all(text.as_bytes())?;
        if !args.json && !clears {
            out.write_all(b"\n")?;
        }
        out.flush()?;
        drop(out);
        thread::sleep(Duration::from_secs(seconds));
    }
}

/// The output for one look at the cluster, and the reason why the cluster as a whole cannot work, if there is
/// one.
struct StatusOutput {
    text: String,
    trouble: Option<String>,
}

fn look(directory: &Directory, json: bool) -> Result<StatusOutput> {
    let cluster = directory.running()?;
    let reports = reports(&cluster);
    let mut rows = rows(&cluster, &reports);
    let gone = LostRanges::of(reports.iter().flatten());
    rows.extend(gone.unreachable.iter().map(|member| StatusRow::unreachable(&cluster, member)));
    let full = full(directory, &rows);
    let mut text = String::new();
    if json {
        for row in &rows {
            writeln!(text, "{}", serde_json::to_string(row)?)?;
        }
    } else {
        let host = common_host(&rows);
        let at = host.map_or_else(String::new, |host| format!(", at {host}"));
        writeln!(text, "domain {}, run by pid {}{at}", cluster.domain, cluster.pid)?;
        writeln!(text, "its state and logs are in {}", directory.shown())?;
        text += &lines(&table(&rows, host));
        if let Some(disks) = disks(&rows) {
            text += "\n";
            text += &lines(&disks);
        }
        let notes = rows.iter().flat_map(|StatusRow { entry, hindrance, note, .. }| {
            let whys = [hindrance, note].into_iter().flatten();
            whys.map(move |why| format!("{}: {why}", entry.name))
        });
        let notes: Vec<String> = notes.chain(full.clone()).collect();
        if !notes.is_empty() {
            writeln!(text, "\n{}", notes.join("\n"))?;
        }
    }
    let quorum = Quorum::of(reports.iter().flatten());
    let trouble = if quorum.is_lost() {
        if json {
            writeln!(text, "{}", quorum.json())?;
        }
        let named = |process: &str| {
            let node = process.split('.').next().unwrap_or_default();
            let mut entries = cluster.processes.iter();
            let entry = entries.find(|entry| entry.node.to_string() == node);
            entry.map_or_else(|| process.to_owned(), |entry| entry.name.clone())
        };
        // A router that ended on a full disk has lost nothing, so a new generation would not help.
        Some(full.map_or_else(
            || quorum.explained(named),
            |full| format!("a majority of the routers does not answer, and nothing can be written: {full}"),
        ))
    } else if gone.ranges.is_empty() {
        None
    } else {
        if json {
            writeln!(text, "{}", gone.json())?;
        }
        Some(full.map_or_else(
            || gone.explained(),
            |full| {
                format!(
                    "all processes that hold a certain range are silent, so nobody can read or write its rows: {full}"
                )
            },
        ))
    };
    Ok(StatusOutput { text, trouble })
}

/// Returns a message that the disk is full, if that is why a process does not answer.
fn full(directory: &Directory, rows: &[StatusRow<'_>]) -> Option<String> {
    let is_silent = rows.iter().any(|row| row.position.is_none());
    let said = |row: &StatusRow<'_>| row.note.as_ref().is_some_and(|note| note.contains(DISK_FULL));
    let left = rustix::fs::statvfs(directory.join("")).ok().map(|it| it.f_bavail * it.f_frsize);
    let is_full = rows.iter().any(said) || is_silent && left.is_some_and(|left| left < ROOM_MIN);
    is_full.then(|| {
        let left = left.map_or_else(String::new, |left| format!(" ({} are left)", mebibytes(left)));
        format!(
            "the disk of {} is full{left}: make room there, and the processes that ended because of this start again by \
             themselves, with everything that was acknowledged",
            directory.shown()
        )
    })
}

/// Space on the disk in bytes, below which a process may have ended because the disk is full. A journal
/// reserves space by whole segments.
const ROOM_MIN: u64 = 64 << 20;

/// Text with which a process ends if its disk is full.
const DISK_FULL: &str = "the disk is full";

/// Returns the reason why a silent process ended: the last line of its log, unless the process has started
/// again since.
fn last_log_line(log: &Path) -> Option<String> {
    let end = end_of(log);
    let mut lines = end.lines().rev();
    let line = lines.find(|line| line.starts_with(LAST_WORD) || line.contains(STARTED))?;
    line.strip_prefix(LAST_WORD).map(str::to_owned)
}

/// Prefix of the line with which a program ends.
const LAST_WORD: &str = "quorate: ";
/// Part of the line with which a process begins.
const STARTED: &str = " started process=";

/// Formats a table without blanks at the ends of lines.
fn lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the host of all addresses, if they have the same host.
fn common_host<'r>(rows: &'r [StatusRow<'_>]) -> Option<&'r str> {
    let addresses =
        rows.iter().filter_map(|row| row.entry.bound.as_ref()).flat_map(|it| [&it.listen, &it.http]);
    let mut hosts = addresses.filter_map(|address| Some(address.rsplit_once(':')?.0));
    let first = hosts.next()?;
    hosts.all(|host| host == first).then_some(first)
}

impl StatusRow<'_> {
    /// Returns the row of a storage process that does not answer and that the cluster still waits for.
    fn unreachable(cluster: &Cluster, member: &MemberStatus) -> StatusRow<'static> {
        let node = member.process.split('.').next().and_then(|node| node.parse().ok());
        let known = cluster.processes.iter().find(|entry| entry.name == member.name);
        let entry = ProcessEntry {
            name: member.name.clone(),
            role: Role::Storage,
            node: node.unwrap_or_default(),
            pid: None,
            bound: None,
            starts: 0,
            log: known.map_or_else(PathBuf::new, |entry| entry.log.clone()),
            stays_down: false,
        };
        StatusRow {
            entry: Cow::Owned(entry),
            state: State::Unreachable,
            hindrance: None,
            incarnation: Some(member.process.clone()),
            position: None,
            lag: None,
            lives: None,
            note: None,
            disk: None,
        }
    }
}

fn rows<'a>(cluster: &'a Cluster, reports: &[Option<Report>]) -> Vec<StatusRow<'a>> {
    let furthest = reports.iter().flatten().map(|report| report.position).max();
    let row = |(entry, report): (&'a ProcessEntry, &Option<Report>)| StatusRow {
        entry: Cow::Borrowed(entry),
        state: match (report, entry.pid) {
            (Some(report), _) => report.state,
            (None, Some(_)) => State::Silent,
            (None, None) => State::Down,
        },
        hindrance: report.as_ref().and_then(|report| report.hindrance.clone()),
        incarnation: report.as_ref().map(|report| report.incarnation.clone()),
        disk: report.as_ref().and_then(|report| report.disk.clone()),
        position: report.as_ref().map(|report| report.position),
        lag: report.as_ref().and_then(|report| match report.role {
            // A router needs every message. Other processes need only the messages that concern them.
            Role::Router => Some(furthest?.saturating_sub(report.position)),
            _ => Some(report.position.saturating_sub(report.executed)),
        }),
        lives: report.as_ref().map(|report| report.lives),
        note: match report {
            Some(report) => comeback_note(report),
            None => absence_note(entry),
        },
    };
    cluster.processes.iter().zip(reports).map(row).collect()
}

/// Returns a note that a process was cut off and came back in the same program.
fn comeback_note(report: &Report) -> Option<String> {
    let times = match report.lives {
        0 | 1 => return None,
        2 => String::from("once"),
        lives => format!("{} times", lives - 1),
    };
    let why = report.former_end.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    Some(format!("it came back as a new process {times} since it was started{why}"))
}

/// Returns a note why a process does not answer, and what its supervisor does.
fn absence_note(entry: &ProcessEntry) -> Option<String> {
    let word = last_log_line(&entry.log).map_or_else(String::new, |why| format!("it ended ({why}); "));
    match (entry.pid, &entry.bound) {
        (None, _) if entry.stays_down => Some(format!("{word}it is not started again")),
        (None, _) => Some(format!("{word}it is started again")),
        (Some(_), None) => Some(format!("{word}it is starting")),
        (Some(_), Some(_)) => None,
    }
}

fn table(rows: &[StatusRow<'_>], host: Option<&str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["PROCESS", "PID", "STATE", "POSITION", "LAG", "LIVES", "LISTENS", "HTTP", "CLIENTS"]);
    let shown = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let short = |address: &String| match host {
        Some(host) => address.strip_prefix(host).unwrap_or(address).to_owned(),
        None => address.clone(),
    };
    for StatusRow { entry, state, position, lag, lives, .. } in rows {
        let bound = entry.bound.as_ref();
        // Few messages concern these processes, so a low position would look like a lag.
        let few = matches!(entry.role, Role::Super | Role::Gateway) || *state == State::Standby;
        let number =
            |number: Option<u64>| if few && number.is_some() { String::from("-") } else { shown(number) };
        let state = match (state, entry.pid, bound) {
            (State::Silent, Some(_), None) => String::from("starting"),
            _ => state.to_string(),
        };
        table.add_row([
            entry.name.clone(),
            shown(entry.pid.map(u64::from)),
            state,
            number(*position),
            number(*lag),
            shown((entry.starts > 0).then(|| entry.starts + lives.unwrap_or(1) - 1)),
            bound.map(|bound| short(&bound.listen)).unwrap_or_default(),
            bound.map(|bound| short(&bound.http)).unwrap_or_default(),
            bound.and_then(|bound| bound.sql.clone().or_else(|| bound.redis.clone())).unwrap_or_default(),
        ]);
    }
    for column in [1, 3, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.column_iter_mut().for_each(|column| {
        column.set_padding(PADDING);
    });
    table
}

/// Blanks around a column.
const PADDING: (u16, u16) = (0, 2);

/// Returns the table of the processes with disks, or `None` if there are none.
fn disks(rows: &[StatusRow<'_>]) -> Option<Table> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["DISK OF", "USED", "RESTART READS", "SYNCS", "MEAN", "LONGEST", "CHECKPOINT"]);
    for StatusRow { entry, disk, .. } in rows {
        let Some(disk) = disk else { continue };
        table.add_row([
            entry.name.clone(),
            mebibytes(disk.used_bytes),
            mebibytes(disk.restart_bytes),
            disk.syncs.to_string(),
            milliseconds(disk.sync_us_mean),
            milliseconds(disk.sync_us_max),
            disk.checkpoint_age_s.map_or_else(|| String::from("none yet"), ago),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table.column_iter_mut().for_each(|column| {
        column.set_padding(PADDING);
    });
    (!table.is_empty()).then_some(table)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn milliseconds(microseconds: u64) -> String {
    format!("{:.1} ms", microseconds as f64 / 1000.0)
}

/// Formats an age in its largest unit.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifeline::BoundAddresses;

    fn entry(name: &str, role: Role, pid: Option<u32>, listens: bool) -> ProcessEntry {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let bound =
            BoundAddresses { listen: at(64_998), http: at(64_999), sql: Some(at(65_000)), redis: None };
        let (bound, log) = (listens.then_some(bound), PathBuf::new());
        ProcessEntry { name: name.into(), role, node: 1, pid, bound, starts: 1, log, stays_down: false }
    }

    fn report(name: &str, state: &str, position: u64) -> Report {
        let role = name.split('-').next().unwrap_or_default();
        let text = format!(
            r#"{{"name":"{name}","role":"{role}","node":1,"incarnation":"aa","state":"{state}","position":{position},
                "executed":{position},"process":"1.aa"}}"#
        );
        serde_json::from_str(&text).expect("a report")
    }

    /// Returns the rows of four processes: one was cut off and came back, one is starting, one is silent, and
    /// one gets few messages.
    fn shown(log: &Path) -> (Cluster, Vec<Option<Report>>) {
        let processes = vec![
            entry("storage-1", Role::Storage, Some(4_194_304), true),
            entry("storage-2", Role::Storage, Some(4_194_303), false),
            ProcessEntry { log: log.into(), ..entry("router-1", Role::Router, None, false) },
            entry("gateway-1", Role::Gateway, Some(1), true),
        ];
        let former_end = Some(String::from("the others go on without this process, which was cut off"));
        let reports = vec![
            Some(Report { lives: 3, former_end, ..report("storage-1", "serving", 123_456_789_012) }),
            None,
            None,
            Some(report("gateway-1", "serving", 10)),
        ];
        (Cluster { domain: quorate_protocol::DomainId(1), pid: 2, durable: true, processes }, reports)
    }

    #[test]
    fn a_table_fits_a_hundred_columns_and_ends_without_blanks() {
        let (cluster, reports) = shown(Path::new("nowhere"));
        let rows = rows(&cluster, &reports);
        let text = lines(&table(&rows, common_host(&rows)));
        for line in text.lines() {
            assert!(line.chars().count() <= 100 && line == line.trim_end(), "{line:?}");
        }
        let words = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("storage-1")[2..6], ["serving", "123456789012", "0", "3"], "{text}");
        assert_eq!(words("storage-2")[2..], ["starting", "1"], "{text}");
        assert_eq!(words("router-1")[1..], ["down", "1"], "{text}");
        assert_eq!(words("gateway-1")[3..], ["-", "-", "1", ":64998", ":64999", "127.0.0.1:65000"], "{text}");
    }

    #[test]
    fn the_status_explains_absent_and_returned_processes() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("router-1.log");
        let started = "INFO quorate: started process=1.aa role=\"router\"\n";
        let word = "quorate: router-1: the process cannot go on: the disk is full: cannot write x; make room and start the process again\n";
        std::fs::write(&log, [started, word].concat()).unwrap();
        let (cluster, reports) = shown(&log);
        let rows = rows(&cluster, &reports);
        let notes: Vec<&str> = rows.iter().map(|row| row.note.as_deref().unwrap_or_default()).collect();
        assert!(
            notes[0].starts_with("it came back as a new process 2 times") && notes[0].contains("cut off"),
            "{notes:?}"
        );
        assert_eq!(notes[1], "it is starting");
        assert!(
            notes[2].contains("the disk is full") && notes[2].ends_with("it is started again"),
            "{notes:?}"
        );
        assert_eq!(notes[3], "");
        let place = Directory::at(directory.path());
        let said = full(&place, &rows).expect("the disk is full");
        assert!(said.contains("make room there") && !said.contains("reform"), "{said}");
        // Once the process has started again, `status` no longer shows why it had ended.
        std::fs::write(&log, [started, word, started].concat()).unwrap();
        assert_eq!(last_log_line(&log), None);
    }
}
