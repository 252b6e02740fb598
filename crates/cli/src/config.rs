//! How one process is configured: a TOML file, then the environment, then flags, the later winning.
//!
//! Every key of the file can be given as `QUORATE_NODE_KEY` and as `--set key=value`; keys of a table with a dot in flags
//! (`detector.interval_ms`) and two underscores in the environment (`QUORATE_NODE_DETECTOR__INTERVAL_MS`). A key that
//! nobody knows is an error wherever it stands.

use std::{net::ToSocketAddrs, path::PathBuf};

use anyhow::{Context, Result, anyhow};
use quorate::{crew::Muster, maps::Distance};
use quorate_protocol::{
    DomainId, Duration, Role, Terms, detector, partial,
    rubberband::{RING_MAX, StorageSettings},
};
use quorate_runtime::{config::is_unspecified, door::ClientLimits};
use quorate_server::resp;
use quorate_table::engine::Bounds;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use quorate_command::Usage;

/// The environment variables that carry keys begin with this.
pub(crate) const ENVIRONMENT: &str = "QUORATE_NODE_";

/// One process.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeConfig {
    /// The domain it belongs to: 32 hexadecimal digits.
    #[serde(with = "hex")]
    pub(crate) domain: DomainId,
    /// Its place in the cluster; no two processes of a cluster share it.
    pub(crate) node: u64,
    /// What people call it: `router-1`, `storage-3`.
    pub(crate) name: String,
    /// What it does.
    pub(crate) role: Role,
    /// Where it listens for other processes, `host:port`; port 0 lets the system choose.
    pub(crate) listen: String,
    /// Where other processes are told to connect to, `host:port`, where that is not `listen` itself; port 0 stands for the
    /// port of `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// Where SQL clients reach it. A storage process that has it is a gateway as well, a second member in the same process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sql_listen: Option<String>,
    /// Where Redis clients reach it; cells only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) redis_listen: Option<String>,
    /// Where `/metrics`, `/health` and `/status` are.
    pub(crate) http_listen: String,
    /// What a router orders: the domain of cells has routers of its own.
    #[serde(default)]
    pub(crate) orders: Orders,
    /// Found the domain: the first router of a new domain, once, and nobody else ever.
    #[serde(default)]
    pub(crate) found: bool,
    /// Routers to join through, `host:port`.
    #[serde(default)]
    pub(crate) routers: Vec<String>,
    /// How many routers the domain keeps.
    #[serde(default = "defaults::routers")]
    pub(crate) wanted_routers: usize,
    /// How many storage processes hold rows; more than these are standbys.
    #[serde(default = "defaults::storage")]
    pub(crate) wanted_storage: usize,
    /// How many storage processes hold each row, where a table does not say.
    #[serde(default = "defaults::replicas")]
    pub(crate) replicas: usize,
    /// How long a write waits for a majority of routers before it answers that it was not sent or may have been applied.
    #[serde(default = "defaults::write_wait_ms")]
    pub(crate) write_wait_ms: u64,
    /// Allow addresses other than loopback, although nothing is encrypted and nobody is asked for a password.
    #[serde(default)]
    pub(crate) insecure: bool,
    /// End at once when standard input closes: whoever started this process holds the other end.
    #[serde(default)]
    pub(crate) supervised: bool,
    /// Where it may write; nothing is written when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Keep the log, the rows or the keys in `data_dir`, and go on from there after a crash; routers, storage processes and cells
    /// only.
    #[serde(default)]
    pub(crate) durable: bool,
    /// For tests of power cuts: bytes are handed to the system only at a sync, so that a kill takes what was not durable.
    #[serde(default)]
    pub(crate) late_files: bool,
    /// How patient it is with silent peers.
    #[serde(default)]
    pub(crate) detector: DetectorConfig,
    /// What a storage process's engine takes at most.
    #[serde(default)]
    pub(crate) engine: EngineConfig,
    /// How a cell joins and serves.
    #[serde(default)]
    pub(crate) cell: CellConfig,
}

/// What a domain is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Orders {
    /// Tables, in SQL.
    #[default]
    Tables,
    /// Maps of partial quorums: their cells, not their keys.
    Maps,
}

