//! What clients call, and what they are told.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use quorate_protocol::{
    CommandId,
    service::{Abort, ClientCommand, ClientEvent, Fate},
};
use quorate_world::Violation;

use super::{
    Callers, Stage, World,
    party::Ask,
    store::{Request, Written, opened, sealed},
};
use crate::check::service::{Asked, Deal};

/// Calls that are not answered.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) made: u64,
    commands: u64,
    under_way: BTreeMap<CommandId, (usize, Asked)>,
    /// Those of them that bear a key.
    keyed: BTreeSet<u64>,
    /// Calls with keys whose fate is open: some client is to ask for them again.
    orphans: Vec<Asked>,
    /// Calls that were orphans once.
    maybe: BTreeSet<u64>,
    /// Transactions, by the command that is under way of each.
    dealing: BTreeMap<CommandId, Dealing>,
    transactions: u64,
}

/// A transaction of a client.
#[derive(Debug)]
struct Dealing {
    machine: usize,
    transaction: u64,
    deal: Deal,
    /// What it asks now; none: its commit.
    now: Option<Request>,
    /// What it will ask.
    later: VecDeque<Request>,
    /// Whether it is abandoned in the end.
    abandons: bool,
}

impl Book {
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len() + self.dealing.len() + self.orphans.len()
    }

    fn of(&self, machine: usize) -> usize {
        self.under_way.values().filter(|(at, _)| *at == machine).count()
            + self.dealing.values().filter(|dealing| dealing.machine == machine).count()
    }

    fn command(&mut self) -> CommandId {
        self.commands += 1;
        CommandId(self.commands)
    }

    fn begin(&mut self, machine: usize, asked: Asked) -> CommandId {
        let command = self.command();
        self.under_way.insert(command, (machine, asked));
        command
    }
}

impl Callers {
    /// Some client asks for calls whose fate others left open.
    pub(super) fn adopt(&mut self, stage: &mut Stage, world: &mut World) {
        if self.book.orphans.is_empty() {
            return;
        }
        let machine = self.clients[stage.chance.index(self.clients.len())];
        if world.id(machine).is_none() {
            return;
        }
        for asked in std::mem::take(&mut self.book.orphans) {
            world.count("asked again by another client");
            let (call, key) = (asked.call, asked.key);
            let command = self.book.begin(machine, asked);
            let request = sealed(&Request::Put { key, call });
            let keys = vec![key];
            world.command(machine, Ask::Client(ClientCommand::Keyed { command, key: call, keys, request }));
        }
    }

    /// Some client makes some calls.
    pub(super) fn call(&mut self, stage: &mut Stage, world: &mut World) {
        let machine = self.clients[stage.chance.index(self.clients.len())];
        for _ in 0..1 + stage.chance.below(4) {
            if world.id(machine).is_none() || self.book.of(machine) >= self.settings.under_way_max {
                return;
            }
            if self.settings.transactions > 0.0 && stage.chance.happens(self.settings.transactions) {
                self.deal(stage, world, machine);
                continue;
            }
            self.book.made += 1;
            let (call, key) = (self.book.made, stage.chance.below(self.settings.keys));
            let request = match stage.chance.below(10) {
                0..5 => Request::Put { key, call },
                5..9 => Request::Get { key, call },
                _ => Request::Refuse { key, call },
            };
            let (write, read) =
                (matches!(request, Request::Put { .. }), matches!(request, Request::Get { .. }));
            let asked = Asked { call, key, write, at: world.now().0 as i64 };
            let command = self.book.begin(machine, asked);
            let keys = if self.settings.transactions > 0.0 { keys(stage, key) } else { Vec::new() };
            let request = sealed(&request);
            let later = stage.chance.between(Duration::ZERO, Duration::from_micros(300));
            let ask = if write && self.settings.keyed > 0.0 && stage.chance.happens(self.settings.keyed) {
                self.book.keyed.insert(call);
                ClientCommand::Keyed { command, key: call, keys, request }
            } else {
                ClientCommand::Call { command, read, keys, request }
            };
            world.command_after(machine, later, Ask::Client(ask));
        }
    }

    /// A client begins a new life: of what the one before had under way nobody hears any more.
    pub(super) fn forget(&mut self, machine: usize) {
        let Callers { book, check, .. } = self;
        let Book { under_way, keyed, orphans, maybe, .. } = book;
        under_way.retain(|_, (at, asked)| {
            if *at == machine && keyed.contains(&asked.call) {
                maybe.insert(asked.call);
                orphans.push(asked.clone());
            } else if *at == machine {
                check.unknown(asked);
            }
            *at != machine
        });
        book.dealing.retain(|_, dealing| {
            if dealing.machine == machine {
                match dealing.now {
                    Some(_) => check.aborted(&dealing.deal),
                    None => check.open(&dealing.deal),
                }
            }
            dealing.machine != machine
        });
    }

    /// A client begins a transaction.
    fn deal(&mut self, stage: &mut Stage, world: &mut World, machine: usize) {
        let mut requests = VecDeque::new();
        for _ in 0..1 + stage.chance.below(4) {
            self.book.made += 1;
            let (call, key) = (self.book.made, stage.chance.below(self.settings.keys));
            requests.push_back(match stage.chance.below(20) {
                0..9 => Request::Put { key, call },
                9..19 => Request::Get { key, call },
                _ => Request::Refuse { key, call },
            });
        }
        self.book.transactions += 1;
        let (transaction, now) = (self.book.transactions, requests.pop_front());
        let (deal, abandons) = (Deal::default(), stage.chance.happens(0.1));
        let dealing = Dealing { machine, transaction, deal, now, later: requests, abandons };
        self.ask(stage, world, dealing);
    }

