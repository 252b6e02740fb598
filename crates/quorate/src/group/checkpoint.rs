//! The checkpoint file of a group. It holds the group's state while the group has no members.
//!
//! **Promise.** A file is always complete. It has the state of the group at the beginning of a view; a save
//! in progress leaves the former state in it. Once a save has been answered, the file is durable and the
//! routers know of it. From then on no member begins with an older file, except on request
//! ([`Group::give_up_newer_checkpoint`](super::Group::give_up_newer_checkpoint)).
//!
//! **Source.** 000 §6: a persistent group has a checkpoint in a file. A reader of the file can join, because
//! the group's key is in it.
//!
//! **When.** A member with a file saves when any member calls [`Member::save`](super::Member::save), and
//! before it leaves in order. A member that is leaving in order sends nothing after its save. So the last
//! member to leave has saved the whole state, and the routers know of the file before the group is empty. A
//! member does not save at every view. Other views begin because members die or join, and then all members
//! would write when they are busiest. The program decides how much may be lost, for example by calling `save`
//! on a timer.
//!
//! **How.** The delivery thread takes the object's checkpoint between two updates, at the place that the
//! protocol names ([`Event::Keep`]). The thread of the file writes the checkpoint to a temporary neighbour
//! that only the owner can read, syncs and renames this neighbour, and syncs the directory. Then the thread
//! informs the routers. At most one save waits while an earlier save is being written. A newer save replaces
//! the waiting save, and its result answers both.
//!
//! ```text
//!   quorate group checkpoint, format 1 ⏎ │ length │ print │ head │ the object
//!   head: domain, group, mark, signature, keys, locks
//! ```
//!
//! **Attacks considered.**
//! - *Power fails during a write:* the former file is in its place. The unfinished neighbour disturbs nobody.
//! - *The file is durable, and the routers never hear of it:* the file is newer than the checkpoint that the
//!   routers know, so they accept it.
//! - *A file that is cut off, changed, of a later build, or of another domain, group, type or key:* such a
//!   file is refused before a member begins with it, and before a save could replace it. The key is compared
//!   only when a member needs the state in the file. If the group has members, a save replaces an old file
//!   with a former key.
//! - *Two programs use the same file:* the second program is refused.
//! - *A key that others may read:* a file with a key is refused if others than its owner may read it.
//!
//! [`Event::Keep`]: quorate_protocol::group::Event::Keep

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    DomainId,
    group::{Locks, Mark},
    wire::{decode_body, encode_body},
};
use quorate_runtime::chance;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{Key, Object, Snapshot, key::Secrets, signature::Signature};
use crate::error::Error;

/// The content of a checkpoint file that precedes the object's bytes.
#[derive(Serialize, Deserialize)]
pub(super) struct CheckpointHead {
    pub(super) domain: DomainId,
    pub(super) group: String,
    pub(super) mark: Mark,
    pub(super) signature: Signature,
    /// The group's keys, if it has any.
    pub(super) secrets: Option<Secrets>,
    pub(super) locks: Locks,
}

/// The bytes before the format's number.
const FIRST_WORDS: &[u8] = b"quorate group checkpoint, format ";
/// The number of the only format so far.
const FORMAT: &[u8] = b"1";
/// Upper bound of a format's number, in bytes.
const FORMAT_BYTES_MAX: usize = 8;
/// Size of the content's length and checksum, which precede the content, in bytes.
const LENGTH_BYTES: usize = 8 + 16;

/// Encodes a checkpoint as the content of a file.
pub(super) fn encode(head: &CheckpointHead, object: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(1024 + object.len());
    encode_body(&mut body, head);
    body.put_slice(object);
    let mut bytes = BytesMut::with_capacity(FIRST_WORDS.len() + 2 + LENGTH_BYTES + body.len());
    bytes.put_slice(FIRST_WORDS);
    bytes.put_slice(FORMAT);
    bytes.put_u8(b'\n');
    bytes.put_u64_le(body.len() as u64);
    bytes.put_u128_le(xxh3_128(&body));
    bytes.put_slice(&body);
    bytes.freeze()
}

/// Decodes a checkpoint: its head, and the bytes of the object.
fn decode(mut bytes: Bytes) -> Result<(CheckpointHead, Bytes), String> {
    if !bytes.starts_with(FIRST_WORDS) {
        return Err(String::from("this file is not a checkpoint of a group"));
    }
    bytes.advance(FIRST_WORDS.len());
    let end = bytes.iter().take(FORMAT_BYTES_MAX).position(|byte| *byte == b'\n');
    let format = bytes.split_to(end.ok_or("this checkpoint is cut off, or damaged")?);
    if format != FORMAT {
        let format = String::from_utf8_lossy(&format).into_owned();
        return Err(format!(
            "this checkpoint has format {format}, and this program reads format 1: use a newer program"
        ));
    }
    bytes.advance(1);
    if bytes.len() < LENGTH_BYTES {
        return Err(String::from("this checkpoint is cut off"));
    }
    let (length, print) = (bytes.get_u64_le(), bytes.get_u128_le());
    if (bytes.len() as u64) < length {
        return Err(format!("this checkpoint is cut off: only {} of {length} bytes are left", bytes.len()));
    }
    if bytes.len() as u64 > length || xxh3_128(&bytes) != print {
        return Err(String::from("this checkpoint is damaged: its checksum does not match"));
    }
    let head = decode_body(&mut bytes).map_err(|error| format!("this checkpoint is damaged: {error}"))?;
    Ok((head, bytes))
}

