//! The calls of clients, and the answers.

use std::{collections::VecDeque, time::Duration};

use quorate_protocol::service::{Abort, ClientCommand, ClientEvent, Fate};
use quorate_world::Violation;

use super::{
    ServiceStage, ServiceWorkload, ServiceWorld,
    request_log::{OpenTransaction, RequestLog},
    store::{Request, Written, opened, reason_of, sealed},
    world::call_of,
};
use crate::check::service::{ClientTransaction, PendingCall};

impl ServiceWorkload {
    /// Lets some client repeat the calls of which other clients do not know the outcome.
    pub(super) fn adopt(&mut self, stage: &mut ServiceStage, world: &mut ServiceWorld) {
        if self.request_log.orphans.is_empty() {
            return;
        }
        let machine = self.clients[stage.chance.index(self.clients.len())];
        if world.id(machine).is_none() {
            return;
        }
        for asked in std::mem::take(&mut self.request_log.orphans) {
            world.count("asked again by another client");
            let (call, key) = (asked.call, asked.key);
            let command = self.request_log.begin(machine, asked);
            let request = sealed(&Request::Put { key, call });
            let keys = vec![key];
            world.command(machine, call_of(ClientCommand::Keyed { command, key: call, keys, request }));
        }
    }

    /// Makes some client call a few times.
    pub(super) fn call(&mut self, stage: &mut ServiceStage, world: &mut ServiceWorld) {
        let machine = self.clients[stage.chance.index(self.clients.len())];
        for _ in 0..1 + stage.chance.below(4) {
            if world.id(machine).is_none() || self.request_log.of(machine) >= self.settings.under_way_max {
                return;
            }
            if self.settings.transactions > 0.0 && stage.chance.happens(self.settings.transactions) {
                self.deal(stage, world, machine);
                continue;
            }
            self.request_log.made += 1;
            let (call, key) = (self.request_log.made, stage.chance.below(self.settings.keys));
            let request = match stage.chance.below(10) {
                0..5 => Request::Put { key, call },
                5..9 => Request::Get { key, call },
                _ => Request::Refuse { key, call },
            };
            let (write, read) =
                (matches!(request, Request::Put { .. }), matches!(request, Request::Get { .. }));
            let asked = PendingCall { call, key, write, at: world.now().0 as i64 };
            let command = self.request_log.begin(machine, asked);
            let keys = if self.settings.transactions > 0.0 { keys(stage, key) } else { Vec::new() };
            let request = sealed(&request);
            let later = stage.chance.between(Duration::ZERO, Duration::from_micros(300));
            let ask = if write && self.settings.keyed > 0.0 && stage.chance.happens(self.settings.keyed) {
                self.request_log.keyed.insert(call);
                ClientCommand::Keyed { command, key: call, keys, request }
            } else {
                ClientCommand::Call { command, read, keys, request }
            };
            world.command_after(machine, later, call_of(ask));
        }
    }

    /// Begins a new life of a client: the open calls of the former life have unknown outcomes.
    pub(super) fn forget(&mut self, machine: usize) {
        let ServiceWorkload { request_log, check, .. } = self;
        let RequestLog { under_way, keyed, orphans, maybe, .. } = request_log;
        under_way.retain(|_, (at, asked)| {
            if *at == machine && keyed.contains(&asked.call) {
                maybe.insert(asked.call);
                orphans.push(asked.clone());
            } else if *at == machine {
                check.unknown(asked);
            }
            *at != machine
        });
        request_log.open_transactions.retain(|_, open_transaction| {
            if open_transaction.machine == machine {
                match open_transaction.now {
                    Some(_) => check.aborted(&open_transaction.deal),
                    None => check.unknown_commit(&open_transaction.deal),
                }
            }
            open_transaction.machine != machine
        });
    }

    /// Makes a client begin a transaction.
    fn deal(&mut self, stage: &mut ServiceStage, world: &mut ServiceWorld, machine: usize) {
        let mut requests = VecDeque::new();
        for _ in 0..1 + stage.chance.below(4) {
            self.request_log.made += 1;
            let (call, key) = (self.request_log.made, stage.chance.below(self.settings.keys));
            requests.push_back(match stage.chance.below(20) {
                0..9 => Request::Put { key, call },
                9..19 => Request::Get { key, call },
                _ => Request::Refuse { key, call },
            });
        }
        self.request_log.transactions += 1;
        let (transaction, now) = (self.request_log.transactions, requests.pop_front());
        let (deal, abandons) = (ClientTransaction::default(), stage.chance.happens(0.1));
        let open_transaction = OpenTransaction { machine, transaction, deal, now, later: requests, abandons };
        self.ask(stage, world, open_transaction);
    }

    /// Sends the next request of a transaction.
    fn ask(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        mut open_transaction: OpenTransaction,
    ) {
        let (machine, transaction) = (open_transaction.machine, open_transaction.transaction);
        let command = self.request_log.command();
        let asked = match &open_transaction.now {
            None => {
                open_transaction.deal.at = world.now().0 as i64;
                ClientCommand::Commit { command, transaction }
            }
            Some(request) => {
                if matches!(request, Request::Put { .. }) {
                    open_transaction.deal.asked.push(request.call());
                }
                let read = matches!(request, Request::Get { .. });
                let (keys, request) = (keys(stage, request.key()), sealed(request));
                ClientCommand::Part { command, transaction, read, keys, request }
            }
        };
        self.request_log.open_transactions.insert(command, open_transaction);
        // Some clients wait longer, so that calls of other clients come between the requests of a
        // transaction.
        let most = if stage.chance.happens(0.2) { 20_000 } else { 300 };
        let later = stage.chance.between(Duration::ZERO, Duration::from_micros(most));
        world.command_after(machine, later, call_of(asked));
    }

