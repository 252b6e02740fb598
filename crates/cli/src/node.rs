//! `quorate node`: one process of a cluster, in the foreground.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{Usage, config::NodeConfig};

/// Runs one process of a cluster, in the foreground.
///
/// It logs to standard error and, once it listens, prints its addresses on standard output as one line of JSON. SIGTERM
/// and Ctrl-C let it drain, leave the cluster and exit.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration, a TOML file.
    #[arg(long, env = "QUORATE_CONFIG")]
    config: PathBuf,
    /// Overrides a key of the configuration, as QUORATE_NODE_KEY in the environment does; can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run_configured(args: Args) -> Result<()> {
    let path = args.config.display();
    let file = fs::read_to_string(&args.config).map_err(|error| Usage(format!("{path}: {error}")))?;
    let environment =
        env::vars_os().filter_map(|(key, value)| key.into_string().ok().zip(value.into_string().ok()));
    let config = NodeConfig::read(&file, environment, &args.set)
        .map_err(|error| Usage(format!("{path}: {}", format!("{error:#}").trim_end())))?;
    crate::log_to_stderr();
    let name = config.name.clone();
    run(config).with_context(|| name)
}

/// Runs the process until it is asked to stop.
pub(crate) fn run(config: NodeConfig) -> Result<()> {
    bail!("the role {} cannot run yet", config.role.as_str())
}
