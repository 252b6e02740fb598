//! The charter of a local cluster that is kept on disk: whose directory it is, and what its cluster was made with.
//!
//! The first `quorate up` in a directory writes it, before any process starts. Every later one reads it and goes on with the
//! same domain, the same processes and the same ports; a flag that says otherwise is refused. So is a directory without a
//! charter that holds journals all the same. Each journal knows its own domain and node besides (`runtime::disk`).
//!
//! Format 1 had tables alone. Such a charter is read, and written in the present format when its cluster next goes on: a build
//! that would take a cluster of cells for one of tables then refuses it by name.
//!
//! A cluster in memory has no charter, and leaves nothing behind on which a later one would rest.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::{Context, Result, bail};
use quorate_protocol::DomainId;
use serde::{Deserialize, Serialize};

use crate::{cluster::Directory, config};

/// The facts that a cluster on disk was made with, and goes on with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Charter {
    /// The form of the directory.
    format: u32,
    /// The version of the program that wrote it last.
    version: String,
    /// The domain.
    #[serde(with = "config::hex")]
    pub(crate) domain: DomainId,
    /// The first of its ports, whichever was asked for.
    pub(crate) first_port: u16,
    /// The sample of a cluster of tables, and the first map of one of cells.
    pub(crate) sample: Sample,
    /// The flags, as they were given or left to their defaults.
    pub(crate) made_with: Shape,
}

/// The numbers that a cluster on disk is made with, each of a flag. It has tables or cells, and those of the other kind are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// Routers.
    pub(crate) routers: u16,
    /// Storage processes that hold rows.
    pub(crate) storage: u16,
    /// Storage processes that wait.
    pub(crate) standby: u16,
    /// Storage processes that hold each row.
    pub(crate) replicas: u16,
    /// Where SQL or the Redis protocol is spoken; 0: whatever was free when it was made.
    pub(crate) port: u16,
    /// Cells.
    #[serde(default)]
    pub(crate) cells: u16,
    /// Sites at which the cells stand, in turns.
    #[serde(default)]
    pub(crate) sites: u16,
}

/// The contents of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Rows, which storage processes hold.
    Tables,
    /// Keys, which cells hold.
    Maps,
}

impl Content {
    /// As in the middle of a sentence.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Content::Tables => "tables",
            Content::Maps => "maps",
        }
    }
}

impl Shape {
    /// The contents of a cluster of this shape.
    pub(crate) fn content(&self) -> Content {
        if self.cells > 0 { Content::Maps } else { Content::Tables }
    }
}

/// How far the loading of the sample, or the making of the first map, has come. It happens once in the life of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sample {
    /// The cluster was made without.
    None,
    /// It is to be loaded.
    Wanted,
    /// It was loaded. Whatever became of its table or map since is its users' doing.
    Loaded,
}

/// The part of a charter of any format that says which format it has.
#[derive(Deserialize)]
struct Head {
    format: u32,
    version: String,
}

const FORMAT: u32 = 2;
const FILE: &str = "quorate.toml";
const PREFACE: &str =
    "# A cluster of `quorate up`, and what it was made with. It goes on from this: do not change it.\n";

impl Charter {
    /// For a directory that has none.
    pub(crate) fn new(domain: DomainId, shape: Shape, first_port: u16, sample: Sample) -> Charter {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Charter { format: FORMAT, version, domain, first_port, sample, made_with: shape }
    }

    /// The charter of a directory, if it has one.
    pub(crate) fn read(directory: &Directory) -> Result<Option<Charter>> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Charter::missing(directory),
            read => read.with_context(|| path.display().to_string())?,
        };
        Charter::parse(&text).with_context(|| path.display().to_string()).map(Some)
    }

    fn parse(text: &str) -> Result<Charter> {
        if let Ok(Head { format, version }) = toml::from_str(text)
            && format > FORMAT
        {
            bail!(
                "this directory was last used by quorate {version}: it has format {format}, and this build, {}, reads formats \
                 1 to {FORMAT}: use a later one",
                env!("CARGO_PKG_VERSION")
            );
        }
        Ok(toml::from_str(text)?)
    }

    /// Without a charter nothing may be kept: a new cluster would stand beside it, and its tables would seem gone. A mark or a lock
    /// alone is of a process of `quorate node`, which may found its domain again if it loses the mark.
    fn missing(directory: &Directory) -> Result<Option<Charter>> {
        let marks = directory.names()?.into_iter().find(|name| is_kept(name) && !is_journal(name));
        if let Some(kept) = find_records(directory)?.or(marks) {
            bail!(
                "{} is there, and no {FILE}: this directory belongs to processes of `quorate node`, or to a cluster of which a \
                 part was removed; give another --data-dir, or remove what is left with `quorate down --destroy`",
                directory.join(&kept).display()
            );
        }
        Ok(None)
    }

    /// Replaces the charter, durably, by this one in the present format.
    pub(crate) fn write(&mut self, directory: &Directory) -> Result<()> {
        self.format = FORMAT;
        env!("CARGO_PKG_VERSION").clone_into(&mut self.version);
        directory.replace(FILE, format!("{PREFACE}{}", toml::to_string(self)?).as_bytes())
    }

    /// Whether an earlier build would take it for one that it understands.
    pub(crate) fn is_of_earlier_format(&self) -> bool {
        self.format < FORMAT
    }

    /// Whether anybody may have been answered in this domain. Until then there is nothing to go on from: everything that a
    /// router says rests on records of its journal.
    pub(crate) fn has_begun(&self, directory: &Directory) -> Result<bool> {
        let has_records = find_records(directory)?.is_some();
        if self.sample == Sample::Loaded && !has_records {
            bail!(
                "{}: {} were kept here, and their journals are gone; put them back, or begin anew behind `quorate down --destroy`",
                directory.shown(),
                self.made_with.content().name()
            );
        }
        Ok(has_records)
    }
}

