//! Checks a replica after each step: its sessions, its state, and its memory against its bounds.

use quorate_roles::services::RESULT_BATCH_BYTES;
use quorate_world::Violation;

use super::{
    ServiceStage, ServiceWorkload, ServiceWorld,
    process::{HostedReplica, STATES_APART, digest},
    world::hosted,
};

impl ServiceWorkload {
    /// Checks the replica on `machine`, if there is one, after a step of it.
    pub(super) fn check_step(
        &mut self,
        stage: &ServiceStage,
        world: &ServiceWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        let Some(hosted) = hosted(world, machine) else { return Ok(()) };
        let replica = hosted.replica();
        let instance = replica.chosen();
        self.check.sessions(instance, || replica.sessions());
        self.check_memory(stage.seed, hosted)?;
        if instance.is_multiple_of(STATES_APART) && hosted.is_quiet() {
            self.check.state(world.life(machine), instance, digest(hosted))?;
        }
        Ok(())
    }

    /// Checks that a replica holds no more bytes than its settings allow.
    fn check_memory(&self, seed: u64, hosted: &HostedReplica) -> Result<(), Violation> {
        let replica = hosted.replica();
        let settings = self.settings.service(seed, None);
        let most = |what: &str, bytes: usize, most: usize| {
            let what =
                format!("a replica holds {bytes} bytes of {what}, but its settings allow {most} at most");
            if bytes > most { Err(Violation::new("memory", what)) } else { Ok(()) }
        };
        let of_one = replica.remembered_of_one();
        most("remembered replies of a session", of_one, settings.session_bytes_max + ONE_REPLY)?;
        let keyed = if self.settings.keyed > 0.0 { settings.keyed_bytes_max } else { 0 };
        most("remembered replies", replica.remembered(), settings.replies_bytes_max + keyed + ONE_REPLY)?;
        if settings.whole_states {
            return Ok(());
        }
        // Results of commits may exceed the bound on results, because their changes were executed before.
        let committed = settings.transactions_bytes_max;
        // An endpoint that executes the store itself passes on a batch of results at a time.
        let batch = if hosted.has_thread() { 0 } else { RESULT_BATCH_BYTES };
        most("results", replica.results_held(), settings.results_held_max + committed + batch + ONE_RESULT)?;
        let one_batch = settings.log.batch_bytes_max + settings.transaction_bytes_max + ONE_RESULT;
        most("proposals", replica.log().pending_bytes(), settings.in_flight_bytes_max.max(one_batch))
    }
}

/// The last reply may exceed a bound of replies by this number of bytes.
const ONE_REPLY: usize = 2 << 10;
/// The last result may exceed a bound of results by this number of bytes: its reply, its change, and their
/// headers.
const ONE_RESULT: usize = 4 << 10;
