//! [`one_run`] starts all processes of the bench once, and returns what it [`Measured`].

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::{
    super::child::Child,
    args::Args,
    process::{EcastProcessSpec, ProcessPart},
    report::{EcastRun, Received},
};

/// A run, and the resources that it used.
pub(super) struct Measured {
    pub(super) run: EcastRun,
    /// Average number of processors that each process kept busy.
    pub(super) cpu: Vec<(String, f64)>,
    /// Bytes per message that the system wrote to disks for the busiest router.
    pub(super) disk_bytes_per_message: f64,
}

pub(super) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Runs once, with the routers' journals in `disk` if given.
pub(super) fn one_run(args: &Args, disk: Option<&Path>) -> Result<Measured> {
    let domain = quorate_runtime::chance::domain();
    let mut routers: Vec<String> = Vec::new();
    let mut processes: Vec<Child> = Vec::new();
    let spec = |part, node, routers: &[String]| EcastProcessSpec {
        domain: domain.0,
        node,
        routers: routers.to_vec(),
        wanted: args.routers,
        copies: args.copies,
        bytes: args.bytes,
        window: args.window,
        seconds: args.seconds,
        receivers: args.receivers,
        disk: disk.filter(|_| matches!(part, ProcessPart::Founder | ProcessPart::Router)).map(Path::to_owned),
        part,
    };
    for index in 0..args.routers {
        let part = if index == 0 { ProcessPart::Founder } else { ProcessPart::Router };
        let mut router = Child::start(
            format!("router-{}", index + 1),
            "ecast-process",
            &spec(part, 1 + index as u64, &routers),
        )?;
        routers.push(router.line()?);
        processes.push(router);
    }
    for index in 0..args.receivers {
        let name = format!("receiver-{}", index + 1);
        let mut receiver =
            Child::start(name, "ecast-process", &spec(ProcessPart::Receiver, 101 + index as u64, &routers))?;
        receiver.line()?;
        processes.push(receiver);
    }
    let mut load =
        Child::start(String::from("load"), "ecast-process", &spec(ProcessPart::Load, 1001, &routers))?;
    load.line()?;
    // The load prints a line when its warm-up ends, and another when its run ends.
    ensure!(load.line()? == "measuring", "the load process of the bench did not begin to measure");
    let routers = &processes[..args.routers];
    let written = || routers.iter().map(Child::disk_bytes).collect::<Result<Vec<u64>>>();
    let written_before = written()?;
    let before: Vec<Duration> = processes.iter().chain([&load]).map(Child::cpu).collect::<Result<_>>()?;
    let run = load.line()?;
    let after: Vec<Duration> = processes.iter().chain([&load]).map(Child::cpu).collect::<Result<_>>()?;
    let written = written_before.iter().zip(written()?).map(|(before, after)| after - before).max();
    let run: EcastRun = serde_json::from_str(&run).with_context(|| run.clone())?;
    ensure!(
        run.outcomes_other == 0,
        "{} messages ended with another outcome than stable",
        run.outcomes_other
    );
    let receivers = &mut processes[args.routers..];
    for (receiver, &destined) in receivers.iter_mut().zip(&run.destined) {
        receiver.send_line("stop")?;
        let received: Received = serde_json::from_str(&receiver.line()?)?;
        if received.faults > 0 || received.delivered != destined {
            return Err(anyhow!(
                "{} delivered {} of {destined} messages, {} of them out of order or damaged",
                receiver.name,
                received.delivered,
                received.faults
            ));
        }
    }
    let names = processes.iter().chain([&load]).map(|process| process.name.clone());
    let shares =
        before.iter().zip(after).map(|(before, after)| (after - *before).as_secs_f64() / run.seconds);
    let cpu = names.zip(shares).collect();
    let disk_bytes_per_message = written.unwrap_or(0) as f64 / run.messages.max(1) as f64;
    Ok(Measured { run, cpu, disk_bytes_per_message })
}
