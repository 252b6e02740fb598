//! Sweep.
use quorate_sim::{Mutation, Scenario, sweep};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let s = Scenario::named(&a[1]).unwrap();
    let (f, t): (u64, u64) = (a[2].parse().unwrap(), a[3].parse().unwrap());
    let m = a.get(4).and_then(|n| Mutation::named(n));
    let max = if m.is_some() { 1 } else { usize::MAX };
    let sw = sweep(&s, f..t, m, 1, max, |r| {
        if m.is_none() {
            println!(
                "{} {:016x} {} {:?}",
                r.seed,
                r.trace,
                r.steps,
                r.failure.as_deref().map(|f| &f[..f.len().min(200)])
            );
        }
    });
    println!(
        "{} {:?}: {} failures of {} first {:?} missing {:?}",
        a[1],
        m,
        sw.failures.len(),
        sw.seeds,
        sw.failures.first().map(|r| (r.seed, r.failure.clone())),
        sw.missing(&s)
    );
}
