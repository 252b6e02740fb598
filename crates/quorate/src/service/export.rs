//! Export and import: a service's state leaves one set and enters another.
//!
//! **Out.** An export is a copy of a replica's state. It holds no change that may still be reverted: if some
//! changes in the copy are not chosen yet, the export waits until they are chosen. If the reign ends first,
//! the replica makes another copy. A leader's export holds all changes that were answered before; another
//! replica may lag behind.
//!
//! **In.** A restored set is a newly founded set with another id, so no process confuses it with the old set.
//! All its replicas begin in the service's first state, as usual. The exported state is the first change of
//! its log. The change is cut into parts that fit into messages, so joiners and disks need no special case.
//! Only the founder's own host can add these parts to the log: the host requests each part with a random
//! word. Until the log has the last part, calls are rejected. If a service's log carries whole states, the
//! exported state is the first of them.
//!
//! **The file** has a first line with its kind, and a print of all bytes after it. Then come the name of the
//! service and the set, and the state. The file is first written under a temporary name, and renamed when it
//! is durable.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_roles::services::{StatePart, join_state, split_state};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::Error;

/// The state of a service, copied from a replica by [`Node::export`](crate::Node::export).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    head: ExportHead,
    state: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ExportHead {
    name: String,
    set: u64,
    led: bool,
    changes: u64,
    clock: u64,
}

impl Export {
    /// Makes an export from a replica's copy of its state. Returns `None` if that state is being restored.
    pub(super) fn of_copy(name: &str, set: u64, led: bool, copy: &Bytes) -> Option<Export> {
        if StatePart::is(copy) {
            return None;
        }
        let (clock, changes, state) = split_state(copy)?;
        let head = ExportHead { name: name.to_owned(), set, led, changes, clock };
        Some(Export { head, state: copy.slice_ref(state) })
    }

    /// Returns the name of the exported service.
    pub fn name(&self) -> &str {
        &self.head.name
    }

    /// Returns the random number of the exported set.
    pub fn set(&self) -> u64 {
        self.head.set
    }

    /// Whether the replica led. In that case the export holds all changes that were answered before the
    /// export was requested.
    pub fn led(&self) -> bool {
        self.head.led
    }

    /// Returns the number of changes that the export holds.
    pub fn changes(&self) -> u64 {
        self.head.changes
    }

    /// Returns the state in bytes, as `postcard` encodes it.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Writes the export to a file, completely and durably. After a failure the path has the former file, or
    /// the complete new file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::file(path, error);
        let beside = path.with_extension("part");
        let mut file = File::create(&beside).map_err(failed)?;
        file.write_all(&self.encode()).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|place| place.sync_all()).map_err(failed)
    }

    /// Reads the export from a file. Fails if the file is damaged.
    pub fn read(path: &Path) -> Result<Export, Error> {
        let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
        Export::decode(bytes.into()).map_err(|why| Error::file(path, why))
    }

    /// Encodes the export as the content of a file.
    pub fn encode(&self) -> Bytes {
        let head = postcard::to_stdvec(&self.head).expect("a name and numbers serialise");
        let mut body = BytesMut::with_capacity(head.len() + self.state.len() + 4);
        body.put_u32_le(head.len() as u32);
        body.put_slice(&head);
        body.put_slice(&self.state);
        let mut bytes = BytesMut::with_capacity(FIRST_LINE.len() + 16 + body.len());
        bytes.put_slice(FIRST_LINE);
        bytes.put_u128_le(xxh3_128(&body));
        bytes.put_slice(&body);
        bytes.freeze()
    }

    /// Decodes the content of a file. The error is a text for the user.
    pub fn decode(mut bytes: Bytes) -> Result<Export, String> {
        if !bytes.starts_with(FIRST_LINE) {
            return Err(String::from(
                "the data is not an export of a service, or was written by another version",
            ));
        }
        bytes.advance(FIRST_LINE.len());
        if bytes.len() < 20 || bytes.get_u128_le() != xxh3_128(&bytes) {
            return Err(String::from("the export is damaged, or cut off"));
        }
        let length = bytes.get_u32_le() as usize;
        if bytes.len() < length {
            return Err(String::from("the export is damaged"));
        }
        let head = bytes.split_to(length);
        let head = postcard::from_bytes(&head).map_err(|error| error.to_string())?;
        Ok(Export { head, state: bytes })
    }

    /// Returns the changes that restore the state: its parts, or the whole state as one change.
    pub(super) fn parts(&self, whole: bool) -> Vec<Bytes> {
        let ExportHead { clock, changes, .. } = self.head;
        match whole {
            true => vec![join_state(clock, changes, &self.state)],
            false => StatePart::cut(clock, &self.state),
        }
    }
}

const FIRST_LINE: &[u8] = b"quorate service export 1\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn export(bytes: usize) -> Export {
        let state: Vec<u8> = (0..bytes).map(|byte| (byte % 251) as u8).collect();
        let head = ExportHead { name: String::from("bank"), set: 7, led: true, changes: 9, clock: 11 };
        Export { head, state: state.into() }
    }

    #[test]
    fn a_file_survives_writing_and_reading_and_damage_is_reported() {
        let place = tempfile::tempdir().unwrap();
        let (path, export) = (place.path().join("bank.export"), export(1000));
        export.write(&path).unwrap();
        assert_eq!(Export::read(&path), Ok(export));
        let mut bytes = fs::read(&path).unwrap();
        for place in [0, 30, 100, bytes.len() - 1] {
            bytes[place] ^= 1;
            assert!(Export::decode(bytes.clone().into()).is_err(), "byte {place}");
            bytes[place] ^= 1;
        }
        for length in 0..bytes.len() {
            assert!(Export::decode(Bytes::copy_from_slice(&bytes[..length])).is_err(), "{length} bytes");
        }
    }
}