/// Decodes the input as a checkpoint file, and as the body of a checkpoint file with a correct checksum. This
/// is the entry point of the fuzz target `checkpoints`.
pub(crate) fn fuzz_checkpoint(input: &[u8]) {
    let _ = decode(Bytes::copy_from_slice(input));
    let mut file = BytesMut::from([FIRST_WORDS, FORMAT, b"\n"].concat().as_slice());
    file.put_u64_le(input.len() as u64);
    file.put_u128_le(xxh3_128(input));
    file.put_slice(input);
    if let Ok((head, object)) = decode(file.freeze()) {
        let again = decode(encode(&head, &object)).map(|(_, object)| object);
        assert_eq!(again, Ok(object));
    }
}

/// Returns the bytes of a file, or `None` if there is no file.
fn contents(path: &Path) -> Result<Option<Bytes>, Error> {
    let failed = |error: io::Error| Error::file(path, error);
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(about) if !about.is_file() => return Err(Error::file(path, "this is not a regular file")),
        Ok(_) => {}
    }
    fs::read(path).map(|bytes| Some(bytes.into())).map_err(failed)
}

/// Writes a file completely and durably. After a failure the path has the former file, or the complete new
/// file.
pub(super) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{:016x}.unfinished", chance::incarnation().0 as u64));
    let beside = PathBuf::from(beside);
    let written = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&beside);
    let written = written.and_then(|mut file| write(&mut file).and_then(|()| file.sync_all()));
    if let Err(error) = written.and_then(|()| fs::rename(&beside, path)) {
        // The temporary file may not exist.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

/// A group's state from its checkpoint file, for a member that may be the first to come back to an empty
/// group.
pub(super) struct Loaded<R> {
    pub(super) mark: Mark,
    pub(super) object: R,
    pub(super) locks: Locks,
    pub(super) secrets: Option<Secrets>,
    path: PathBuf,
}

impl<R: Object> Loaded<R> {
    /// Reads the checkpoint file, for a member that brings the object `brought` along. Returns `None` if
    /// there is no file. Waits for the disk.
    pub(super) fn read(
        path: &Path,
        domain: DomainId,
        group: &str,
        brought: &R,
    ) -> Result<Option<Loaded<R>>, Error> {
        let Some(bytes) = contents(path)? else { return Ok(None) };
        let (head, object) = decode(bytes).map_err(|why| Error::file(path, why))?;
        let strange = |why: String| Err(Error::mismatch(subject(path), why));
        if head.domain != domain {
            return strange(format!(
                "the file belongs to the domain {:?}, and the routers belong to the domain {domain:?}",
                head.domain
            ));
        }
        if head.group != group {
            return strange(format!(
                "the file belongs to the group `{}`, and not to the group `{group}`",
                head.group
            ));
        }
        if let Some(why) = Signature::of(brought).differs(&head.signature) {
            return strange(why);
        }
        if head.secrets.is_some() {
            let mode = fs::metadata(path).map_err(|error| Error::file(path, error))?.mode();
            if mode & 0o077 != 0 {
                return Err(Error::file(
                    path,
                    "other users can read the group's key in this file: run chmod 600 on the file, and \
                     change the key",
                ));
            }
        }
        let object = brought.restore(&Snapshot::of_bytes(object));
        let object = object.map_err(|corrupt| Error::mismatch(subject(path), corrupt))?;
        let CheckpointHead { mark, locks, secrets, .. } = head;
        Ok(Some(Loaded { mark, object, locks, secrets, path: path.to_owned() }))
    }

    /// Returns the group's key that the file contains.
    pub(super) fn key(&self) -> Option<&Key> {
        self.secrets.as_ref().and_then(Secrets::key)
    }

    /// Checks whether a member with the key `given` may begin with this state. A member without a key takes
    /// the file's key.
    pub(super) fn check_key(&self, given: Option<&Key>) -> Result<(), Error> {
        let why = match (given, self.key()) {
            (None, _) => return Ok(()),
            (Some(given), Some(own)) if given == own => return Ok(()),
            (Some(given), Some(own)) => {
                format!(
                    "the file has the group's key {}, and this member was given the key {}",
                    own.id(),
                    given.id()
                )
            }
            (Some(given), None) => format!(
                "the group had no key when this checkpoint was saved, and this member was given the key \
                     {}",
                given.id()
            ),
        };
        Err(Error::mismatch(subject(&self.path), why))
    }
}

fn subject(path: &Path) -> String {
    format!("the checkpoint {}", path.display())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use quorate_protocol::ecast::Position;

    use super::*;
    use crate::group::{Answer, Corrupt, Origin, Replica, Share};

    struct Sum(u64);

    impl Replica for Sum {
        const NAME: &'static str = "sum/1";
        type Update = u64;
        type Query = ();
        type Reply = ();

        fn apply(&mut self, update: u64, _: &Origin) {
            self.0 += update;
        }
        fn query(&self, (): (), _: Share) -> Answer<()> {
            Answer::Declined
        }
        fn checkpoint(&self) -> Snapshot {
            Snapshot::of(&self.0)
        }
        fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
            snapshot.read().map(Sum)
        }
    }

    const DOMAIN: DomainId = DomainId(7);

    fn head(secrets: Option<Secrets>) -> CheckpointHead {
        let mark = Mark { life: 1, view: Position(9) };
        let (group, signature) = (String::from("sums"), Signature::of(&Sum(0)));
        CheckpointHead { domain: DOMAIN, group, mark, signature, secrets, locks: Locks::default() }
    }

    fn put(path: &Path, bytes: &[u8]) {
        replace(path, |file| file.write_all(bytes)).unwrap();
    }

    fn read(path: &Path) -> Result<Option<Loaded<Sum>>, Error> {
        Loaded::read(path, DOMAIN, "sums", &Sum(0))
    }

    fn why(read: Result<Option<Loaded<Sum>>, Error>) -> String {
        match read {
            Err(error) => error.to_string(),
            Ok(loaded) => panic!("it was read: {:?}", loaded.map(|loaded| loaded.object.0)),
        }
    }

    #[test]
    fn a_file_survives_writing_and_reading_and_damage_is_reported() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sums.ckpt");
        assert!(read(&path).unwrap().is_none(), "there is none");
        let bytes = encode(&head(None), &postcard::to_stdvec(&42_u64).unwrap());
        put(&path, &bytes);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let loaded = read(&path).unwrap().unwrap();
        assert_eq!((loaded.object.0, loaded.mark), (42, head(None).mark));
        for length in 0..bytes.len() {
            assert!(decode(bytes.slice(..length)).is_err(), "{length} bytes");
        }
        for place in 0..bytes.len() {
            let mut rotten = bytes.to_vec();
            rotten[place] ^= 1;
            assert!(decode(rotten.into()).is_err(), "byte {place}");
        }
        assert!(decode([&bytes[..], b"x"].concat().into()).is_err(), "a byte too many");
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(why(read(&path)).contains("cut off"));
        fs::write(&path, String::from_utf8_lossy(&bytes).replace("format 1", "format 2")).unwrap();
        assert!(why(read(&path)).contains("format 2"));
        assert!(why(read(place.path())).contains("not a regular file"));
        let names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["sums.ckpt"], "nothing is left beside it");
    }

    #[test]
    fn a_file_of_another_domain_group_or_type_is_refused_with_both() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sums.ckpt");
        put(&path, &encode(&head(None), &postcard::to_stdvec(&42_u64).unwrap()));
        let domain = why(Loaded::read(&path, DomainId(8), "sums", &Sum(0)));
        assert!(domain.contains(&format!("{DOMAIN:?}")) && domain.contains(&format!("{:?}", DomainId(8))));
        let group = why(Loaded::read(&path, DOMAIN, "others", &Sum(0)));
        assert!(group.contains("`sums`") && group.contains("`others`"), "{group}");
        let mut strange = head(None);
        strange.signature.name = String::from("product/1");
        put(&path, &encode(&strange, &[]));
        let kind = why(read(&path));
        assert!(kind.contains("product/1") && kind.contains("sum/1"), "{kind}");
        put(&path, &encode(&head(None), b""));
        assert!(matches!(read(&path), Err(Error::Mismatch { .. })), "its object does not decode");
    }

    #[test]
    fn a_checkpoint_file_with_a_key_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;

        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sums.ckpt");
        let (key, other) = (Key::generate(), Key::generate());
        let secrets = Secrets { keys: vec![other.clone(), key.clone()], seen: Vec::new() };
        put(&path, &encode(&head(Some(secrets)), &postcard::to_stdvec(&42_u64).unwrap()));
        let loaded = read(&path).unwrap().unwrap();
        assert_eq!(loaded.key(), Some(&key), "the one that was sealed with last");
        assert!(loaded.check_key(None).is_ok() && loaded.check_key(Some(&key)).is_ok());
        let refused = loaded.check_key(Some(&other)).unwrap_err().to_string();
        assert!(refused.contains(&key.id().to_string()) && refused.contains(&other.id().to_string()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(why(read(&path)).contains("other users can read"));
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_former_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("sums.ckpt");
        put(&path, b"former");
        let full = |file: &mut File| file.write_all(b"ne").and(Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(replace(&path, full).unwrap_err().kind(), io::ErrorKind::StorageFull);
        // Two paths at which no file can be written: a path below a file, and the path of a directory.
        let whole = |file: &mut File| file.write_all(b"new");
        assert!(replace(&path.join("below"), whole).is_err());
        fs::create_dir(place.path().join("taken")).unwrap();
        assert!(replace(&place.path().join("taken"), whole).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"former");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "nothing is left beside it");
    }
}
