//! Bytes of a peer before they are messages: greetings, frames, datagrams.

use quorate_runtime::fuzzing;

/// Feeds the input to the greeting or to the frames of a link, depending on its first byte.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    match choice % 2 {
        0 => fuzzing::greeting(bytes),
        _ => fuzzing::stream(bytes),
    }
}
