//! Commands about the connection itself: levels, maps, the protocol's version, and the requests for
//! information that clients send when they connect.
//!
//! **Refused openings.** Some commands change the meaning of later commands. A client may send both in one
//! pipeline and ignore the refusal of the first. So the later commands are refused, too, until a command
//! closes the refused opening:
//!
//! | refused | refused with it | up to |
//! |---|---|---|
//! | `MULTI` | every command; `EXEC` answers `EXECABORT` | `EXEC`, `DISCARD`, `RESET` |
//! | `SELECT` ≠ 0, `QUORATE MAP` of no map | commands on keys | `SELECT 0`, `QUORATE MAP` of a map, `RESET` |
//!
//! `CLIENT REPLY` is obeyed, because a client that asked for silence would take each later answer for the
//! answer to another command. `SUBSCRIBE`, `MONITOR`, `WATCH` and `EVAL` leave nothing open when they are
//! refused. A command on keys that follows them has the effect that it would have alone, and `MULTI` after
//! `WATCH` is itself refused.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    partial::{Change, Copies, Level, Map, ReadRepair, Roster, Site, Strategy},
};
use serde::{Deserialize, Serialize};

use super::{
    dial::{Dial, ReadWrite, parse_delays, parse_levels, parse_p},
    parse::number,
    refusal::{NO_NUMBER, arity},
    reply::{Reply, Version},
};

/// The settings of a connection. They are kept when another process continues the connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClientSession {
    /// The number of the connection in this process. A process that continues the connection gives it another
    /// number.
    #[serde(skip)]
    pub(super) number: u64,
    pub(super) version: Version,
    pub(super) map: String,
    pub(super) dial: Dial,
    /// The dial that holds for the next command on keys only, if the client gave `NEXT`.
    pub(super) next: Option<Dial>,
    /// The name that the client chose for itself, at most [`NAME_BYTES_MAX`] long.
    pub(super) name: Bytes,
    /// Whether a `MULTI` was refused and not yet closed by `EXEC` or `DISCARD`.
    #[serde(default)]
    pub(super) in_transaction: bool,
    /// Whether the client's latest choice of a map or database was one that does not exist.
    #[serde(default)]
    pub(super) astray: bool,
    #[serde(default)]
    pub(super) replies: Replies,
}

/// The answers that a client wants, set by `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Replies {
    /// All answers.
    #[default]
    On,
    /// All answers except that of the next command.
    SkipNext,
    /// No answers, until the client sets `ON`.
    Off,
}

/// Longest name that a client may give itself, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 1 << 10;

/// The last answer to a browser, before its connection ends.
pub(super) const NO_HTTP: &str =
    "ERR Protocol error: the client sent HTTP, and this port speaks the Redis protocol";

/// The effect of a command.
#[derive(Debug, PartialEq)]
pub(super) enum CommandEffect {
    Answer(Reply),
    /// The command has this answer, after which the connection ends.
    Quit(Reply),
    /// A change of the maps, to be ordered.
    Change(Change),
    /// No answer.
    Silence,
    /// A fresh session, as after connecting.
    Reset,
}

/// Facts about this process, for answers.
pub(super) struct ProcessInfo<'a> {
    pub(super) roster: Option<&'a Roster>,
    /// The id of this process.
    pub(super) me: Option<ProcessId>,
    pub(super) clients: usize,
    /// Clients that have connected since the start.
    pub(super) connections: u64,
    /// Requests that were taken since the start.
    pub(super) commands: u64,
    /// Operations on keys that were passed to the cell or to another strategy since the start.
    pub(super) operations: u64,
    /// Time since the process began to serve.
    pub(super) uptime: Duration,
}

impl ClientSession {
    /// Creates the session of a new connection.
    pub(super) fn new(number: u64, map: String, level: Level) -> ClientSession {
        ClientSession {
            number,
            version: Version::default(),
            map,
            dial: Dial::fixed(ReadWrite::both(level)),
            next: None,
            name: Bytes::new(),
            in_transaction: false,
            astray: false,
            replies: Replies::On,
        }
    }

    /// Whether a refused command changes the meaning of the commands after it.
    pub(super) fn is_barred(&self) -> bool {
        self.in_transaction || self.astray
    }

