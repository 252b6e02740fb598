//! Judges a history of transactions: infers edges and anomalies, finds cycles, and makes the report.

use super::cycles;
use super::explanation::explain;
use super::history::{KeyKind, RefusedTransaction, TransactionHistory};
use super::inference::Inference;
use super::report::{AnomalyReport, TransactionReport};
use super::{internal, lists, registers};

/// Judges a history of transactions.
pub fn judge(history: &TransactionHistory) -> Result<TransactionReport, RefusedTransaction> {
    let mut all = Inference::new(history);
    let (first, steps) = by_key(history);
    for (key, log) in (0..).zip(&history.keys) {
        let steps = &steps[first[key as usize]..first[key as usize + 1]];
        match log.kind {
            Some(KeyKind::List) => lists::infer(&mut all, key, steps)?,
            Some(KeyKind::Register) => registers::infer(&mut all, key, steps)?,
            None => {} // all reads found nothing, and nobody wrote
        }
    }
    internal::infer(&mut all);
    all.order_of_time();
    let (graph, committed, mut anomalies) = all.into_parts();
    let graph = graph.finish();
    for (anomaly, cycle) in cycles::find(&graph) {
        let (transactions, because) = explain(history, &cycle);
        let transactions = transactions.into_iter().map(|one| history.text(one)).collect();
        let refutes = anomaly.refutes();
        anomalies.push(AnomalyReport { anomaly, refutes, count: 1, transactions, because });
    }
    let judged = committed.iter().filter(|committed| **committed).count() as u64;
    Ok(TransactionReport::new(judged, history.keys.len() as u64, anomalies))
}

/// Returns the numbers of all steps, sorted by key and ascending within a key. The first result holds the
/// index at which the numbers of each key begin.
fn by_key(history: &TransactionHistory) -> (Vec<usize>, Vec<u32>) {
    let mut first = vec![0usize; history.keys.len() + 1];
    for step in &history.steps {
        first[step.key as usize + 1] += 1;
    }
    for key in 1..first.len() {
        first[key] += first[key - 1];
    }
    let mut next = first.clone();
    let mut steps = vec![0u32; history.steps.len()];
    for (number, step) in (0..).zip(&history.steps) {
        let place = &mut next[step.key as usize];
        steps[*place] = number;
        *place += 1;
    }
    (first, steps)
}
