//! A model of a quorum store: what clients would get at a setting of the dials that nobody has tried.
//!
//! **Promise.** Given how far clients are from the copies and how long operations took lately, [`Model::predict`] returns a [`Window`] like the
//! one that clients would get at a setting: latencies, throughput, the proportion of inconsistent operations, and Γ. It is judged by the
//! [`Judge`](crate::window::Judge) that judges what clients really get, so the two mean the same. It is a proposal: the
//! [controller](crate::controller) believes what it measures.
//!
//! **Source.** Bailis, Venkataraman, Franklin, Hellerstein and Stoica, *Probabilistically Bounded Staleness for Practical Partial Quorums*
//! (VLDB 2012), §5.1: the WARS model, by Monte Carlo. A write's message reaches a replica after `W` and its acknowledgement comes after `A`; a read's
//! request reaches it after `R` and its response comes after `S`. A read is stale if all replicas that it waits for answer before
//! the write's message has reached them.
//!
//! ```text
//!   write at X ─┬─ W_x ─▶ X ─ A_x ─▶ done              read at Y ─┬─ R_y ─▶ Y ─ S_y ─▶ answer
//!               ├─ W_y ──────────▶ Y                   (strong)   └─ R_z ─▶ Z ─ S_z ─▶ the newer of the two
//!               └─ W_z ────────────────────▶ Z
//! ```
//!
//! **Observations.** Clients cannot see `W`, `A`, `R` and `S`, only sums of two of them, ordered by how near the copies are. Each client *sounds* the store:
//! it reads at levels of one, two and all copies ([`Sounding`]), and the shortest of a few such reads are its round trips to the nearest,
//! the second and the farthest copy. Clients are sorted by them into as many *places* as there are copies, each with a coordinator of its own beside
//! a copy. Of the ways in which places may be near and far from each other the one is taken with which the round trips of both ends
//! agree best. A message takes half of a round trip. Chance comes from the live latencies of each place ([`Service`]), the latest 512 of each kind and level:
//! a message is handled as late as half of a weak operation there, so that a store with heavy tails, or on a busy machine, has messages with heavy
//! tails. An operation of a level takes as long as one of that level took.
//!
//! **Simulation.** Clients do the workload as [`load`](crate::load) has them: due at their instants, one operation at a time, keys and
//! kinds from the same chooser, strong operations by chance or by heat, reads delayed before and writes after. Every write has a stamp, the instant
//! at which its coordinator sends it, and an instant of arrival at each copy. A read takes the newest that has arrived at the copies that it waits for. So
//! writes at the same time, several readers, and clients that are too slow for their rate are all in it, which the closed formulas of the source leave out.
//! A strong write that takes two round trips, as in maps with blocking repair, sends its value in the second one; there a strong read
//! leaves what it returns at the copies that it waited for.
//!
//! **Differs** from a real store, knowingly:
//!
//! - There are three copies, each beside a coordinator, and clients are spread evenly. Elsewhere distances are wrong, and the controller's
//!   corrections are larger.
//! - The way there takes as long as the way back. Nobody without clocks in common can tell.
//! - Other read repair is left out: a write comes to a copy with its own message alone, so that the model is a little pessimistic.
//! - A copy does not stand still: pauses are seen in the latencies that clients get, and not in messages that wait together.
//! - Operations do not slow each other down at the store. More load shows in live latencies once it is there.
//!
//! **Cost.** A prediction simulates [`OPERATIONS`] operations: 2 to 10 ms of the controller's thread. No other thread waits for it.

mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::{
    controller::Setting,
    dial::Choice,
    heat::Heat,
    load::{Service, Sounding},
    window::Window,
    workload::{Chooser, Others, Workload},
};

/// Copies of each key.
pub const COPIES: usize = 3;

/// Operations that a prediction simulates.
pub const OPERATIONS: usize = 2_500;

/// Latencies of one kind, level and place that are remembered.
const REMEMBERED: usize = 512;

/// Chosen keys after which the model's heat is as warm as that of clients.
const WARMING: usize = 20_000;
/// Chosen keys after which it has found the threshold of another part.
const REWARMING: usize = 2_000;

