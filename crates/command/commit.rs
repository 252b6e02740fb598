//! Sets `QUORATE_COMMIT` to the commit of the checkout, as ` (0123abcd)`, for the program's `--version`. The
//! variable is empty outside a checkout, and where git is not installed. Only the two programs have this
//! script, so that a commit rebuilds no library.

use std::process::Command;

fn main() {
    let git = |words: &[&str]| {
        let output =
            Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=8", "HEAD"]).map(|commit| format!(" ({commit})"));
    println!("cargo::rustc-env=QUORATE_COMMIT={}", commit.unwrap_or_default());
    // The log of HEAD grows with every commit and every change of branch.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    println!("cargo::rerun-if-changed={}", log.as_deref().unwrap_or("Cargo.toml"));
}