    /// Returns the refusal of the command `name`, in capitals, if an earlier refused command affects it;
    /// otherwise `None`.
    pub(super) fn refusal_after_opening(&self, name: &[u8]) -> Option<Reply> {
        if self.in_transaction {
            let closes =
                matches!(name, b"EXEC" | b"DISCARD" | b"MULTI" | b"RESET" | b"QUIT" | b"POST" | b"HOST:");
            return (!closes).then(|| {
                let text =
                    "ERR the command was not queued and not applied: MULTI was refused, and the client has not sent EXEC or DISCARD since";
                Reply::Error(String::from(text))
            });
        }
        let is_of_the_connection = matches!(
            name,
            b"PING"
                | b"ECHO"
                | b"QUIT"
                | b"SELECT"
                | b"HELLO"
                | b"RESET"
                | b"CLIENT"
                | b"COMMAND"
                | b"CONFIG"
                | b"INFO"
                | b"QUORATE"
                | b"POST"
                | b"HOST:"
                | b"MULTI"
                | b"EXEC"
                | b"DISCARD"
                | b"WATCH"
                | b"UNWATCH"
                | b"AUTH"
        );
        (self.astray && !is_of_the_connection).then(|| {
            let text = "NOMAP the command was not carried out: the database or map that this connection last chose does not exist. Choose a map with SELECT 0 or QUORATE MAP name";
            Reply::Error(String::from(text))
        })
    }

    /// Carries out a command that is not on keys. The first of `strings` is the command's name.
    pub(super) fn command(&mut self, strings: &[Bytes], about: &ProcessInfo<'_>) -> CommandEffect {
        let text = |index: usize| strings.get(index).map(|it| String::from_utf8_lossy(it).into_owned());
        let word = |index: usize| text(index).map(|it| it.to_ascii_uppercase());
        let name = word(0).unwrap_or_default();
        let done = |result: Result<Reply, String>| CommandEffect::Answer(result.unwrap_or_else(Reply::Error));
        let arity = || CommandEffect::Answer(Reply::Error(arity(name.as_bytes())));
        match (name.as_str(), strings.len()) {
            ("PING", 1) => CommandEffect::Answer(Reply::Simple("PONG")),
            ("PING" | "ECHO", 2) => CommandEffect::Answer(Reply::Bulk(strings[1].clone())),
            ("QUIT", _) => CommandEffect::Quit(Reply::OK),
            // As in Redis, the connection ends if a web page made a browser send an HTTP request to this
            // door.
            ("POST" | "HOST:", _) => CommandEffect::Quit(Reply::Error(String::from(NO_HTTP))),
            ("SELECT", 2) => {
                let database = number(&strings[1]);
                self.astray = database != Some(0);
                done(match database {
                    Some(0) => Ok(Reply::OK),
                    Some(_) => Err(String::from(
                        "ERR DB index is out of range: there is database 0 only, and QUORATE MAP chooses a map",
                    )),
                    None => Err(NO_NUMBER.to_owned()),
                })
            }
            ("MULTI", 1) if self.in_transaction => {
                done(Err(String::from("ERR MULTI calls can not be nested")))
            }
            ("MULTI", 1) => {
                self.in_transaction = true;
                done(Err(String::from(NO_TRANSACTIONS)))
            }
            ("EXEC", 1) if std::mem::take(&mut self.in_transaction) => done(Err(String::from(
                "EXECABORT Transaction discarded because of previous errors: MULTI was refused, and nothing was applied",
            ))),
            ("DISCARD", 1) if std::mem::take(&mut self.in_transaction) => CommandEffect::Answer(Reply::OK),
            ("EXEC" | "DISCARD", 1) => done(Err(format!("ERR {name} without MULTI"))),
            ("WATCH", 2..) | ("UNWATCH", 1) => done(Err(format!("ERR {name}: {}", &NO_TRANSACTIONS[4..]))),
            ("HELLO", _) => done(self.hello(strings)),
            ("RESET", 1) => CommandEffect::Reset,
            ("CLIENT", 3) if word(1).as_deref() == Some("REPLY") => match word(2).as_deref() {
                Some("ON") => {
                    self.replies = Replies::On;
                    CommandEffect::Answer(Reply::OK)
                }
                Some("OFF") => {
                    self.replies = Replies::Off;
                    CommandEffect::Silence
                }
                Some("SKIP") => {
                    if self.replies == Replies::On {
                        self.replies = Replies::SkipNext;
                    }
                    CommandEffect::Silence
                }
                _ => done(Err(String::from("ERR syntax error"))),
            },
            ("CLIENT", 2..) => done(self.client(&word(1).unwrap_or_default(), strings)),
            ("COMMAND", 2) if word(1).as_deref() == Some("COUNT") => CommandEffect::Answer(Reply::Number(0)),
            // Clients ask for documentation of commands, and continue if they get an empty answer.
            ("COMMAND", _) if word(1).as_deref() == Some("DOCS") => {
                CommandEffect::Answer(Reply::Map(Vec::new()))
            }
            ("COMMAND", _) => CommandEffect::Answer(Reply::Array(Vec::new())),
            ("CONFIG", 3..) if word(1).as_deref() == Some("GET") => {
                CommandEffect::Answer(Reply::Map(Vec::new()))
            }
            ("INFO", _) => {
                let wanted: Vec<String> = (1..strings.len()).filter_map(word).collect();
                CommandEffect::Answer(Reply::text(info(about, &wanted)))
            }
            ("QUORATE", 2..) => match self.quorate(&word(1).unwrap_or_default(), strings, about) {
                Ok(effect) => effect,
                Err(why) => CommandEffect::Answer(Reply::Error(format!("ERR {why}"))),
            },
            (
                "PING" | "ECHO" | "SELECT" | "CLIENT" | "QUORATE" | "RESET" | "MULTI" | "EXEC" | "DISCARD"
                | "WATCH" | "UNWATCH",
                _,
            ) => arity(),
            _ => {
                let name = text(0).unwrap_or_default();
                let short: String = name.chars().take(64).collect();
                CommandEffect::Answer(Reply::Error(format!("ERR unknown or unsupported command '{short}'")))
            }
        }
    }

