//! What becomes of requests that fail, or whose gateway dies, and what is repeated under its name.

use std::time::Duration;

use quorate_history::Action;
use quorate_protocol::{RequestId, Strength, rubberband::ClientError};
use quorate_tables::Process;

use super::{Bank, Fate, Pending, Phase, What};
use quorate_world::World;

use crate::system::table::citizen::{Citizen, role};

impl Bank {
    pub(super) fn failed(&mut self, world: &mut World<Citizen>, pending: Pending, error: ClientError) {
        let count = match error {
            ClientError::NotSent => "not sent",
            ClientError::MaybeApplied { .. } => "maybe applied",
            ClientError::Rejected(_) => "rejected",
            ClientError::Expired => "expired",
            ClientError::OtherStatement => "other statement",
            ClientError::Forgotten { .. } => "forgotten",
            ClientError::Unanswered => "unanswered",
            ClientError::Broken => "broken off",
            ClientError::Unreached { .. } => "unreached",
            ClientError::Died { .. } => "not asked of another",
            ClientError::NoRoom { .. } => "no room",
            ClientError::Untaken { .. } => "untaken",
        };
        world.count(count);
        // A user believes what it is told. Only one that asked about an earlier attempt knows that an id has expired.
        let expired = pending.doubtful && matches!(error, ClientError::Expired);
        let doubtful = expired || matches!(error, ClientError::MaybeApplied { .. });
        let name = match error {
            ClientError::MaybeApplied { request } => Some(request),
            _ => None,
        };
        match pending.what {
            What::Open => self.phase = Phase::Opening(name),
            What::Mark { account, mark } if doubtful => {
                let value = format!("{mark}");
                self.record(pending.life, account, Action::Write(value.as_str().into()), pending.start, None);
            }
            ref what @ (What::Log { .. }
            | What::Enter { .. }
            | What::Count { .. }
            | What::Stage { .. }
            | What::Publish { .. }) => {
                if !doubtful {
                    self.refused(world, what);
                } else if let Some(request) = name {
                    self.repeat(world, pending, request);
                }
            }
            What::Deadly { .. } if self.insists && matches!(error, ClientError::Died { .. }) => {
                self.insist(world, pending);
            }
            _ => {}
        }
    }

    /// Asks a read again at which processes died, as a gateway would that asks elsewhere without limit.
    fn insist(&mut self, world: &mut World<Citizen>, pending: Pending) {
        let Some(Process::Client(client)) = role(world, pending.machine) else { return };
        let Some(config) = client.config().cloned() else { return };
        let strength = Strength::Sequential;
        self.read_after(world, pending.machine, &config, pending.what, strength, Duration::from_millis(100));
    }

    /// A write was refused for certain.
    fn refused(&mut self, world: &mut World<Citizen>, what: &What) {
        match *what {
            What::Log { row } => {
                self.logged.insert(row, Fate::Refused);
            }
            What::Enter { entry } => self.book.settle_entry(entry, Fate::Refused),
            What::Count { counters } => self.book.refuse_count(counters),
            What::Stage { load, .. } | What::Publish { load } => {
                self.settle_load(load, Fate::Refused);
                self.go_on(world, load, What::Discard { load });
            }
            _ => {}
        }
    }

    /// The next statement of a load, at the gateway where it began; it ends with that.
    pub(super) fn go_on(&mut self, world: &mut World<Citizen>, load: i64, what: What) {
        let Some(&(machine, life)) = self.loads.get(&load) else { return };
        let Some(Process::Client(client)) = role(world, machine) else { return };
        let Some(config) = client.config().filter(|_| world.life(machine) == life).cloned() else { return };
        self.write(world, machine, &config, what, None, false);
    }

    /// A write of which nobody knows what came is repeated under its name, and takes effect once: at its gateway, or at
    /// another, as an application does that was told the name.
    fn repeat(&mut self, world: &mut World<Citizen>, pending: Pending, request: RequestId) {
        let own = self.gateways.iter().position(|&machine| machine == pending.machine).unwrap_or(0);
        let turns = 0..self.gateways.len();
        let turns =
            turns.map(|turn| self.gateways[(own + turn + request.number as usize % 2) % self.gateways.len()]);
        let found = turns.into_iter().find_map(|machine| match role(world, machine) {
            Some(Process::Client(client)) => Some((machine, client.config()?.clone())),
            _ => None,
        });
        let Some((machine, config)) = found else { return };
        world.count("repeated under its name");
        if machine != pending.machine {
            world.count("repeated at another gateway");
        }
        let request = (!self.renames).then_some(request);
        self.write(world, machine, &config, pending.what, request, true);
    }

    /// Nobody will learn what became of a request.
    pub(super) fn abandon(&mut self, pending: &Pending) {
        if let What::Mark { account, mark } = pending.what {
            let value = format!("{mark}");
            self.record(pending.life, account, Action::Write(value.as_str().into()), pending.start, None);
        }
    }

    /// Requests of gateways that died will never be answered.
    pub(super) fn give_up_the_dead(&mut self, world: &mut World<Citizen>) {
        let dead: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| {
                role(world, pending.machine).is_none() || world.life(pending.machine) != pending.life
            })
            .map(|(&token, _)| token)
            .collect();
        for token in dead {
            let pending = self.pending.remove(&token).expect("just seen");
            self.abandon(&pending);
            if let (Some(request), true) = (pending.request, pending.doubtful)
                && !matches!(pending.what, What::Open)
            {
                // Whoever repeated it knows its name, and goes to another gateway.
                world.count("repeated after its gateway died");
                self.repeat(world, pending, request);
                continue;
            }
            if matches!(pending.what, What::Open) {
                // Whether the accounts exist is not known: a primary key refuses to open them twice.
                self.phase = Phase::Opening(None);
            }
        }
    }
}
