use std::collections::BTreeSet;

use super::*;
use crate::rubberband::{
    range::{covers, uncovered},
    sample::{process, range, ring, text, texts},
};

/// Formats the ring: the keys and the replicas of each segment.
fn segments(config: &Config) -> String {
    let segment = |segment: &Segment| format!("{}:{}", text(segment.range), nodes(&segment.replicas));
    config.segments().iter().map(segment).collect::<Vec<_>>().join(" ")
}

fn nodes(processes: &[ProcessId]) -> String {
    processes.iter().map(|process| process.node.to_string()).collect()
}

/// Formats a write's destinations: processes, then their groups; or the range that refuses the write.
fn written(config: &Config, ranges: &[Range]) -> String {
    let found = match config.write_destinations(ranges) {
        Ok(found) => found,
        Err(refused) => return format!("refused by {}", text(refused)),
    };
    let members = |group: &u64| {
        let chosen = found.processes.iter().enumerate().filter(|(index, _)| group >> index & 1 == 1);
        chosen.map(|(_, process)| process.node.to_string()).collect::<String>()
    };
    let groups: Vec<String> = found.groups.iter().map(members).collect();
    format!("{} in {}", nodes(&found.processes), groups.join(" "))
}

/// Formats assignments: the ranges of each process, with a star after those that it answers.
fn assigned(found: Result<Vec<Assignment>, Range>) -> String {
    let found = match found {
        Ok(found) => found,
        Err(refused) => return format!("refused by {}", text(refused)),
    };
    let part = |assignment: &Assignment, part: &Range| {
        let star = if assignment.answers.contains(part) { "*" } else { "" };
        format!(" {}{star}", text(*part))
    };
    let one = |assignment: Assignment| {
        let parts: String = assignment.held.iter().map(|held| part(&assignment, held)).collect();
        format!("{}:{parts}", assignment.process.node)
    };
    found.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn segments_follow_each_other_and_wrap_around_zero() {
    assert_eq!(segments(&ring(2, &[10, 20, 30], "AAA")), "0-9:31 10-19:12 20-29:23 30-end:31");
    assert_eq!(segments(&ring(2, &[0, 20], "AA")), "0-19:12 20-end:21", "nothing wraps");
    assert_eq!(
        segments(&ring(1, &[5, u64::MAX], "AA")),
        "0-4:2 5-18446744073709551614:1 18446744073709551615-end:2"
    );
    assert_eq!(segments(&ring(3, &[30, 10], "AA")), "0-9:12 10-29:21 30-end:12", "fewer than the factor");
    assert_eq!(segments(&ring(3, &[10], "A")), "0-9:1 10-end:1");
    assert_eq!(segments(&ring(2, &[10, 20], "AD")), "0-9:21 10-19:12 20-end:21", "the dead keep their place");
    assert_eq!(segments(&ring(3, &[], "")), "");
    let config = ring(2, &[10, 20, 30], "AAA");
    assert_eq!(texts(&config.ranges_of(process(1))), "0-9 10-19 30-end");
    assert_eq!(config.count_segments(Range::ALL), 4);
    assert_eq!(config.count_segments(range(19, 20)), 2);
    assert_eq!(config.count_segments(range(9, 9)), 1);
}

#[test]
fn a_write_goes_to_every_replica_in_a_group_per_segment() {
    let config = ring(2, &[10, 20, 30], "AAA");
    assert_eq!(written(&config, &[range(15, 15)]), "12 in 12");
    assert_eq!(written(&config, &[range(15, 20)]), "123 in 12 23");
    assert_eq!(written(&config, &[Range::ALL]), "312 in 31 12 32", "a group that comes twice is one");
    assert_eq!(written(&config, &[range(0, 0), range(25, 25)]), "312 in 31 32", "the ends of the ring meet");
    assert_eq!(written(&ring(3, &[10], "A"), &[Range::ALL]), "1 in 1");
}

#[test]
fn a_receiving_replica_takes_writes_and_answers_for_none() {
    let config = ring(2, &[10, 20, 30], "ARA");
    assert_eq!(written(&config, &[range(15, 15)]), "12 in 1");
    assert_eq!(written(&config, &[range(15, 25)]), "123 in 1 3");
    assert_eq!(assigned(config.assign_write(&[range(15, 15)], 1)), "1: 15-15*, 2: 15-15");
    assert_eq!(assigned(config.assign_read(&[range(15, 25)], 1)), "1: 15-19*, 3: 20-25*");
    let config = ring(1, &[10, 20, 30], "ARA");
    assert_eq!(written(&config, &[range(0, 25)]), "refused by 20-29");
    assert_eq!(assigned(config.assign_write(&[range(0, 25)], 0)), "refused by 20-29");
    assert_eq!(assigned(config.assign_read(&[range(0, 25)], 0)), "refused by 20-29");
}

#[test]
fn a_range_at_an_unreachable_process_takes_no_writes() {
    let config = ring(2, &[10, 20, 30], "AUA");
    assert_eq!(written(&config, &[range(5, 5)]), "31 in 31");
    assert_eq!(written(&config, &[range(5, 15)]), "refused by 10-19");
    assert_eq!(written(&config, &[range(20, 20)]), "refused by 20-29");
    assert_eq!(
        assigned(config.assign_read(&[range(5, 25)], 1)),
        "1: 5-9* 10-19*, 3: 20-25*",
        "it is read elsewhere"
    );
    let alone = ring(1, &[10, 20, 30], "AUA");
    assert_eq!(assigned(alone.assign_read(&[range(15, 25)], 0)), "refused by 20-29");
}

#[test]
fn dead_processes_are_left_out_until_a_range_has_no_replica() {
    let config = ring(2, &[10, 20, 30], "ADA");
    assert_eq!(written(&config, &[Range::ALL]), "31 in 31 1 3");
    assert_eq!(assigned(config.assign_write(&[range(15, 25)], 1)), "1: 15-19*, 3: 20-25*");
    assert!(!config.any_lost(&[Range::ALL]));
    let config = ring(2, &[10, 20, 30], "DDA");
    assert_eq!(written(&config, &[Range::ALL]), "refused by 10-19");
    assert_eq!(assigned(config.assign_read(&[Range::ALL], 0)), "refused by 10-19");
    assert!(config.any_lost(&[range(0, 10)]) && !config.any_lost(&[range(0, 9), range(20, 99)]));
    assert!(!ring(2, &[10, 20, 30], "UDA").any_lost(&[Range::ALL]), "who may come back is waited for");
    assert!(ring(2, &[10, 20, 30], "RDA").any_lost(&[range(15, 15)]), "what was to be copied is gone");
    assert_eq!(config.replicas_of(&[Range::ALL]), [process(3)]);
}

#[test]
fn the_offset_selects_the_replicas_that_answer_a_write() {
    let config = ring(2, &[10, 20, 30], "AAA");
    let ranges = [range(5, 25)];
    let even = "1: 5-9 10-19*, 2: 10-19 20-25*, 3: 5-9* 20-25";
    let odd = "1: 5-9* 10-19, 2: 10-19* 20-25, 3: 5-9 20-25*";
    for (offset, expected) in [(0, even), (1, odd), (2, even), (u32::MAX, odd)] {
        assert_eq!(assigned(config.assign_write(&ranges, offset)), expected, "offset {offset}");
    }
}

#[test]
fn a_read_is_divided_evenly_between_replicas_selected_by_the_offset() {
    let config = ring(2, &[10, 20, 30], "AAA");
    let (even, odd) = ("1: 10-19*, 2: 20-29*, 3: 0-9* 30-end*", "1: 0-9* 30-end*, 2: 10-19*, 3: 20-29*");
    for (offset, expected) in [(0, even), (1, odd), (2, even), (3, odd)] {
        assert_eq!(assigned(config.assign_read(&[Range::ALL], offset)), expected, "offset {offset}");
    }
    let config = ring(2, &[10, 20, 30, 40], "AAAA");
    let four = "1: 10-19*, 2: 20-29*, 3: 30-39*, 4: 0-9* 40-end*";
    assert_eq!(assigned(config.assign_read(&[Range::ALL], 0)), four);
    for (offset, expected) in [(0, "1: 15-16*"), (1, "2: 15-16*"), (2, "1: 15-16*")] {
        assert_eq!(assigned(config.assign_read(&[range(15, 16)], offset)), expected, "offset {offset}");
    }
    assert_eq!(assigned(config.assign_read(&[], 7)), "");
}

/// The slow twin of the ring: walks it key by key, as the definition says (002 §6.2).
struct Walk<'a> {
    config: &'a Config,
}

