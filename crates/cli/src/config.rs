//! The configuration of one process: a TOML file, overridden by the environment, overridden by flags.
//!
//! Every key of the file can also be given as `QUORATE_NODE_KEY` and as `--set key=value`. Keys of a table
//! have a dot in flags (`detector.interval_ms`) and two underscores in the environment
//! (`QUORATE_NODE_DETECTOR__INTERVAL_MS`). An unknown key is an error in all three sources.

use std::{net::ToSocketAddrs, path::PathBuf};

use anyhow::{Context, Result, anyhow};
use quorate::{maps::Distance, scan_threads::ScanThreadOptions};
use quorate_protocol::{
    DomainId, Duration, Role, Terms, detector, partial,
    rubberband::{RING_MAX, StorageSettings},
};
use quorate_runtime::{config::is_unspecified, door::ClientLimits};
use quorate_server::{http, resp};
use quorate_table::engine::Bounds;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use quorate_command::Usage;

/// Prefix of the environment variables that set keys.
pub(crate) const ENVIRONMENT: &str = "QUORATE_NODE_";

/// The configuration of one process.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeConfig {
    /// Domain of the process, as 32 hexadecimal digits.
    #[serde(with = "hex")]
    pub(crate) domain: DomainId,
    /// Node of the process. No other process of the cluster has the same node.
    pub(crate) node: u64,
    /// Name for display, such as `router-1` or `storage-3`.
    pub(crate) name: String,
    /// Role of the process.
    pub(crate) role: Role,
    /// Address for other processes, `host:port`. With port 0 the system chooses the port.
    pub(crate) listen: String,
    /// Address that other processes use, `host:port`, if it differs from `listen`. Port 0 stands for the port
    /// of `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// Address for SQL clients. A storage process with this key is also a gateway, a second member in the
    /// same process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sql_listen: Option<String>,
    /// Address for Redis clients. For cells only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) redis_listen: Option<String>,
    /// Address that serves `/metrics`, `/health` and `/status`.
    pub(crate) http_listen: String,
    /// Additional host names that HTTP requests may use. Addresses, names without a dot, and the names in
    /// `listen`, `http_listen` and `advertise` are always allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) http_names: Vec<String>,
    /// Whether to found the domain. Only the first router of a new domain does so, and only once.
    #[serde(default)]
    pub(crate) found: bool,
    /// Routers to join through, `host:port`.
    #[serde(default)]
    pub(crate) routers: Vec<String>,
    /// Number of routers that the domain keeps.
    #[serde(default = "defaults::routers")]
    pub(crate) wanted_routers: usize,
    /// Number of storage processes that hold rows. Further storage processes are standbys.
    #[serde(default = "defaults::storage")]
    pub(crate) wanted_storage: usize,
    /// Number of storage processes that hold each row, unless the table says otherwise.
    #[serde(default = "defaults::replicas")]
    pub(crate) replicas: usize,
    /// Longest time that a write waits for a majority of routers, in milliseconds. Then it ends as not sent
    /// or as maybe applied.
    #[serde(default = "defaults::write_wait_ms")]
    pub(crate) write_wait_ms: u64,
    /// Whether to allow addresses other than loopback, although there is no encryption and no password.
    #[serde(default)]
    pub(crate) insecure: bool,
    /// Whether to end when standard input closes. The supervisor that started this process holds the other
    /// end.
    #[serde(default)]
    pub(crate) supervised: bool,
    /// Directory for files. Without it the process writes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether to keep the log, the rows or the keys in `data_dir`, and to continue from there after a crash.
    /// For routers, storage processes and cells only.
    #[serde(default)]
    pub(crate) durable: bool,
    /// For tests of power cuts: files get their bytes only at a sync, so that a kill loses everything that
    /// was not durable.
    #[serde(default)]
    pub(crate) late_files: bool,
    /// Settings of the failure detector.
    #[serde(default)]
    pub(crate) detector: DetectorConfig,
    /// Limits of a storage process's engine.
    #[serde(default)]
    pub(crate) engine: EngineConfig,
    /// Settings of a cell.
    #[serde(default)]
    pub(crate) cell: CellConfig,
}

