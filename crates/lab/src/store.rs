//! Stores by their address, for the clients of an experiment.

use std::{
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use quorate::maps::{Client, Failure, Reply, Store};
#[cfg(feature = "cassandra")]
use quorate_cassandra::{Cluster, Coordinators, Options, Repair};
use quorate_tune::Connect;

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// `quorate://HOST:PORT,HOST:PORT/MAP`: a map of cells.
    Cells(Doors, String),
    /// `cassandra://HOST:PORT,HOST:PORT/KEYSPACE`: a cluster of Cassandra, and the options of its clients.
    #[cfg(feature = "cassandra")]
    Cassandra(Options),
}

/// A store in which experiments can create maps, each with keys of its own.
pub trait Maps: Sync {
    /// Returns the store's name in figures.
    fn name(&self) -> &'static str;
    /// Returns the number of known nodes.
    fn nodes(&self) -> usize;
    /// Creates a map.
    fn create(&self, map: &str, replication: &Replication) -> Result<()>;
    /// Returns the connector of clients to a map.
    fn clients(&self, map: &str) -> Result<Box<Connect<'static>>>;
    /// Drops a map and its contents.
    fn drop_map(&self, map: &str) -> Result<()>;
}

/// The replication of a map, in the words of `QUORATE CREATE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// The map is kept by partial quorums.
    Quorum {
        /// Copies of each key.
        copies: String,
        /// The reaction of reads to replicas that differ.
        repair: String,
    },
    /// A strategy other than partial quorums, by name.
    Otherwise(String),
}

impl Replication {
    /// Returns replication by partial quorums.
    pub fn quorum(copies: impl Into<String>, repair: impl Into<String>) -> Replication {
        Replication::Quorum { copies: copies.into(), repair: repair.into() }
    }
}

/// The Redis doors of cells, as `HOST:PORT`. Clients are distributed over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doors(pub Vec<String>);

/// Copies of each key in a map of cells.
pub const COPIES: u8 = 3;

/// The name of maps of cells in figures.
pub(crate) const CELLS: &str = "quorate";
#[cfg(feature = "cassandra")]
const CASSANDRA: &str = "cassandra";

/// Upper bound of an operation, and of the time until all cells know a map.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name of the table that the clients of an address use.
#[cfg(feature = "cassandra")]
const TABLE: &str = "main";

impl FromStr for StoreAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreAddress, String> {
        if text.starts_with("cassandra://") {
            return cassandra(text);
        }
        let form = || {
            format!(
                "the store '{text}' must be written as quorate://HOST:PORT,HOST:PORT/MAP or \
                 cassandra://HOST:PORT,HOST:PORT/KEYSPACE"
            )
        };
        let rest = text.strip_prefix("quorate://").ok_or_else(form)?;
        let (doors, map) = rest.split_once('/').unwrap_or((rest, "main"));
        let doors: Vec<String> = doors.split(',').map(str::to_owned).collect();
        if map.is_empty() || doors.iter().any(|door| !door.contains(':')) {
            return Err(form());
        }
        Ok(StoreAddress::Cells(Doors(doors), map.to_owned()))
    }
}

#[cfg(feature = "cassandra")]
fn cassandra(text: &str) -> Result<StoreAddress, String> {
    text.parse()
        .map(StoreAddress::Cassandra)
        .map_err(|error: quorate_cassandra::OptionsError| error.to_string())
}

#[cfg(not(feature = "cassandra"))]
fn cassandra(text: &str) -> Result<StoreAddress, String> {
    Err(format!(
        "cannot use the store '{text}', because this program was built without support for Cassandra; \
         build it with `cargo build --release --features cassandra`"
    ))
}

impl StoreAddress {
    /// Opens the store at this address.
    pub fn open(&self) -> Result<Box<dyn Maps>> {
        match self {
            StoreAddress::Cells(doors, _) => Ok(Box::new(doors.clone())),
            #[cfg(feature = "cassandra")]
            StoreAddress::Cassandra(options) => Ok(Box::new(Cluster::connect(options)?)),
        }
    }

    /// Returns the name of stores of this kind in figures.
    pub fn name(&self) -> &'static str {
        match self {
            StoreAddress::Cells(..) => CELLS,
            #[cfg(feature = "cassandra")]
            StoreAddress::Cassandra(_) => CASSANDRA,
        }
    }

    /// Whether each client uses a single node.
    pub fn is_pinned(&self) -> bool {
        match self {
            StoreAddress::Cells(..) => true,
            #[cfg(feature = "cassandra")]
            StoreAddress::Cassandra(options) => options.coordinators == Coordinators::Pinned,
        }
    }

    /// Returns the default number of copies of each key in a new map.
    pub fn copies(&self) -> u8 {
        match self {
            StoreAddress::Cells(..) => COPIES,
            #[cfg(feature = "cassandra")]
            StoreAddress::Cassandra(options) => options.copies,
        }
    }

    /// Returns the connector of clients to the map of this address. For Cassandra the map is a table of
    /// registers, which is created if needed.
    pub fn clients(&self) -> Result<Box<Connect<'static>>> {
        match self {
            StoreAddress::Cells(doors, map) => doors.clients(map),
            #[cfg(feature = "cassandra")]
            StoreAddress::Cassandra(options) => {
                let cluster = Cluster::connect(options)?;
                cluster.create_keyspace(options.copies)?;
                cluster.create_table(TABLE, Repair::Blocking)?;
                cluster.clients(TABLE)
            }
        }
    }
}