impl Walk<'_> {
    fn replicas(&self, key: u64) -> Vec<ProcessId> {
        let ids: Vec<u64> = self.config.ring.keys().copied().collect();
        let primary = ids.iter().rposition(|id| *id <= key).unwrap_or(ids.len() - 1);
        let factor = usize::from(self.config.replicas).min(ids.len());
        (0..factor).map(|step| self.config.ring[&ids[(primary + step) % ids.len()]]).collect()
    }

    fn state(&self, process: ProcessId) -> char {
        match self.config.storage.get(&process) {
            Some(StorageState::Active) => 'A',
            Some(StorageState::Receiving { .. }) => 'R',
            Some(StorageState::Unreachable) => 'U',
            Some(StorageState::Away { on_ring: true }) => 'W',
            Some(
                StorageState::Standby | StorageState::Keeping(_) | StorageState::Away { on_ring: false },
            )
            | None => 'D',
        }
    }

    fn those(&self, key: u64, states: &str) -> BTreeSet<ProcessId> {
        let stands = |process: &ProcessId| states.contains(self.state(*process));
        self.replicas(key).into_iter().filter(stands).collect()
    }
}

#[test]
fn placement_equals_a_walk_along_the_ring() {
    let mut seed = 3u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..3_000 {
        let mut keys: Vec<u64> =
            (0..=random(8)).map(|_| random(40)).collect::<BTreeSet<_>>().into_iter().collect();
        let turn = random(keys.len() as u64) as usize;
        keys.rotate_left(turn);
        let states: String =
            keys.iter().map(|_| ['A', 'A', 'A', 'R', 'U', 'D', 'W'][random(7) as usize]).collect();
        let config = ring(1 + random(4) as u8, &keys, &states);
        let low = random(40);
        let mut ranges = vec![range(low, low + random(10))];
        if random(2) == 1 {
            ranges.push(range(ranges[0].high + 1 + random(5), u64::MAX));
        }
        let offset = random(9) as u32;
        check_against_walk(&config, &ranges, offset);
        match config.write_destinations(&ranges) {
            Ok(_) => taken += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 500 && refused > 500, "both happen often: {taken}, {refused}");
}

fn check_against_walk(config: &Config, ranges: &[Range], offset: u32) {
    let walk = Walk { config };
    // All keys beyond the last id have the same replicas, so a few of these keys suffice.
    let keys: Vec<u64> =
        ranges.iter().flat_map(|range| range.low..=range.high.min(range.low.max(64))).collect();
    let on = |what: &[Range], key: u64| what.iter().any(|range| range.low <= key && key <= range.high);
    let readable = keys.iter().all(|&key| !walk.those(key, "A").is_empty());
    let writable = readable && keys.iter().all(|&key| walk.those(key, "U").is_empty());

    let found = config.write_destinations(ranges);
    assert_eq!(found.is_ok(), writable, "{config:?} {ranges:?}");
    if let Ok(found) = found {
        let everybody: BTreeSet<ProcessId> = keys.iter().flat_map(|&key| walk.those(key, "ARW")).collect();
        assert_eq!(found.processes.iter().copied().collect::<BTreeSet<_>>(), everybody);
        assert_eq!(found.processes.len(), everybody.len(), "nobody is named twice");
        let members = |group: &u64| -> BTreeSet<ProcessId> {
            let chosen = found.processes.iter().enumerate().filter(|(index, _)| group >> index & 1 == 1);
            chosen.map(|(_, process)| *process).collect()
        };
        let groups: BTreeSet<BTreeSet<ProcessId>> = found.groups.iter().map(members).collect();
        assert_eq!(groups, keys.iter().map(|&key| walk.those(key, "A")).collect());
    }

    let written = config.assign_write(ranges, offset);
    assert_eq!(written.is_ok(), readable, "{config:?} {ranges:?}");
    for &key in keys.iter().filter(|_| readable) {
        let written = written.as_ref().expect("just compared");
        let holders = |assignment: &&Assignment| on(&assignment.held, key);
        let holders: BTreeSet<_> = written.iter().filter(holders).map(|holder| holder.process).collect();
        assert_eq!(holders, walk.those(key, "ARW"), "key {key} of {config:?}");
        let answering: Vec<ProcessId> =
            walk.replicas(key).into_iter().filter(|p| walk.state(*p) == 'A').collect();
        let expected = answering[offset as usize % answering.len()];
        let answers: Vec<_> =
            written.iter().filter(|one| on(&one.answers, key)).map(|one| one.process).collect();
        assert_eq!(answers, [expected], "one answers for key {key} of {config:?}");
    }

    let read = config.assign_read(ranges, offset);
    assert_eq!(read.is_ok(), readable, "{config:?} {ranges:?}");
    for &key in keys.iter().filter(|_| readable) {
        let read = read.as_ref().expect("just compared");
        let readers: Vec<_> = read.iter().filter(|one| on(&one.held, key)).map(|one| one.process).collect();
        assert_eq!(readers.len(), 1, "one reads key {key} of {config:?}");
        assert!(walk.those(key, "A").contains(&readers[0]), "key {key} is read where it is complete");
        assert!(read.iter().all(|one| one.held == one.answers));
    }
}

#[test]
fn parts_cover_the_whole_only_without_gaps() {
    assert!(covers(&[range(5, u64::MAX), range(0, 4)], Range::ALL));
    assert!(!covers(&[range(6, u64::MAX), range(0, 4)], Range::ALL));
    assert!(covers(&[range(0, 9), range(3, 12)], range(1, 12)));
    assert!(!covers(&[range(0, 9)], range(1, 10)));
    assert!(!covers(&[], range(7, 7)));
    assert_eq!(uncovered(&[range(3, 4), range(8, 9)], range(1, 9)), [range(1, 2), range(5, 7)]);
}