    /// Handles the outcome of a request of a transaction, or of its commit.
    fn dealt(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        mut open_transaction: OpenTransaction,
        fate: Fate,
    ) -> Result<(), Violation> {
        let (machine, transaction) = (open_transaction.machine, open_transaction.transaction);
        let now = world.now().0 as i64;
        match (&open_transaction.now, fate) {
            (None, Fate::Done(_)) => {
                let kind =
                    if open_transaction.deal.wrote.is_empty() { "committed reads" } else { "committed" };
                world.count(kind);
                return self.check.committed(&open_transaction.deal, now);
            }
            (None, Fate::MaybeApplied { id }) => {
                world.count("maybe committed");
                if stage.chance.happens(0.7) && world.id(machine).is_some() {
                    let command = self.request_log.command();
                    self.request_log.open_transactions.insert(command, open_transaction);
                    world.command(machine, call_of(ClientCommand::Again { command, id }));
                } else {
                    self.check.unknown_commit(&open_transaction.deal);
                }
                return Ok(());
            }
            (None, Fate::Expired) => {
                self.check.unknown_commit(&open_transaction.deal);
                return Ok(());
            }
            (Some(Request::Put { key, .. }), Fate::Done(reply)) => {
                open_transaction.deal.wrote.push((*key, opened(&reply)));
            }
            (Some(request), Fate::Done(seen)) => {
                open_transaction.deal.read.push((request.key(), opened(&seen)));
            }
            (Some(request), Fate::Rejected(reason)) => {
                open_transaction.deal.read.push((request.key(), reason_of(&reason)));
            }
            (_, fate @ (Fate::Aborted(_) | Fate::NotSent)) => {
                world.count(match fate {
                    Fate::Aborted(Abort::Deadlock) => "deadlock",
                    Fate::Aborted(_) => "aborted",
                    _ => "transaction not sent",
                });
                self.check.aborted(&open_transaction.deal);
                world.command(machine, call_of(ClientCommand::Abandon { transaction }));
                return Ok(());
            }
            (now, fate) => {
                return Err(Violation::new(
                    "answer",
                    format!(
                        "the step {now:?} of a transaction ended with a fate that it cannot have: {fate:?}"
                    ),
                ));
            }
        }
        open_transaction.now = open_transaction.later.pop_front();
        if open_transaction.now.is_none() && open_transaction.abandons {
            world.count("abandoned");
            self.check.aborted(&open_transaction.deal);
            world.command(machine, call_of(ClientCommand::Abandon { transaction }));
            return Ok(());
        }
        self.ask(stage, world, open_transaction);
        Ok(())
    }

    /// Handles the outcome of a call.
    pub(super) fn on_event(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        event: ClientEvent,
    ) -> Result<(), Violation> {
        if let Some(open_transaction) = self.request_log.open_transactions.remove(&event.command) {
            return self.dealt(stage, world, open_transaction, event.fate);
        }
        let Some((machine, asked)) = self.request_log.under_way.remove(&event.command) else {
            let what = format!("the call with the command {:?} ended a second time", event.command);
            return Err(Violation::new("one answer", what));
        };
        let now = world.now().0 as i64;
        let looked = |bytes| opened::<Option<Written>>(bytes);
        match event.fate {
            Fate::Done(reply) if asked.write => {
                world.count("written");
                self.check.wrote(&asked, opened(&reply), now)?;
            }
            Fate::Done(reply) => {
                world.count("read");
                self.check.read(&asked, looked(&reply), now)?;
            }
            Fate::Rejected(_) if asked.write => {
                return Err(Violation::new(
                    "answer",
                    format!(
                        "the write of call {} was refused, although the service refuses reads only",
                        asked.call
                    ),
                ));
            }
            Fate::Rejected(reason) => {
                world.count("refused");
                self.check.read(&asked, reason_of(&reason), now)?;
            }
            fate @ (Fate::Aborted(_) | Fate::Reused) => {
                let what = format!(
                    "call {}, which belongs to no transaction, ended with a fate of transactions or of \
                     reused keys: {fate:?}",
                    asked.call
                );
                return Err(Violation::new("answer", what));
            }
            // This client did not send the call; another may have.
            Fate::NotSent if self.request_log.maybe.contains(&asked.call) => self.check.unknown(&asked),
            Fate::NotSent => {
                world.count("not sent");
                self.check.without_effect(&asked);
            }
            Fate::MaybeApplied { .. } if self.request_log.keyed.contains(&asked.call) => {
                world.count("maybe applied");
                self.request_log.maybe.insert(asked.call);
                self.request_log.orphans.push(asked);
            }
            Fate::MaybeApplied { id } => {
                world.count("maybe applied");
                // Some clients ask for the outcome until they know it.
                if stage.chance.happens(0.7) && world.id(machine).is_some() {
                    let command = self.request_log.begin(machine, asked);
                    world.command(machine, call_of(ClientCommand::Again { command, id }));
                } else {
                    self.check.unknown(&asked);
                }
            }
            Fate::Expired => {
                world.count("expired");
                self.check.unknown(&asked);
            }
        }
        Ok(())
    }
}

/// Returns the keys that a request declares: its own key, or no key, which stands for all keys.
fn keys(stage: &mut ServiceStage, key: u64) -> Vec<u64> {
    if stage.chance.happens(0.05) { Vec::new() } else { vec![key] }
}
