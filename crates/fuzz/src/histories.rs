//! Recorded histories, in the format that the first byte chooses.

use quorate_history::{
    History,
    format::{Format, Reader, edn::FailedCas},
    transactions::{PositionReplay, TransactionHistory, judge},
};

/// Reads a history as `quorate check` does. If a bit of the first byte is set and the format has
/// transactions, the input is read as a history of transactions, and judged, too.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let format = [Format::Json, Format::Text, Format::Edn, Format::Watca][usize::from(*choice) % 4];
    if choice & TRANSACTIONS != 0 && format.transaction_decoder().is_some() {
        return transactions(format, bytes);
    }
    let mut history = History::default();
    let mut reader = Reader::new("history", bytes, format.decoder(FailedCas::default()));
    if let Err(error) = reader.read_into(&mut history) {
        assert!(!error.to_string().is_empty());
    }
    if let Some(line) = bytes.split(|byte| *byte == b'\n').next().and_then(|line| str::from_utf8(line).ok()) {
        Format::detect(line);
    }
}

/// The bit of the first byte that asks for transactions.
const TRANSACTIONS: u8 = 0x80;

fn transactions(format: Format, bytes: &[u8]) {
    let reader = || format.transaction_decoder().map(|decoder| Reader::new("history", bytes, decoder));
    let (mut history, mut replay) = (TransactionHistory::new(), PositionReplay::new(4));
    if let Some(Err(error)) = reader().map(|mut it| it.read_transactions(|one| history.push(&one))) {
        assert!(!error.to_string().is_empty());
    }
    if let Ok(report) = judge(&history) {
        assert!(!report.to_string().is_empty());
    }
    let replayed = reader().map(|mut it| it.read_transactions(|one| replay.push(one)));
    if let (Some(Ok(())), Ok(report)) = (replayed, replay.finish()) {
        assert!(!report.to_string().is_empty());
    }
}