/// The settings of a cell.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CellConfig {
    /// Site of the cell. Cells of one site are near each other.
    pub(crate) site: u16,
    /// Distances to other sites, by which messages to their cells are delayed. For experiments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) distances: Vec<DistanceConfig>,
    /// Number of the cell's tokens on the ring.
    pub(crate) tokens: usize,
    /// Level of new connections.
    pub(crate) level: String,
    /// Upper bound of the keys and values that the cell stores, in bytes.
    pub(crate) store_bytes_max: usize,
    /// Upper bound of the writes that the cell stores for cells that do not acknowledge them, in bytes.
    pub(crate) hint_bytes_max: usize,
    /// Largest number of concurrent clients.
    pub(crate) clients_max: usize,
    /// Address for the services that store maps. Without it the cell hosts no services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) services_listen: Option<String>,
    /// Address that other cells use for the services, if it differs from `services_listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) services_advertise: Option<String>,
    /// Addresses at which the other cells host services. The cell's own address may be among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<String>,
}

/// The one-way distance to another site.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DistanceConfig {
    /// The other site.
    pub(crate) site: u16,
    /// Shortest time of a message, in milliseconds.
    pub(crate) ms: f64,
    /// Largest random time added to each message, in milliseconds.
    #[serde(default)]
    pub(crate) jitter_ms: f64,
    /// Length of the additional pauses in which messages are held up, in milliseconds. 0 means no pauses.
    #[serde(default)]
    pub(crate) stall_ms: f64,
    /// Time from one pause to the next, in milliseconds.
    #[serde(default)]
    pub(crate) stall_every_ms: f64,
}

impl DistanceConfig {
    /// Converts a distance for the file.
    pub(crate) fn new(site: u16, distance: Distance) -> DistanceConfig {
        let [ms, jitter_ms, stall_ms, stall_every_ms] = distance.in_ms();
        DistanceConfig { site, ms, jitter_ms, stall_ms, stall_every_ms }
    }

    /// Returns the distance, or an error if one of the times is out of range, or a pause is longer than the
    /// time from one pause to the next.
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
        }
    }
}

/// The failure detector's settings, in milliseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DetectorConfig {
    /// Interval between two signs of life.
    pub(crate) interval_ms: u64,
    /// Shortest silence after which a peer is suspected.
    pub(crate) silence_min_ms: u64,
    /// Longest silence after which a peer is suspected.
    pub(crate) silence_max_ms: u64,
    /// Longest time that a link may stay broken.
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
    /// Converts the settings for the detector.
    pub(crate) fn settings(&self) -> detector::Settings {
        detector::Settings {
            interval: Duration::from_millis(self.interval_ms),
            silence_min: Duration::from_millis(self.silence_min_ms),
            silence_max: Duration::from_millis(self.silence_max_ms),
            unlinked_max: Duration::from_millis(self.unlinked_max_ms),
        }
    }
}

/// The limits of a storage process's engine, in memory and processors.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EngineConfig {
    /// Upper bound of the overwritten rows that are kept for all clients that are reading long results, in
    /// bytes.
    pub(crate) pinned_bytes_max: u64,
    /// Upper bound of the rows that are collected for one query before it is answered, in bytes.
    pub(crate) result_bytes_max: u64,
    /// Upper bound of the size of all results that their clients have not yet taken, in bytes.
    pub(crate) held_bytes_max: u64,
    /// Longest time that a result is held while its client takes nothing, in milliseconds.
    pub(crate) held_max_ms: u64,
    /// Number of threads that scan rows in one pass.
    pub(crate) scan_threads: usize,
    /// Cores to bind the threads to, one each. If empty, the threads may run anywhere.
    pub(crate) scan_cores: Vec<usize>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let (bounds, scan_thread_options, storage) =
            (Bounds::default(), ScanThreadOptions::default(), StorageSettings::default());
        EngineConfig {
            pinned_bytes_max: bounds.pinned_bytes_max,
            result_bytes_max: bounds.result_bytes_max,
            held_bytes_max: storage.held_bytes_max,
            held_max_ms: u64::try_from(storage.held_max.as_millis()).unwrap_or(u64::MAX),
            scan_threads: scan_thread_options.threads,
            scan_cores: scan_thread_options.cores,
        }
    }
}

impl EngineConfig {
    /// Converts the bounds for the engine.
    pub(crate) fn bounds(&self) -> Bounds {
        let EngineConfig { pinned_bytes_max, result_bytes_max, .. } = *self;
        Bounds { pinned_bytes_max, result_bytes_max, batch_bytes_max: result_bytes_max }
    }