/// Whether anything is there that [`remove`] would remove.
pub(crate) fn has_anything(directory: &Directory) -> Result<bool> {
    Ok(directory.names()?.iter().any(|name| is_kept(name)))
}

/// Removes all that a cluster keeps in its directory: the charter first, so that nobody goes on from what is left. The caller
/// holds the directory, and no process uses what is in it.
pub(crate) fn remove(directory: &Directory) -> Result<()> {
    let mut names: Vec<String> = directory.names()?.into_iter().filter(|name| is_kept(name)).collect();
    names.sort_by_key(|name| name != FILE);
    for name in names {
        let path = directory.join(&name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// A journal in which something was written, if there is one.
fn find_records(directory: &Directory) -> Result<Option<String>> {
    for name in directory.names()?.into_iter().filter(|name| is_journal(name)) {
        if has_records(&directory.join(&name))? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Whether anything was ever written into a segment of this journal. Room that is only reserved reads as zeros.
fn has_records(journal: &Path) -> Result<bool> {
    let shown = || journal.display().to_string();
    for entry in fs::read_dir(journal).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        let mut begin = [0; 8];
        if path.to_string_lossy().contains(".segment") {
            let read = fs::File::open(&path).and_then(|mut file| std::io::Read::read(&mut file, &mut begin));
            read.with_context(|| path.display().to_string())?;
        }
        if begin != [0; 8] {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether this is the name of something that a cluster keeps its tables or maps in, or that belongs to them.
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

/// The directory of the services that a cell of this node hosts.
pub(crate) const SERVICES: &str = "services-";

/// Names that the library gives to files in the directory of its processes.
const JOURNAL: &str = "journal-";
const FOUNDED: &str = "founded-";
pub(crate) const LOCK: &str = "lock-";

#[cfg(test)]
mod tests {
    use super::*;

    fn charter() -> Charter {
        let shape = Shape { routers: 3, storage: 4, standby: 1, replicas: 3, port: 0, cells: 0, sites: 0 };
        Charter::new(DomainId(0xd0), shape, 12_000, Sample::Wanted)
    }

    #[test]
    fn a_charter_is_read_as_it_was_written() {
        let text = toml::to_string(&charter()).unwrap();
        assert_eq!(Charter::parse(&text).unwrap(), charter(), "{text}");
    }

    #[test]
    fn the_former_format_is_read_and_not_written() {
        let text = "format = 1\nversion = \"0.0.9\"\ndomain = \"000000000000000000000000000000d0\"\nfirst_port = 12000\n\
                    sample = \"wanted\"\n[made_with]\nrouters = 3\nstorage = 4\nstandby = 1\nreplicas = 3\nport = 0\n";
        let former = Charter::parse(text).unwrap();
        assert!(former.is_of_earlier_format() && !charter().is_of_earlier_format());
        assert_eq!(former.made_with, charter().made_with);
        assert_eq!(former.made_with.content(), Content::Tables);
    }

    #[test]
    fn a_later_format_is_named_whatever_else_it_has() {
        let text = "format = 3\nversion = \"9.1.0\"\nmoons = [1, 2]\n";
        let error = Charter::parse(text).unwrap_err().to_string();
        assert!(error.contains("used by quorate 9.1.0: it has format 3"), "{error}");
        let text = toml::to_string(&charter()).unwrap() + "moons = 2\n";
        assert!(Charter::parse(&text).is_err(), "an unknown key in the present format");
    }

    #[test]
    fn names_of_others_are_left_alone() {
        for name in ["quorate.toml", "journal-12", "founded-00d0", "lock-3"] {
            assert!(is_kept(name), "{name}");
        }
        for name in ["journal-", "journal-x", "journals", "founded-", "lock", "notes.toml", "lock-my"] {
            assert!(!is_kept(name), "{name}");
        }
    }
}
