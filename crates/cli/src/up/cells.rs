//! A domain of maps on this machine: its cells are waited for, and a new one gets a first map.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use quorate::maps::MapStatus;
use quorate_command::say;
use quorate_protocol::Role;

use super::{Args, Intent, PATIENCE, ROUTERS_PATIENCE, this_command};
use crate::{
    charter::{Charter, Sample, Shape},
    cluster::Directory,
    status,
};

/// Copies of each key in the first map, if there are as many cells.
const COPIES: u16 = 3;

/// How long the cells may take to have the first map ordered.
const CREATE_PATIENCE: Duration = Duration::from_secs(10);

/// A cluster that goes on is taken as it is so long after a cell has answered. Those that are missing, or copy what they lost, may need
/// more time, or an operator, who needs the others for it.
const WHOLE_PATIENCE: Duration = Duration::from_secs(20);

/// Waits until the cells serve, has the first map made unless that was done once, and tells what to do next.
pub(super) fn welcome(
    args: &Args,
    intent: &Intent,
    directory: &Directory,
    alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    let Answered { address, mut maps, missing } = first_answer(intent, directory, alive)?;
    // A cluster in memory has nothing to do with what is kept in its directory.
    let charter = if intent.charter.is_some() { Charter::read(directory)? } else { None };
    if charter.as_ref().is_none_or(|charter| charter.sample == Sample::Wanted) {
        maps = vec![make_first_map(&intent.plan.shape, &address)?];
    }
    if let Some(mut charter) = charter.filter(|charter| charter.sample == Sample::Wanted) {
        charter.sample = Sample::Loaded;
        charter.write(directory)?;
    }
    let (host, port) = address.rsplit_once(':').context("the cell's address has no port")?;
    let (quorate, flag) = (this_command(), args.directory.as_flag());
    let Shape { routers, cells, .. } = intent.plan.shape;
    let do_what = if intent.goes_on { "go on where they were" } else { "are up" };
    say!(
        "\n{routers} routers and {cells} cells {do_what}; the Redis protocol is spoken at {host}:{port}, and nothing is \
         encrypted. {}, and connections begin at level {}. {}\n",
        listed(&maps),
        args.level(),
        if intent.charter.is_some() { DISK } else { MEMORY }
    )?;
    for why in missing {
        say!("  {why}: see `quorate status`")?;
    }
    say!("  redis-cli -h {host} -p {port} set greeting hello")?;
    say!("  redis-cli -h {host} -p {port} get greeting")?;
    say!("  {quorate} status{flag}\n  {quorate} kill{flag} cell-2\n  {quorate} down{flag}")?;
    let keys = if intent.charter.is_some() { "Keys, logs" } else { "Logs" };
    say!("\n{keys} and state are in {}.", directory.shown())?;
    Ok(())
}

const DISK: &str = "Keys are kept on disk.";
const MEMORY: &str = "Keys live in memory: when the cluster stops, they are gone.";

/// A cluster whose cells answer.
struct Answered {
    /// Where the Redis protocol is spoken, by the first of them.
    address: String,
    /// The maps.
    maps: Vec<MapStatus>,
    /// The reasons why it is not whole, for people.
    missing: Vec<String>,
}

/// Waits until every cell serves and reaches the others, and the routers are in place.
fn first_answer(
    intent: &Intent,
    directory: &Directory,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Answered> {
    let began = Instant::now();
    let mut answered = None;
    loop {
        alive()?;
        let error = match directory.running() {
            Err(error) => error,
            Ok(cluster) => {
                let reports = status::reports(&cluster);
                let missing = status::lacks(&cluster, &reports);
                let mut of_cells = reports.into_iter().flatten().filter(|report| report.role == Role::Cell);
                let address = cluster.redis().next().map(str::to_owned);
                if let (Some(address), Some(report)) = (address, of_cells.next()) {
                    let waited = answered.get_or_insert_with(Instant::now).elapsed();
                    // A cell that comes back knows the maps before it has met anybody.
                    let maps = of_cells
                        .fold(report.maps, |maps, other| if maps.is_empty() { other.maps } else { maps });
                    let is_enough = missing.is_empty()
                        || intent.goes_on && waited > WHOLE_PATIENCE
                        || waited > ROUTERS_PATIENCE && missing.iter().all(|it| it.role == Role::Router);
                    if is_enough {
                        let missing = missing.into_iter().map(|it| it.why).collect();
                        return Ok(Answered { address, maps, missing });
                    }
                }
                anyhow!("{}", missing.first().map_or("no cell listens", |it| &it.why))
            }
        };
        if began.elapsed() > PATIENCE {
            return Err(error.context(format!("the cells do not serve after {} s", PATIENCE.as_secs())));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the map with which every connection begins.
fn make_first_map(shape: &Shape, address: &str) -> Result<MapStatus> {
    let copies = shape.cells.min(COPIES);
    // Of the copies, too, each site has one in turn.
    let at = |site| (0..copies).filter(|copy| copy % shape.sites == site).count();
    let per_site = (0..shape.sites.min(copies)).map(|site| format!("{site}:{}", at(site)));
    let per_site = per_site.collect::<Vec<_>>().join(",");
    let answer = ask(address, &format!("QUORATE CREATE main COPIES {per_site} REPAIR blocking"))?;
    // One of an `up` that ended before it had written down that the map is there.
    if answer != "+OK" && !answer.contains("exists") {
        bail!("the first map was not made: {answer}");
    }
    Ok(MapStatus {
        name: String::from("main"),
        strategy: String::from("quorum"),
        copies: Some(copies.into()),
        read_repair: Some(String::from("blocking")),
    })
}

/// The maps in words.
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
        let it_is = copies(map).map_or_else(|| otherwise(map), |copies| copies.to_string());
        text += &format!(", map `{}` {it_is}", map.name);
    }
    text
}

/// Asks a cell something on one line, and returns the line of its answer.
fn ask(address: &str, line: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    stream.set_read_timeout(Some(CREATE_PATIENCE))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).context("the cell does not answer")?;
    Ok(answer.trim_end().to_owned())
}