    fn hello(&mut self, strings: &[Bytes]) -> Result<Reply, String> {
        // All options are checked before any is set, so that a refused HELLO changes nothing.
        let (mut version, mut named) = (self.version, None);
        let mut rest = strings.iter().skip(1);
        if let Some(digits) = rest.next() {
            version = match number(digits) {
                Some(2) => Version::Two,
                Some(3) => Version::Three,
                Some(_) => return Err(String::from("NOPROTO unsupported protocol version")),
                None => {
                    return Err(String::from("ERR Protocol version is not an integer or out of range"));
                }
            };
        }
        while let Some(option) = rest.next() {
            match &option.to_ascii_uppercase()[..] {
                b"SETNAME" => {
                    let name = rest.next().ok_or("ERR Syntax error in HELLO option 'setname'")?;
                    named = Some(checked_name(name)?);
                }
                b"AUTH" => {
                    return Err(String::from(
                        "ERR AUTH is not supported: this server has no passwords, so connect without one",
                    ));
                }
                _ => {
                    let option = String::from_utf8_lossy(&option[..option.len().min(64)]).into_owned();
                    return Err(format!("ERR Syntax error in HELLO option '{option}'"));
                }
            }
        }
        self.version = version;
        if let Some(name) = named {
            self.name = name;
        }
        let version = if self.version == Version::Three { 3 } else { 2 };
        let text = |text: &str| Reply::text(text);
        Ok(Reply::Map(vec![
            (text("server"), text("quorate")),
            (text("version"), text(env!("CARGO_PKG_VERSION"))),
            (text("proto"), Reply::Number(version)),
            (text("id"), Reply::Number(self.number as i64)),
            (text("mode"), text("standalone")),
            (text("role"), text("master")),
            (text("modules"), Reply::Array(Vec::new())),
        ]))
    }

    fn client(&mut self, what: &str, strings: &[Bytes]) -> Result<Reply, String> {
        match (what, strings.len()) {
            ("ID", 2) => Ok(Reply::Number(self.number as i64)),
            ("GETNAME", 2) if self.name.is_empty() => Ok(Reply::Null),
            ("GETNAME", 2) => Ok(Reply::Bulk(self.name.clone())),
            ("SETNAME", 3) => {
                self.name = checked_name(&strings[2])?;
                Ok(Reply::OK)
            }
            // A client reports its library and the library's version. Nothing here uses them.
            ("SETINFO", 4) => Ok(Reply::OK),
            _ => {
                let what: String = what.chars().take(64).collect();
                Err(format!("ERR CLIENT {what} is not supported"))
            }
        }
    }

