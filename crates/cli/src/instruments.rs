//! Runs `quorate watch`, `check`, `tune`, `sim`, `bench` and `lab`, which are another program,
//! `quorate-instruments`, in the same directory. A cluster's machines thus need neither the simulator nor the
//! laboratory.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, ensure};
use quorate_command::CommandDescription;

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
    let program = program()?;
    ensure!(
        program.exists(),
        "`quorate {name}` needs the program {}, which does not exist: `cargo build --release` builds this program",
        program.display()
    );
    let error = Command::new(&program).arg0("quorate").arg(name).args(args.words).exec();
    Err(anyhow!(error).context(format!("cannot run {}", program.display())))
}

/// Adds the instruments' flags to the commands of this program, `command`, whose instruments take any words.
/// Without the other program, the commands stay as they are.
pub(crate) fn complete(mut command: clap::Command) -> Result<clap::Command> {
    let program = program()?;
    if program.exists() {
        let output = Command::new(&program).arg("describe").output()?;
        ensure!(output.status.success(), "{} does not describe its commands", program.display());
        let description: CommandDescription = serde_json::from_slice(&output.stdout)?;
        for instrument in description.into_commands() {
            let instrument = instrument.into_command();
            let name = instrument.get_name().to_owned();
            command = command.mut_subcommand(&name, |_| instrument);
        }
    }
    Ok(command)
}

/// Returns the path of the instruments' program.
fn program() -> Result<PathBuf> {
    let here = env::current_exe()?;
    build(&here)?;
    Ok(here.with_file_name(PROGRAM))
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
