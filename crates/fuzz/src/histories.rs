//! Recorded histories, in the format that the first byte chooses.

use quorate_history::{
    History,
    format::{Format, Reader, edn::FailedCas},
};

/// Reads a history as `quorate check` does.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let format = [Format::Json, Format::Text, Format::Edn, Format::Watca][usize::from(*choice) % 4];
    let mut history = History::default();
    let mut reader = Reader::new("history", bytes, format.decoder(FailedCas::default()));
    if let Err(error) = reader.read_into(&mut history) {
        assert!(!error.to_string().is_empty());
    }
    if let Some(line) = bytes.split(|byte| *byte == b'\n').next().and_then(|line| str::from_utf8(line).ok()) {
        Format::detect(line);
    }
}