    fn quorate(
        &mut self,
        what: &str,
        strings: &[Bytes],
        about: &ProcessInfo<'_>,
    ) -> Result<CommandEffect, String> {
        let texts: Vec<String> =
            strings[2..].iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let reply = match (what, &texts[..]) {
            ("LEVEL" | "P", []) => Reply::text(self.dial.levels_spelt()),
            ("DELAY", []) => Reply::text(self.dial.delays_spelt()),
            ("LEVEL", words) => self.turn(words, parse_levels)?,
            ("P", words) => self.turn(words, parse_p)?,
            ("DELAY", words) => self.turn(words, parse_delays)?,
            ("MAP", []) => Reply::text(self.map.clone()),
            ("MAP", [name]) => {
                self.astray = about.roster.is_none_or(|roster| roster.map(name).is_none());
                if self.astray {
                    return Err(format!("there is no map '{name}': QUORATE MAPS lists all maps"));
                }
                self.map = (*name).to_owned();
                Reply::OK
            }
            ("MAPS", []) => {
                let names =
                    about.roster.into_iter().flat_map(Roster::maps).map(|(name, _)| Reply::text(name));
                Reply::Array(names.collect())
            }
            ("CELLS", []) => Reply::Array(cells(about)),
            ("CREATE", [name, options @ ..]) => {
                let roster = about.roster.ok_or("this process has not joined its domain yet")?;
                let map = parse_map(options, roster, about.me)?;
                return Ok(CommandEffect::Change(Change::CreateMap { name: (*name).to_owned(), map }));
            }
            ("DROP", [name]) => {
                return Ok(CommandEffect::Change(Change::DropMap { name: (*name).to_owned() }));
            }
            ("DISMISS", [name]) => return Ok(CommandEffect::Change(Change::Dismiss(named(about, name)?))),
            ("REPLACE", [old, new]) => {
                let (old, new) = (named(about, old)?, named(about, new)?);
                return Ok(CommandEffect::Change(Change::Replace { old, new }));
            }
            ("ACCEPT", [name]) => {
                let process = named(about, name)?;
                let number = about.roster.and_then(|roster| roster.layout().number(process));
                let number = number
                    .ok_or_else(|| format!("member '{name}' is not a cell: QUORATE CELLS lists the cells"))?;
                return Ok(CommandEffect::Change(Change::Complete(number)));
            }
            _ => {
                return Err(String::from(
                    "usage: QUORATE ID id write … | LEVEL [read [write] [NEXT]] | P [read [write] [BETWEEN weak strong] [NEXT]] | \
                     DELAY [read [write] [NEXT]] | MAP [name] | MAPS | CELLS | CREATE name \
                     [STRATEGY quorum|ordered|group|service] [COPIES n|site:n,…] [REPAIR none|blocking|per-million] | DROP name | DISMISS member | REPLACE member spare | ACCEPT member",
                ));
            }
        };
        Ok(CommandEffect::Answer(reply))
    }

    /// Sets the dial of the connection. With `NEXT` at the end, sets only the dial of the next command on
    /// keys.
    fn turn(
        &mut self,
        words: &[&str],
        parse: fn(&[&str], Dial) -> Result<Dial, String>,
    ) -> Result<Reply, String> {
        match words {
            [words @ .., next] if next.eq_ignore_ascii_case("next") => {
                self.next = Some(parse(words, self.next.unwrap_or(self.dial))?);
            }
            words => self.dial = parse(words, self.dial)?,
        }
        Ok(Reply::OK)
    }
}

/// Checks a client's name by the rules of Redis, and against [`NAME_BYTES_MAX`].
fn checked_name(name: &Bytes) -> Result<Bytes, String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("ERR a client's name has at most {NAME_BYTES_MAX} bytes"));
    }
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(String::from("ERR Client names cannot contain spaces, newlines or special characters."));
    }
    // The name is copied, so that it does not keep the whole request in memory.
    Ok(Bytes::copy_from_slice(name))
}