impl Maps for Doors {
    fn name(&self) -> &'static str {
        CELLS
    }

    fn nodes(&self) -> usize {
        self.0.len()
    }

    fn create(&self, map: &str, replication: &Replication) -> Result<()> {
        let create = ["QUORATE", "CREATE", map];
        match replication {
            Replication::Quorum { copies, repair } => {
                let options = ["COPIES", copies, "REPAIR", repair];
                self.command(&self.0[0], &[&create[..], &options].concat())?;
            }
            Replication::Otherwise(strategy) => {
                self.command(&self.0[0], &[&create[..], &["STRATEGY", strategy]].concat())?;
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for door in &self.0 {
            while let Err(error) = self.command(door, &["QUORATE", "MAP", map]) {
                ensure!(Instant::now() < deadline, "the cell at {door} does not know the new map: {error}");
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    fn clients(&self, map: &str) -> Result<Box<Connect<'static>>> {
        let (doors, map) = (self.0.clone(), map.to_owned());
        Ok(Box::new(move |number| -> Result<Box<dyn Store>, Failure> {
            let door = &doors[number as usize % doors.len()];
            let client = Client::connect(door, &map, PATIENCE);
            Ok(Box::new(client.map_err(|error| {
                Failure::NotDone(format!("cannot connect to the cell at {door}: {error}"))
            })?))
        }))
    }

    fn drop_map(&self, map: &str) -> Result<()> {
        self.command(&self.0[0], &["QUORATE", "DROP", map])
    }
}

impl Doors {
    fn command(&self, door: &str, words: &[&str]) -> Result<()> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut client = Client::connect(door, "main", PATIENCE)
            .with_context(|| format!("cannot connect to the cell at {door}"))?;
        match client.command(&words)? {
            Reply::Error(why) => Err(anyhow!("{why}")),
            _ => Ok(()),
        }
    }
}

#[cfg(feature = "cassandra")]
impl Maps for Cluster {
    fn name(&self) -> &'static str {
        CASSANDRA
    }

    fn nodes(&self) -> usize {
        Cluster::nodes(self)
    }

    fn create(&self, map: &str, replication: &Replication) -> Result<()> {
        let Replication::Quorum { copies, repair } = replication else {
            anyhow::bail!("--strategy: Cassandra supports only partial quorums; leave out --strategy");
        };
        let copies: u8 = copies
            .parse()
            .with_context(|| format!("the number of copies '{copies}' must be a number for Cassandra"))?;
        let repair = match repair.as_str() {
            "blocking" => Repair::Blocking,
            "none" => Repair::None,
            other => anyhow::bail!("--repair {other}: Cassandra supports only none and blocking"),
        };
        self.create_keyspace(copies)?;
        ensure!(
            self.has_copies(copies),
            "the keyspace exists already, and does not keep {copies} copies of each key; drop it, or name \
             another keyspace"
        );
        Ok(self.create_table(map, repair)?)
    }

    fn clients(&self, map: &str) -> Result<Box<Connect<'static>>> {
        let table = self.table(map)?;
        Ok(Box::new(move |number| Ok(Box::new(table.client(number)))))
    }

    fn drop_map(&self, map: &str) -> Result<()> {
        Ok(self.drop_table(map)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_address_parses_to_its_parts() {
        let cells = |doors: &[&str], map: &str| {
            StoreAddress::Cells(Doors(doors.iter().map(|it| (*it).to_owned()).collect()), map.to_owned())
        };
        assert_eq!("quorate://a:1,b:2/m".parse(), Ok(cells(&["a:1", "b:2"], "m")));
        assert_eq!("quorate://a:1".parse(), Ok(cells(&["a:1"], "main")));
        for text in ["", "a:1", "redis://a:1", "quorate://a", "quorate://a:1/", "quorate://"] {
            let error = text.parse::<StoreAddress>().unwrap_err();
            assert!(error.contains("cassandra://HOST"), "{error}");
        }
    }

    #[test]
    fn cassandra_is_there_or_is_said_to_be_missing() {
        let place = "cassandra://a:1/k".parse::<StoreAddress>();
        if cfg!(feature = "cassandra") {
            assert!(place.is_ok() && "cassandra://a".parse::<StoreAddress>().is_err());
        } else {
            assert!(place.unwrap_err().contains("--features cassandra"));
        }
    }
}
