//! Reads the status of a process of tables.

use quorate_protocol::{
    ProcessId,
    group::AddressStatistics,
    paxos::StateKind,
    role::{Role, State},
};

use crate::tables::{
    Process,
    status::{ReformStatus, Status, names, of_storage},
};

pub(super) fn of_router(state: StateKind) -> State {
    match state {
        StateKind::Joining => State::Joining,
        StateKind::Follower => State::Following,
        StateKind::Candidate => State::Electing,
        StateKind::Leader => State::Leading,
        StateKind::Removed => State::Removed,
    }
}

impl Process {
    /// Returns the status of the process.
    pub fn status(&self, me: ProcessId) -> Status {
        let mut status = self.standing(me);
        let generation = self.generation();
        status.generation = generation.number;
        status.generation_of = format!("{:032x}", generation.survivor.0);
        status.hindrance = self.unhealthy_text();
        status.leader_address = self.leader_address().map(str::to_owned);
        status
    }

    pub(super) fn standing(&self, me: ProcessId) -> Status {
        match self {
            Process::Router(router) => {
                let mut status = Status::new(me, Role::Router);
                let order = router.status();
                let log = router.log().status();
                status.config(Some(&router.config().tables));
                status.maps(&router.config().maps);
                status.state = of_router(log.state);
                status.reformed = order.reformed.map(|reformed| ReformStatus {
                    from_members: reformed.from_members.is_some(),
                    behind: reformed.behind.0,
                    through: reformed.through.0,
                    recovered: reformed.recovered,
                    missing: reformed.missing,
                    fenced: reformed.fenced.iter().map(ProcessId::to_string).collect(),
                });
                let (ballot, through) = log.known;
                status.log = format!(
                    "{:020}.{:020}.{:032x}.{:020}",
                    ballot.round, ballot.router.node, ballot.router.incarnation.0, through.0
                );
                status.position = order.position.0;
                status.executed = order.base.0;
                status.waiting = order.position.0 - order.base.0;
                status.refused = order.refused;
                status.routers = names(&order.routers);
                status.routers_open = log.members_open.as_deref().map(names);
                status.wanted_routers = router.wanted();
                status.leader = order.leader.map(|leader| leader.to_string());
                let groups = &router.config().groups;
                status.figure("groups", groups.groups().count() as u64);
                status.figure("group_processes", groups.processes() as u64);
                let AddressStatistics { candidates, served, addresses, wanted, unwanted } =
                    groups.address_statistics();
                status.figure("multicast_candidates", candidates);
                status.figure("multicast_groups", served);
                status.figure("multicast_addresses", addresses);
                status.figure("multicast_wanted_deliveries", wanted);
                status.figure("multicast_unwanted_deliveries", unwanted);
                status.figure("slot", log.chosen.0);
                status.figure("configurations", order.configs as u64);
                status.figure("resends", order.resends);
                status
            }
            Process::Storage(storage) => {
                let mut status = Status::new(me, Role::Storage);
                let own = storage.status();
                status.config(storage.config());
                if let Some(state) = own.state {
                    status.state = of_storage(state);
                }
                status.position = own.delivered.0;
                status.executed = own.executed.0;
                status.waiting = own.queued as u64;
                status.refused = own.refused;
                status.leader = storage.member().leader().map(|leader| leader.to_string());
                status.figure("pins", own.pins as u64);
                status.figure("answering", own.answering as u64);
                status.figure("held_bytes", own.held_bytes);
                status.figure("results_without_room", own.no_room);
                status.figure("results_untaken", own.untaken);
                status.figure("repeated", own.repeated);
                status.figure("remembered", own.remembered);
                status.figure("remembered_bytes", own.remembered_bytes);
                status
            }
            Process::Super(super_process) => {
                let mut status = Status::new(me, Role::Super);
                status.config(super_process.config());
                status.position = super_process.member().delivered().0;
                status.executed = status.position;
                status.refused = super_process.refused();
                status.leader = super_process.member().leader().map(|leader| leader.to_string());
                status.figure("suspected", super_process.suspected().count() as u64);
                status
            }
            Process::Client(client) => {
                let mut status = Status::new(me, Role::Gateway);
                status.config(client.config());
                status.position = client.member().delivered().0;
                status.executed = status.position;
                status.waiting = client.outstanding() as u64;
                status.refused = client.refused();
                status.leader = client.member().leader().map(|leader| leader.to_string());
                status.figure("retries", client.retries());
                status
            }
        }
    }
}
