//! The files that `up` writes about running processes: `cluster.json`, and the configuration and log of each
//! process.
//!
//! These files are for people and for other commands, and no table depends on them. So a failure here neither
//! ends a process nor prevents a start, even on a full disk or if the directory was removed. Each reason is
//! reported once, and the write is tried again until it succeeds. In the meantime a process gets its
//! configuration by flags, and its log is discarded.

use std::{ffi::OsString, fs::File, io::Write, path::PathBuf, process::Stdio};

use anyhow::{Context, Result};

use crate::{cluster::Cluster, config::NodeConfig, directory::Directory};

/// The directory of a local cluster, as used by its supervisor.
pub(super) struct ProcessRecords {
    directory: Directory,
    lock: File,
    /// Reason why `cluster.json` could not be written; `None` if it was written.
    trouble: Option<String>,
}

impl ProcessRecords {
    /// Creates the records of a directory that was acquired with this lock.
    pub(super) fn new(directory: Directory, lock: File) -> ProcessRecords {
        ProcessRecords { directory, lock, trouble: None }
    }

    /// Creates the log of a process and returns its path. The log is emptied unless `kept`. A failure here is
    /// an error, unlike a later failure, because no process runs yet.
    pub(super) fn make_log(&self, name: &str, kept: bool) -> Result<PathBuf> {
        let name = log(name);
        if kept {
            self.directory.append(&name)?
        } else {
            self.directory.create(&name)?
        };
        Ok(self.directory.join(&name))
    }

    /// Opens the log of a process. If that fails, the output of the process is discarded.
    pub(super) fn log(&mut self, name: &str) -> Stdio {
        let opened = self.reclaim().and_then(|()| self.directory.append(&log(name)));
        opened.map_or_else(
            |error| {
                tracing::warn!("cannot open the log of {name}, whose output is lost: {error:#}");
                Stdio::null()
            },
            Stdio::from,
        )
    }

    /// Returns the flags that give a process its configuration: by a file, or directly if the file cannot be
    /// written.
    pub(super) fn configuration(&mut self, config: &NodeConfig) -> Result<Vec<OsString>> {
        let file = format!("{}.toml", config.name);
        let text = toml::to_string(config)?;
        let directory = self.directory.clone();
        let write = || directory.create(&file)?.write_all(text.as_bytes()).context(file.clone());
        let mut flags = vec![OsString::from("--config")];
        match self.reclaim().and_then(|()| write()) {
            Ok(()) => flags.push(self.directory.join(&file).into()),
            Err(error) => {
                tracing::warn!(
                    "cannot write the configuration file of {}, which gets its configuration by flags: {error:#}",
                    config.name
                );
                flags.push("/dev/null".into());
                flags.extend(config.as_flags()?.into_iter().flat_map(|flag| ["--set".into(), flag.into()]));
            }
        }
        Ok(flags)
    }

    /// Writes `cluster.json`.
    pub(super) fn write(&mut self, cluster: &Cluster) {
        let written = self.reclaim().and_then(|()| self.directory.write(cluster));
        let trouble = written.err().map(|error| format!("{error:#}"));
        match &trouble {
            Some(why) if trouble != self.trouble => {
                tracing::warn!(
                    "cannot write cluster.json, the list of running processes, so `quorate status` may be wrong: {why}"
                );
            }
            None if self.trouble.is_some() => {
                tracing::info!("cluster.json, the list of running processes, is up to date again");
            }
            _ => {}
        }
        self.trouble = trouble;
    }

    /// Writes `cluster.json` again if that has failed, or if the directory is gone.
    pub(super) fn rewrite_if_needed(&mut self, cluster: &Cluster) {
        if self.trouble.is_some() || !self.directory.is_locked_by(&self.lock) {
            self.write(cluster);
        }
    }

    /// Creates the directory and its lock again if somebody has removed them.
    fn reclaim(&mut self) -> Result<()> {
        if !self.directory.is_locked_by(&self.lock) {
            self.lock = self.directory.acquire()?;
            tracing::warn!(
                "the directory {} was removed while the cluster runs, and was created again",
                self.directory.shown()
            );
        }
        Ok(())
    }
}

fn log(name: &str) -> String {
    format!("{name}.log")
}
