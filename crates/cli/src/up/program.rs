//! This program, as the supervisor starts it again and as users call it.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Result;

/// Returns this very executable, even if its file was replaced. All processes of a cluster must be of one
/// build.
pub(super) fn this_program() -> Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() { Ok(running.into()) } else { Ok(env::current_exe()?) }
}

/// Returns the command by which users run this program.
pub(super) fn this_command() -> &'static str {
    if env::var_os("CARGO").is_some() { "cargo run --release --" } else { "quorate" }
}