    /// Converts the thread settings for the engine.
    pub(crate) fn scan_thread_options(&self) -> ScanThreadOptions {
        ScanThreadOptions { threads: self.scan_threads, cores: self.scan_cores.clone() }
    }
}

impl NodeConfig {
    /// Combines the three sources: the text of a file, environment variables, and `key=value` flags.
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
                flag.split_once('=').ok_or_else(|| anyhow!("--set {flag}: the value must be key=value"))?;
            set(&mut table, key, value).with_context(|| format!("--set {flag}"))?;
        }
        let config: NodeConfig = table.try_into()?;
        config.check()?;
        Ok(config)
    }

    /// Returns the configuration as `--set` flags, which give the same result with an empty file.
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

    /// Returns the settings of the HTTP server.
    pub(crate) fn http(&self) -> http::Settings {
        let own = [Some(&self.listen), Some(&self.http_listen), self.advertise.as_ref()];
        let names = self.http_names.iter().chain(own.into_iter().flatten()).cloned().collect();
        http::Settings { names, ..http::Settings::default() }
    }

    /// Checks the rules that the types do not express.
    fn check(&self) -> Result<()> {
        let rules = [
            (self.role == Role::Router || !self.found, "found: only a router can found a domain"),
            (
                matches!(self.role, Role::Router | Role::Storage | Role::Cell) || !self.durable,
                "durable: only routers, storage processes and cells can keep their data on disk",
            ),
            (!self.durable || self.data_dir.is_some(), "durable: needs data_dir, the directory for the data"),
            (
                self.found || !self.routers.is_empty(),
                "routers: a process that does not found the domain needs the address of a router to join",
            ),
            (
                match self.role {
                    Role::Gateway => self.sql_listen.is_some(),
                    Role::Storage => true,
                    Role::Router | Role::Super | Role::Cell => self.sql_listen.is_none(),
                },
                "sql_listen: a gateway needs this key, a storage process can have it, and no other role can",
            ),
            (
                (self.role == Role::Cell) == self.redis_listen.is_some(),
                "redis_listen: a cell needs this key, and no other role can have it",
            ),
            ((1..=partial::TOKENS_MAX).contains(&self.cell.tokens), "cell.tokens: must be from 1 to 1024"),
            (
                self.domain != DomainId(0),
                "domain: must not be all zeros; choose 32 random hexadecimal digits",
            ),
            (self.node > 0, "node: must be at least 1"),
            (self.wanted_routers > 0, "wanted_routers: must be at least 1"),
            (self.replicas > 0, "replicas: must be at least 1"),
            (self.wanted_storage >= self.replicas, "wanted_storage: must not be less than replicas"),
            (
                (1..=SCAN_THREADS_MAX).contains(&self.engine.scan_threads),
                "engine.scan_threads: must be from 1 to 256",
            ),
            (
                self.engine.scan_cores.is_empty() || self.engine.scan_cores.len() == self.engine.scan_threads,
                "engine.scan_cores: must be empty, or list as many cores as engine.scan_threads says",
            ),
            (self.wanted_storage <= RING_MAX, "wanted_storage: must be at most 64"),
            (
                self.detector.silence_min_ms <= self.detector.silence_max_ms && self.detector.interval_ms > 0,
                "detector: interval_ms must be above 0, and silence_min_ms must not exceed silence_max_ms",
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

    /// Checks that other processes can connect to the advertised address.
    fn check_advertised(&self) -> Result<()> {
        let port = self.listen.rsplit_once(':').map_or("0", |(_, port)| port);
        match &self.advertise {
            None if is_unspecified_address(&self.listen)? => {
                return Err(Usage(format!(
                    "listen = \"{}\" stands for every address of this machine, so other processes cannot connect to it; add \
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
                        "advertise = \"{advertise}\": other processes cannot connect to this address; write the name or address under \
                         which the other machines reach this one"
                    ))
                    .into());
                }
            }
        }
        if let (Some(listen), None) = (&self.cell.services_listen, &self.cell.services_advertise)
            && is_unspecified_address(listen)?
        {
            return Err(Usage(format!(
                "cell.services_listen = \"{listen}\": other cells cannot connect to this address; add \
                 cell.services_advertise = \"HOST:PORT\" with the name or address under which they reach this machine"
            ))
            .into());
        }
        let lists = [("routers", &self.routers), ("cell.services", &self.cell.services)];
        for (key, addresses) in lists {
            if let Some(address) = addresses.iter().find(|address| is_unspecified(address)) {
                return Err(Usage(format!(
                    "{key}: no process can connect to {address}; write the name or address of the machine instead"
                ))
                .into());
            }
        }
        Ok(())
    }

    /// Returns the terms on which the domain is founded.
    pub(crate) fn terms(&self) -> Result<Terms> {
        let number = |key: &str, value: usize| {
            u32::try_from(value).map_err(|_| Usage(format!("{key}: {value} is larger than {}", u32::MAX)))
        };
        Ok(Terms {
            replicas: u8::try_from(self.replicas)
                .map_err(|_| Usage("replicas: must be at most 255".into()))?,
            wanted_storage: number("wanted_storage", self.wanted_storage)?,
            wanted_routers: number("wanted_routers", self.wanted_routers)?,
        })
    }
}

/// Longest address that may be advertised, in bytes.
const ADVERTISE_BYTES_MAX: usize = 255;

/// Whether `listen` resolves to the unspecified address, which stands for all addresses of this machine.
fn is_unspecified_address(listen: &str) -> Result<bool> {
    let resolved = listen
        .to_socket_addrs()
        .map_err(|error| Usage(format!("cannot resolve the address {listen}: {error}")))?;
    Ok(resolved.into_iter().any(|place| is_unspecified(&place.to_string())))
}

/// Largest number of scan threads. More threads would hardly find a core each.
pub(crate) const SCAN_THREADS_MAX: usize = 256;

/// Refuses an address that does not resolve and, without `insecure`, an address that other machines can
/// reach.
pub(crate) fn check_address(address: &str, insecure: bool) -> Result<()> {
    let resolved = address
        .to_socket_addrs()
        .map_err(|error| Usage(format!("cannot resolve the address {address}: {error}")))?;
    for place in resolved {
        if !place.ip().is_loopback() && !insecure {
            return Err(Usage(format!(
                "{address}: other machines can reach this address, and connections are neither encrypted nor protected by a \
                 password; set insecure = true to allow this"
            ))
            .into());
        }
    }
    Ok(())
}

/// Sets a dotted key. A value that does not parse as TOML is taken as a string.
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
        table = inner
            .as_table_mut()
            .with_context(|| format!("the key {part} has a value, so {key} cannot be set below it"))?;
    }
    unreachable!("splitting yields at least one part")
}

