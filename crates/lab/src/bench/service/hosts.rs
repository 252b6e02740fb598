//! A [`ServiceBench`] starts the hosts of the services and the clients, and compares what they report.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    super::child::Child,
    args::Args,
    measurement::{Measurement, together_of},
    report::{Calls, HostReport},
    spec::{ClientSpec, ServiceProcessSpec, ServiceWork},
};

pub(super) const REPLICAS: u8 = 3;
const PATIENCE: Duration = Duration::from_secs(30);

/// The hosts, and the answers that clients got from them.
pub(super) struct ServiceBench<'a> {
    args: &'a Args,
    domain: String,
    pub(super) hosts: Vec<Child>,
    addresses: Vec<String>,
    /// The HTTP addresses of the hosts; empty if they serve no HTTP.
    doors: Vec<String>,
    /// Number of hosts that were started.
    begun: usize,
    /// Number of answered writes of each service.
    pub(super) written: [u64; 3],
    /// The number of the next write.
    number: u64,
    /// Whether the bench stops hosts. The other hosts may remove a stopped host, which then joins as a new
    /// replica.
    pub(super) stops: bool,
}

impl<'a> ServiceBench<'a> {
    /// Starts the hosts, with directories in `place` if given.
    pub(super) fn start(args: &'a Args, place: Option<&Path>) -> Result<ServiceBench<'a>> {
        ServiceBench::begin(args, place, (REPLICAS, false))
    }

    /// Starts this number of hosts. Their leader pipelines writes, or executes one write at a time.
    pub(super) fn begin(
        args: &'a Args,
        place: Option<&Path>,
        (replicas, one_at_a_time): (u8, bool),
    ) -> Result<ServiceBench<'a>> {
        let mut stage = ServiceBench::empty(args);
        for _ in 0..replicas {
            stage.begin_host(place, (replicas, one_at_a_time))?;
        }
        stage.are_replicas(replicas)?;
        Ok(stage)
    }

