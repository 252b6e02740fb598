//! Names of processes and ranges in scripts and traces.

use quorate_protocol::{Incarnation, Peer, ProcessId, rubberband::Range};

/// Returns the process with this name in scripts: `s2` is the first life of storage process 2, `s2b` the
/// second.
pub(crate) fn process(name: &str) -> ProcessId {
    let base = match name.as_bytes()[0] {
        b'r' => 100,
        b'u' => 200,
        b's' => 300,
        b'c' => 400,
        _ => panic!("{name} is no process"),
    };
    let digits = name[1..].trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let life = name[1 + digits.len()..].bytes().next().unwrap_or(b'a') - b'a';
    let node = base + digits.parse::<u64>().expect("a number");
    ProcessId { node, incarnation: Incarnation((u128::from(node) << 8) | u128::from(life)) }
}

pub(crate) fn name(process: ProcessId) -> String {
    let role = ["r", "u", "s", "c"][(process.node / 100 - 1) as usize];
    let life = match process.incarnation.0 & 0xff {
        0 => String::new(),
        life => char::from(b'a' + life as u8).to_string(),
    };
    format!("{role}{}{life}", process.node % 100)
}

/// Returns the next life of the same node.
pub(crate) fn reborn(process: ProcessId) -> ProcessId {
    ProcessId { incarnation: Incarnation(process.incarnation.0 + 1), ..process }
}

/// Returns the address of a process. All lives of a node listen at the same address.
pub(crate) fn peer(process: ProcessId) -> Peer {
    Peer { id: process, address: format!("node{}:1", process.node) }
}

/// Returns the range with this name. Four storage processes cut the ring into quarters: `1` names a quarter,
/// `1+5` a key in it.
pub(crate) fn range(text: &str) -> Range {
    if text == "all" {
        return Range::ALL;
    }
    match text.split_once('+') {
        Some((quarter, key)) => {
            let key = (quarter.parse::<u64>().expect("a quarter") << 62) + key.parse::<u64>().expect("a key");
            Range { low: key, high: key }
        }
        None => {
            let low = text.parse::<u64>().expect("a quarter") << 62;
            Range { low, high: low + ((1 << 62) - 1) }
        }
    }
}

pub(crate) fn range_name(range: Range) -> String {
    let quarter = range.low >> 62;
    let key = range.low - (quarter << 62);
    if range == Range::ALL {
        "all".to_owned()
    } else if range.low == range.high {
        format!("{quarter}+{key}")
    } else if key == 0 && range.high - range.low == (1 << 62) - 1 {
        quarter.to_string()
    } else {
        format!("{}-{}", range.low, range.high)
    }
}

pub(crate) fn range_names(ranges: &[Range]) -> String {
    ranges.iter().map(|range| range_name(*range)).collect::<Vec<_>>().join(",")
}
