//! Keys of groups: what members say to each other is sealed with AES-256-GCM, and only who has the key can be one.
//!
//! **Promise.** Of a group with a key, neither routers nor who listens on the wire learns updates, queries, replies, names of locks or
//! states. A process without the key joins no further than being told so. What was changed on its way is not applied, and what a
//! sender said once is not applied again.
//!
//! **Source.** 000 §5 (a group's key in its checkpoint file, AES-256).
//!
//! **How.** Each sender has a key of its own, `HMAC-SHA256(group's key, group, process)`, so that no two processes ever seal with one nonce. A
//! sender's nonce is a number that grows from message to message, and four random bytes of this membership. All messages of one
//! sender are delivered in its order, everywhere, so a number that is not above the last one was said before: it is refused and counted,
//! at all members alike, and who joins is given the numbers with the state. The plain head of a message (its kind, and the number of a
//! query) is authenticated with it, as is the group.
//!
//! **Rotation.** A new key travels sealed with the former, as a safe message: behind its place its members seal with the new one. What was sealed
//! before is opened with the former, which is kept for as long as the member lives. Members have the new key at different moments, so
//! nothing that is sealed with it may come before it: ordered and safe messages are behind it in the order, soft ones are told to follow it
//! ([`Command::Follow`]), and who asked waits for the key if a reply is ahead of it.
//!
//! [`Command::Follow`]: quorate_protocol::group::Command::Follow
//!
//! **What is not hidden:** who is in a group, its name, how long messages are and when they are sent. Who has the key can say anything in
//! anybody's name.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use aes_gcm::{
    Aes256Gcm, Nonce,
    aead::{Aead as _, Payload},
};
use bytes::{BufMut, Bytes, BytesMut};
use hmac::{Hmac, KeyInit as _, Mac as _};
use quorate_protocol::{ProcessId, group::GroupId};
use quorate_runtime::chance;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::inbox::lock;
use crate::error::Error;

/// A group's key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key([u8; 32]);

impl Key {
    /// A new one, from the system's random numbers.
    pub fn generate() -> Key {
        Key(chance::secret())
    }

    /// Of these bytes, which must be random and secret.
    pub fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Its bytes, to be kept where nobody else reads them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits that it is parsed from, as secret as the key.
    pub fn to_digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A name for it that tells nothing about it: the beginning of a hash.
    pub fn id(&self) -> KeyId {
        let hash = Sha256::new().chain_update(b"quorate key id").chain_update(self.0).finalize();
        let mut head = [0; KEY_ID_BYTES];
        head.copy_from_slice(&hash[..KEY_ID_BYTES]);
        KeyId(head)
    }
}

impl FromStr for Key {
    type Err = Error;

    /// Of 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Key, Error> {
        let digits = || Error::invalid("a key is 64 hexadecimal digits");
        let text = text.trim().as_bytes();
        if text.len() != 64 {
            return Err(digits());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or_else(digits);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Ok(Key(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id())
    }
}

const KEY_ID_BYTES: usize = 8;

/// The name of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why something sealed cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// It is sealed with a key that this member does not have.
    OtherKey(KeyId),
    /// It is not what was sealed, or nothing that was.
    Damaged,
    /// Its sender said it before.
    Replayed,
}

/// A key, and what follows from it.
struct Held {
    id: KeyId,
    key: Key,
    /// By who seals.
    ciphers: FxHashMap<ProcessId, Aes256Gcm>,
}

impl Held {
    fn new(key: Key) -> Held {
        Held { id: key.id(), key, ciphers: FxHashMap::default() }
    }

    fn cipher(&mut self, group: GroupId, sender: ProcessId) -> &Aes256Gcm {
        let Held { key, ciphers, .. } = self;
        ciphers.entry(sender).or_insert_with(|| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("any length serves");
            mac.update(b"quorate group sender");
            mac.update(&group.0.to_le_bytes());
            mac.update(&sender.node.to_le_bytes());
            mac.update(&sender.incarnation.0.to_le_bytes());
            Aes256Gcm::new(&<[u8; 32]>::from(mac.finalize().into_bytes()).into())
        })
    }
}