/// How a cell joins and serves.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CellConfig {
    /// Its site: cells of one site are near each other.
    pub(crate) site: u16,
    /// How far other sites are: messages to cells there arrive later. For experiments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) distances: Vec<DistanceConfig>,
    /// Its places on the ring.
    pub(crate) tokens: usize,
    /// The level at which connections begin.
    pub(crate) level: String,
    /// Bytes of keys and values that it keeps at most.
    pub(crate) store_bytes_max: usize,
    /// Bytes of writes that it keeps at most for cells that do not acknowledge them.
    pub(crate) hint_bytes_max: usize,
    /// Clients at a time.
    pub(crate) clients_max: usize,
    /// The address at which it hosts the services that keep maps; none: it hosts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) services_listen: Option<String>,
    /// The address at which the other cells reach it there, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) services_advertise: Option<String>,
    /// The addresses at which the other cells host them; its own address may be among these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<String>,
    /// Addresses of routers of a cluster of tables, which keeps ordered maps and those of groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tables: Vec<String>,
}

/// How far another site is, one way.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DistanceConfig {
    /// That site.
    pub(crate) site: u16,
    /// The shortest time of a message, in milliseconds.
    pub(crate) ms: f64,
    /// It takes up to so many milliseconds longer, each time by chance.
    #[serde(default)]
    pub(crate) jitter_ms: f64,
    /// Messages there hang besides, for so many milliseconds at a time; 0: never.
    #[serde(default)]
    pub(crate) stall_ms: f64,
    /// From one such time to the next.
    #[serde(default)]
    pub(crate) stall_every_ms: f64,
}

impl DistanceConfig {
    /// This far, as the file has it.
    pub(crate) fn new(site: u16, distance: Distance) -> DistanceConfig {
        let [ms, jitter_ms, stall_ms, stall_every_ms] = distance.in_ms();
        DistanceConfig { site, ms, jitter_ms, stall_ms, stall_every_ms }
    }

    /// The distance, if these times make one.
    pub(crate) fn distance(self) -> Result<Distance, String> {
        Distance::of_ms(self.ms, self.jitter_ms, self.stall_ms, self.stall_every_ms)
    }
}

impl Default for CellConfig {
    fn default() -> Self {
        CellConfig {
            site: 0,
            distances: Vec::new(),
            tokens: 64,
            level: String::from("quorum"),
            store_bytes_max: partial::Settings::default().limits.store_bytes_max,
            hint_bytes_max: partial::Settings::default().patience.hints.bytes_max,
            clients_max: ClientLimits::default().clients_max,
            services_listen: None,
            services_advertise: None,
            services: Vec::new(),
            tables: Vec::new(),
        }
    }
}

/// The failure detector's settings, in milliseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DetectorConfig {
    /// How often signs of life are sent.
    pub(crate) interval_ms: u64,
    /// No peer is suspected of silence sooner.
    pub(crate) silence_min_ms: u64,
    /// A silent peer is suspected no later.
    pub(crate) silence_max_ms: u64,
    /// How long a link may stay broken.
    pub(crate) unlinked_max_ms: u64,
}

impl Default for DetectorConfig {
    fn default() -> Self {
        let settings = detector::Settings::default();
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        DetectorConfig {
            interval_ms: millis(settings.interval),
            silence_min_ms: millis(settings.silence_min),
            silence_max_ms: millis(settings.silence_max),
            unlinked_max_ms: millis(settings.unlinked_max),
        }
    }
}

impl DetectorConfig {
    /// The same for the detector.
    pub(crate) fn settings(&self) -> detector::Settings {
        detector::Settings {
            interval: Duration::from_millis(self.interval_ms),
            silence_min: Duration::from_millis(self.silence_min_ms),
            silence_max: Duration::from_millis(self.silence_max_ms),
            unlinked_max: Duration::from_millis(self.unlinked_max_ms),
        }
    }
}