    /// Starts three hosts that serve HTTP.
    pub(super) fn with_doors(args: &'a Args) -> Result<ServiceBench<'a>> {
        let mut stage = ServiceBench::empty(args);
        for _ in 0..REPLICAS {
            let mut host = stage.spawn((REPLICAS, false), None, true)?;
            stage.addresses.push(host.line()?);
            stage.doors.push(host.line()?);
            stage.hosts.push(host);
        }
        stage.are_replicas(REPLICAS)?;
        Ok(stage)
    }

    fn empty(args: &'a Args) -> ServiceBench<'a> {
        let domain = format!("bench {:032x}", quorate_runtime::chance::domain().0);
        let (hosts, addresses, doors) = (Vec::new(), Vec::new(), Vec::new());
        ServiceBench {
            args,
            domain,
            hosts,
            addresses,
            doors,
            begun: 0,
            written: [0; 3],
            number: 0,
            stops: false,
        }
    }

    fn are_replicas(&mut self, replicas: u8) -> Result<()> {
        self.wait_until("all hosts are replicas", |reports| {
            reports.iter().all(|report| report.replicas == usize::from(replicas))
        })
    }

    /// Starts one more host; the first host founds the services.
    pub(super) fn begin_host(&mut self, place: Option<&Path>, terms: (u8, bool)) -> Result<()> {
        let mut host = self.spawn(terms, place, false)?;
        self.addresses.push(host.line()?);
        self.hosts.push(host);
        Ok(())
    }

    fn spawn(
        &mut self,
        (replicas, one_at_a_time): (u8, bool),
        place: Option<&Path>,
        http: bool,
    ) -> Result<Child> {
        let directory = place.map(|place| place.join(format!("host-{}", self.begun)));
        self.begun += 1;
        let (domain, seeds) = (self.domain.clone(), self.addresses.clone());
        let spec = ServiceProcessSpec::Host { domain, replicas, one_at_a_time, seeds, directory, http };
        Child::start(format!("host {}", self.begun), "service-process", &spec)
    }

    /// Kills a host.
    pub(super) fn end_host(&mut self, index: usize) {
        drop(self.hosts.remove(index));
        self.addresses.remove(index);
    }

    /// Starts a client, and waits until it is ready.
    pub(super) fn client(
        &self,
        work: ServiceWork,
        in_flight: usize,
        together: usize,
        seconds: f64,
        index: usize,
    ) -> Result<Child> {
        let hosts = if work == ServiceWork::HttpWrites { &self.doors } else { &self.addresses };
        let spec = ClientSpec {
            domain: self.domain.clone(),
            hosts: hosts.clone(),
            work,
            first: self.number + ((index as u64) << 32),
            bytes: self.args.bytes,
            in_flight,
            together,
            seconds,
        };
        let mut client = Child::start(
            format!("client {}", index + 1),
            "service-process",
            &ServiceProcessSpec::Client(spec),
        )?;
        ensure!(client.line()? == "ready", "{} did not begin to call", client.name);
        Ok(client)
    }

    pub(super) fn reports(&mut self) -> Result<Vec<HostReport>> {
        let reports = self.hosts.iter_mut().map(|host| Ok(serde_json::from_str(&host.ask("stand")?)?));
        let reports: Vec<HostReport> = reports.collect::<Result<_>>()?;
        if let Some(why) = reports.iter().find_map(|it| it.ended.as_ref()).filter(|_| !self.stops) {
            bail!("a replica of the service has ended: {why}");
        }
        Ok(reports)
    }

    pub(super) fn wait_until(&mut self, what: &str, is: impl Fn(&[HostReport]) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let reports = self.reports()?;
            if is(&reports) {
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "this did not become true in time: {what}; the states of the hosts are {reports:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn measure(
        &mut self,
        name: &'static str,
        work: ServiceWork,
        clients: usize,
        in_flight: usize,
        together: usize,
    ) -> Result<Measurement> {
        let start = |index| self.client(work, in_flight, together, self.args.seconds, index);
        let mut started = (0..clients).map(start).collect::<Result<Vec<Child>>>()?;
        let clock = Instant::now();
        let before = self.work(&started)?;
        started.iter_mut().try_for_each(|client| client.send_line("go"))?;
        let mut calls = Vec::with_capacity(clients);
        for client in &mut started {
            let line = client.line()?;
            calls.push(serde_json::from_str::<Calls>(&line).with_context(|| line.clone())?);
        }
        let after = self.work(&started)?;
        let seconds = clock.elapsed().as_secs_f64();
        let mut cores: Vec<(String, f64)> = Vec::new();
        for ((name, before), (_, after)) in before.into_iter().zip(after) {
            cores.push((name, (after - before).as_secs_f64() / seconds));
        }
        let all = together_of(&calls);
        self.number += all.answered;
        match work {
            ServiceWork::EchoWrites | ServiceWork::EchoWritesOn { .. } => self.written[0] += all.answered,
            ServiceWork::StoreWrites => self.written[1] += all.answered,
            // The client itself checks that each call took effect once.
            ServiceWork::StoreReads | ServiceWork::HttpWrites => {}
            ServiceWork::Transactions(transact) => self.written[2] += all.answered * transact.changes(),
        }
        Ok(Measurement { name, calls: all, cores })
    }

    /// Returns the processor time that every process has used.
    fn work(&self, clients: &[Child]) -> Result<Vec<(String, Duration)>> {
        let time = |it: &Child| Ok((it.name.clone(), it.cpu()?));
        self.hosts.iter().chain(clients).map(time).collect()
    }

    /// Returns the number of bytes that the system has written to disks for the busiest host.
    pub(super) fn disk_bytes(&self) -> Result<u64> {
        let bytes = self.hosts.iter().map(Child::disk_bytes).collect::<Result<Vec<_>>>()?;
        Ok(bytes.into_iter().max().unwrap_or(0))
    }

    /// Checks that every replica has applied the answered writes, in one order.
    pub(super) fn compare(&mut self) -> Result<()> {
        let written = self.written;
        self.wait_until("every replica has applied all answered writes", |reports| {
            reports.iter().all(|report| report.applied.map(|(count, _)| count) == written)
        })?;
        let reports = self.reports()?;
        let same = reports.windows(2).all(|pair| pair[0].applied == pair[1].applied);
        ensure!(same, "the replicas have applied different changes; the states of the hosts are {reports:?}");
        Ok(())
    }
}
