//! The users behind the members, and the facts known about the members.

use std::{collections::BTreeMap, time::Duration};

use quorate_protocol::{Time, ecast::RouterSettings};

use super::{Settings, Stage, Timer, World, operator::Operator};
use crate::{
    check::{
        CreditCheck, SubmissionsCheck,
        order::{Generations, Order},
    },
    mutation::Mutation,
    system::{
        ResendCounters,
        rooms::{RoomsTwin, Say},
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
    /// The counters of each machine at the last look.
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
    pub(super) fn gather(stage: &mut Stage, world: &mut World, settings: Settings) -> Self {
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
        stage.after(world, Duration::from_millis(50), Timer::Talk);
        stage.after(world, Duration::from_millis(100), Timer::Watch);
        let mut order = Order::new(RoomsTwin::default());
        if settings.goes_on() {
            stage.after(world, Duration::from_millis(500), Timer::Operate);
        } else {
            // A new leader takes everything that the log calls stable for executed, so an election may give
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
}
