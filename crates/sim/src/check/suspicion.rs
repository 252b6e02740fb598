//! Suspicion: a process that has just slept suspects nobody for the silence that it slept through (S11).

use std::time::Duration;

use quorate_protocol::{ProcessId, Protocol, wire::Wire};
use quorate_world::{Violation, World};

/// Judges a suspicion by the process on `machine`. The process may suspect a process to which it has no link,
/// because after a sleep it dials again, with pauses between its dials.
pub(crate) fn suspicion<P>(world: &World<P>, machine: usize, process: ProcessId) -> Result<(), Violation>
where
    P: Protocol<Message: Wire>,
{
    let other = process.node as usize;
    let well = world.alive(process)
        && world.untroubled(other, QUIET)
        && world.slept_until(other) + QUIET < world.now()
        && world.untroubled(machine, QUIET)
        && world.is_linked(machine, process);
    let slept = world.slept_until(machine);
    if well && slept <= world.now() && world.now() < slept + AWAKE {
        let what = format!(
            "machine {machine} slept until {slept:?}, and right after that suspected process {process}, \
             which was well"
        );
        return Err(Violation::new("S11", what));
    }
    Ok(())
}

/// Time without faults after which every process has received messages from every other process.
const QUIET: Duration = Duration::from_secs(1);
/// Time after a sleep during which a process must not suspect anybody for silence: the shortest silence that
/// may lead to a suspicion.
const AWAKE: Duration = Duration::from_millis(500);
