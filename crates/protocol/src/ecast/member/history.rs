//! The generations of routers that a member has followed.

use crate::{
    ecast::poll::Pledge,
    id::{Generation, ProcessId},
};

/// The generations of routers that a member has followed, and the founder that it follows.
#[derive(Debug, Default)]
pub(super) struct GenerationHistory {
    /// The generation of the routers to which this member listens.
    current: Generation,
    /// The last earlier generation whose routers the member heard after that generation's cut. Kept
    /// deliveries come from that generation, or from earlier generations.
    before: Generation,
    /// Whether the survivor may lack this member's report, because the member has not yet seen a sign that
    /// the report arrived.
    tail_unheard: bool,
    /// A generation, and the members whose answers counted when it began.
    counted: (Generation, Vec<ProcessId>),
    /// The founder that this process follows, as long as its link stands.
    pledged: Option<ProcessId>,
}

impl GenerationHistory {
    /// Makes the history of a member that comes back in this generation.
    pub(super) fn recovered(current: Generation) -> Self {
        GenerationHistory { current, ..GenerationHistory::default() }
    }

    /// Returns the generation of the routers to which the member listens.
    pub(super) fn current(&self) -> Generation {
        self.current
    }

    /// Returns the last earlier generation whose routers the member heard after that generation's cut.
    pub(super) fn before(&self) -> Generation {
        self.before
    }

    /// Enters a later generation.
    pub(super) fn enter(&mut self, generation: Generation) {
        assert!(generation.is_later(self.current), "a member only goes on to a later generation");
        let before = std::mem::replace(&mut self.current, generation);
        if !std::mem::take(&mut self.tail_unheard) {
            self.before = before;
        }
    }

    /// Notes that the member reports its deliveries. `matters` is whether a lost report would do harm.
    pub(super) fn report(&mut self, matters: bool) {
        self.tail_unheard = matters;
    }

    /// Notes a sign that the report arrived.
    pub(super) fn reported(&mut self) {
        self.tail_unheard = false;
    }

    /// Whether the survivor may lack the member's report.
    pub(super) fn is_tail_unheard(&self) -> bool {
        self.tail_unheard
    }

    /// Answers a founder's call. `led_by` is the leader, if a router in reach knows one.
    pub(super) fn pledge(&mut self, founder: ProcessId, led_by: Option<ProcessId>) -> Pledge {
        match (led_by, self.pledged.filter(|other| *other != founder)) {
            (Some(leader), _) => Pledge::Led(leader),
            (None, Some(other)) => Pledge::FollowsAnother(other),
            (None, None) => {
                self.pledged = Some(founder);
                Pledge::Follows
            }
        }
    }

    /// Whether the member follows this founder.
    pub(super) fn follows(&self, founder: ProcessId) -> bool {
        self.pledged == Some(founder)
    }

    /// Stops following this founder.
    pub(super) fn release(&mut self, founder: ProcessId) {
        self.pledged = self.pledged.filter(|other| *other != founder);
    }

    /// Notes the members whose answers counted when the current generation began.
    pub(super) fn set_counted(&mut self, members: Vec<ProcessId>) {
        self.counted = (self.current, members);
    }

    /// Returns the members whose answers counted when the generation of the kept deliveries began, as far as
    /// the member knows.
    pub(super) fn counted(&self) -> Vec<ProcessId> {
        let (generation, counted) = &self.counted;
        if *generation == self.before { counted.clone() } else { Vec::new() }
    }
}
