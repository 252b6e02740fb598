//! Commands about the connection itself: levels, maps, the protocol's version, and what clients ask when they connect.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    partial::{Change, Copies, Map, ReadRepair, Roster, Site, Strategy},
};

use super::{
    command::arity,
    dial::{Dial, parse_delays, parse_levels, parse_p},
    reply::{Reply, Version},
};

/// The settings of a connection.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) version: Version,
    pub(super) map: String,
    pub(super) dial: Dial,
    /// For the next command on keys alone.
    pub(super) next: Option<Dial>,
    pub(super) name: Bytes,
}

/// The consequence of a command.
#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    Answer(Reply),
    /// An answer, and then the connection ends.
    Quit(Reply),
    /// A change of the maps is to be ordered.
    Change(Change),
}

/// A process's word of itself.
pub(super) struct About<'a> {
    pub(super) roster: Option<&'a Roster>,
    /// The process itself.
    pub(super) me: Option<ProcessId>,
    pub(super) clients: usize,
    /// Clients that ever connected.
    pub(super) connections: u64,
    /// Requests that were taken.
    pub(super) commands: u64,
    /// Operations on keys that were handed on.
    pub(super) operations: u64,
    /// How long the process has been serving.
    pub(super) uptime: Duration,
}

impl Session {
    /// Does what a command says that is none on keys; `strings` are its own, the name first, in capitals.
    pub(super) fn command(&mut self, strings: &[Bytes], about: &About<'_>) -> Effect {
        let text = |index: usize| strings.get(index).map(|it| String::from_utf8_lossy(it).into_owned());
        let word = |index: usize| text(index).map(|it| it.to_ascii_uppercase());
        let name = word(0).unwrap_or_default();
        let done = |result: Result<Reply, String>| Effect::Answer(result.unwrap_or_else(Reply::Error));
        let arity = || Effect::Answer(Reply::Error(arity(name.as_bytes())));
        match (name.as_str(), strings.len()) {
            ("PING", 1) => Effect::Answer(Reply::Simple("PONG")),
            ("PING" | "ECHO", 2) => Effect::Answer(Reply::Bulk(strings[1].clone())),
            ("QUIT", _) => Effect::Quit(Reply::OK),
            ("SELECT", 2) if strings[1] == *"0" => Effect::Answer(Reply::OK),
            ("SELECT", 2) => Effect::Answer(Reply::Error(String::from(
                "ERR there is database 0 only: QUORATE MAP chooses a map",
            ))),
            ("HELLO", _) => done(self.hello(strings)),
            ("RESET", 1) => {
                (self.version, self.next, self.name) = (Version::Two, None, Bytes::new());
                Effect::Answer(Reply::Simple("RESET"))
            }
            ("CLIENT", 2..) => done(self.client(&word(1).unwrap_or_default(), strings)),
            ("COMMAND", 2) if word(1).as_deref() == Some("COUNT") => Effect::Answer(Reply::Number(0)),
            // Clients ask for documentation and go on without it.
            ("COMMAND", _) if word(1).as_deref() == Some("DOCS") => Effect::Answer(Reply::Map(Vec::new())),
            ("COMMAND", _) => Effect::Answer(Reply::Array(Vec::new())),
            ("CONFIG", 3..) if word(1).as_deref() == Some("GET") => Effect::Answer(Reply::Map(Vec::new())),
            ("INFO", _) => {
                let wanted: Vec<String> = (1..strings.len()).filter_map(word).collect();
                Effect::Answer(Reply::text(info(about, &wanted)))
            }
            ("QUORATE", 2..) => match self.quorate(&word(1).unwrap_or_default(), strings, about) {
                Ok(effect) => effect,
                Err(why) => Effect::Answer(Reply::Error(format!("ERR {why}"))),
            },
            ("PING" | "ECHO" | "SELECT" | "CLIENT" | "QUORATE" | "RESET", _) => arity(),
            _ => {
                let name = text(0).unwrap_or_default();
                let short: String = name.chars().take(64).collect();
                Effect::Answer(Reply::Error(format!("ERR unknown or unsupported command '{short}'")))
            }
        }
    }

