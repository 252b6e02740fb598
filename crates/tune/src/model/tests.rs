//! Compares predictions with a store whose delays are known.

use super::*;
use crate::Setting;
use crate::Window;
use crate::{keys::Distribution, replicas::Replicas};

fn workload(distribution: Distribution) -> Workload {
    Workload { distribution, ..Workload::named("004").unwrap() }
}

/// Returns the window of a minute at a setting, and the prediction of a model that has sounded the store and
/// seen its latencies.
fn compared(store: &mut Replicas, workload: &Workload, choice: Choice, setting: Setting) -> (Window, Window) {
    let mut model = Model::new(workload, choice, &store.soundings(1.0)).unwrap();
    model.expect(store.rate);
    store.turn(setting);
    model.learn(&store.work(5.0).0);
    let (served, measured) = store.work(60.0);
    model.learn(&served);
    (measured, model.predict(setting))
}

const ONE_QUORUM: Setting = Setting { p_writes: 1.0, ..Setting::WEAK };
const QUORUM_ONE: Setting = Setting { p_reads: 1.0, ..Setting::WEAK };
const HALF: Setting = Setting { p_reads: 0.5, p_writes: 0.5, ..Setting::WEAK };

#[test]
fn staleness_is_predicted_within_a_factor_of_one_and_a_half() {
    for distribution in [Distribution::Zipfian, Distribution::Latest] {
        let workload = workload(distribution);
        let mut store = Replicas::new(&workload, Choice::Chance, 96, 700.0);
        for setting in [Setting::WEAK, ONE_QUORUM, QUORUM_ONE, HALF] {
            let (measured, predicted) = compared(&mut store, &workload, Choice::Chance, setting);
            let factor = predicted.inconsistent() / measured.inconsistent();
            let description =
                format!("{distribution:?} {setting:?}: {factor} of {}", measured.inconsistent());
            assert!(measured.inconsistent() > 0.004 && factor > 1.0 / 1.5 && factor < 1.5, "{description}");
            let (gamma, mean) = (
                predicted.gamma(0.99).value / measured.gamma(0.99).value,
                predicted.mean().value / measured.mean().value,
            );
            assert!(
                gamma > 0.5 && gamma < 2.0 && mean > 0.8 && mean < 1.25,
                "{description}: Γ {gamma}, mean {mean}"
            );
        }
    }
}

/// The model also predicts delays, heavy tails, strong operations on hot keys, and an excessive load.
#[test]
fn other_settings_and_stores_are_predicted_too() {
    let workload = workload(Distribution::Zipfian);
    let mut tails = Replicas::new(&workload, Choice::Heat, 96, 700.0);
    tails.tail = (10, 60.0);
    let hot = Setting { p_reads: 0.25, p_writes: 0.25, ..Setting::WEAK };
    for setting in [Setting::WEAK, hot, Setting { delay_reads: 0.01, delay_writes: 0.01, ..Setting::WEAK }] {
        let (measured, predicted) = compared(&mut tails, &workload, Choice::Heat, setting);
        let factor = predicted.inconsistent() / measured.inconsistent();
        assert!(factor > 0.5 && factor < 2.0, "{setting:?}: {factor} of {}", measured.inconsistent());
    }
    // 24 clients whose operations take 37 to 75 ms do about 500 operations a second.
    let mut few = Replicas::new(&workload, Choice::Heat, 24, 700.0);
    let (measured, predicted) = compared(&mut few, &workload, Choice::Heat, Setting::STRONG);
    let factor = predicted.throughput().value / measured.throughput().value;
    assert!(factor > 0.9 && factor < 1.1 && measured.throughput().value < 600.0, "{factor}");
}

#[test]
fn distances_are_found_from_the_round_trips_of_both_ends() {
    let trips = [[0.0, 20.0, 60.0], [0.0, 20.0, 80.0], [0.0, 60.0, 80.0]];
    assert_eq!(distances(&trips), [[0.0, 10.0, 30.0], [10.0, 0.0, 40.0], [30.0, 40.0, 0.0]]);
    // A copy that did not answer counts as far away as the farthest copy that answered.
    let silent = Sounding { client: 0, round_trips: [Some(Duration::from_nanos(5)), None, None] };
    assert_eq!(round_trips(&silent), Some([5.0; 3]));
    let workload = workload(Distribution::Zipfian);
    let dead = Sounding { client: 0, round_trips: [None; 3] };
    assert!(Model::new(&workload, Choice::Heat, &[dead]).is_none());
}
