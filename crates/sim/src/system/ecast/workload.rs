//! The users behind the members, the facts known about the members, and the start of processes.

use std::{collections::BTreeMap, time::Duration};

use quorate_protocol::{
    Generation, Peer, ProcessId, Time,
    ecast::{Member, MemberSettings, Router, RouterSettings},
    paxos::Paxos,
};

use super::{
    Settings,
    operator::Operator,
    process::{Kind, Process},
    world::{EcastStage, EcastTimer, EcastWorld, generation, kind},
};
use crate::{
    check::{
        CreditCheck, SubmissionsCheck,
        order::{Generations, Order},
    },
    mutation::{Mutation, Tamper},
    system::{
        ResendCounters,
        rooms::{Floor, RoomsTwin, Say},
    },
};

/// The users behind the members.
pub(crate) struct EcastWorkload {
    pub(super) settings: Settings,
    pub(super) router_settings: RouterSettings,
    /// The machine of the router that founds the domain.
    pub(super) founder: Option<usize>,
    pub(super) members: Vec<usize>,
    pub(super) orders: Generations<RoomsTwin>,
    pub(super) submissions: SubmissionsCheck,
    pub(super) operator: Operator,
    /// The submissions without an outcome, by life and token.
    pub(super) pending: BTreeMap<(u64, u64), PendingSubmission>,
    /// The time until which each life executes its present deliveries.
    pub(super) busy: BTreeMap<u64, Time>,
    /// The resend counters of each machine's process at the last look at it.
    pub(super) resend_counters: ResendCounters,
    pub(super) words: u64,
    pub(super) tokens: u64,
    /// The longest pause between two speeches, chosen so that the speeches last as long as the faults.
    pub(super) pace: Duration,
}

/// A requested submission of a member.
pub(crate) struct PendingSubmission {
    pub(super) say: Say,
    pub(super) machine: usize,
}

impl EcastWorkload {
    /// Adds the machines and sets the first timers.
    pub(super) fn gather(stage: &mut EcastStage, world: &mut EcastWorld, settings: Settings) -> Self {
        match stage.mutation {
            Some(Mutation::NoIncarnations) => world.reuse_ids(),
            Some(Mutation::FenceOpen) => world.admit_all(),
            _ => {}
        }
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
        }
        stage.add_routers(world, settings.routers, settings.spares);
        world.without_disks();
        let members = stage.add_machines(world, settings.members);
        stage.after(world, Duration::from_millis(50), EcastTimer::Talk);
        stage.after(world, Duration::from_millis(100), EcastTimer::Watch);
        let mut order = Order::new(RoomsTwin::default());
        if settings.goes_on() {
            stage.after(world, Duration::from_millis(500), EcastTimer::Operate);
        } else {
            // A new leader treats everything that the log calls stable as executed, so an election may give
            // the same credit again.
            order.credits = Some(CreditCheck::new(3 * settings.credit as usize));
        }
        EcastWorkload {
            router_settings: settings.routers(),
            founder: None,
            members,
            orders: Generations::new(order),
            submissions: SubmissionsCheck::default(),
            operator: Operator::new(stage.seed, (settings.losses, settings.extinctions), stage.safety()),
            pending: BTreeMap::new(),
            busy: BTreeMap::new(),
            resend_counters: ResendCounters::default(),
            words: 0,
            tokens: 0,
            pace: stage.safety().mul_f64(21.0 / settings.words as f64),
            settings,
        }
    }

    /// Creates the process of a new life of `machine`.
    pub(super) fn process(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
        id: ProcessId,
    ) -> Process {
        if self.members.contains(&machine) {
            let settings = MemberSettings { executes: true, ..MemberSettings::default() };
            // The first submission makes the process a member, so the process gets the command to submit as
            // soon as it runs.
            stage.after(world, Duration::ZERO, EcastTimer::Join(machine));
            let kind = Kind::Member(Box::new(Member::new(id, settings)));
            return Process::new(kind, stage.mutation.map(Tamper::new));
        }
        let (paxos, generation) = self.router_log(stage, world, machine, id);
        let settings = RouterSettings { generation, ..self.router_settings.clone() };
        let router = Router::new(paxos, Floor::default(), settings);
        Process::new(Kind::Router(Box::new(router)), stage.mutation.map(Tamper::new))
    }

    /// Returns the log of the router that starts on `machine`, from its disk if there is one, and its
    /// generation.
    fn router_log(
        &mut self,
        stage: &mut EcastStage,
        world: &mut EcastWorld,
        machine: usize,
        id: ProcessId,
    ) -> (Paxos, Generation) {
        let settings = self.router_settings.paxos.clone();
        let me = Peer { id, address: EcastWorld::address(machine) };
        let records = world.records(machine);
        let recovered = Paxos::recover(me, settings.clone(), records, world.clock(machine));
        if let Some(paxos) = recovered.expect("the durable records follow from each other") {
            world.count("recovered from disk");
            return (paxos, generation(world, machine));
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // The founder lost its records before any process had heard of the domain, so the domain is
            // founded again.
            stage.routers.found_again();
        }
        if !stage.routers.founded() {
            self.founder = Some(machine);
        }
        // A router finds out the generation of the other routers before it joins them.
        let known = (0..world.machines()).filter_map(|machine| match kind(world, machine)? {
            Kind::Router(router) => Some(router.generation()),
            Kind::Member(_) => None,
        });
        let generation = known.max().unwrap_or_default();
        (stage.routers.start(world, machine, id, settings), generation)
    }
}