    fn hello(&mut self, strings: &[Bytes]) -> Result<Reply, String> {
        let mut rest = strings.iter().skip(1);
        if let Some(version) = rest.next() {
            self.version = match &version[..] {
                b"2" => Version::Two,
                b"3" => Version::Three,
                _ => return Err(String::from("NOPROTO unsupported protocol version")),
            };
        }
        while let Some(option) = rest.next() {
            match &option.to_ascii_uppercase()[..] {
                b"SETNAME" => self.name = rest.next().cloned().ok_or("ERR syntax error in HELLO")?,
                b"AUTH" => {
                    return Err(String::from(
                        "ERR AUTH is not supported: there are no passwords, and nobody is asked for one",
                    ));
                }
                _ => return Err(String::from("ERR syntax error in HELLO")),
            }
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
                self.name = strings[2].clone();
                Ok(Reply::OK)
            }
            // The client's library and its version, which nobody here asks.
            ("SETINFO", 4) => Ok(Reply::OK),
            _ => Err(format!("ERR CLIENT {what} is not supported")),
        }
    }

    fn quorate(&mut self, what: &str, strings: &[Bytes], about: &About<'_>) -> Result<Effect, String> {
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
                if about.roster.is_none_or(|roster| roster.map(name).is_none()) {
                    return Err(format!("there is no map '{name}': QUORATE MAPS lists those that there are"));
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
                let roster = about.roster.ok_or("this process has not joined yet")?;
                let map = parse_map(options, roster, about.me)?;
                return Ok(Effect::Change(Change::CreateMap { name: (*name).to_owned(), map }));
            }
            ("DROP", [name]) => return Ok(Effect::Change(Change::DropMap { name: (*name).to_owned() })),
            ("DISMISS", [name]) => return Ok(Effect::Change(Change::Dismiss(named(about, name)?))),
            ("REPLACE", [old, new]) => {
                let (old, new) = (named(about, old)?, named(about, new)?);
                return Ok(Effect::Change(Change::Replace { old, new }));
            }
            ("ACCEPT", [name]) => {
                let process = named(about, name)?;
                let number = about.roster.and_then(|roster| roster.layout().number(process));
                let number = number.ok_or_else(|| format!("'{name}' is no cell"))?;
                return Ok(Effect::Change(Change::Complete(number)));
            }
            _ => {
                return Err(String::from(
                    "usage: QUORATE LEVEL [read [write] [NEXT]] | P [read [write] [BETWEEN weak strong] [NEXT]] | \
                     DELAY [read [write] [NEXT]] | MAP [name] | MAPS | CELLS | CREATE name \
                     [STRATEGY quorum|ordered|group|service] [COPIES n|site:n,…] [REPAIR none|blocking|per-million] | DROP name | DISMISS member | REPLACE member spare | ACCEPT member",
                ));
            }
        };
        Ok(Effect::Answer(reply))
    }

    /// Turns the dial, for the connection or with `NEXT` behind for the next command on keys alone.
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

fn named(about: &About<'_>, name: &str) -> Result<ProcessId, String> {
    let roster = about.roster.ok_or("this process has not joined yet")?;
    roster.named(name).ok_or_else(|| format!("no member is called '{name}'"))
}

/// How a map is to be kept: without a word, up to three copies at the first site, and no repair by reads.
fn parse_map(options: &[&str], roster: &Roster, me: Option<ProcessId>) -> Result<Map, String> {
    let site = roster.layout().cells().map(|(_, cell)| cell.site).min().unwrap_or_default();
    let at_site = roster.layout().cells().filter(|(_, cell)| cell.site == site).count();
    let (mut copies, mut repair, mut strategy) = (None, None, Strategy::Quorum(ReadRepair::None));
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.to_ascii_uppercase().as_str() {
            "STRATEGY" => strategy = parse_strategy(value, me)?,
            "COPIES" => {
                let parsed = parse_copies(value, site);
                copies =
                    Some(parsed.ok_or("COPIES: 1 to 16 in all, as a number or as site:number,site:number")?);
            }
            "REPAIR" => repair = Some(parse_repair(value)?),
            _ => return Err(format!("there is no option '{option}': STRATEGY, COPIES, REPAIR")),
        }
    }
    match (&mut strategy, repair) {
        (Strategy::Quorum(of), Some(repair)) => *of = repair,
        (Strategy::Quorum(_), None) => {}
        (_, Some(_)) => return Err(String::from("REPAIR is of maps of partial quorums")),
        (_, None) => {}
    }
    if copies.is_some() && matches!(strategy, Strategy::Ordered | Strategy::Group) {
        return Err(String::from(
            "COPIES: a group has one at each cell, and a table as many as its cluster keeps",
        ));
    }
    let usual = at_site.clamp(1, COPIES_USUAL) as u8;
    let copies = copies.or_else(|| Copies::new([(site, usual)])).ok_or("a map needs a cell")?;
    Ok(Map { copies, strategy })
}

fn parse_strategy(value: &str, me: Option<ProcessId>) -> Result<Strategy, String> {
    Ok(match value.to_ascii_lowercase().as_str() {
        "quorum" => Strategy::Quorum(ReadRepair::None),
        "ordered" => Strategy::Ordered,
        "group" => Strategy::Group,
        "service" => Strategy::Service { founder: me.ok_or("this front is of no process")? },
        _ => return Err(format!("there is no strategy '{value}': quorum, ordered, group, service")),
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
                "REPAIR: none, blocking, or how many reads of a million repair in the background",
            )),
        },
    }
}