/// A store as its clients see it.
#[derive(Debug)]
pub struct Model {
    workload: Workload,
    chooser: Chooser,
    choice: Choice,
    heat: Heat,
    /// Operations a second of all clients; 0: as many as they can.
    rate: f64,
    places: [Place; COPIES],
    /// The place of each client.
    homes: Vec<usize>,
}

/// A coordinator beside a copy.
#[derive(Debug)]
struct Place {
    /// Nanoseconds of an operation on the nearest copy, when nothing else is done.
    nearest: f64,
    /// Nanoseconds of a message to each place.
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
    /// The place of the next one.
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

/// The round trips of a client or a place, in nanoseconds, ascending.
type RoundTrips = [f64; COPIES];

impl Model {
    /// A model of clients that have sounded their store, or none if nobody was answered.
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
        let places = std::array::from_fn(|place| Place {
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

    /// From now on clients ask for so many operations a second, all together; 0: as many as they can.
    pub fn expect(&mut self, rate: f64) {
        self.rate = rate;
    }

    /// Takes what clients saw of the store.
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

    /// The time of a message between the two places that are farthest from each other.
    pub fn farthest(&self) -> Duration {
        let all = self.places.iter().flat_map(|place| place.one_way);
        Duration::from_nanos(all.fold(0.0, f64::max) as u64)
    }

    /// A window of a setting, as the model has it. The same chance decides for all settings, so that two predictions differ by what the
    /// settings do.
    pub fn predict(&self, setting: Setting) -> Window {
        let mut random = Pcg64Mcg::seed_from_u64(4);
        let p = (setting.p_reads * self.workload.reads + setting.p_writes * (1.0 - self.workload.reads))
            .clamp(0.0, 1.0);
        if self.choice == Choice::Heat && p > 0.0 && p < 1.0 {
            self.warm(p, REWARMING, &mut random);
        }
        simulation::run(self, setting, &mut random)
    }

    /// Counts keys of the workload in the model's heat.
    fn warm(&self, p: f64, count: usize, random: &mut Pcg64Mcg) {
        for _ in 0..count {
            let key = self.chooser.popular(random);
            let is_write =
                self.workload.others != Others::Insert && random.random::<f64>() >= self.workload.reads;
            self.heat.is_among_hottest(&key.to_le_bytes(), is_write, p);
        }
    }
}

/// None if not even the nearest copy answered. Copies that did not answer are as far as the farthest that did.
fn round_trips(sounding: &Sounding) -> Option<RoundTrips> {
    let mut farthest = sounding.round_trips[0]?;
    Some(sounding.round_trips.map(|trip| {
        farthest = trip.unwrap_or(farthest).max(farthest);
        farthest.as_nanos() as f64
    }))
}

/// The median of each round trip.
fn middle(clients: &[(RoundTrips, u64)]) -> Option<RoundTrips> {
    let median = |rank: usize| {
        let mut all: Vec<f64> = clients.iter().map(|(trips, _)| trips[rank]).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    Some([median(0)?, median(1)?, median(2)?])
}

/// The time of a message from each place to each: the arrangement in which the round trips of both ends agree best.
fn distances(trips: &[RoundTrips; COPIES]) -> [[f64; COPIES]; COPIES] {
    // Bit `i` of an arrangement says that the nearer neighbour of place `i` is the one before it.
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

impl Place {
    /// How long an operation takes at the store. As long as none of its level was seen, the round trip to as many copies as it waits for.
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

    /// A message to the second of the copies, in order of their distance.
    fn second(&self) -> f64 {
        let mut sorted = self.one_way;
        sorted.sort_by(f64::total_cmp);
        sorted[1]
    }

    /// The place of that copy.
    fn neighbour(&self, own: usize) -> usize {
        let others = (0..COPIES).filter(|place| *place != own);
        others.min_by(|a, b| self.one_way[*a].total_cmp(&self.one_way[*b])).unwrap_or(own)
    }

    /// How long after its arrival a message is handled.
    fn handling(&self, random: &mut Pcg64Mcg) -> f64 {
        self.weak_reads.draw(random).unwrap_or(self.nearest) / 2.0
    }

    /// Round trips of a strong write: one, or two if it asks first.
    fn rounds(&self) -> f64 {
        let trip = 2.0 * self.second() + self.nearest;
        self.strong_writes.median().map_or(1.0, |took| (took / trip).round().clamp(1.0, 2.0))
    }
}
