//! What `up` keeps on disk: who runs where, what each process is told, and what it logs.
//!
//! It is there for people and for other commands; no table rests on it. So nothing that fails here ends a process or keeps
//! one from starting, be the disk full, a file removed or the whole directory: it is told, once for each reason, and tried
//! again until it works. Meanwhile a process gets its configuration by flags, and its log goes nowhere.

use std::{ffi::OsString, fs::File, io::Write, path::PathBuf, process::Stdio};

use anyhow::{Context, Result};

use crate::{
    cluster::{Cluster, Directory},
    config::NodeConfig,
};

/// The directory of a local cluster, as its supervisor has it.
pub(super) struct Records {
    directory: Directory,
    lock: File,
    /// Why who runs where is not written down, if it is not.
    trouble: Option<String>,
}

impl Records {
    /// The records in a directory that was acquired with this lock.
    pub(super) fn new(directory: Directory, lock: File) -> Records {
        Records { directory, lock, trouble: None }
    }

    /// Makes a log for a process of this name, and tells where it is. It begins empty unless an earlier one is `kept`. Before
    /// anything runs this may fail.
    pub(super) fn make_log(&self, name: &str, kept: bool) -> Result<PathBuf> {
        let name = log(name);
        if kept {
            self.directory.append(&name)?
        } else {
            self.directory.create(&name)?
        };
        Ok(self.directory.join(&name))
    }

    /// Where a process of this name logs to.
    pub(super) fn log(&mut self, name: &str) -> Stdio {
        let opened = self.reclaim().and_then(|()| self.directory.append(&log(name)));
        opened.map_or_else(
            |error| {
                tracing::warn!("{name} runs without a log: {error:#}");
                Stdio::null()
            },
            Stdio::from,
        )
    }

    /// The flags that tell a process its configuration: by a file, or without one.
    pub(super) fn configuration(&mut self, config: &NodeConfig) -> Result<Vec<OsString>> {
        let file = format!("{}.toml", config.name);
        let text = toml::to_string(config)?;
        let directory = self.directory.clone();
        let write = || directory.create(&file)?.write_all(text.as_bytes()).context(file.clone());
        let mut flags = vec![OsString::from("--config")];
        match self.reclaim().and_then(|()| write()) {
            Ok(()) => flags.push(self.directory.join(&file).into()),
            Err(error) => {
                tracing::warn!("{} gets its configuration by flags: {error:#}", config.name);
                flags.push("/dev/null".into());
                flags.extend(config.as_flags()?.into_iter().flat_map(|flag| ["--set".into(), flag.into()]));
            }
        }
        Ok(flags)
    }

    /// Writes down who runs where.
    pub(super) fn write(&mut self, cluster: &Cluster) {
        let written = self.reclaim().and_then(|()| self.directory.write(cluster));
        let trouble = written.err().map(|error| format!("{error:#}"));
        match &trouble {
            Some(why) if trouble != self.trouble => {
                tracing::warn!(
                    "who runs where can not be written down, and `quorate status` may be wrong: {why}"
                );
            }
            None if self.trouble.is_some() => tracing::info!("who runs where is written down again"),
            _ => {}
        }
        self.trouble = trouble;
    }

    /// Writes it down again if that has failed, or if the directory is gone.
    pub(super) fn tend(&mut self, cluster: &Cluster) {
        if self.trouble.is_some() || !self.directory.is_locked_by(&self.lock) {
            self.write(cluster);
        }
    }

    /// Makes the directory and its lock anew if somebody has removed them.
    fn reclaim(&mut self) -> Result<()> {
        if !self.directory.is_locked_by(&self.lock) {
            self.lock = self.directory.acquire()?;
            tracing::warn!("{} was removed, and is made anew", self.directory.shown());
        }
        Ok(())
    }
}

fn log(name: &str) -> String {
    format!("{name}.log")
}
