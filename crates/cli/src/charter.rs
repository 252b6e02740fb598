//! The charter of a local cluster on disk. It says which cluster owns the directory, and with which settings
//! the cluster was made.
//!
//! The first `quorate up` in a directory writes the charter before it starts any process. Every later `up`
//! reads it and continues with the same domain, processes and ports. It refuses flags that contradict the
//! charter. It also refuses a directory that contains journals but no charter. In addition, each journal
//! knows its own domain and node (`runtime::disk`).
//!
//! Format 1 had only tables. In format 2 a cluster had either tables or cells, whose routers ordered nothing
//! else. In format 3 one cluster can have both. The present build reads a charter of tables in any format,
//! and rewrites it in the present format when the cluster next starts. From then on, an earlier build refuses
//! the directory by its format. The present build refuses a cluster of cells in format 2, because its
//! journals are those of other routers and cells.
//!
//! A cluster in memory has no charter. It leaves nothing that a later cluster would depend on.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::{Context, Result, bail};
use quorate_protocol::DomainId;
use serde::{Deserialize, Serialize};

use crate::{config, directory::Directory};

/// The settings that a cluster on disk was made with and keeps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Charter {
    /// Format of the directory.
    format: u32,
    /// Version of the program that last wrote the charter.
    version: String,
    /// Domain of the cluster.
    #[serde(with = "config::hex")]
    pub(crate) domain: DomainId,
    /// First of the cluster's ports. If the user asked for any free port, this is the drawn port.
    pub(crate) first_port: u16,
    /// Progress of loading the sample tables.
    pub(crate) sample: Sample,
    /// Progress of making the first map.
    #[serde(default)]
    pub(crate) first_map: Sample,
    /// Values of the flags, whether given or by default.
    pub(crate) made_with: ClusterSize,
}

/// The sizes of a cluster on disk, one for each flag of `quorate up`. A cluster has tables, cells or both.
/// The numbers of processes that the cluster does not have are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterSize {
    /// Number of routers.
    pub(crate) routers: u16,
    /// Number of storage processes that hold rows.
    pub(crate) storage: u16,
    /// Number of standby storage processes.
    pub(crate) standby: u16,
    /// Number of storage processes that hold each row.
    pub(crate) replicas: u16,
    /// Port for SQL, or for the Redis protocol in a cluster without tables. 0 means that a free port was
    /// drawn when the cluster was made.
    pub(crate) port: u16,
    /// Number of cells.
    #[serde(default)]
    pub(crate) cells: u16,
    /// Number of sites, among which the cells are distributed in turn.
    #[serde(default)]
    pub(crate) sites: u16,
}

/// A kind of data in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterContent {
    /// Rows, held by storage processes.
    Tables,
    /// Keys, held by cells.
    Maps,
}

impl ClusterContent {
    /// Returns the name of these contents for use inside a sentence.
    pub(crate) fn name_of(contents: &[ClusterContent]) -> &'static str {
        let has = |content| contents.contains(&content);
        match (has(ClusterContent::Tables), has(ClusterContent::Maps)) {
            (true, true) => "tables and maps",
            (false, true) => "maps",
            (_, false) => "tables",
        }
    }
}

impl ClusterSize {
    /// Whether a cluster of this size has data of this kind: tables or maps.
    pub(crate) fn has(&self, content: ClusterContent) -> bool {
        match content {
            ClusterContent::Tables => self.storage > 0,
            ClusterContent::Maps => self.cells > 0,
        }
    }

    /// Returns the name of the contents for use inside a sentence.
    pub(crate) fn contents(&self) -> &'static str {
        let mut contents = vec![ClusterContent::Tables, ClusterContent::Maps];
        contents.retain(|content| self.has(*content));
        ClusterContent::name_of(&contents)
    }
}

/// The progress of loading the sample, or of making the first map. This work happens once in the life of a
/// directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sample {
    /// The cluster was made without a sample and without a first map.
    #[default]
    None,
    /// The sample has to be loaded, or the first map made.
    Wanted,
    /// The sample was loaded, or the first map made. Users may have changed or dropped it since, so `up` does
    /// not repeat the work.
    Loaded,
}

/// The part of a charter that every format has.
#[derive(Deserialize)]
struct CharterVersion {
    format: u32,
    version: String,
}

const FORMAT: u32 = 3;

/// The format in which a cluster had either tables or cells.
const FORMER_FORMAT: u32 = 2;
const FILE: &str = "quorate.toml";
const PREFACE: &str = "# The settings with which `quorate up` created the cluster in this directory. Do not change this file.\n";

