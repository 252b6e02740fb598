//! Three machines that pass a token, the smallest system. Promise: each number is held once, one after the
//! other, whichever machine sleeps or is cut off.

use crate::stage::{self, Workload};
use quorate_protocol::{Context, Destination, Duration, Input, Peer, ProcessId, Protocol, Sink, Time};
use quorate_world::Violation;

type Stage = stage::Stage<usize>;
type World = quorate_world::World<TokenProcess>;

/// A process. It takes a number that is new to it, and sends the next number until the token has come round.
pub(crate) struct TokenProcess {
    next: Option<ProcessId>,
    number: u64,
    due: Option<Time>,
}

impl Protocol for TokenProcess {
    type Message = u64;
    type Record = ();
    type Command = Peer;
    type Event = u64;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match (input, self.next) {
            (Input::Command(next), _) => {
                out.reach(next.id, &next.address);
                self.next = Some(next.id);
            }
            (Input::Receive { message: number, .. }, _) if number > self.number => {
                (self.number, self.due) = (number, Some(cx.now + PAUSE));
                out.emit(number);
            }
            (Input::Deadline, Some(next)) => {
                out.send(Destination::One(next), self.number + 1, None);
                self.due = Some(cx.now + 40 * PAUSE);
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.due.filter(|_| self.next.is_some())
    }
}

/// The workload, which introduces each machine to the next one. The field is the last number that any machine
/// held.
pub(crate) struct Ring(u64);

impl Workload for Ring {
    const NAME: &'static str = "token";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[(
        "token",
        "about = 'Three machines pass a token.'\nsafety_ms = 3000\nliveness_ms = 9000\n\
         expect = ['token held', 'came right']\nsystem.token = {}\nfaults.interval_ms = 60",
    )];
    type Settings = toml::Table;
    type Process = TokenProcess;
    type Timer = usize;

    fn new(stage: &mut Stage, world: &mut World, settings: toml::Table) -> Ring {
        let machines = settings.get("machines").and_then(toml::Value::as_integer).unwrap_or(3) as u64;
        for machine in stage.add_machines(world, machines as usize) {
            stage.after(world, Duration::from_millis(10 + machines), machine);
        }
        Ring(0)
    }

    fn start(&mut self, _: &mut Stage, world: &mut World, machine: usize, _: ProcessId) -> TokenProcess {
        TokenProcess { next: None, number: 0, due: (machine == 0).then(|| world.clock(machine)) }
    }

    fn act(&mut self, _: &mut Stage, world: &mut World, machine: usize) -> Result<(), Violation> {
        let next = (machine + 1) % world.machines();
        let id = world.id(next).expect("nobody is killed");
        world.command(machine, Peer { id, address: World::address(next) });
        Ok(())
    }

    fn event(&mut self, _: &mut Stage, world: &mut World, on: usize, held: u64) -> Result<(), Violation> {
        world.count("token held");
        self.0 += 1;
        let what = format!("machine {on} holds token {held} after token {}", self.0 - 1);
        if held == self.0 { Ok(()) } else { Err(Violation::new("one token", what)) }
    }

    fn settled(&mut self, _: &mut Stage, _: &mut World) -> bool {
        self.0 >= 700
    }

    fn report(&self, _: &Stage, _: &World) -> String {
        format!("the token does not move on from number {}", self.0)
    }

    fn may_crash(&self, _: &Stage, _: &World, _machine: usize) -> bool {
        false
    }
}

const PAUSE: Duration = Duration::from_millis(5);