/// A member's keys. One lock for sealing and handing over, so that numbers leave in their order.
pub(super) struct Ring {
    group: GroupId,
    me: ProcessId,
    keys: Mutex<Keys>,
    /// Messages that were said before.
    replayed: AtomicU64,
    /// Messages that nobody with the key has sealed.
    damaged: AtomicU64,
}

pub(super) struct Keys {
    /// The last one is sealed with.
    held: Vec<Held>,
    salt: [u8; SALT_BYTES],
    last: u64,
    /// The last number of each sender.
    seen: BTreeMap<ProcessId, u64>,
}

/// The secrets of a group: a member gives them to one that joins, in the sealed state, and keeps them in a file that its owner alone may read.
#[derive(Serialize, Deserialize)]
pub(super) struct Secrets {
    /// The last one is sealed with.
    pub(super) keys: Vec<Key>,
    /// The last number of each sender.
    pub(super) seen: Vec<(ProcessId, u64)>,
}

impl Secrets {
    /// The key that is sealed with.
    pub(super) fn key(&self) -> Option<&Key> {
        self.keys.last()
    }
}

const SALT_BYTES: usize = 4;
const NONCE_BYTES: usize = 8 + SALT_BYTES;
const HEAD_BYTES: usize = KEY_ID_BYTES + NONCE_BYTES;

impl Ring {
    pub(super) fn new(group: GroupId, me: ProcessId, key: Key) -> Ring {
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&chance::secret()[..SALT_BYTES]);
        // A process that joins again goes on above what it used before.
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let keys = Keys { held: vec![Held::new(key)], salt, last: began, seen: BTreeMap::new() };
        Ring { group, me, keys: Mutex::new(keys), replayed: AtomicU64::new(0), damaged: AtomicU64::new(0) }
    }

    /// The key that is sealed with.
    pub(super) fn id(&self) -> KeyId {
        lock(&self.keys).current().id
    }

    /// Messages that were said before, and such that nobody with the key sealed.
    pub(super) fn refused(&self) -> (u64, u64) {
        (self.replayed.load(Ordering::Relaxed), self.damaged.load(Ordering::Relaxed))
    }

    /// Seals what stands behind the first `head` bytes, and hands it over: what is sealed first must be sent first.
    pub(super) fn send<T>(&self, head: usize, body: &[u8], hand_over: impl FnOnce(&[u8]) -> T) -> T {
        let mut keys = lock(&self.keys);
        let sealed = keys.seal(self.group, self.me, &body[..head], &body[head..]);
        hand_over(&sealed)
    }

    /// Seals what stands behind the first `head` bytes, for one member past the order.
    pub(super) fn seal(&self, head: usize, body: &[u8]) -> Bytes {
        lock(&self.keys).seal(self.group, self.me, &body[..head], &body[head..])
    }

    /// Opens what stands behind `head`, of a message in the order of `sender`.
    pub(super) fn open_next(&self, sender: ProcessId, head: &[u8], sealed: &[u8]) -> Result<Bytes, Unopened> {
        let mut keys = lock(&self.keys);
        let opened = keys.open(self.group, sender, head, sealed).and_then(|(number, plain)| {
            let seen = keys.seen.entry(sender).or_default();
            if number <= *seen {
                return Err(Unopened::Replayed);
            }
            *seen = number;
            Ok(plain)
        });
        match opened {
            Err(Unopened::Replayed) => self.replayed.fetch_add(1, Ordering::Relaxed),
            Err(Unopened::Damaged) => self.damaged.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        opened
    }

    /// Opens what stands behind `head`, of a message that was sealed past the order.
    pub(super) fn open(&self, sender: ProcessId, head: &[u8], sealed: &[u8]) -> Result<Bytes, Unopened> {
        lock(&self.keys).open(self.group, sender, head, sealed).map(|(_, plain)| plain)
    }

    /// Seals with this key from now on, if it is another one, and has what is sealed so follow what told the key: nobody may get it
    /// before.
    pub(super) fn turn(&self, key: Key, follow: impl FnOnce()) {
        let mut keys = lock(&self.keys);
        if keys.current().key != key {
            keys.held.push(Held::new(key));
            follow();
        }
    }

    /// Whether this was sealed with a key that has not come here yet.
    pub(super) fn is_ahead(&self, sealed: &[u8]) -> bool {
        let Some((id, _)) = sealed.split_first_chunk::<KEY_ID_BYTES>() else { return false };
        lock(&self.keys).held.iter().all(|held| held.id != KeyId(*id))
    }

    /// Numbers of those who are gone are needed no more: their keys go with their names.
    pub(super) fn view(&self, is_member: impl Fn(ProcessId) -> bool) {
        let mut keys = lock(&self.keys);
        keys.seen.retain(|sender, _| is_member(*sender));
        for held in &mut keys.held {
            held.ciphers.retain(|sender, _| is_member(*sender));
        }
    }

    pub(super) fn secrets(&self) -> Secrets {
        let keys = lock(&self.keys);
        Secrets {
            keys: keys.held.iter().map(|held| held.key.clone()).collect(),
            seen: keys.seen.iter().map(|(sender, number)| (*sender, *number)).collect(),
        }
    }

    /// Takes over what a member with the state knows.
    pub(super) fn adopt(&self, secrets: Secrets) {
        let mut keys = lock(&self.keys);
        if !secrets.keys.is_empty() {
            keys.held = secrets.keys.into_iter().map(Held::new).collect();
        }
        keys.seen = secrets.seen.into_iter().collect();
    }
}

