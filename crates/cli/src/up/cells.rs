//! A domain of maps on this machine: its cells are waited for, and it gets a first map.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use super::{Args, PATIENCE, this_command};
use quorate_protocol::{Role, role::State};

use crate::{
    cluster::Directory,
    status::{self, Report},
};

/// Copies of each key in the first map, if there are as many cells.
const COPIES: u16 = 3;

/// How long the cells may take to have the first map ordered.
const CREATE_PATIENCE: Duration = Duration::from_secs(10);

/// Waits until every cell serves, has the first map made, and tells what to do next.
pub(super) fn welcome(
    args: &Args,
    routers: u16,
    directory: &Directory,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    let began = Instant::now();
    let address = loop {
        alive()?;
        let found = directory.running().map(|cluster| {
            let reports = status::reports(&cluster);
            let serves = |report: &&Report| report.role == Role::Cell && report.state == State::Serving;
            let count = reports.iter().flatten().filter(serves).count();
            (count >= usize::from(args.cells)).then(|| cluster.redis().next().map(str::to_owned)).flatten()
        });
        if let Ok(Some(address)) = found {
            break address;
        }
        if began.elapsed() > PATIENCE {
            let why = found.err().unwrap_or_else(|| anyhow!("not every cell serves"));
            return Err(why.context(format!("the cells do not serve after {} s", PATIENCE.as_secs())));
        }
        thread::sleep(Duration::from_millis(50));
    };
    let copies = args.cells.min(COPIES);
    // Of the copies, too, each site has one in turn.
    let at = |site| (0..copies).filter(|copy| copy % args.sites == site).count();
    let per_site = (0..args.sites.min(copies)).map(|site| format!("{site}:{}", at(site)));
    let per_site = per_site.collect::<Vec<_>>().join(",");
    let answer = ask(&address, &format!("QUORATE CREATE main COPIES {per_site} REPAIR blocking"))?;
    // One of a supervisor that was told twice.
    if answer != "+OK" && !answer.contains("exists") {
        bail!("the first map was not made: {answer}");
    }
    let (host, port) = address.rsplit_once(':').context("the cell's address has no port")?;
    let (quorate, flag) = (this_command(), args.directory.as_flag());
    let (cells, level) = (args.cells, &args.level);
    println!(
        "\n{routers} routers and {cells} cells are up; the Redis protocol is spoken at {host}:{port}, and nothing is encrypted. \
         Map `main` has {copies} copies of each key, and connections begin at level {level}. It lives in memory: when the \
         cluster stops, it is gone.\n"
    );
    println!("  redis-cli -h {host} -p {port} set greeting hello");
    println!("  redis-cli -h {host} -p {port} get greeting");
    println!("  {quorate} status{flag}\n  {quorate} kill{flag} cell-2\n  {quorate} down{flag}");
    println!("\nLogs and state are in {}.", directory.shown());
    Ok(())
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
