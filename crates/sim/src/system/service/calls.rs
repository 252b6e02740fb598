//! What clients call, and what they are told.

use std::{collections::BTreeMap, time::Duration};

use quorate_protocol::{
    CommandId,
    service::{ClientCommand, ClientEvent, Fate},
};
use quorate_world::Violation;

use super::{
    Callers, Stage, World,
    party::Ask,
    store::{Request, Written, opened, sealed},
};
use crate::check::service::Asked;

/// Calls that are not answered.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) made: u64,
    commands: u64,
    under_way: BTreeMap<CommandId, (usize, Asked)>,
}

impl Book {
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn of(&self, machine: usize) -> usize {
        self.under_way.values().filter(|(at, _)| *at == machine).count()
    }

    fn begin(&mut self, machine: usize, asked: Asked) -> CommandId {
        self.commands += 1;
        let command = CommandId(self.commands);
        self.under_way.insert(command, (machine, asked));
        command
    }
}

impl Callers {
    /// Some client makes some calls.
    pub(super) fn call(&mut self, stage: &mut Stage, world: &mut World) {
        let machine = self.clients[stage.chance.index(self.clients.len())];
        for _ in 0..1 + stage.chance.below(4) {
            if world.id(machine).is_none() || self.book.of(machine) >= self.settings.under_way_max {
                return;
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
            let request = sealed(&request);
            let later = stage.chance.between(Duration::ZERO, Duration::from_micros(300));
            world.command_after(machine, later, Ask::Client(ClientCommand::Call { command, read, request }));
        }
    }

    /// A client begins a new life: of what the one before had under way nobody hears any more.
    pub(super) fn forget(&mut self, machine: usize) {
        let Callers { book, check, .. } = self;
        book.under_way.retain(|_, (at, asked)| {
            if *at == machine {
                check.unknown(asked);
            }
            *at != machine
        });
    }

    /// A client is told what became of a call.
    pub(super) fn told(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        event: ClientEvent,
    ) -> Result<(), Violation> {
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
            Fate::NotSent => {
                world.count("not sent");
                self.check.nothing(&asked);
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