const NO_TRANSACTIONS: &str = "ERR MULTI, EXEC and WATCH are not supported: a map has no transactions over several commands. \
     A client library can send a pipeline without MULTI: redis-py pipeline(transaction=False), ioredis pipeline(), \
     Jedis pipelined(), go-redis Pipelined()";

fn named(about: &ProcessInfo<'_>, name: &str) -> Result<ProcessId, String> {
    let roster = about.roster.ok_or("this process has not joined its domain yet")?;
    roster.named(name).ok_or_else(|| format!("no member is called '{name}': QUORATE CELLS lists the members"))
}

/// Parses the options of a new map. By default, a map has up to three copies at the lowest site, and no read
/// repair.
fn parse_map(options: &[&str], roster: &Roster, me: Option<ProcessId>) -> Result<Map, String> {
    let site = roster.layout().cells().map(|(_, cell)| cell.site).min().unwrap_or_default();
    let at_site = roster.layout().cells().filter(|(_, cell)| cell.site == site).count();
    let (mut copies, mut repair, mut strategy) = (None, None, Strategy::Quorum(ReadRepair::None));
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("option {option} of QUORATE CREATE needs a value"))?;
        match option.to_ascii_uppercase().as_str() {
            "STRATEGY" => strategy = parse_strategy(value, me)?,
            "COPIES" => {
                let parsed = parse_copies(value, site);
                copies = Some(parsed.ok_or(
                    "COPIES: give 1 to 16 copies in all, as a number or as site:number,site:number",
                )?);
            }
            "REPAIR" => repair = Some(parse_repair(value)?),
            _ => {
                return Err(format!(
                    "QUORATE CREATE has no option '{option}': the options are STRATEGY, COPIES and REPAIR"
                ));
            }
        }
    }
    match (&mut strategy, repair) {
        (Strategy::Quorum(of), Some(repair)) => *of = repair,
        (Strategy::Quorum(_), None) => {}
        (_, Some(_)) => return Err(String::from("REPAIR is an option of maps of strategy quorum only")),
        (_, None) => {}
    }
    if copies.is_some() && matches!(strategy, Strategy::Ordered | Strategy::Group) {
        return Err(String::from(
            "COPIES: maps of strategies group and ordered do not take this option: a group has a copy at each cell, and a table has as many copies as its cluster keeps",
        ));
    }
    let usual = at_site.clamp(1, COPIES_USUAL) as u8;
    let copies = copies
        .or_else(|| Copies::new([(site, usual)]))
        .ok_or("a map needs at least one cell, and this domain has no cell")?;
    Ok(Map { copies, strategy })
}

fn parse_strategy(value: &str, me: Option<ProcessId>) -> Result<Strategy, String> {
    Ok(match value.to_ascii_lowercase().as_str() {
        "quorum" => Strategy::Quorum(ReadRepair::None),
        "ordered" => Strategy::Ordered,
        "group" => Strategy::Group,
        "service" => Strategy::Service { founder: me.ok_or("this process has not joined its domain yet")? },
        _ => {
            return Err(format!(
                "there is no strategy '{value}': the strategies are quorum, ordered, group and service"
            ));
        }
    })
}

const COPIES_USUAL: usize = 3;

fn parse_copies(value: &str, site: Site) -> Option<Copies> {
    if let Ok(count) = value.parse() {
        return Copies::new([(site, count)]);
    }
    let part = |part: &str| {
        let (site, count) = part.split_once(':')?;
        Some((Site(site.parse().ok()?), count.parse().ok()?))
    };
    let per_site: Option<Vec<(Site, u8)>> = value.split(',').map(part).collect();
    Copies::new(per_site?)
}

fn parse_repair(value: &str) -> Result<ReadRepair, String> {
    match value.to_ascii_lowercase().as_str() {
        "none" => Ok(ReadRepair::None),
        "blocking" => Ok(ReadRepair::Blocking),
        number => match number.parse() {
            Ok(per_million) if per_million <= 1_000_000 => Ok(ReadRepair::Background { per_million }),
            _ => Err(String::from(
                "REPAIR: give none, blocking, or the number of reads in a million that repair in the background",
            )),
        },
    }
}

