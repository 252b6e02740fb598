//! The owner of a directory, in a small file that a person can read.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use bytes::Bytes;
use quorate_protocol::{
    DomainId, Incarnation, ProcessId, Ticket,
    journal::{Key, Owner, Start, StartHistory},
    seam::PASS_BYTES_MAX,
};
use xxhash_rust::xxh3::xxh3_64;

use super::{Files, OpenError};

/// The owner of a directory, and other small state that survives restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) domain: DomainId,
    pub(crate) process: ProcessId,
    /// The pass that the process shows; `None` while it shows its first pass.
    pub(crate) pass: Option<Bytes>,
    /// The highest reserved number of a greeting. Greetings with numbers up to it may have been sent.
    pub(crate) numbers: u32,
    /// The starts of the process, the present start included.
    pub(crate) starts: StartHistory,
    /// The key of the journal; `None` in a directory of an earlier format.
    pub(crate) key: Option<Key>,
}

/// Number of greetings that one reservation covers.
pub(crate) const NUMBERS_RESERVED: u32 = 8192;

/// The version of the directory's format.
const FORMAT: u32 = 4;
/// The earliest format that this build reads. Format 2 has no starts, and format 3 has no key.
const FORMAT_MIN: u32 = 2;
const NAME: &str = "identity";
const LOCK: &str = "lock";

impl Identity {
    /// Returns the identity of a new process.
    pub(super) fn new(domain: DomainId, process: ProcessId, key: Key) -> Identity {
        let (numbers, starts) = (NUMBERS_RESERVED, StartHistory::default());
        Identity { domain, process, pass: None, numbers, starts, key: Some(key) }
    }

    pub(super) fn owner(&self) -> Owner {
        Owner { domain: self.domain, process: self.process }
    }

    /// Returns this identity with `count` more reserved numbers, or `None` if there are not enough numbers
    /// left.
    pub(crate) fn reserved(&self, count: u32) -> Option<Identity> {
        // The highest bit is free for the sessions of relayed links.
        let numbers = self.numbers.checked_add(count).filter(|numbers| *numbers < 1 << 31)?;
        Some(Identity { numbers, ..self.clone() })
    }

    pub(crate) fn write(&self, files: &mut dyn Files) -> io::Result<()> {
        files.replace(NAME, self.encode().as_bytes())
    }

    /// Reads the owner of the directory. An unreadable owner counts as absent, because no process can
    /// continue under that identity.
    pub(super) fn read(
        files: &mut dyn Files,
        directory: &Path,
        domain: DomainId,
        node: u64,
    ) -> Result<Option<Identity>, OpenError> {
        if !files.list().map_err(OpenError::System)?.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        let bytes = files.read(NAME).map_err(OpenError::System)?;
        match Identity::decode(&String::from_utf8_lossy(&bytes)) {
            Read::Newer(version) => Err(OpenError::Newer { directory: directory.to_owned(), version }),
            Read::Whole(found) if (found.domain, found.process.node) != (domain, node) => {
                Err(OpenError::Foreign {
                    directory: directory.to_owned(),
                    owner: found.owner(),
                    domain,
                    node,
                })
            }
            Read::Whole(found) => Ok(Some(found)),
            Read::Damaged => Ok(None),
        }
    }

    fn encode(&self) -> String {
        self.encode_as(FORMAT)
    }

    fn encode_as(&self, format: u32) -> String {
        let mut body = format!(
            "quorate directory, format {format}\ndomain {:032x}\nnode {}\nincarnation {:032x}\npass {}\n\
             numbers {}\n",
            self.domain.0,
            self.process.node,
            self.process.incarnation.0,
            self.pass.as_ref().map_or(String::from("as it began"), |pass| format!("{pass:02x}")),
            self.numbers
        );
        if let Some(Key { secret, since }) = self.key {
            body.push_str(&format!("key {secret:016x} {since}\n"));
        }
        for Start { number, mark, began } in self.starts.iter() {
            body.push_str(&format!("start {number} {mark:016x} {}\n", began.0));
        }
        format!("{body}checksum {:016x}\n", xxh3_64(body.as_bytes()))
    }

    fn decode(text: &str) -> Read {
        let version = text.lines().next().and_then(|line| line.strip_prefix("quorate directory, format "));
        let version = match version.and_then(|version| version.parse::<u32>().ok()) {
            Some(version) if version > FORMAT => return Read::Newer(version),
            Some(version) if version >= FORMAT_MIN => version,
            _ => return Read::Damaged,
        };
        let found = Identity::parse(text).filter(|found| found.encode_as(version) == text);
        found.map_or(Read::Damaged, Read::Whole)
    }