impl Charter {
    /// Creates the charter of a directory that has none.
    pub(crate) fn new(domain: DomainId, size: ClusterSize, sample: Sample) -> Charter {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let first_map = if size.has(ClusterContent::Maps) { Sample::Wanted } else { Sample::None };
        Charter { format: FORMAT, version, domain, first_port: size.port, sample, first_map, made_with: size }
    }

    /// Reads the charter of a directory. Returns `None` if the directory has none and keeps nothing.
    pub(crate) fn read(directory: &Directory) -> Result<Option<Charter>> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Charter::missing(directory),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        Charter::parse(&text).with_context(|| format!("cannot use {}", path.display())).map(Some)
    }

    fn parse(text: &str) -> Result<Charter> {
        if let Ok(CharterVersion { format, version }) = toml::from_str(text)
            && format > FORMAT
        {
            bail!(
                "this directory was last used by quorate {version} and has format {format}, but this program is quorate {} and reads \
                 only formats 1 to {FORMAT}: use quorate {version} or later",
                env!("CARGO_PKG_VERSION")
            );
        }
        let charter: Charter = toml::from_str(text)?;
        if charter.format <= FORMER_FORMAT && charter.made_with.has(ClusterContent::Maps) {
            bail!(
                "this directory keeps domain {} of cells alone, in format {}: only builds of quorate up to commit 71de61a6 open it; \
                 copy its keys from there with a Redis client into a cluster of this build, in another --data-dir",
                charter.domain,
                charter.format
            );
        }
        Ok(charter)
    }

    /// Refuses a directory that keeps data without a charter. A new cluster in the directory would make the
    /// tables of the former cluster seem gone. A directory with only a mark or a lock is refused, too,
    /// because it belongs to a process of `quorate node`. If that process lost its mark, it could found its
    /// domain again.
    fn missing(directory: &Directory) -> Result<Option<Charter>> {
        let marks = directory.names()?.into_iter().find(|name| is_kept(name) && !is_journal(name));
        if let Some(kept) = find_records(directory)?.or(marks) {
            bail!(
                "{} exists, but {FILE} does not: this directory belongs to processes of `quorate node`, or to a cluster some of \
                 whose files were removed; give another --data-dir, or remove the remaining files with `quorate down --destroy`",
                directory.join(&kept).display()
            );
        }
        Ok(None)
    }

    /// Durably replaces the charter of the directory by this one, in the present format.
    pub(crate) fn write(&mut self, directory: &Directory) -> Result<()> {
        self.format = FORMAT;
        env!("CARGO_PKG_VERSION").clone_into(&mut self.version);
        directory.replace(FILE, format!("{PREFACE}{}", toml::to_string(self)?).as_bytes())
    }

    /// Whether the charter has an earlier format, which an earlier build would accept.
    pub(crate) fn is_of_earlier_format(&self) -> bool {
        self.format < FORMAT
    }

    /// Whether a client may have got an answer from this domain. Every answer of a router depends on records
    /// of its journal, so without records there is nothing to continue.
    pub(crate) fn has_begun(&self, directory: &Directory) -> Result<bool> {
        let has_records = find_records(directory)?.is_some();
        if [self.sample, self.first_map].contains(&Sample::Loaded) && !has_records {
            bail!(
                "{} is the directory of a cluster with {}, but its journals are missing: put the journals back, or remove the \
                 remaining files with `quorate down --destroy` and start a new cluster",
                directory.shown(),
                self.made_with.contents()
            );
        }
        Ok(has_records)
    }
}

/// Whether the directory contains anything that [`remove`] would remove.
pub(crate) fn has_cluster_files(directory: &Directory) -> Result<bool> {
    Ok(directory.names()?.iter().any(|name| is_kept(name)))
}

