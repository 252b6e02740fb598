//! A model of a quorum store: it predicts the window of a setting that nobody has tried.
//!
//! **Promise.** Given the distances of clients from the copies and recent latencies of operations,
//! [`Model::predict`] returns a [`Window`](crate::window::Window) like the one that clients would get at a
//! setting: latencies, throughput, the proportion of inconsistent operations, and Γ. The
//! [`Judge`](crate::window::Judge) that judges real clients also judges the prediction, so prediction and
//! measurement have the same meaning. A prediction is a proposal: the [controller](crate::controller) trusts
//! only what it measures.
//!
//! **Source.** Bailis, Venkataraman, Franklin, Hellerstein and Stoica, *Probabilistically Bounded Staleness
//! for Practical Partial Quorums* (VLDB 2012), §5.1: the WARS model, by Monte Carlo. A write's message
//! reaches a replica after `W`, and its acknowledgement returns after `A`. A read's request reaches a replica
//! after `R`, and its response returns after `S`. A read is stale if all replicas that it waits for answer
//! before the write's message has reached them.
//!
//! ```text
//!   write at X ─┬─ W_x ─▶ X ─ A_x ─▶ done              read at Y ─┬─ R_y ─▶ Y ─ S_y ─▶ answer
//!               ├─ W_y ──────────▶ Y                   (strong)   └─ R_z ─▶ Z ─ S_z ─▶ the newer of the two
//!               └─ W_z ────────────────────▶ Z
//! ```
//!
//! **Observations.** Clients cannot see `W`, `A`, `R` and `S`. They see sums of two of them, ordered by the
//! distance of the copies. Each client *sounds* the store: it reads at the levels of one, two and all copies
//! ([`Sounding`]). The shortest of a few such reads are its round trips to the nearest, the second and the
//! farthest copy. The model sorts the clients by their round trips into as many *places* as there are copies.
//! Each place has a coordinator next to a copy. The places can be near or far from each other in several
//! arrangements. The model takes the arrangement in which the round trips of both ends agree best. A message
//! takes half a round trip. Randomness comes from the live latencies of each place ([`Service`]), the latest
//! 512 of each kind and level. A place handles a message after half the time of a weak operation there. So in
//! a store with heavy tails, or on a busy machine, messages have heavy tails, too. An operation takes as long
//! as a recent operation of its level.
//!
//! **Simulation.** Clients do the workload as [`load`](crate::load) does. Operations are due at their times,
//! and a client does one at a time. Keys and kinds come from the same chooser. Strong operations are chosen
//! by chance or by heat. A delay comes before each read and after each write. Every write has a stamp, the
//! time at which its coordinator sends it, and a time of arrival at each copy. A read returns the newest
//! write that has arrived at the copies it waits for. So the simulation includes concurrent writes, several
//! readers, and clients too slow for their rate, which the closed formulas of the source leave out. A strong
//! write that takes two round trips, as in maps with blocking repair, sends its value in the second one. In
//! such maps a strong read stores its value at the copies that it waited for.
//!
//! **Differs** from a real store, knowingly:
//!
//! - The model has three copies, each next to a coordinator, and clients are spread evenly. In other stores
//!   its distances are wrong, and the controller's corrections are larger.
//! - In the model, a message takes equally long in both directions. Clients without synchronized clocks
//!   cannot measure the difference.
//! - Apart from the repair by strong reads in maps with blocking repair, the model has no read repair. A
//!   write reaches a copy only by its own message, so the model is slightly pessimistic.
//! - A copy never pauses. A pause of a real copy lengthens the latencies that the model learns, but in the
//!   model no messages queue up at a copy.
//! - Operations do not slow each other down at the store. More load shows up only in later live latencies.
//!
//! **Cost.** A prediction simulates [`OPERATIONS`] operations, which takes 2 to 10 ms of the controller's
//! thread. No other thread waits for it.

mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::{
    dial::Choice,
    heat::Heat,
    load::{Service, Sounding},
    workload::{Chooser, Others, Workload},
};

/// Number of copies of each key.
pub const COPIES: usize = 3;

/// Number of operations that a prediction simulates.
pub const OPERATIONS: usize = 2_500;

/// Number of latencies remembered for each kind, level and place.
const REMEMBERED: usize = 512;