/// What a storage process's engine takes at most, of memory and of processors.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EngineConfig {
    /// Bytes of overwritten rows that are kept for all clients in the middle of long results.
    pub(crate) pinned_bytes_max: u64,
    /// Bytes that are gathered for one query before it is answered.
    pub(crate) result_bytes_max: u64,
    /// Bytes that are held of all results that their clients have yet to take.
    pub(crate) held_bytes_max: u64,
    /// How long a result may be held of which its client takes nothing, in milliseconds.
    pub(crate) held_max_ms: u64,
    /// Threads that look at the rows in one pass.
    pub(crate) scan_threads: usize,
    /// Cores that they are bound to, one each; none if they may be anywhere.
    pub(crate) scan_cores: Vec<usize>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let (bounds, muster, storage) = (Bounds::default(), Muster::default(), StorageSettings::default());
        EngineConfig {
            pinned_bytes_max: bounds.pinned_bytes_max,
            result_bytes_max: bounds.result_bytes_max,
            held_bytes_max: storage.held_bytes_max,
            held_max_ms: u64::try_from(storage.held_max.as_millis()).unwrap_or(u64::MAX),
            scan_threads: muster.threads,
            scan_cores: muster.cores,
        }
    }
}

impl EngineConfig {
    /// The same for the engine.
    pub(crate) fn bounds(&self) -> Bounds {
        let EngineConfig { pinned_bytes_max, result_bytes_max, .. } = *self;
        Bounds { pinned_bytes_max, result_bytes_max, batch_bytes_max: result_bytes_max }
    }

    /// The threads for it.
    pub(crate) fn muster(&self) -> Muster {
        Muster { threads: self.scan_threads, cores: self.scan_cores.clone() }
    }
}