impl Keys {
    fn current(&self) -> &Held {
        self.held.last().expect("a ring has a key")
    }

    fn seal(&mut self, group: GroupId, me: ProcessId, head: &[u8], plain: &[u8]) -> Bytes {
        self.last += 1;
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&self.last.to_le_bytes());
        nonce[8..].copy_from_slice(&self.salt);
        let held = self.held.last_mut().expect("a ring has a key");
        let id = held.id;
        let sealed = held
            .cipher(group, me)
            .encrypt(&Nonce::from(nonce), Payload { msg: plain, aad: &about(group, head) })
            .expect("a message is shorter than AES-GCM allows");
        let mut out = BytesMut::with_capacity(head.len() + HEAD_BYTES + sealed.len());
        out.put_slice(head);
        out.put_slice(&id.0);
        out.put_slice(&nonce);
        out.put_slice(&sealed);
        out.freeze()
    }

    fn open(
        &mut self,
        group: GroupId,
        sender: ProcessId,
        head: &[u8],
        sealed: &[u8],
    ) -> Result<(u64, Bytes), Unopened> {
        let (id, rest) = sealed.split_first_chunk::<KEY_ID_BYTES>().ok_or(Unopened::Damaged)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(Unopened::Damaged)?;
        let id = KeyId(*id);
        let held = self.held.iter_mut().find(|held| held.id == id).ok_or(Unopened::OtherKey(id))?;
        let payload = Payload { msg: sealed, aad: &about(group, head) };
        let plain = held.cipher(group, sender).decrypt(&Nonce::from(*nonce), payload);
        let plain = plain.map_err(|_| Unopened::Damaged)?;
        let (number, _) = nonce.split_first_chunk::<8>().expect("a nonce is longer");
        Ok((u64::from_le_bytes(*number), plain.into()))
    }
}