    /// A transaction goes on.
    fn ask(&mut self, stage: &mut Stage, world: &mut World, mut dealing: Dealing) {
        let (machine, transaction) = (dealing.machine, dealing.transaction);
        let command = self.book.command();
        let asked = match &dealing.now {
            None => {
                dealing.deal.at = world.now().0 as i64;
                ClientCommand::Commit { command, transaction }
            }
            Some(request) => {
                if matches!(request, Request::Put { .. }) {
                    dealing.deal.asked.push(request.call());
                }
                let read = matches!(request, Request::Get { .. });
                let (keys, request) = (keys(stage, request.key()), sealed(request));
                ClientCommand::Part { command, transaction, read, keys, request }
            }
        };
        self.book.dealing.insert(command, dealing);
        // Some clients think for a while, so that others come between.
        let most = if stage.chance.happens(0.2) { 20_000 } else { 300 };
        let later = stage.chance.between(Duration::ZERO, Duration::from_micros(most));
        world.command_after(machine, later, Ask::Client(asked));
    }

    /// A client is told what became of a request of a transaction, or of its commit.
    fn dealt(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        mut dealing: Dealing,
        fate: Fate,
    ) -> Result<(), Violation> {
        let (machine, transaction) = (dealing.machine, dealing.transaction);
        let now = world.now().0 as i64;
        match (&dealing.now, fate) {
            (None, Fate::Done(_)) => {
                let kind = if dealing.deal.wrote.is_empty() { "committed reads" } else { "committed" };
                world.count(kind);
                return self.check.committed(&dealing.deal, now);
            }
            (None, Fate::MaybeApplied { id }) => {
                world.count("maybe committed");
                if stage.chance.happens(0.7) && world.id(machine).is_some() {
                    let command = self.book.command();
                    self.book.dealing.insert(command, dealing);
                    world.command(machine, Ask::Client(ClientCommand::Again { command, id }));
                } else {
                    self.check.open(&dealing.deal);
                }
                return Ok(());
            }
            (None, Fate::Expired) => {
                self.check.open(&dealing.deal);
                return Ok(());
            }
            (Some(Request::Put { key, .. }), Fate::Done(reply)) => {
                dealing.deal.wrote.push((*key, opened(&reply)));
            }
            (Some(request), Fate::Done(seen) | Fate::Rejected(seen)) => {
                dealing.deal.read.push((request.key(), opened(&seen)));
            }
            (_, fate @ (Fate::Aborted(_) | Fate::NotSent)) => {
                world.count(match fate {
                    Fate::Aborted(Abort::Deadlock) => "deadlock",
                    Fate::Aborted(_) => "aborted",
                    _ => "transaction not sent",
                });
                self.check.aborted(&dealing.deal);
                world.command(machine, Ask::Client(ClientCommand::Abandon { transaction }));
                return Ok(());
            }
            (now, fate) => {
                return Err(Violation::new("answer", format!("{now:?} of a transaction ends in {fate:?}")));
            }
        }
        dealing.now = dealing.later.pop_front();
        if dealing.now.is_none() && dealing.abandons {
            world.count("abandoned");
            self.check.aborted(&dealing.deal);
            world.command(machine, Ask::Client(ClientCommand::Abandon { transaction }));
            return Ok(());
        }
        self.ask(stage, world, dealing);
        Ok(())
    }

    /// A client is told what became of a call.
    pub(super) fn told(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        event: ClientEvent,
    ) -> Result<(), Violation> {
        if let Some(dealing) = self.book.dealing.remove(&event.command) {
            return self.dealt(stage, world, dealing, event.fate);
        }
        let Some((machine, asked)) = self.book.under_way.remove(&event.command) else {
            let what = format!("{:?} ends twice", event.command);
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
                return Err(Violation::new("answer", format!("call {} was refused", asked.call)));
            }
            Fate::Rejected(reason) => {
                world.count("refused");
                self.check.read(&asked, looked(&reason), now)?;
            }
            fate @ (Fate::Aborted(_) | Fate::Reused) => {
                let what = format!("plain call {} ends in {fate:?}", asked.call);
                return Err(Violation::new("answer", what));
            }
            // This client did not send it.
            Fate::NotSent if self.book.maybe.contains(&asked.call) => self.check.unknown(&asked),
            Fate::NotSent => {
                world.count("not sent");
                self.check.nothing(&asked);
            }
            Fate::MaybeApplied { .. } if self.book.keyed.contains(&asked.call) => {
                world.count("maybe applied");
                self.book.maybe.insert(asked.call);
                self.book.orphans.push(asked);
            }
            Fate::MaybeApplied { id } => {
                world.count("maybe applied");
                // Some ask what has become of it, until they know.
                if stage.chance.happens(0.7) && world.id(machine).is_some() {
                    let command = self.book.begin(machine, asked);
                    world.command(machine, Ask::Client(ClientCommand::Again { command, id }));
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

/// What a request touches: its key, or everything, as some say.
fn keys(stage: &mut Stage, key: u64) -> Vec<u64> {
    if stage.chance.happens(0.05) { Vec::new() } else { vec![key] }
}
