//! The cells of a cluster on this machine: waits for them, and makes the first map of a new cluster.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use quorate::maps::MapStatus;
use quorate_command::report;
use quorate_protocol::Role;

use super::start::{Args, ClusterStart, PATIENCE, ROUTERS_PATIENCE};
use crate::{
    charter::{Charter, ClusterContent, ClusterSize, Sample},
    directory::Directory,
    reports,
};

/// Copies of each key in the first map, if there are enough cells.
const COPIES: u16 = 3;

/// Longest time in which the first map must be ordered.
const CREATE_PATIENCE: Duration = Duration::from_secs(10);

/// Time from the first answer of a cell, after which a restarted cluster counts as up even if cells are
/// missing. The missing cells may still copy keys, or need an operator, who needs the cells that run.
const WHOLE_PATIENCE: Duration = Duration::from_secs(20);

/// Waits until the cells serve, and makes the first map if the directory never had this map.
pub(super) fn await_and_prepare(
    start: &ClusterStart,
    directory: &Directory,
    alive: impl FnMut() -> Result<()>,
) -> Result<AnsweringCells> {
    let mut cells = first_answer(start, directory, alive)?;
    // A cluster in memory ignores what is kept in its directory.
    let charter = if start.charter.is_some() { Charter::read(directory)? } else { None };
    if charter.as_ref().is_none_or(|charter| charter.first_map == Sample::Wanted) {
        cells.maps = vec![make_first_map(&start.plan.size, &cells.address)?];
    }
    if let Some(mut charter) = charter.filter(|charter| charter.first_map == Sample::Wanted) {
        charter.first_map = Sample::Loaded;
        charter.write(directory)?;
    }
    Ok(cells)
}

/// Prints what to do next with the cells.
pub(super) fn greet(args: &Args, start: &ClusterStart, cells: &AnsweringCells) -> Result<()> {
    let AnsweringCells { address, maps, missing } = cells;
    let (host, port) = address.rsplit_once(':').context("the cell's address has no port")?;
    let ClusterSize { routers, cells, .. } = start.plan.size;
    let activity = if start.resumes { "continue where they stopped" } else { "are up" };
    let processes = match start.plan.size.has(ClusterContent::Tables) {
        true => format!("{cells} cells"),
        false => format!("{routers} routers and {cells} cells"),
    };
    report!(
        "\n{processes} {activity}; the Redis protocol is spoken at {host}:{port}, and nothing is encrypted. {}, and \
         connections begin at level {}. {}\n",
        listed(maps),
        args.level(),
        if start.charter.is_some() { DISK } else { MEMORY }
    );
    for why in missing {
        report!("  {why}: see `quorate status`");
    }
    report!("  redis-cli -h {host} -p {port} set greeting hello");
    report!("  redis-cli -h {host} -p {port} get greeting");
    Ok(())
}

const DISK: &str = "Keys are kept on disk.";
const MEMORY: &str = "Keys live in memory: when the cluster stops, they are gone.";

/// A cluster whose cells answer.
pub(super) struct AnsweringCells {
    /// Address of the Redis door of the first cell that answered.
    address: String,
    /// The maps.
    maps: Vec<MapStatus>,
    /// Sentences that tell the user why the cluster is not whole.
    missing: Vec<String>,
}

/// Waits until every cell serves and reaches the other cells, and the routers are in place.
fn first_answer(
    start: &ClusterStart,
    directory: &Directory,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<AnsweringCells> {
    let began = Instant::now();
    let mut answered = None;
    loop {
        alive()?;
        let error = match directory.running() {
            Err(error) => error,
            Ok(cluster) => {
                let reports = reports::reports(&cluster);
                let missing = reports::shortages(&cluster, &reports);
                let mut of_cells = reports.into_iter().flatten().filter(|report| report.role == Role::Cell);
                let address = cluster.redis().next().map(str::to_owned);
                if let (Some(address), Some(report)) = (address, of_cells.next()) {
                    let waited = answered.get_or_insert_with(Instant::now).elapsed();
                    // A restarted cell knows the maps before it has reached any other cell.
                    let maps = of_cells
                        .fold(report.maps, |maps, other| if maps.is_empty() { other.maps } else { maps });
                    let is_enough = missing.is_empty()
                        || start.resumes && waited > WHOLE_PATIENCE
                        || waited > ROUTERS_PATIENCE && missing.iter().all(|it| it.role == Role::Router);
                    if is_enough {
                        let missing = missing.into_iter().map(|it| it.why).collect();
                        return Ok(AnsweringCells { address, maps, missing });
                    }
                }
                anyhow!("{}", missing.first().map_or("no cell listens for clients yet", |it| &it.why))
            }
        };
        if began.elapsed() > PATIENCE {
            return Err(
                error.context(format!("the cells do not serve clients after {} s", PATIENCE.as_secs()))
            );
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the map that every connection begins with.
fn make_first_map(size: &ClusterSize, address: &str) -> Result<MapStatus> {
    let copies = size.cells.min(COPIES);
    // The copies are distributed over the sites in turn.
    let at = |site| (0..copies).filter(|copy| copy % size.sites == site).count();
    let per_site = (0..size.sites.min(copies)).map(|site| format!("{site}:{}", at(site)));
    let per_site = per_site.collect::<Vec<_>>().join(",");
    let answer = ask(address, &format!("QUORATE CREATE main COPIES {per_site} REPAIR blocking"))?;
    // The map may exist already, if an earlier `up` ended before it noted this in the charter.
    if answer != "+OK" && !answer.contains("exists") {
        bail!("the cell at {address} did not create the map `main`: {answer}");
    }
    Ok(MapStatus {
        name: String::from("main"),
        strategy: String::from("quorum"),
        copies: Some(copies.into()),
        read_repair: Some(String::from("blocking")),
    })
}

/// Describes the maps for display.
fn listed(maps: &[MapStatus]) -> String {
    let (quorums, others): (Vec<&MapStatus>, Vec<_>) = maps.iter().partition(|map| map.strategy == "quorum");
    let maps = [quorums, others].concat();
    let Some((first, others)) = maps.split_first() else {
        return String::from("There is no map (`QUORATE CREATE name` makes one)");
    };
    let copies = |map: &MapStatus| map.copies.filter(|_| map.strategy == "quorum");
    let otherwise = |map: &MapStatus| format!("has strategy {}", map.strategy);
    let first_is = match copies(first) {
        Some(copies) => format!("has {copies} copies of each key"),
        None => otherwise(first),
    };
    let mut text = format!("Map `{}` {first_is}", first.name);
    for map in others {
        let copy_count = copies(map).map_or_else(|| otherwise(map), |copies| copies.to_string());
        text += &format!(", map `{}` {copy_count}", map.name);
    }
    text
}

/// Sends a line to a cell and returns the first line of its answer.
fn ask(address: &str, line: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("cannot connect to the cell at {address}"))?;
    stream.set_read_timeout(Some(CREATE_PATIENCE))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    read.with_context(|| format!("the cell at {address} does not answer"))?;
    Ok(answer.trim_end().to_owned())
}