/// Bytes that are authenticated beside the message: its group and its head.
fn about(group: GroupId, head: &[u8]) -> Vec<u8> {
    [&group.0.to_le_bytes()[..], head].concat()
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;

    const GROUP: GroupId = GroupId(7);

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(1) }
    }

    fn rings(key: &Key) -> (Ring, Ring) {
        (Ring::new(GROUP, process(1), key.clone()), Ring::new(GROUP, process(2), key.clone()))
    }

    fn sealed(ring: &Ring, body: &'static [u8]) -> Bytes {
        ring.send(1, body, Bytes::copy_from_slice)
    }

    #[test]
    fn what_is_sealed_is_opened_once_and_by_nobody_without_the_key() {
        let key = Key::generate();
        let (one, other) = rings(&key);
        let said = sealed(&one, b"\x00a secret word");
        assert!(!said.windows(6).any(|window| window == b"secret"), "it shows");
        assert_eq!(other.open_next(process(1), &said[..1], &said[1..]), Ok(Bytes::from("a secret word")));
        assert_eq!(other.open_next(process(1), &said[..1], &said[1..]), Err(Unopened::Replayed));
        // In the name of another, with another head, in another group, or changed.
        assert_eq!(other.open(process(3), &said[..1], &said[1..]), Err(Unopened::Damaged));
        assert_eq!(other.open(process(1), b"\x01", &said[1..]), Err(Unopened::Damaged));
        let elsewhere = Ring::new(GroupId(8), process(2), key.clone());
        assert_eq!(elsewhere.open(process(1), &said[..1], &said[1..]), Err(Unopened::Damaged));
        for place in 1 + KEY_ID_BYTES..said.len() {
            let mut changed = said.to_vec();
            changed[place] ^= 1;
            assert_eq!(
                other.open(process(1), &changed[..1], &changed[1..]),
                Err(Unopened::Damaged),
                "{place}"
            );
        }
        let stranger = Ring::new(GROUP, process(2), Key::generate());
        let other_key = Err(Unopened::OtherKey(key.id()));
        assert_eq!(stranger.open(process(1), &said[..1], &said[1..]), other_key);
        for length in 0..HEAD_BYTES {
            assert_eq!(
                other.open(process(1), b"\x00", &said[1..=length]),
                Err(Unopened::Damaged),
                "{length}"
            );
        }
        assert_eq!(other.refused(), (1, 0));
    }

    #[test]
    fn behind_a_new_key_what_was_sealed_before_is_still_opened() {
        let (former, new) = (Key::generate(), Key::generate());
        let (one, other) = rings(&former);
        let before = sealed(&one, b"\x00before");
        let mut followed = 0;
        one.turn(new.clone(), || followed += 1);
        one.turn(new.clone(), || followed += 1);
        assert_eq!(followed, 1, "the second time it is no other key");
        let behind = sealed(&one, b"\x00behind");
        assert_eq!(other.open(process(1), &behind[..1], &behind[1..]), Err(Unopened::OtherKey(new.id())));
        assert!(other.is_ahead(&behind[1..]) && !other.is_ahead(&before[1..]) && !other.is_ahead(b"short"));
        other.turn(new.clone(), || ());
        assert!(!other.is_ahead(&behind[1..]));
        assert_eq!(other.id(), new.id());
        assert_eq!(other.open_next(process(1), &before[..1], &before[1..]), Ok(Bytes::from("before")));
        assert_eq!(other.open_next(process(1), &behind[..1], &behind[1..]), Ok(Bytes::from("behind")));
        // Who joins has the new one alone, and is given the former.
        let joiner = Ring::new(GROUP, process(3), new);
        joiner.adopt(other.secrets());
        assert_eq!(joiner.open_next(process(1), &before[..1], &before[1..]), Err(Unopened::Replayed));
    }

    #[test]
    fn a_key_comes_back_from_its_digits() {
        let key = Key::generate();
        let digits: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits.parse::<Key>().expect("it is one"), key);
        assert!("12".parse::<Key>().is_err() && "z".repeat(64).parse::<Key>().is_err());
        assert!(!format!("{key:?}").contains(&digits[..20]), "a key is not printed");
        assert_ne!(Key::generate(), key);
    }
}