    fn parse(text: &str) -> Option<Identity> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let hex = |digits: &str| u128::from_str_radix(digits, 16).ok();
        Some(Identity {
            domain: DomainId(hex(value("domain")?)?),
            process: ProcessId {
                node: value("node")?.parse().ok()?,
                incarnation: Incarnation(hex(value("incarnation")?)?),
            },
            pass: match value("pass")? {
                "as it began" => None,
                digits => Some(pass(digits)?),
            },
            numbers: value("numbers")?.parse().ok()?,
            starts: StartHistory::of(
                text.lines().filter_map(|line| line.strip_prefix("start ")).map_while(start),
            )?,
            key: value("key").and_then(key),
        })
    }
}

/// Parses a start. An unreadable line ends the list, and the checksum then fails.
fn start(line: &str) -> Option<Start> {
    let mut words = line.split(' ');
    Some(Start {
        number: words.next()?.parse().ok()?,
        mark: u64::from_str_radix(words.next()?, 16).ok()?,
        began: Ticket(words.next()?.parse().ok()?),
    })
}

/// Parses a key. An unreadable line gives no key, and the checksum then fails.
fn key(words: &str) -> Option<Key> {
    let (secret, since) = words.split_once(' ')?;
    Some(Key { secret: u64::from_str_radix(secret, 16).ok()?, since: since.parse().ok()? })
}

fn pass(digits: &str) -> Option<Bytes> {
    let digits: Vec<u8> =
        digits.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect::<Option<_>>()?;
    let is_one = digits.len().is_multiple_of(2) && digits.len() <= 2 * PASS_BYTES_MAX;
    is_one.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

enum Read {
    Whole(Identity),
    Newer(u32),
    Damaged,
}

/// Locks a directory for this process. The system releases the lock when the process ends.
pub(super) fn lock(directory: &Path) -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(directory.join(LOCK)).map_err(OpenError::System)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(OpenError::Locked {
                directory: directory.to_owned(),
                pid: holder.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(OpenError::System(error)),
    }
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(OpenError::System)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            domain: DomainId(0xd0),
            process: ProcessId { node: 3, incarnation: Incarnation(0x1c << 120) },
            pass: Some(Bytes::from_static(b"\x00pass\xff")),
            numbers: 16_384,
            starts: StartHistory::of([(7, 1 << 60, 3), (8, 2, 1 << 40)].map(|(number, mark, began)| Start {
                number,
                mark,
                began: Ticket(began),
            }))
            .unwrap(),
            key: Some(Key { secret: 1 << 50, since: 3 }),
        }
    }

    #[test]
    fn an_identity_survives_writing_and_reading() {
        for pass in [None, Some(Bytes::new()), identity().pass] {
            let written = Identity { pass, ..identity() };
            assert!(matches!(Identity::decode(&written.encode()), Read::Whole(read) if read == written));
        }
    }

    /// A damaged identity file has no owner. The test flips each byte in turn, and cuts the text at each
    /// length.
    #[test]
    fn a_damaged_identity_has_no_owner() {
        let text = identity().encode();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let read = Identity::decode(&String::from_utf8_lossy(&bytes));
            assert!(!matches!(read, Read::Whole(_)), "{at}");
            assert!(matches!(Identity::decode(&text[..at]), Read::Damaged), "{at}");
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let text = identity().encode().replace("format 4", "format 5");
        assert!(matches!(Identity::decode(&text), Read::Newer(5)));
    }

    /// Identity files of formats 2 and 3, as earlier versions wrote them, are still read.
    #[test]
    fn the_formats_before_are_read() {
        let text = "quorate directory, format 2\ndomain 000000000000000000000000000000d0\nnode 3\n\
                    incarnation 1c000000000000000000000000000000\npass 0070617373ff\nnumbers 16384\n\
                    checksum aa55188a48a8ca15\n";
        let before = Identity { starts: StartHistory::default(), key: None, ..identity() };
        assert_eq!(before.encode_as(2), text);
        assert!(matches!(Identity::decode(text), Read::Whole(read) if read == before));
        let text = "quorate directory, format 3\ndomain 000000000000000000000000000000d0\nnode 3\n\
                    incarnation 1c000000000000000000000000000000\npass 0070617373ff\nnumbers 16384\n\
                    start 7 1000000000000000 3\nstart 8 0000000000000002 1099511627776\n\
                    checksum f0e00374f3cc97ea\n";
        let before = Identity { key: None, ..identity() };
        assert_eq!(before.encode_as(3), text);
        assert!(matches!(Identity::decode(text), Read::Whole(read) if read == before));
    }

    #[test]
    fn numbers_end() {
        let all = Identity { numbers: (1 << 31) - 1, ..identity() };
        assert_eq!(all.reserved(1), None);
    }
}