fn cells(about: &ProcessInfo<'_>) -> Vec<Reply> {
    let Some(roster) = about.roster else { return Vec::new() };
    let member = |(process, seat): (_, &quorate_protocol::partial::MemberEntry)| {
        let state = match roster.layout().number(process) {
            Some(number) if roster.layout().cell(number).is_some_and(|cell| cell.arriving) => {
                format!("cell {} arriving", number.0)
            }
            Some(number) => format!("cell {}", number.0),
            None => String::from("spare"),
        };
        Reply::text(format!("{} {state} site {} {}", seat.name, seat.site.0, seat.address))
    };
    roster.members().map(member).collect()
}

/// Returns the answer to `INFO`: the sections in `wanted`, or all sections if `wanted` is empty.
fn info(about: &ProcessInfo<'_>, wanted: &[String]) -> String {
    let (mut maps, mut cells, mut spares) = (String::new(), 0, 0);
    if let Some(roster) = about.roster {
        cells = roster.layout().cells().count();
        spares = roster.members().count().saturating_sub(cells);
        for (name, id) in roster.maps() {
            let Some(map) = roster.layout().map(id) else { continue };
            maps += &match map.strategy {
                Strategy::Quorum(repair) => {
                    let repair = format!("{repair:?}").to_lowercase();
                    format!("map_{name}:copies={},read_repair={repair}\r\n", map.copies.total())
                }
                Strategy::Service { .. } => {
                    format!("map_{name}:strategy=service,replicas={}\r\n", map.copies.total())
                }
                other => format!("map_{name}:strategy={}\r\n", other.name()),
            };
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nserver_name:quorate\r\n\
                 quorate_version:{version}\r\nos:{}\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\n",
                std::env::consts::OS,
                std::process::id(),
                about.uptime.as_secs()
            ),
        ),
        ("Clients", format!("connected_clients:{}\r\n", about.clients)),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\ntotal_operations:{}\r\n",
                about.connections, about.commands, about.operations
            ),
        ),
        ("Replication", String::from("role:master\r\nconnected_slaves:0\r\n")),
        ("Maps", format!("cells:{cells}\r\nspares:{spares}\r\n{maps}")),
    ];
    let all =
        wanted.is_empty() || wanted.iter().any(|it| ["ALL", "DEFAULT", "EVERYTHING"].contains(&it.as_str()));
    let named = |section: &str| all || wanted.iter().any(|it| it.eq_ignore_ascii_case(section));
    let told = sections.iter().filter(|(section, _)| named(section));
    let told: Vec<String> = told.map(|(section, lines)| format!("# {section}\r\n{lines}")).collect();
    told.join("\r\n")
}

/// The Redis version whose answers are followed. Tools ask for the version.
const REDIS_VERSION: &str = "7.0.0";

#[cfg(test)]
mod tests {
    use quorate_protocol::{Incarnation, partial::Level};

    use super::*;

