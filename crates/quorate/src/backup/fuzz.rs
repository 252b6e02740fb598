//! The entry point of the fuzz target `backups`.

use super::file::{Contents, Next, Reader, Writer};

/// Reads the input as a backup, and as the sections of a backup with correct checksums.
pub(crate) fn fuzz(input: &[u8]) {
    read(input);
    if let Some(file) = checksummed(input) {
        read(&file);
    }
}

fn read(file: &[u8]) {
    let Ok(mut reader) = Reader::open(file) else { return };
    while let Ok(Next::Rows { .. }) = reader.next() {}
}

/// Makes a backup whose sections have correct checksums. In the input, each section begins with its kind and
/// its length in bytes.
fn checksummed(input: &[u8]) -> Option<Vec<u8>> {
    let (contents, mut rest) = postcard::take_from_bytes::<Contents>(input).ok()?;
    let mut file = Vec::new();
    let mut writer = Writer::begin(&mut file, &contents).expect("memory can be written");
    while let [kind, length, more @ ..] = rest {
        let section = &more[..usize::from(*length).min(more.len())];
        writer.section(*kind, section).expect("memory can be written");
        rest = &more[section.len()..];
    }
    drop(writer);
    Some(file)
}
