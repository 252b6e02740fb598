//! The sample data: the flights that left New York in 2013. The loader copies these flights into a table by
//! COPY, as any client could.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::SinkExt;
use indicatif::{ProgressBar, ProgressStyle};
use lzma_rust2::XzReader;
use tokio_postgres::{Client, error::SqlState};

/// The compressed file of `data/nycflights13`.
const FLIGHTS: &[u8] = include_bytes!("../../../data/nycflights13/flights.csv.xz");
/// Size of the unpacked file in bytes, for the progress bar.
const FLIGHTS_BYTES: u64 = 31_053_850;
/// Number of rows in the file.
pub const FLIGHTS_ROWS: u64 = 336_776;

/// Longest time that the loader waits for a fresh cluster to accept tables.
const PATIENCE: Duration = Duration::from_secs(60);

/// The statement that creates the table. Rows are spread by flight number, which every row has.
pub const TABLE: &str = "create table flights (
    year int, month int, day int,
    dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int,
    carrier text, flight int, tailnum text, origin text, dest text,
    air_time int, distance int, hour int, minute int, time_hour timestamptz
) with (partition_by = 'hash(flight)')";

/// The first query to try.
pub const FIRST_QUERY: &str = "select carrier, count(*), avg(dep_delay) from flights where dest = 'LAX' group by carrier \
     order by 2 desc";

/// Creates the table, as soon as storage has joined, and copies the flights into it. Returns the time that
/// the copy took.
pub async fn load(client: &Client) -> Result<Duration> {
    create(client).await?;
    let bar = ProgressBar::new(FLIGHTS_BYTES).with_style(ProgressStyle::with_template(
        "loading the flights of 2013 {wide_bar} {percent} % {bytes_per_sec}",
    )?);
    let began = Instant::now();
    let copy = client.copy_in("copy flights from stdin with (format csv, header true, null 'NA')").await?;
    let mut copy = std::pin::pin!(copy);
    let mut reader = XzReader::new(FLIGHTS, false);
    loop {
        let mut chunk = Vec::new();
        reader.by_ref().take(256 * 1024).read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            break;
        }
        bar.inc(chunk.len() as u64);
        copy.send(Bytes::from(chunk)).await?;
    }
    let rows = copy.finish().await?;
    bar.finish_and_clear();
    ensure!(rows == FLIGHTS_ROWS, "{rows} flights were loaded, but the file has {FLIGHTS_ROWS}");
    Ok(began.elapsed())
}

/// Loads the flights unless an earlier attempt did. The loader may have been interrupted before, but a COPY
/// loads all rows or none.
pub async fn load_once(client: &Client) -> Result<()> {
    create(client).await?;
    let rows: i64 = client.query_one("select count(*) from flights", &[]).await?.get(0);
    match rows {
        0 => load(client).await.map(drop),
        // An earlier attempt loaded the rows, and users may have changed them since.
        _ => Ok(()),
    }
}

/// Creates the table. A fresh cluster refuses tables until enough storage has joined, so this function tries
/// again until the cluster accepts the table.
async fn create(client: &Client) -> Result<()> {
    let began = Instant::now();
    loop {
        match client.batch_execute(TABLE).await {
            Ok(()) => return Ok(()),
            // An earlier attempt may have succeeded although its answer was lost.
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_TABLE) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE || error.is_closed() => return Err(error.into()),
            Err(error) => tracing::debug!(
                "the cluster did not create table flights, and this program tries again: {error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use super::*;

    #[test]
    fn the_file_is_what_the_constants_say() {
        let mut text = std::io::BufReader::new(XzReader::new(FLIGHTS, false));
        let mut header = String::new();
        text.read_line(&mut header).unwrap();
        let (mut bytes, mut rows) = (header.len() as u64, 0);
        for line in text.lines() {
            bytes += line.unwrap().len() as u64 + 1;
            rows += 1;
        }
        assert_eq!((bytes, rows), (FLIGHTS_BYTES, FLIGHTS_ROWS));
        let columns: Vec<&str> = header.trim().split(',').collect();
        let words: Vec<&str> = TABLE.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        assert_eq!(columns.len(), 19);
        assert!(columns.iter().all(|column| words.contains(column)));
    }
}