pub(crate) mod defaults {
    //! The default values of keys.

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
    //! Serialization of a domain's id as 32 hexadecimal digits.

    use quorate_protocol::DomainId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(domain: &DomainId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(domain)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DomainId, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let number = if digits.len() == 32 { u128::from_str_radix(&digits, 16).ok() } else { None };
        number.map(DomainId).ok_or_else(|| D::Error::custom("a domain must be 32 hexadecimal digits"))
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
        refused(FILE, &[], &["routers=[]"], "needs the address of a router to join");
        refused(FILE, &[], &["wanted_storage=65"], "at most 64");
        refused(FILE, &[], &["node=0"], "at least 1");
        refused(FILE, &[], &["domain=\"00000000000000000000000000000000\""], "all zeros");
        refused(FILE, &[], &["role=super", "sql_listen=127.0.0.1:1"], "a storage process can have it");
        refused(FILE, &[], &["role=gateway"], "a gateway needs this key");
        refused(FILE, &[], &["role=cell"], "a cell needs this key");
        refused(FILE, &[], &["orders=maps"], "unknown field `orders`");
        refused(FILE, &[], &["cell.tokens=0"], "1 to 1024");
        refused(FILE, &[], &["cell.level=most"], "no level 'most'");
        refused(FILE, &[], &["domain=12ab"], "32 hexadecimal digits");
        refused(FILE, &[], &["listen=nowhere"], "nowhere");
        refused(FILE, &[], &["listen=0.0.0.0:0"], "insecure");
    }

    #[test]
    fn an_unreachable_address_is_not_advertised() {
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
        refused(FILE, &[], &["routers=[\"0.0.0.0:24701\"]"], "no process can connect");
        // Other processes do not learn the addresses of HTTP and SQL.
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
            &[
                "role=gateway",
                "http_names=[\"a\"]",
                "data_dir=/d",
                "sql_listen=127.0.0.1:0",
                "advertise=localhost:0",
            ],
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