/// Removes everything that a cluster keeps in its directory. The charter goes first, so that no `up`
/// continues with the remaining files. The caller holds the lock of the directory, and no process uses its
/// files.
pub(crate) fn remove(directory: &Directory) -> Result<()> {
    let mut names: Vec<String> = directory.names()?.into_iter().filter(|name| is_kept(name)).collect();
    names.sort_by_key(|name| name != FILE);
    for name in names {
        let path = directory.join(&name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Returns the name of a journal with records, if there is one.
fn find_records(directory: &Directory) -> Result<Option<String>> {
    for name in directory.names()?.into_iter().filter(|name| is_journal(name)) {
        if has_records(&directory.join(&name))? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Whether the journal has any record. Space that is only reserved reads as zeros.
fn has_records(journal: &Path) -> Result<bool> {
    let shown = || format!("cannot read {}", journal.display());
    for entry in fs::read_dir(journal).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        let mut begin = [0; 8];
        if path.to_string_lossy().contains(".segment") {
            let read = fs::File::open(&path).and_then(|mut file| std::io::Read::read(&mut file, &mut begin));
            read.with_context(|| format!("cannot read {}", path.display()))?;
        }
        if begin != [0; 8] {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether this is the name of a file or directory that belongs to a cluster's tables or maps.
fn is_kept(name: &str) -> bool {
    let is_numbered = |prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let is_of_services = name.strip_prefix(SERVICES).is_some_and(|node| node.parse::<u64>().is_ok());
    name == FILE || is_journal(name) || is_of_services || is_numbered(FOUNDED) || is_numbered(LOCK)
}

fn is_journal(name: &str) -> bool {
    name.strip_prefix(JOURNAL).is_some_and(|node| node.parse::<u64>().is_ok())
}

/// Prefix of the directory of the services that a cell hosts. The number of the cell's node follows.
pub(crate) const SERVICES: &str = "services-";

/// Prefix of the name that the library gives to the directory of a journal.
const JOURNAL: &str = "journal-";
/// Prefix of the name that the library gives to the mark of a founded domain.
const FOUNDED: &str = "founded-";
/// Prefix of the name that the library gives to the lock of a process.
pub(crate) const LOCK: &str = "lock-";

#[cfg(test)]
mod tests {
    use super::*;

    fn charter() -> Charter {
        let size =
            ClusterSize { routers: 3, storage: 4, standby: 1, replicas: 3, port: 12_000, cells: 0, sites: 0 };
        Charter::new(DomainId(0xd0), size, Sample::Wanted)
    }

    #[test]
    fn a_charter_survives_writing_and_reading() {
        let text = toml::to_string(&charter()).unwrap();
        assert_eq!(Charter::parse(&text).unwrap(), charter(), "{text}");
    }

    #[test]
    fn the_former_format_is_read_and_not_written() {
        let text = "format = 1\nversion = \"0.0.9\"\ndomain = \"000000000000000000000000000000d0\"\nfirst_port = 12000\n\
                    sample = \"wanted\"\n[made_with]\nrouters = 3\nstorage = 4\nstandby = 1\nreplicas = 3\nport = 12000\n";
        let former = Charter::parse(text).unwrap();
        assert!(former.is_of_earlier_format() && !charter().is_of_earlier_format());
        assert_eq!(former.made_with, charter().made_with);
        assert_eq!(former.made_with.contents(), "tables");
        let of_cells = |format, storage| {
            format!(
                "format = {format}\nversion = \"0.1.0\"\ndomain = \"000000000000000000000000000000d0\"\nfirst_port = 12000\n\
                 sample = \"loaded\"\n[made_with]\nrouters = 3\nstorage = {storage}\nstandby = 0\nreplicas = 0\nport = 0\n\
                 cells = 3\nsites = 1\n"
            )
        };
        let refused = Charter::parse(&of_cells(2, 0)).unwrap_err().to_string();
        assert!(refused.contains("up to commit 71de61a6"), "{refused}");
        assert_eq!(Charter::parse(&of_cells(3, 0)).unwrap().made_with.contents(), "maps");
        assert_eq!(Charter::parse(&of_cells(3, 4)).unwrap().made_with.contents(), "tables and maps");
    }

    #[test]
    fn a_later_format_is_reported_despite_unknown_keys() {
        let text = "format = 4\nversion = \"9.1.0\"\nmoons = [1, 2]\n";
        let error = Charter::parse(text).unwrap_err().to_string();
        assert!(error.contains("used by quorate 9.1.0 and has format 4"), "{error}");
        let text = toml::to_string(&charter()).unwrap() + "moons = 2\n";
        assert!(Charter::parse(&text).is_err(), "an unknown key in the present format");
    }

    #[test]
    fn foreign_file_names_are_left_alone() {
        for name in ["quorate.toml", "journal-12", "founded-00d0", "lock-3"] {
            assert!(is_kept(name), "{name}");
        }
        for name in ["journal-", "journal-x", "journals", "founded-", "lock", "notes.toml", "lock-my"] {
            assert!(!is_kept(name), "{name}");
        }
    }
}