/// Number of keys to choose until the model's heat resembles the heat of real clients.
const WARMING: usize = 20_000;
/// Number of keys to choose until the heat has found the threshold for a new fraction.
const REWARMING: usize = 2_000;

/// A model of a store, built from the observations of the store's clients.
#[derive(Debug)]
pub struct Model {
    workload: Workload,
    chooser: Chooser,
    choice: Choice,
    heat: Heat,
    /// Operations a second of all clients. Zero means no limit.
    rate: f64,
    places: [ClientSite; COPIES],
    /// Index of each client's place.
    homes: Vec<usize>,
}

/// A coordinator next to a copy.
#[derive(Debug)]
struct ClientSite {
    /// Time of an operation on the nearest copy of an idle store, in nanoseconds.
    nearest: f64,
    /// Time of a message to each place, in nanoseconds.
    one_way: [f64; COPIES],
    weak_reads: Latencies,
    weak_writes: Latencies,
    strong_reads: Latencies,
    strong_writes: Latencies,
}

/// The latest latencies of one kind, in nanoseconds.
#[derive(Debug, Default)]
struct Latencies {
    all: Vec<u64>,
    /// Index that the next latency overwrites.
    next: usize,
}

impl Latencies {
    fn push(&mut self, took: u64) {
        match self.all.get_mut(self.next) {
            Some(oldest) => *oldest = took,
            None => self.all.push(took),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    fn draw(&self, random: &mut Pcg64Mcg) -> Option<f64> {
        (!self.all.is_empty()).then(|| self.all[random.random_range(0..self.all.len())] as f64)
    }

    fn median(&self) -> Option<f64> {
        let mut sorted = self.all.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|it| *it as f64)
    }
}

/// Round trips of a client or a place, in nanoseconds, ascending.
type RoundTrips = [f64; COPIES];

impl Model {
    /// Creates a model from the soundings of the clients. Returns `None` if no client was answered.
    pub fn new(workload: &Workload, choice: Choice, soundings: &[Sounding]) -> Option<Model> {
        let mut clients: Vec<(RoundTrips, u64)> =
            soundings.iter().filter_map(|it| Some((round_trips(it)?, it.client))).collect();
        clients.sort_by(|(a, _), (b, _)| a[1].total_cmp(&b[1]).then(a[2].total_cmp(&b[2])));
        let count = clients.len();
        let of_place =
            |place: usize| &clients[place * count / COPIES..((place + 1) * count / COPIES).min(count)];
        let far: [RoundTrips; COPIES] =
            std::array::from_fn(|place| middle(of_place(place)).or(middle(&clients)).unwrap_or_default());
        let first = clients.first()?.0;
        let mut homes = vec![0; soundings.iter().map(|it| it.client as usize + 1).max().unwrap_or(0)];
        (0..COPIES)
            .for_each(|place| of_place(place).iter().for_each(|(_, client)| homes[*client as usize] = place));
        let one_way = distances(&far);
        let places = std::array::from_fn(|place| ClientSite {
            nearest: far[place][0].max(first[0]),
            one_way: one_way[place],
            weak_reads: Latencies::default(),
            weak_writes: Latencies::default(),
            strong_reads: Latencies::default(),
            strong_writes: Latencies::default(),
        });
        let model = Model {
            workload: workload.clone(),
            chooser: Chooser::new(workload),
            choice,
            heat: Heat::default(),
            rate: 0.0,
            places,
            homes,
        };
        if choice == Choice::Heat {
            model.warm(0.5, WARMING, &mut Pcg64Mcg::seed_from_u64(1));
        }
        Some(model)
    }

    /// Sets the rate of all clients, in operations a second. Zero means no limit.
    pub fn expect(&mut self, rate: f64) {
        self.rate = rate;
    }

    /// Adds measured times of the clients' operations at the store.
    pub fn learn(&mut self, served: &[Service]) {
        for service in served {
            let Some(home) = self.homes.get(service.client as usize) else { continue };
            let place = &mut self.places[*home];
            let latencies = match (service.is_write, service.is_strong) {
                (false, false) => &mut place.weak_reads,
                (true, false) => &mut place.weak_writes,
                (false, true) => &mut place.strong_reads,
                (true, true) => &mut place.strong_writes,
            };
            latencies.push(service.took);
        }
    }

