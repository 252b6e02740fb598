//! A cluster of separate processes for one bench, gone when it is dropped.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, Directory, DirectoryArgs};

pub(crate) struct Spawned {
    place: PathBuf,
    directory: Directory,
}

impl Spawned {
    /// Starts the default cluster, empty, on ports that are free. `flags` go to `quorate up`.
    pub(crate) fn start(flags: &[&str]) -> Result<Spawned> {
        let place = env::temp_dir().join(format!("quorate-bench-{}", std::process::id()));
        let directory = DirectoryArgs { data_dir: Some(place.clone()) }.directory()?;
        let spawned = Spawned { place, directory };
        let output = spawned.quorate(&["up", "--detach", "--empty", "--port", "0"]).args(flags).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(spawned)
    }

    /// Who runs where, now.
    pub(crate) fn cluster(&self) -> Result<Cluster> {
        self.directory.running()
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
        if stopped {
            let _ = fs::remove_dir_all(&self.place);
        } else {
            eprintln!("the bench's cluster did not stop by itself; its logs are in {}", self.place.display());
        }
    }
}
