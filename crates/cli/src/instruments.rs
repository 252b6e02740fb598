//! Runs `quorate watch`, `check`, `tune`, `sim`, `bench` and `lab`, which are another program,
//! `quorate-instruments`, in the same directory. A cluster's machines thus need neither the simulator nor the
//! laboratory.

use std::{env, ffi::OsString, os::unix::process::CommandExt, path::Path, process::Command};

use anyhow::{Context, Result, anyhow, ensure};

/// The arguments of an instrument, which are passed on unchanged.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments of the instrument. `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<OsString>,
}

const PROGRAM: &str = "quorate-instruments";

/// Replaces this process by the instrument.
pub(crate) fn run(name: &str, args: Args) -> Result<()> {
    let here = env::current_exe()?;
    build(&here)?;
    let program = here.with_file_name(PROGRAM);
    ensure!(
        program.exists(),
        "`quorate {name}` needs the program {}, which does not exist: `cargo build --release` builds this program",
        program.display()
    );
    let error = Command::new(&program).arg0("quorate").arg(name).args(args.words).exec();
    Err(anyhow!(error).context(format!("cannot run {}", program.display())))
}

/// Builds the instruments if this program was started by `cargo run`, which builds only this program.
fn build(here: &Path) -> Result<()> {
    let (Some(cargo), Some(package)) = (env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR")) else {
        return Ok(());
    };
    let mut command = Command::new(cargo);
    command.arg("build").current_dir(Path::new(&package).join("../.."));
    if here.parent().is_some_and(|folder| folder.ends_with("release")) {
        command.arg("--release");
    }
    let built = command.status().context("cannot run cargo")?;
    ensure!(built.success(), "{PROGRAM} cannot be built");
    Ok(())
}
