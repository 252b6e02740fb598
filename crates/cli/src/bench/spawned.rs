//! A cluster of separate processes for one bench, gone when it is dropped; its logs stay if the bench failed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, Directory, DirectoryArgs};

pub(crate) struct Spawned {
    place: PathBuf,
    directory: Directory,
    passed: AtomicBool,
}

impl Spawned {
    /// Starts the default cluster, empty, in memory, on ports that are free. `flags` go to `quorate up`.
    pub(crate) fn start(flags: &[&str]) -> Result<Spawned> {
        let place = env::temp_dir().join(format!("quorate-bench-{}", std::process::id()));
        let directory = DirectoryArgs { data_dir: Some(place.clone()) }.directory()?;
        let spawned = Spawned { place, directory, passed: AtomicBool::new(false) };
        let output = spawned
            .quorate(&["up", "--detach", "--memory", "--empty", "--port", "0"])
            .args(flags)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(spawned)
    }

    /// Who runs where, now.
    pub(crate) fn cluster(&self) -> Result<Cluster> {
        self.directory.running()
    }

    /// Where its logs are; a bench may keep files of its own there.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// The bench has what it wanted: nobody will ask for the logs.
    pub(crate) fn passed(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }

    fn quorate(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env::current_exe().unwrap_or_else(|_| "quorate".into()));
        command.args(words).arg("--data-dir").arg(&self.place).stdin(Stdio::null());
        command
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let stopped = self.quorate(&["down", "--yes"]).output().is_ok_and(|output| output.status.success());
        if stopped && self.passed.load(Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.place);
        } else {
            eprintln!("the logs of the bench's cluster are in {}", self.place.display());
        }
    }
}