    const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(7) };

    fn session() -> ClientSession {
        ClientSession::new(7, String::from("main"), Level::Quorum)
    }

    fn ask(session: &mut ClientSession, line: &str) -> CommandEffect {
        let strings: Vec<Bytes> =
            line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        let roster = Roster::default();
        let uptime = Duration::from_secs(9);
        let about = ProcessInfo {
            roster: Some(&roster),
            me: Some(ME),
            clients: 1,
            connections: 3,
            commands: 4,
            operations: 5,
            uptime,
        };
        session.command(&strings, &about)
    }

    fn error(effect: CommandEffect) -> String {
        match effect {
            CommandEffect::Answer(Reply::Error(text)) => text,
            other => panic!("no error: {other:?}"),
        }
    }

    #[test]
    fn a_level_holds_for_the_connection_or_for_the_next_command() {
        let mut session = session();
        assert_eq!(
            ask(&mut session, "quorate level"),
            CommandEffect::Answer(Reply::text("read quorum write quorum"))
        );
        assert_eq!(ask(&mut session, "QUORATE LEVEL one ALL"), CommandEffect::Answer(Reply::OK));
        let set = Dial::fixed(ReadWrite { read: Level::One, write: Level::All });
        assert_eq!(session.dial, set);
        assert_eq!(ask(&mut session, "quorate level local_quorum next"), CommandEffect::Answer(Reply::OK));
        assert_eq!(ask(&mut session, "quorate delay 5 next"), CommandEffect::Answer(Reply::OK));
        let delays = ReadWrite::both(std::time::Duration::from_millis(5));
        assert_eq!(session.next, Some(Dial { delays, ..Dial::fixed(ReadWrite::both(Level::LocalQuorum)) }));
        assert_eq!(session.dial, set);
        assert_eq!(ask(&mut session, "quorate p 0.5"), CommandEffect::Answer(Reply::OK));
        let told = "read quorum with probability 0.5, else one write quorum with probability 0.5, else one";
        assert_eq!(ask(&mut session, "quorate p"), CommandEffect::Answer(Reply::text(told)));
        assert_eq!(
            ask(&mut session, "quorate delay"),
            CommandEffect::Answer(Reply::text("before reads 0ns, after writes 0ns"))
        );
        assert!(error(ask(&mut session, "quorate level most")).contains("no level 'most'"));
        assert!(error(ask(&mut session, "quorate level one one one")).contains("takes one level"));
        assert!(error(ask(&mut session, "quorate level next")).contains("takes one level"));
    }

    #[test]
    fn a_create_command_describes_copies_and_strategy_of_a_map() {
        let mut session = session();
        let map = |copies: &[(u16, u8)], strategy| {
            let copies = Copies::new(copies.iter().map(|(site, count)| (Site(*site), *count))).unwrap();
            CommandEffect::Change(Change::CreateMap {
                name: String::from("m"),
                map: Map { copies, strategy },
            })
        };
        let quorum = Strategy::Quorum;
        for (line, wanted) in [
            ("quorate create m", map(&[(0, 1)], quorum(ReadRepair::None))),
            ("quorate create m copies 3 repair blocking", map(&[(0, 3)], quorum(ReadRepair::Blocking))),
            (
                "quorate create m COPIES 0:2,1:1 REPAIR 100000",
                map(&[(0, 2), (1, 1)], quorum(ReadRepair::Background { per_million: 100_000 })),
            ),
            ("quorate create m strategy group", map(&[(0, 1)], Strategy::Group)),
            ("quorate create m STRATEGY Service copies 3", map(&[(0, 3)], Strategy::Service { founder: ME })),
        ] {
            assert_eq!(ask(&mut session, line), wanted, "{line}");
        }
        for (line, text) in [
            ("quorate create m copies 17", "COPIES: give 1 to 16"),
            ("quorate create m copies 0", "COPIES: give 1 to 16"),
            ("quorate create m copies x:1", "COPIES: give 1 to 16"),
            ("quorate create m copies", "needs a value"),
            ("quorate create m repair often", "REPAIR: give none"),
            ("quorate create m repair 1000001", "REPAIR: give none"),
            ("quorate create m colour red", "no option 'colour'"),
            ("quorate create m strategy hope", "no strategy 'hope'"),
            ("quorate create m strategy group copies 3", "COPIES: maps of strategies group"),
            ("quorate create m strategy service repair none", "REPAIR is an option of maps"),
            ("quorate map m", "there is no map 'm'"),
            ("quorate dismiss cell-9", "no member is called"),
            ("quorate frobnicate", "usage: QUORATE"),
        ] {
            assert!(error(ask(&mut session, line)).contains(text), "{line}");
        }
    }

    #[test]
    fn info_returns_the_requested_sections() {
        let mut session = session();
        let mut told = |line: &str| match ask(&mut session, line) {
            CommandEffect::Answer(Reply::Bulk(text)) => String::from_utf8(text.to_vec()).unwrap(),
            other => panic!("no text: {other:?}"),
        };
        let all = told("info");
        for line in ["# Server", "uptime_in_seconds:9", "connected_clients:1", "total_operations:5", "# Maps"]
        {
            assert!(all.lines().any(|it| it == line), "{line} in {all}");
        }
        assert_eq!(told("info everything"), all);
        assert_eq!(
            told("INFO stats clients"),
            "# Clients\r\nconnected_clients:1\r\n\r\n# Stats\r\ntotal_connections_received:3\r\n\
             total_commands_processed:4\r\ntotal_operations:5\r\n"
        );
        assert_eq!(told("info weather"), "");
    }

    #[test]
    fn commands_after_a_refused_multi_or_select_are_refused() {
        let mut session = session();
        let refusal_after_opening =
            |session: &ClientSession, name: &str| session.refusal_after_opening(name.as_bytes()).is_some();
        assert!(error(ask(&mut session, "exec")).contains("EXEC without MULTI"));
        for (closing, answer) in [("exec", "EXECABORT"), ("discard", "")] {
            assert!(!refusal_after_opening(&session, "INCR"));
            assert!(error(ask(&mut session, "multi")).contains("transaction=False"));
            assert!(
                refusal_after_opening(&session, "INCR")
                    && refusal_after_opening(&session, "PING")
                    && refusal_after_opening(&session, "WATCH")
            );
            assert!(!refusal_after_opening(&session, "EXEC") && !refusal_after_opening(&session, "QUIT"));
            assert!(error(ask(&mut session, "multi")).contains("nested"));
            match ask(&mut session, closing) {
                CommandEffect::Answer(Reply::Error(text)) => assert!(text.starts_with(answer), "{text}"),
                told => assert_eq!(told, CommandEffect::Answer(Reply::OK)),
            }
        }
        assert!(error(ask(&mut session, "watch k")).contains("ioredis"));
        for (opening, closing) in
            [("select 1", "select 0"), ("select x", "select 0"), ("quorate map m", "select 0")]
        {
            error(ask(&mut session, opening));
            assert!(
                refusal_after_opening(&session, "SET")
                    && refusal_after_opening(&session, "SCAN")
                    && refusal_after_opening(&session, "EVAL"),
                "{opening}"
            );
            assert!(
                !refusal_after_opening(&session, "PING") && !refusal_after_opening(&session, "QUORATE"),
                "{opening}"
            );
            assert_eq!(ask(&mut session, closing), CommandEffect::Answer(Reply::OK));
            assert!(!session.is_barred());
        }
        // After a refused `SELECT 1`, commands stay refused even when a transaction has ended.
        error(ask(&mut session, "select 1"));
        error(ask(&mut session, "multi"));
        error(ask(&mut session, "exec"));
        assert!(refusal_after_opening(&session, "SET"));
    }

    #[test]
    fn invalid_client_names_are_refused() {
        let mut session = session();
        let long = "x".repeat(NAME_BYTES_MAX);
        assert_eq!(ask(&mut session, &format!("client setname {long}")), CommandEffect::Answer(Reply::OK));
        for line in [format!("client setname {long}x"), format!("hello 2 setname {long}x")] {
            assert!(error(ask(&mut session, &line)).contains("at most 1024 bytes"));
        }
        assert!(error(ask(&mut session, "client setname a\tb")).contains("cannot contain spaces"));
        assert_eq!(session.name, long);
    }

    #[test]
    fn hello_accepts_both_protocol_versions() {
        let mut session = session();
        let CommandEffect::Answer(Reply::Map(pairs)) = ask(&mut session, "hello 3 setname me") else {
            panic!("no greeting")
        };
        assert!(pairs.contains(&(Reply::text("proto"), Reply::Number(3))));
        assert_eq!(session.version, Version::Three);
        assert_eq!(ask(&mut session, "client getname"), CommandEffect::Answer(Reply::text("me")));
        assert!(error(ask(&mut session, "hello 4")).starts_with("NOPROTO"));
        assert!(error(ask(&mut session, "hello 3 auth a b")).contains("AUTH is not supported"));
        assert_eq!(ask(&mut session, "reset"), CommandEffect::Reset);
        // A refused greeting changes nothing.
        session.version = Version::Two;
        assert!(error(ask(&mut session, "hello 3 auth a b")).contains("AUTH is not supported"));
        assert!(error(ask(&mut session, "hello 3 setname")).contains("option 'setname'"));
        assert_eq!(session.version, Version::Two);
        assert!(error(ask(&mut session, "hello 03")).contains("not an integer"));
        assert_eq!(ask(&mut session, "quit"), CommandEffect::Quit(Reply::OK));
        assert!(error(ask(&mut session, "select 1")).contains("database 0 only"));
        assert!(error(ask(&mut session, "select 00")).contains("not an integer"));
        assert!(error(ask(&mut session, "ping a b")).contains("wrong number"));
        assert!(error(ask(&mut session, "frob\r\nnicate")).contains("unknown or unsupported"));
    }
}