impl NodeConfig {
    /// Puts the three sources together: the text of a file, environment variables, `key=value` flags.
    pub(crate) fn read(
        file: &str,
        environment: impl Iterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<NodeConfig> {
        let mut table: Table = file.parse()?;
        for (variable, value) in environment {
            if let Some(key) = variable.strip_prefix(ENVIRONMENT) {
                set(&mut table, &key.to_lowercase().replace("__", "."), &value).context(variable)?;
            }
        }
        for flag in flags {
            let (key, value) =
                flag.split_once('=').ok_or_else(|| anyhow!("--set {flag}: must be key=value"))?;
            set(&mut table, key, value).with_context(|| format!("--set {flag}"))?;
        }
        let config: NodeConfig = table.try_into()?;
        config.check()?;
        Ok(config)
    }

    /// The same as flags: `--set` with each of them, and an empty file, make it.
    pub(crate) fn as_flags(&self) -> Result<Vec<String>> {
        let table = Table::try_from(self)?;
        let flags = table.into_iter().flat_map(|(key, value)| match value {
            Value::Table(inner) => {
                inner.into_iter().map(|(name, value)| format!("{key}.{name}={value}")).collect()
            }
            value => vec![format!("{key}={value}")],
        });
        Ok(flags.collect())
    }

    /// What no type can say.
    fn check(&self) -> Result<()> {
        let rules = [
            (self.role == Role::Router || !self.found, "found: only a router can found a domain"),
            (
                matches!(self.role, Role::Router | Role::Storage | Role::Cell) || !self.durable,
                "durable: only routers, storage processes and cells have something to keep",
            ),
            (
                !self.durable || self.data_dir.is_some(),
                "durable: needs data_dir, the directory to keep it in",
            ),
            (
                self.found || !self.routers.is_empty(),
                "routers: whoever does not found a domain needs one to join",
            ),
            (
                match self.role {
                    Role::Gateway => self.sql_listen.is_some(),
                    Role::Storage => true,
                    Role::Router | Role::Super | Role::Cell => self.sql_listen.is_none(),
                },
                "sql_listen: gateways need it, storage processes can have it, others cannot",
            ),
            (
                (self.role == Role::Cell) == self.redis_listen.is_some(),
                "redis_listen: cells need it, others cannot have it",
            ),
            (
                self.orders == Orders::Tables || self.role == Role::Router,
                "orders: only a router orders something",
            ),
            (
                (1..=partial::TOKENS_MAX).contains(&self.cell.tokens),
                "cell.tokens: 1 to 1024 places on the ring",
            ),
            (self.domain != DomainId(0), "domain: all zeros is nobody's; choose one of your own"),
            (self.node > 0, "node: must be at least 1"),
            (self.wanted_routers > 0, "wanted_routers: must be at least 1"),
            (self.replicas > 0, "replicas: must be at least 1"),
            (self.wanted_storage >= self.replicas, "wanted_storage: must be at least replicas"),
            (
                (1..=SCAN_THREADS_MAX).contains(&self.engine.scan_threads),
                "engine.scan_threads: at least 1 thread looks at rows, at most 256",
            ),
            (
                self.engine.scan_cores.is_empty() || self.engine.scan_cores.len() == self.engine.scan_threads,
                "engine.scan_cores: as many as engine.scan_threads, or none",
            ),
            (self.wanted_storage <= RING_MAX, "wanted_storage: at most 64 storage processes hold rows"),
            (
                self.detector.silence_min_ms <= self.detector.silence_max_ms && self.detector.interval_ms > 0,
                "detector: interval_ms must be above 0, and silence_min_ms at most silence_max_ms",
            ),
        ];
        for (holds, otherwise) in rules {
            if !holds {
                return Err(Usage(otherwise.into()).into());
            }
        }
        resp::level(&self.cell.level).map_err(|why| Usage(format!("cell.level: {why}")))?;
        let addresses = [
            Some(&self.listen),
            Some(&self.http_listen),
            self.sql_listen.as_ref(),
            self.redis_listen.as_ref(),
            self.cell.services_listen.as_ref(),
        ];
        for address in addresses.into_iter().flatten() {
            check_address(address, self.insecure)?;
        }
        self.check_advertised()
    }

    /// Other processes are told an address that they can connect to.
    fn check_advertised(&self) -> Result<()> {
        let port = self.listen.rsplit_once(':').map_or("0", |(_, port)| port);
        match &self.advertise {
            None if stands_for_all(&self.listen)? => {
                return Err(Usage(format!(
                    "listen = \"{}\": that is every address of this machine, and other processes cannot connect to it; add \
                     advertise = \"HOST:{port}\" with the name or address under which the other machines reach this one \
                     (or QUORATE_NODE_ADVERTISE, or --set advertise=HOST:{port})",
                    self.listen
                ))
                .into());
            }
            None => {}
            Some(advertise) => {
                let (host, port) = advertise.rsplit_once(':').unwrap_or((advertise, ""));
                let whole = !host.is_empty() && port.parse::<u16>().is_ok();
                let plain = !host.contains(':') || host.starts_with('[') && host.ends_with(']');
                if !whole || !plain || advertise.len() > ADVERTISE_BYTES_MAX {
                    return Err(Usage(format!(
                        "advertise = \"{advertise}\": must be host:port ([address]:port for IPv6) of at most \
                         {ADVERTISE_BYTES_MAX} bytes; port 0 stands for the port of listen"
                    ))
                    .into());
                }
                if is_unspecified(advertise) {
                    return Err(Usage(format!(
                        "advertise = \"{advertise}\": other processes cannot connect to that; write the name or address under \
                         which the other machines reach this one"
                    ))
                    .into());
                }
            }
        }
        if let (Some(listen), None) = (&self.cell.services_listen, &self.cell.services_advertise)
            && stands_for_all(listen)?
        {
            return Err(Usage(format!(
                "cell.services_listen = \"{listen}\": other cells cannot connect to that; add cell.services_advertise = \"HOST:PORT\""
            ))
            .into());
        }
        let lists = [
            ("routers", &self.routers),
            ("cell.services", &self.cell.services),
            ("cell.tables", &self.cell.tables),
        ];
        for (key, addresses) in lists {
            if let Some(address) = addresses.iter().find(|address| is_unspecified(address)) {
                return Err(Usage(format!(
                    "{key}: {address} is where a process may listen, not where others reach it: write its name or address"
                ))
                .into());
            }
        }
        Ok(())
    }

    /// What it takes the domain to be founded with.
    pub(crate) fn terms(&self) -> Result<Terms> {
        let number = |key: &str, value: usize| {
            u32::try_from(value).map_err(|_| Usage(format!("{key}: {value} is far too many")))
        };
        Ok(Terms {
            replicas: u8::try_from(self.replicas).map_err(|_| Usage("replicas: at most 255".into()))?,
            wanted_storage: number("wanted_storage", self.wanted_storage)?,
            wanted_routers: number("wanted_routers", self.wanted_routers)?,
        })
    }
}

/// No longer address is told to others.
const ADVERTISE_BYTES_MAX: usize = 255;

/// Whether `listen` leads to an address that stands for all of this machine.
fn stands_for_all(listen: &str) -> Result<bool> {
    let resolved = listen.to_socket_addrs().map_err(|error| Usage(format!("{listen}: {error}")))?;
    Ok(resolved.into_iter().any(|place| is_unspecified(&place.to_string())))
}

/// More threads would hardly find a core each.
pub(crate) const SCAN_THREADS_MAX: usize = 256;

/// Refuses an address that is none, and one that others can reach unless that was asked for.
pub(crate) fn check_address(address: &str, insecure: bool) -> Result<()> {
    let resolved = address.to_socket_addrs().map_err(|error| Usage(format!("{address}: {error}")))?;
    for place in resolved {
        if !place.ip().is_loopback() && !insecure {
            return Err(Usage(format!(
                "{address}: other machines can reach it, and nothing is encrypted and nobody is asked for a password; \
                 set insecure to allow that"
            ))
            .into());
        }
    }
    Ok(())
}

/// Sets a dotted key; the value is TOML where it parses as such and a string otherwise.
fn set(table: &mut Table, key: &str, value: &str) -> Result<()> {
    let value = format!("x = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("x"))
        .unwrap_or_else(|| Value::String(value.into()));
    let mut path = key.split('.').peekable();
    let mut table = table;
    while let Some(part) = path.next() {
        if path.peek().is_none() {
            table.insert(part.into(), value);
            return Ok(());
        }
        let inner = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = inner.as_table_mut().with_context(|| format!("{part} is not a table"))?;
    }
    unreachable!("splitting yields at least one part")
}

pub(crate) mod defaults {
    //! What a key is when nobody sets it.

    pub(crate) fn routers() -> usize {
        3
    }
    pub(crate) fn storage() -> usize {
        4
    }
    pub(crate) fn replicas() -> usize {
        3
    }
    pub(crate) fn write_wait_ms() -> u64 {
        10_000
    }
}

pub(crate) mod hex {
    //! A domain's id as 32 hexadecimal digits.

    use quorate_protocol::DomainId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(domain: &DomainId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(domain)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DomainId, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let number = if digits.len() == 32 { u128::from_str_radix(&digits, 16).ok() } else { None };
        number.map(DomainId).ok_or_else(|| D::Error::custom("a domain is 32 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        domain = "0123456789abcdef0123456789abcdef"
        node = 7
        name = "storage-3"
        role = "storage"
        listen = "127.0.0.1:0"
        http_listen = "[::1]:0"
        routers = ["127.0.0.1:24701"]
        [detector]
        silence_min_ms = 700
    "#;

    fn read(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<NodeConfig, String> {
        let environment = environment.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let flags: Vec<String> = flags.iter().map(|flag| flag.to_string()).collect();
        NodeConfig::read(file, environment, &flags).map_err(|error| format!("{error:#}"))
    }

    #[track_caller]
    fn refused(file: &str, environment: &[(&str, &str)], flags: &[&str], because: &str) {
        let error = read(file, environment, flags).unwrap_err();
        assert!(error.contains(because), "{error}");
    }

    #[test]
    fn later_sources_win() {
        let config = read(FILE, &[], &[]).unwrap();
        assert_eq!((config.wanted_routers, config.replicas, config.insecure), (3, 3, false));
        assert_eq!((config.detector.silence_min_ms, config.detector.interval_ms), (700, 50));

        let environment =
            [("QUORATE_NODE_NAME", "x"), ("QUORATE_NODE_DETECTOR__SILENCE_MIN_MS", "800"), ("OTHER", "y")];
        let config = read(FILE, &environment, &["name=z", "replicas=2"]).unwrap();
        assert_eq!((config.name.as_str(), config.replicas, config.detector.silence_min_ms), ("z", 2, 800));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let config = read(FILE, &[], &[]).unwrap();
        assert_eq!(read(&toml::to_string(&config).unwrap(), &[], &[]).unwrap(), config);
        let flags = config.as_flags().unwrap();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        assert_eq!(read("", &[], &flags).unwrap(), config);
    }

    #[test]
    fn mistakes_are_named() {
        refused(&FILE.replace("node =", "nodes ="), &[], &[], "unknown field `nodes`");
        refused(&FILE.replace("silence_min_ms", "silence"), &[], &[], "unknown field `silence`");
        refused(FILE, &[("QUORATE_NODE_COLOUR", "red")], &[], "unknown field `colour`");
        refused(FILE, &[], &["colour=red"], "unknown field `colour`");
        refused(FILE, &[], &["replicas"], "must be key=value");
        refused(FILE, &[], &["replicas=many"], "invalid type");
        refused(FILE, &[], &["replicas=5"], "wanted_storage");
        refused(FILE, &[], &["found=true"], "only a router");
        refused(FILE, &[], &["routers=[]"], "needs one to join");
        refused(FILE, &[], &["wanted_storage=65"], "at most 64");
        refused(FILE, &[], &["node=0"], "at least 1");
        refused(FILE, &[], &["domain=\"00000000000000000000000000000000\""], "all zeros");
        refused(FILE, &[], &["role=super", "sql_listen=127.0.0.1:1"], "storage processes can have it");
        refused(FILE, &[], &["role=gateway"], "gateways need it");
        refused(FILE, &[], &["role=cell"], "cells need it");
        refused(FILE, &[], &["orders=maps"], "only a router");
        refused(FILE, &[], &["cell.tokens=0"], "1 to 1024");
        refused(FILE, &[], &["cell.level=most"], "no level 'most'");
        refused(FILE, &[], &["domain=12ab"], "32 hexadecimal digits");
        refused(FILE, &[], &["listen=nowhere"], "nowhere");
        refused(FILE, &[], &["listen=0.0.0.0:0"], "insecure");
    }

    #[test]
    fn an_address_that_nobody_can_connect_to_is_not_advertised() {
        let open = |flags: &[&'static str]| [&["insecure=true"], flags].concat();
        for all in ["listen=0.0.0.0:24707", "listen=[::]:24707"] {
            refused(FILE, &[], &open(&[all]), "add advertise = \"HOST:24707\"");
            refused(FILE, &[], &open(&[all, "advertise=0.0.0.0:24707"]), "cannot connect");
            refused(FILE, &[], &open(&[all, "advertise=[::]:0"]), "cannot connect");
            for wrong in ["advertise=here", "advertise=:1", "advertise=h:99999", "advertise=::1:5"] {
                refused(FILE, &[], &open(&[all, wrong]), "must be host:port");
            }
            let config = read(FILE, &[("QUORATE_NODE_ADVERTISE", "storage-3:0")], &open(&[all])).unwrap();
            assert_eq!(config.advertise.as_deref(), Some("storage-3:0"));
            assert!(read(FILE, &[], &open(&[all, "advertise=[fd00::7]:5"])).is_ok());
        }
        refused(FILE, &[], &["routers=[\"0.0.0.0:24701\"]"], "not where others reach it");
        // HTTP and SQL are told to nobody.
        assert!(read(FILE, &[], &open(&["http_listen=0.0.0.0:0"])).is_ok());
        assert_eq!(read(FILE, &[], &[]).unwrap().advertise, None);
    }

    #[test]
    fn every_key_is_documented() {
        let documentation = include_str!("../../../docs/operating.md");
        let file = FILE.replace("silence_min_ms = 700", "");
        let config = read(
            &file,
            &[],
            &["role=gateway", "data_dir=/d", "sql_listen=127.0.0.1:0", "advertise=localhost:0"],
        )
        .unwrap();
        let config = NodeConfig { redis_listen: Some(String::new()), ..config };
        let table = Table::try_from(config).unwrap();
        for (key, value) in &table {
            match value.as_table() {
                None => assert!(documentation.contains(&format!("| `{key}` |")), "{key}"),
                Some(inner) => {
                    for (inner, value) in inner {
                        let row = format!("| `{key}.{inner}` | {value} |");
                        assert!(documentation.contains(&row), "{row}");
                    }
                }
            }
        }
    }
}