fn cells(about: &About<'_>) -> Vec<Reply> {
    let Some(roster) = about.roster else { return Vec::new() };
    let member = |(process, seat): (_, &quorate_protocol::partial::Seat)| {
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

/// What `INFO` tells, of all sections or of those that are named.
fn info(about: &About<'_>, wanted: &[String]) -> String {
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

/// The Redis whose answers commands follow; tools ask for it.
const REDIS_VERSION: &str = "7.0.0";

#[cfg(test)]
mod tests {
    use quorate_protocol::{Incarnation, partial::Level};

    use super::{super::dial::Pair, *};

    const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(7) };

    fn session() -> Session {
        Session {
            number: 7,
            version: Version::Two,
            map: String::from("main"),
            dial: Dial::fixed(Pair::both(Level::Quorum)),
            next: None,
            name: Bytes::new(),
        }
    }

    fn ask(session: &mut Session, line: &str) -> Effect {
        let strings: Vec<Bytes> =
            line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        let roster = Roster::default();
        let uptime = Duration::from_secs(9);
        let about = About {
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

    fn error(effect: Effect) -> String {
        match effect {
            Effect::Answer(Reply::Error(text)) => text,
            other => panic!("no error: {other:?}"),
        }
    }

    #[test]
    fn levels_are_of_the_connection_or_of_the_next_command() {
        let mut session = session();
        assert_eq!(
            ask(&mut session, "quorate level"),
            Effect::Answer(Reply::text("read quorum write quorum"))
        );
        assert_eq!(ask(&mut session, "QUORATE LEVEL one ALL"), Effect::Answer(Reply::OK));
        let set = Dial::fixed(Pair { read: Level::One, write: Level::All });
        assert_eq!(session.dial, set);
        assert_eq!(ask(&mut session, "quorate level local_quorum next"), Effect::Answer(Reply::OK));
        assert_eq!(ask(&mut session, "quorate delay 5 next"), Effect::Answer(Reply::OK));
        let delays = Pair::both(std::time::Duration::from_millis(5));
        assert_eq!(session.next, Some(Dial { delays, ..Dial::fixed(Pair::both(Level::LocalQuorum)) }));
        assert_eq!(session.dial, set);
        assert_eq!(ask(&mut session, "quorate p 0.5"), Effect::Answer(Reply::OK));
        let told = "read quorum with probability 0.5, else one write quorum with probability 0.5, else one";
        assert_eq!(ask(&mut session, "quorate p"), Effect::Answer(Reply::text(told)));
        assert_eq!(
            ask(&mut session, "quorate delay"),
            Effect::Answer(Reply::text("before reads 0ns, after writes 0ns"))
        );
        assert!(error(ask(&mut session, "quorate level most")).contains("no level 'most'"));
        assert!(error(ask(&mut session, "quorate level one one one")).contains("takes one level"));
        assert!(error(ask(&mut session, "quorate level next")).contains("takes one level"));
    }

    #[test]
    fn maps_are_created_as_they_are_described() {
        let mut session = session();
        let map = |copies: &[(u16, u8)], strategy| {
            let copies = Copies::new(copies.iter().map(|(site, count)| (Site(*site), *count))).unwrap();
            Effect::Change(Change::CreateMap { name: String::from("m"), map: Map { copies, strategy } })
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
            ("quorate create m copies 17", "COPIES: 1 to 16"),
            ("quorate create m copies 0", "COPIES: 1 to 16"),
            ("quorate create m copies x:1", "COPIES: 1 to 16"),
            ("quorate create m copies", "needs a value"),
            ("quorate create m repair often", "REPAIR: none"),
            ("quorate create m repair 1000001", "REPAIR: none"),
            ("quorate create m colour red", "no option 'colour'"),
            ("quorate create m strategy hope", "no strategy 'hope'"),
            ("quorate create m strategy group copies 3", "COPIES: a group"),
            ("quorate create m strategy service repair none", "REPAIR is of maps"),
            ("quorate map m", "there is no map 'm'"),
            ("quorate dismiss cell-9", "no member is called"),
            ("quorate frobnicate", "usage: QUORATE"),
        ] {
            assert!(error(ask(&mut session, line)).contains(text), "{line}");
        }
    }

    #[test]
    fn info_has_the_sections_that_are_asked_for() {
        let mut session = session();
        let mut told = |line: &str| match ask(&mut session, line) {
            Effect::Answer(Reply::Bulk(text)) => String::from_utf8(text.to_vec()).unwrap(),
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
    fn clients_greet_in_both_versions() {
        let mut session = session();
        let Effect::Answer(Reply::Map(pairs)) = ask(&mut session, "hello 3 setname me") else {
            panic!("no greeting")
        };
        assert!(pairs.contains(&(Reply::text("proto"), Reply::Number(3))));
        assert_eq!(session.version, Version::Three);
        assert_eq!(ask(&mut session, "client getname"), Effect::Answer(Reply::text("me")));
        assert!(error(ask(&mut session, "hello 4")).starts_with("NOPROTO"));
        assert!(error(ask(&mut session, "hello 3 auth a b")).contains("AUTH is not supported"));
        assert_eq!(ask(&mut session, "reset"), Effect::Answer(Reply::Simple("RESET")));
        assert_eq!(session.version, Version::Two);
        assert_eq!(ask(&mut session, "quit"), Effect::Quit(Reply::OK));
        assert!(error(ask(&mut session, "select 1")).contains("database 0 only"));
        assert!(error(ask(&mut session, "ping a b")).contains("wrong number"));
        assert!(error(ask(&mut session, "frob\r\nnicate")).contains("unknown or unsupported"));
    }
}