    /// Returns the time of a message between the two places that are farthest apart.
    pub fn farthest(&self) -> Duration {
        let all = self.places.iter().flat_map(|place| place.one_way);
        Duration::from_nanos(all.fold(0.0, f64::max) as u64)
    }

    /// Counts `count` chosen keys in the model's heat.
    fn warm(&self, p: f64, count: usize, random: &mut Pcg64Mcg) {
        for _ in 0..count {
            let key = self.chooser.popular(random);
            let is_write =
                self.workload.others != Others::Insert && random.random::<f64>() >= self.workload.reads;
            self.heat.is_among_hottest(&key.to_le_bytes(), is_write, p);
        }
    }
}

/// Returns the round trips of a sounding, or `None` if not even the nearest copy answered. A copy that did
/// not answer counts as far away as the farthest copy that answered.
fn round_trips(sounding: &Sounding) -> Option<RoundTrips> {
    let mut farthest = sounding.round_trips[0]?;
    Some(sounding.round_trips.map(|trip| {
        farthest = trip.unwrap_or(farthest).max(farthest);
        farthest.as_nanos() as f64
    }))
}

/// Returns the median of each round trip.
fn middle(clients: &[(RoundTrips, u64)]) -> Option<RoundTrips> {
    let median = |rank: usize| {
        let mut all: Vec<f64> = clients.iter().map(|(trips, _)| trips[rank]).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    Some([median(0)?, median(1)?, median(2)?])
}

/// Returns the time of a message between each two places, in the arrangement in which the round trips of both
/// ends agree best.
fn distances(trips: &[RoundTrips; COPIES]) -> [[f64; COPIES]; COPIES] {
    // If bit `i` of an arrangement is set, place `i` is nearer to its predecessor than to its successor.
    let toward = |arrangement: usize, from: usize, to: usize| {
        let is_next = (from + 1) % COPIES == to;
        let is_near = is_next == (arrangement >> from & 1 == 0);
        (trips[from][if is_near { 1 } else { 2 }] - trips[from][0]) / 2.0
    };
    let disagreement = |arrangement: usize| -> f64 {
        let pairs = (0..COPIES).map(|from| (from, (from + 1) % COPIES));
        pairs.map(|(a, b)| (toward(arrangement, a, b) - toward(arrangement, b, a)).powi(2)).sum()
    };
    let best = (0..1 << COPIES).min_by(|a, b| disagreement(*a).total_cmp(&disagreement(*b))).unwrap_or(0);
    std::array::from_fn(|from| {
        std::array::from_fn(|to| match from == to {
            true => 0.0,
            false => (toward(best, from, to) + toward(best, to, from)) / 2.0,
        })
    })
}

impl ClientSite {
    /// Draws the time of an operation at the store. If no operation of its level has been seen, returns the
    /// round trip to the copies that the operation waits for.
    fn service(&self, is_write: bool, is_strong: bool, random: &mut Pcg64Mcg) -> f64 {
        let own = match (is_write, is_strong) {
            (false, false) => &self.weak_reads,
            (true, false) => &self.weak_writes,
            (false, true) => &self.strong_reads,
            (true, true) => &self.strong_writes,
        };
        if let Some(took) = own.draw(random) {
            return took;
        }
        let weak = self.weak_reads.draw(random).unwrap_or(self.nearest);
        if is_strong { weak + 2.0 * self.second() } else { weak }
    }

    /// Returns the time of a message to the second-nearest copy.
    fn second(&self) -> f64 {
        let mut sorted = self.one_way;
        sorted.sort_by(f64::total_cmp);
        sorted[1]
    }

    /// Returns the place nearest to `own`.
    fn neighbour(&self, own: usize) -> usize {
        let others = (0..COPIES).filter(|place| *place != own);
        others.min_by(|a, b| self.one_way[*a].total_cmp(&self.one_way[*b])).unwrap_or(own)
    }

    /// Draws the time that this place takes to handle a message.
    fn handling(&self, random: &mut Pcg64Mcg) -> f64 {
        self.weak_reads.draw(random).unwrap_or(self.nearest) / 2.0
    }

    /// Returns the number of round trips of a strong write: one, or two if the coordinator reads first.
    fn rounds(&self) -> f64 {
        let trip = 2.0 * self.second() + self.nearest;
        self.strong_writes.median().map_or(1.0, |took| (took / trip).round().clamp(1.0, 2.0))
    }
}
