//! The result of a check as a table.

use std::fmt::Write;

use comfy_table::{Table, presets};
use quorate_history::{KeyReport, Method, Report, Score, Verdict, confidence};
use rand::{RngExt, SeedableRng};

/// Number of resamples for the confidence interval.
const RESAMPLES: usize = 1_000;

pub(super) fn table(report: &Report, left_out: u64, clock_error: u64, top: usize, seconds: f64) -> String {
    let mut text = String::new();
    let mut rows: Vec<(&str, String)> = vec![
        ("operations", report.operations.to_string()),
        ("keys", report.keys.to_string()),
        ("atomic", verdict(report.verdict).into()),
    ];
    if report.searched_keys > 0 {
        let keys = report.searched_keys;
        let why = "values written twice, or operations other than read and write";
        rows.push(("decided by search", format!("{keys} keys ({why})")));
    }
    if left_out > 0 {
        rows.push((
            "left out",
            format!("{left_out} operations: they failed, or they are reads without an answer"),
        ));
    }
    if report.orphan_reads > 0 {
        rows.push(("orphan reads", format!("{} reads of values that no client wrote", report.orphan_reads)));
    }
    match report.measures {
        Some(measures) => {
            rows.push((
                "inconsistent operations",
                format!("{}, proportion {}", measures.inconsistent_operations, share(report.proportion())),
            ));
            // The seed is fixed, so that the same history gives the same interval.
            let mut random = rand_pcg::Pcg64::seed_from_u64(0);
            if let Some((low, high)) =
                confidence(&report.shares, RESAMPLES, |below| random.random_range(0..below))
                    .filter(|_| measures.inconsistent_operations > 0)
            {
                let interval = format!("{low:.6} to {high:.6} (95 %, bootstrap over keys)");
                rows.push(("  confidence", interval));
            }
            if clock_error > 0 {
                let (certain, possible) = (measures.certain_operations, measures.possible_operations);
                let within =
                    format!("{certain} certainly, {possible} at most, with clocks ±{clock_error} ns apart");
                rows.push(("  within clock error", within));
            }
            rows.push((
                "inconsistent values",
                format!("{}, proportion {}", measures.inconsistent_values, share(report.proportion_values())),
            ));
            let finite = match measures.gamma {
                Score::Infinite => format!("; {} without orphan reads", duration(measures.gamma_finite)),
                Score::Finite(_) => String::new(),
            };
            let error =
                if clock_error > 0 { format!(" ± {}", duration(clock_error)) } else { String::new() };
            rows.push(("Γ (γ/2 at either end)", format!("{}{error}{finite}", time(measures.gamma))));
            rows.push(("Δ (reads begun earlier)", time(measures.delta)));
            rows.push(("k, at least", measures.k.to_string()));
            rows.push(("reads not regular", measures.irregular_reads.to_string()));
            let sessions = measures.sessions;
            rows.push(("reads missing own writes", sessions.read_your_writes.to_string()));
            rows.push(("reads going backwards", sessions.monotonic_reads.to_string()));
        }
        None => rows.push(("not measured", "a search only decides whether a key is atomic".into())),
    }
    rows.push(("seconds", format!("{seconds:.3}")));
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    let _ = writeln!(text, "{table}");

    if !report.suspects.is_empty() && top > 0 {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["worst keys", "atomic", "operations", "inconsistent", "Γ", "Δ", "k"]);
        for key in report.suspects.iter().take(top) {
            table.add_row(row(key));
        }
        let _ = writeln!(text, "{table}");
        let worst = &report.suspects[0];
        if let Some(witness) = &worst.witness {
            let _ = writeln!(text, "key {}: {witness}", worst.key);
        }
    }
    text
}

fn row(key: &KeyReport) -> [String; 7] {
    let measured = |of: &dyn Fn(&quorate_history::Measures) -> String| match (&key.measures, key.method) {
        (Some(measures), _) => of(measures),
        (None, Method::Zones | Method::Search) => "–".into(),
    };
    [
        key.key.to_string(),
        verdict(key.verdict).into(),
        key.operations.to_string(),
        measured(&|measures| measures.inconsistent_operations.to_string()),
        measured(&|measures| time(measures.gamma)),
        measured(&|measures| time(measures.delta)),
        measured(&|measures| measures.k.to_string()),
    ]
}

pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Atomic => "yes",
        Verdict::NotAtomic => "no",
        Verdict::Unknown => "unknown",
    }
}

fn share(proportion: Option<f64>) -> String {
    proportion.map_or_else(|| "–".into(), |proportion| format!("{proportion:.6}"))
}

pub(super) fn time(score: Score) -> String {
    score.finite().map_or_else(|| "∞".into(), duration)
}

/// Formats nanoseconds exactly, in the unit that makes them short.
pub(super) fn duration(nanos: u64) -> String {
    let (unit, size, digits) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => ("µs", 1_000, 3),
        1_000_000..1_000_000_000 => ("ms", 1_000_000, 6),
        _ => ("s", 1_000_000_000, 9),
    };
    let fraction = format!("{:0digits$}", nanos % size);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction} {unit}", nanos / size)
}
