//! The outcome of requests that fail, or whose gateway dies, and their repetition under their names.

use std::time::Duration;

use quorate_history::Action;
use quorate_protocol::{RequestId, Strength, rubberband::ClientError};
use quorate_roles::tables::Process;

use super::{AccountPhase, AccountStatement, AccountWorkload, BulkLoad, PendingStatement, RowOutcome};

use crate::system::table::world::{TableWorld, role};

impl AccountWorkload {
    pub(super) fn failed(&mut self, world: &mut TableWorld, pending: PendingStatement, error: ClientError) {
        let count = match error {
            ClientError::NotSent => "not sent",
            ClientError::MaybeApplied { .. } => "maybe applied",
            ClientError::Rejected(_) if matches!(pending.what, AccountStatement::Alter) => {
                "alteration refused"
            }
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
        // `Expired` says that this attempt was not executed. If the user sent the request before, the
        // outcome of that earlier attempt stays unknown.
        let expired = pending.doubtful && matches!(error, ClientError::Expired);
        let doubtful = expired || matches!(error, ClientError::MaybeApplied { .. });
        let name = match error {
            ClientError::MaybeApplied { request } => Some(request),
            _ => None,
        };
        match pending.what {
            AccountStatement::Open => self.phase = AccountPhase::Opening(name),
            AccountStatement::Mark { account, mark } if doubtful => {
                let value = format!("{mark}");
                self.record(pending.life, account, Action::Write(value.as_str().into()), pending.start, None);
            }
            ref what @ (AccountStatement::Log { .. }
            | AccountStatement::Enter { .. }
            | AccountStatement::Count { .. }
            | AccountStatement::Stage { .. }
            | AccountStatement::Publish { .. }) => {
                if !doubtful {
                    self.refused(world, what);
                } else if let Some(request) = name {
                    self.repeat(world, pending, request);
                }
            }
            AccountStatement::KillerQuery { .. }
                if self.repeats_killers && matches!(error, ClientError::Died { .. }) =>
            {
                self.insist(world, pending);
            }
            AccountStatement::Turn { conversation } => {
                self.unanswered(conversation, !doubtful, world.now());
            }
            _ => {}
        }
    }

    /// For a mutation: repeats a read that killed processes, like a gateway that asks one replica after
    /// another without limit.
    fn insist(&mut self, world: &mut TableWorld, pending: PendingStatement) {
        let Some(Process::Client(client)) = role(world, pending.machine) else { return };
        let Some(config) = client.config().cloned() else { return };
        let strength = Strength::Sequential;
        self.read_after(world, pending.machine, &config, pending.what, strength, Duration::from_millis(100));
    }

    /// Notes that a write was certainly refused.
    fn refused(&mut self, world: &mut TableWorld, what: &AccountStatement) {
        match *what {
            AccountStatement::Log { row } => {
                self.logged.insert(row, RowOutcome::Refused);
            }
            AccountStatement::Enter { entry } => self.request_log.settle_entry(entry, RowOutcome::Refused),
            AccountStatement::Count { counters } => self.request_log.refuse_count(counters),
            AccountStatement::Stage { load, .. } | AccountStatement::Publish { load } => {
                self.settle_load(load, RowOutcome::Refused);
                self.go_on(world, load, AccountStatement::Discard { load });
            }
            _ => {}
        }
    }

    /// Sends the next statement of a load at the gateway where the load began. If that gateway has ended,
    /// so has the load.
    pub(super) fn go_on(&mut self, world: &mut TableWorld, load: i64, what: AccountStatement) {
        let Some(&BulkLoad { machine, life, .. }) = self.loads.get(&load) else { return };
        let Some(Process::Client(client)) = role(world, machine) else { return };
        let Some(config) = client.config().filter(|_| world.life(machine) == life).cloned() else { return };
        self.write(world, machine, &config, what, None, false);
    }

    /// Repeats a write of unknown outcome under its name, so that it takes effect once. The repetition goes
    /// to the gateway of the first attempt or to another gateway, because any application that knows the
    /// name may send it.
    fn repeat(&mut self, world: &mut TableWorld, pending: PendingStatement, request: RequestId) {
        let own = self.gateways.iter().position(|&machine| machine == pending.machine).unwrap_or(0);
        let turns = 0..self.gateways.len();
        let turns =
            turns.map(|turn| self.gateways[(own + turn + request.number as usize % 2) % self.gateways.len()]);
        let found = turns.into_iter().find_map(|machine| match role(world, machine) {
            Some(Process::Client(client)) => Some((machine, client.config()?.clone())),
            _ => None,
        });
        let Some((machine, config)) = found else { return };
        if self.has_load_ended(&config, &pending.what) {
            world.count("load ended with its table");
            return;
        }
        world.count("repeated under its name");
        if machine != pending.machine {
            world.count("repeated at another gateway");
        }
        let request = (!self.renames).then_some(request);
        self.write(world, machine, &config, pending.what, request, true);
    }

    /// Records that the outcome of a request stays unknown.
    pub(super) fn abandon(&mut self, pending: &PendingStatement) {
        if let AccountStatement::Mark { account, mark } = pending.what {
            let value = format!("{mark}");
            self.record(pending.life, account, Action::Write(value.as_str().into()), pending.start, None);
        }
    }

    /// Gives up the requests of gateways that died, because they will get no answers.
    pub(super) fn give_up_the_dead(&mut self, world: &mut TableWorld) {
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
            if let AccountStatement::Turn { conversation } = pending.what {
                self.unanswered(conversation, false, world.now());
            }
            if let (Some(request), true) = (pending.request, pending.doubtful)
                && !matches!(pending.what, AccountStatement::Open)
            {
                // The user that repeats the request knows its name, and goes to another gateway.
                world.count("repeated after its gateway died");
                self.repeat(world, pending, request);
                continue;
            }
            if matches!(pending.what, AccountStatement::Open) {
                // Whether the accounts exist is unknown; a primary key refuses to open them twice.
                self.phase = AccountPhase::Opening(None);
            }
        }
    }
}
