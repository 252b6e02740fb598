//! The people behind the members, and all that is known of them.

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
        Signs,
        rooms::{RoomsTwin, Say},
    },
};

/// The people behind the members.
pub(crate) struct People {
    pub(super) settings: Settings,
    pub(super) router_settings: RouterSettings,
    /// The machine of the router that founds the domain.
    pub(super) founder: Option<usize>,
    pub(super) members: Vec<usize>,
    pub(super) orders: Generations<RoomsTwin>,
    pub(super) submissions: SubmissionsCheck,
    pub(super) operator: Operator,
    /// What each life was asked to submit and has no outcome yet, by token.
    pub(super) pending: BTreeMap<(u64, u64), Pending>,
    /// Until when each life executes what it has delivered so far.
    pub(super) busy: BTreeMap<u64, Time>,
    /// The last look at each machine, to tell what has happened since.
    pub(super) signs: Signs,
    pub(super) words: u64,
    pub(super) tokens: u64,
    /// The longest pause between two speeches, so that they last as long as the faults.
    pub(super) pace: Duration,
}

/// A submission that a member was asked for.
pub(crate) struct Pending {
    pub(super) say: Say,
    pub(super) machine: usize,
}

impl People {
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
            // A new leader counts what the log calls stable for executed, so that an election may give credit anew.
            order.credits = Some(CreditCheck::new(3 * settings.credit as usize));
        }
        People {
            router_settings: settings.routers(),
            founder: None,
            members,
            orders: Generations::new(order),
            submissions: SubmissionsCheck::default(),
            operator: Operator::new(stage.seed, (settings.losses, settings.extinctions), stage.safety()),
            pending: BTreeMap::new(),
            busy: BTreeMap::new(),
            signs: Signs::default(),
            words: 0,
            tokens: 0,
            pace: stage.safety().mul_f64(21.0 / settings.words as f64),
            settings,
        }
    }
}
