//! `quorate bench load`: the time to load the sample by COPY, from the first byte to the answer.

use anyhow::Result;
use serde::Serialize;

use super::spawned::Spawned;
use crate::sql;
use quorate_sample as sample;

/// Loads the 336,776 flights by COPY into a fresh cluster of the default size.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of loads; the result is the median.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Load into a cluster on disk.
    #[arg(long)]
    durable: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct LoadMeasurement {
    bench: &'static str,
    durable: bool,
    rows: u64,
    seconds: f64,
    rows_per_second: f64,
    seconds_min: f64,
    seconds_max: f64,
    runs: u16,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let spawned = Spawned::maybe_durable(args.durable)?;
    let mut seconds = sql::runtime()?.block_on(async {
        let client = sql::connect(spawned.sql()?).await?;
        let mut seconds = Vec::new();
        for _ in 0..args.runs {
            seconds.push(sample::load(&client).await?.as_secs_f64());
            client.batch_execute("drop table flights").await?;
        }
        anyhow::Ok(seconds)
    })?;
    spawned.succeeded();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let figures = LoadMeasurement {
        bench: "load",
        durable: args.durable,
        rows: sample::FLIGHTS_ROWS,
        seconds: median,
        rows_per_second: sample::FLIGHTS_ROWS as f64 / median,
        seconds_min: seconds[0],
        seconds_max: seconds[seconds.len() - 1],
        runs: args.runs,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!(
            "{} rows in {:.2} s (median of {}; {:.2} to {:.2} s): {:.0} rows/s",
            figures.rows,
            median,
            args.runs,
            figures.seconds_min,
            figures.seconds_max,
            figures.rows_per_second
        );
    }
    Ok(())
}
