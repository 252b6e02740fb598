//! [`quorate_program`] finds the program that starts the clusters.

use std::{env, path::PathBuf};

use anyhow::{Result, ensure};

/// Returns the `quorate` program that starts clusters; it lies in the directory of the running program.
pub fn quorate_program() -> Result<PathBuf> {
    let program = env::current_exe()?.with_file_name("quorate");
    ensure!(
        program.exists(),
        "the lab starts clusters with the program {}, which does not exist: build it with `cargo build --release`",
        program.display()
    );
    Ok(program)
}
