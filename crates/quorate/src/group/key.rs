//! Keys of groups: members seal their messages with AES-256-GCM, and only a holder of the key can be a
//! member.
//!
//! **Promise.** If a group has a key, neither routers nor listeners on the wire learn the group's updates,
//! queries, replies, names of locks or states. A process without the key gets an error when it joins. A
//! message that was changed on its way is not applied, and no message is applied twice.
//!
//! **Source.** 000 §5 (a group's key in its checkpoint file, AES-256).
//!
//! **How.** Each sender has its own key, `HMAC-SHA256(group's key, group, process)`, so that no two processes
//! ever seal with one nonce. A sender's nonce consists of a number that grows with each message of its
//! process, and of four random bytes that are fixed for the membership. All members deliver the messages of
//! one sender in its order. So a message is a repetition if its number is not above the last number of its
//! sender, and all members refuse and count it. A new member gets these last numbers with the state. The
//! plain head of a message (its kind, and the number of a query) and the group are authenticated with the
//! message.
//!
//! **Rotation.** A new key travels in a safe message that is sealed with the former key. Members seal with
//! the new key from that message on. They open earlier messages with the former key, which stays for the
//! member's life. Members get the new key at different moments, so no message that is sealed with the new key
//! may arrive before the key. Ordered and safe messages come after the key in the order. Soft messages come
//! after the key because of a command ([`Command::Follow`]). If a reply arrives before its key, the asker
//! waits for the key.
//!
//! [`Command::Follow`]: quorate_protocol::group::Command::Follow
//!
//! **Not hidden:** the members of a group, its name, and the lengths and times of messages. A holder of the
//! key can send anything in any member's name.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
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

use crate::{error::Error, lock::lock};

/// A group's key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key([u8; 32]);

impl Key {
    /// Generates a key from the system's random numbers.
    pub fn generate() -> Key {
        Key(chance::secret())
    }

    /// Makes a key from these bytes, which must be random and secret.
    pub fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Returns the bytes of the key. Keep them where nobody else can read them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the key as the 64 hexadecimal digits from which it is parsed. The digits are as secret as the
    /// key.
    pub fn to_digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the key's id, the beginning of a hash. The id reveals nothing about the key.
    pub fn id(&self) -> KeyId {
        let hash = Sha256::new().chain_update(b"quorate key id").chain_update(self.0).finalize();
        let mut head = [0; KEY_ID_BYTES];
        head.copy_from_slice(&hash[..KEY_ID_BYTES]);
        KeyId(head)
    }
}

impl FromStr for Key {
    type Err = Error;

    /// Parses 64 hexadecimal digits.
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

/// The id of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The reason why a sealed message cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// The message is sealed with a key that this member does not have.
    OtherKey(KeyId),
    /// The message was changed, or was never sealed.
    Damaged,
    /// The message repeats an earlier message of its sender.
    Replayed,
}

/// A key, and the ciphers that are derived from it.
struct KeyCiphers {
    id: KeyId,
    key: Key,
    /// Ciphers, by the process that seals.
    ciphers: FxHashMap<ProcessId, Aes256Gcm>,
}

impl KeyCiphers {
    fn new(key: Key) -> KeyCiphers {
        KeyCiphers { id: key.id(), key, ciphers: FxHashMap::default() }
    }

    fn cipher(&mut self, group: GroupId, sender: ProcessId) -> &Aes256Gcm {
        let KeyCiphers { key, ciphers, .. } = self;
        ciphers.entry(sender).or_insert_with(|| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
            mac.update(b"quorate group sender");
            mac.update(&group.0.to_le_bytes());
            mac.update(&sender.node.to_le_bytes());
            mac.update(&sender.incarnation.0.to_le_bytes());
            Aes256Gcm::new(&<[u8; 32]>::from(mac.finalize().into_bytes()).into())
        })
    }

    /// Returns the head, followed by the key's id, the nonce, and the sealed message.
    fn seal(
        &mut self,
        (group, me): (GroupId, ProcessId),
        nonce: [u8; NONCE_BYTES],
        head: &[u8],
        plain: &[u8],
    ) -> Bytes {
        let id = self.id;
        let sealed = self
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
}

/// A member's keys. One lock covers sealing and sending, so that messages leave in the order of their
/// numbers.
pub(super) struct GroupKeys {
    group: GroupId,
    me: ProcessId,
    keys: Mutex<SealingKeys>,
    /// Number of refused messages that repeated an earlier message.
    replayed: AtomicU64,
    /// Number of refused messages that no holder of the key had sealed.
    damaged: AtomicU64,
}

pub(super) struct SealingKeys {
    /// The keys, oldest first. The last key seals.
    held: Vec<KeyCiphers>,
    salt: [u8; SALT_BYTES],
    /// The number of the last message that this process sealed, over all its memberships of all groups.
    numbers: Arc<AtomicU64>,
    /// Number of the last message of each sender.
    seen: BTreeMap<ProcessId, u64>,
}

/// The secrets of a group. A member passes them to a new member in the sealed state, and keeps them in a file
/// that only its owner can read.
#[derive(Serialize, Deserialize)]
pub(super) struct Secrets {
    /// The keys, oldest first. The last key seals.
    pub(super) keys: Vec<Key>,
    /// Number of the last message of each sender.
    pub(super) seen: Vec<(ProcessId, u64)>,
}

impl Secrets {
    /// Returns the key that seals.
    pub(super) fn key(&self) -> Option<&Key> {
        self.keys.last()
    }
}

const SALT_BYTES: usize = 4;
const NONCE_BYTES: usize = 8 + SALT_BYTES;
const HEAD_BYTES: usize = KEY_ID_BYTES + NONCE_BYTES;

impl GroupKeys {
    /// Makes the keys of a process that numbers its messages by `numbers`. The counter outlives a membership,
    /// so a process that joins a group again uses numbers above its earlier numbers.
    pub(super) fn new(group: GroupId, me: ProcessId, key: Key, numbers: Arc<AtomicU64>) -> GroupKeys {
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&chance::secret()[..SALT_BYTES]);
        let keys = SealingKeys { held: vec![KeyCiphers::new(key)], salt, numbers, seen: BTreeMap::new() };
        GroupKeys {
            group,
            me,
            keys: Mutex::new(keys),
            replayed: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        }
    }

    /// Returns the id of the key that seals.
    pub(super) fn id(&self) -> KeyId {
        lock(&self.keys).current().id
    }

    /// Returns the number of refused repetitions, and the number of refused messages that no holder of the
    /// key had sealed.
    pub(super) fn refused(&self) -> (u64, u64) {
        (self.replayed.load(Ordering::Relaxed), self.damaged.load(Ordering::Relaxed))
    }

    /// Seals the bytes after the first `head` bytes, and passes the message on under the lock, because
    /// messages must leave in the order in which they are sealed.
    pub(super) fn send<T>(&self, head: usize, body: &[u8], hand_over: impl FnOnce(&[u8]) -> T) -> T {
        let mut keys = lock(&self.keys);
        let sealed = keys.seal(self.group, self.me, &body[..head], &body[head..]);
        hand_over(&sealed)
    }

    /// Seals the bytes after the first `head` bytes, for one member and outside the order.
    pub(super) fn seal(&self, head: usize, body: &[u8]) -> Bytes {
        lock(&self.keys).seal(self.group, self.me, &body[..head], &body[head..])
    }

    /// Seals like [`GroupKeys::seal`], with the key of these secrets.
    pub(super) fn seal_with(&self, secrets: &Secrets, head: usize, body: &[u8]) -> Bytes {
        let key = secrets.key().expect("secrets of a ring have a key");
        let mut held = KeyCiphers::new(key.clone());
        let number = lock(&self.keys).number();
        held.seal((self.group, self.me), number, &body[..head], &body[head..])
    }

    /// Opens the bytes after `head` of the next message of `sender`, and refuses a repetition.
    pub(super) fn open_next(
        &self,
        sender: ProcessId,
        head: &[u8],
        sealed: &[u8],
    ) -> Result<Bytes, OpenError> {
        let mut keys = lock(&self.keys);
        let opened = keys.open(self.group, sender, head, sealed).and_then(|(number, plain)| {
            let seen = keys.seen.entry(sender).or_default();
            if number <= *seen {
                return Err(OpenError::Replayed);
            }
            *seen = number;
            Ok(plain)
        });
        match opened {
            Err(OpenError::Replayed) => self.replayed.fetch_add(1, Ordering::Relaxed),
            Err(OpenError::Damaged) => self.damaged.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        opened
    }

    /// Opens the bytes after `head`, of a message that was sealed outside the order.
    pub(super) fn open(&self, sender: ProcessId, head: &[u8], sealed: &[u8]) -> Result<Bytes, OpenError> {
        lock(&self.keys).open(self.group, sender, head, sealed).map(|(_, plain)| plain)
    }

    /// Makes this key the key that seals, unless it already is. `follow` runs under the lock, so that all
    /// messages with the new key come after the message that carried the key.
    pub(super) fn turn(&self, key: Key, follow: impl FnOnce()) {
        let mut keys = lock(&self.keys);
        if keys.current().key != key {
            keys.held.push(KeyCiphers::new(key));
            follow();
        }
    }

    /// Whether the bytes are sealed with a key that this member does not have yet.
    pub(super) fn is_ahead(&self, sealed: &[u8]) -> bool {
        let Some((id, _)) = sealed.split_first_chunk::<KEY_ID_BYTES>() else { return false };
        lock(&self.keys).held.iter().all(|held| held.id != KeyId(*id))
    }

    /// Drops the numbers and ciphers of processes that are not members of the new view.
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

    /// Adopts the secrets of the member that gave the state.
    pub(super) fn adopt(&self, secrets: Secrets) {
        let mut keys = lock(&self.keys);
        if !secrets.keys.is_empty() {
            keys.held = secrets.keys.into_iter().map(KeyCiphers::new).collect();
        }
        keys.seen = secrets.seen.into_iter().collect();
    }
}

impl SealingKeys {
    fn current(&self) -> &KeyCiphers {
        self.held.last().expect("a ring has a key")
    }

    /// Returns the nonce of this process's next message.
    fn number(&self) -> [u8; NONCE_BYTES] {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        nonce[8..].copy_from_slice(&self.salt);
        nonce
    }

    fn seal(&mut self, group: GroupId, me: ProcessId, head: &[u8], plain: &[u8]) -> Bytes {
        let nonce = self.number();
        self.held.last_mut().expect("a ring has a key").seal((group, me), nonce, head, plain)
    }

    fn open(
        &mut self,
        group: GroupId,
        sender: ProcessId,
        head: &[u8],
        sealed: &[u8],
    ) -> Result<(u64, Bytes), OpenError> {
        let (id, rest) = sealed.split_first_chunk::<KEY_ID_BYTES>().ok_or(OpenError::Damaged)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(OpenError::Damaged)?;
        let id = KeyId(*id);
        let held = self.held.iter_mut().find(|held| held.id == id).ok_or(OpenError::OtherKey(id))?;
        let payload = Payload { msg: sealed, aad: &about(group, head) };
        let plain = held.cipher(group, sender).decrypt(&Nonce::from(*nonce), payload);
        let plain = plain.map_err(|_| OpenError::Damaged)?;
        let (number, _) = nonce.split_first_chunk::<8>().expect("a nonce is longer than 8 bytes");
        Ok((u64::from_le_bytes(*number), plain.into()))
    }
}

/// Returns the bytes that the seal authenticates in addition to a message: the message's group and head.
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

    fn group_keys(node: u64, key: &Key) -> GroupKeys {
        GroupKeys::new(GROUP, process(node), key.clone(), Arc::default())
    }

    fn rings(key: &Key) -> (GroupKeys, GroupKeys) {
        (group_keys(1, key), group_keys(2, key))
    }

    fn sealed(group_keys: &GroupKeys, body: &'static [u8]) -> Bytes {
        group_keys.send(1, body, Bytes::copy_from_slice)
    }

    #[test]
    fn a_sealed_message_is_opened_once_and_only_with_the_key() {
        let key = Key::generate();
        let (one, other) = rings(&key);
        let said = sealed(&one, b"\x00a secret word");
        assert!(!said.windows(6).any(|window| window == b"secret"), "it shows");
        assert_eq!(other.open_next(process(1), &said[..1], &said[1..]), Ok(Bytes::from("a secret word")));
        assert_eq!(other.open_next(process(1), &said[..1], &said[1..]), Err(OpenError::Replayed));
        // The message cannot be opened for another sender, head or group, nor after a change.
        assert_eq!(other.open(process(3), &said[..1], &said[1..]), Err(OpenError::Damaged));
        assert_eq!(other.open(process(1), b"\x01", &said[1..]), Err(OpenError::Damaged));
        let elsewhere = GroupKeys::new(GroupId(8), process(2), key.clone(), Arc::default());
        assert_eq!(elsewhere.open(process(1), &said[..1], &said[1..]), Err(OpenError::Damaged));
        for place in 1 + KEY_ID_BYTES..said.len() {
            let mut changed = said.to_vec();
            changed[place] ^= 1;
            assert_eq!(
                other.open(process(1), &changed[..1], &changed[1..]),
                Err(OpenError::Damaged),
                "{place}"
            );
        }
        let stranger = group_keys(2, &Key::generate());
        let other_key = Err(OpenError::OtherKey(key.id()));
        assert_eq!(stranger.open(process(1), &said[..1], &said[1..]), other_key);
        for length in 0..HEAD_BYTES {
            assert_eq!(
                other.open(process(1), b"\x00", &said[1..=length]),
                Err(OpenError::Damaged),
                "{length}"
            );
        }
        assert_eq!(other.refused(), (1, 0));
    }

    #[test]
    fn messages_sealed_before_a_new_key_are_still_opened() {
        let (former, new) = (Key::generate(), Key::generate());
        let (one, other) = rings(&former);
        let before = sealed(&one, b"\x00before");
        let mut followed = 0;
        one.turn(new.clone(), || followed += 1);
        one.turn(new.clone(), || followed += 1);
        assert_eq!(followed, 1, "the second time it is no other key");
        let behind = sealed(&one, b"\x00behind");
        assert_eq!(other.open(process(1), &behind[..1], &behind[1..]), Err(OpenError::OtherKey(new.id())));
        assert!(other.is_ahead(&behind[1..]) && !other.is_ahead(&before[1..]) && !other.is_ahead(b"short"));
        other.turn(new.clone(), || ());
        assert!(!other.is_ahead(&behind[1..]));
        assert_eq!(other.id(), new.id());
        assert_eq!(other.open_next(process(1), &before[..1], &before[1..]), Ok(Bytes::from("before")));
        assert_eq!(other.open_next(process(1), &behind[..1], &behind[1..]), Ok(Bytes::from("behind")));
        // A new member begins with the new key alone, and gets the former key with the state.
        let joiner = group_keys(3, &new);
        joiner.adopt(other.secrets());
        assert_eq!(joiner.open_next(process(1), &before[..1], &before[1..]), Err(OpenError::Replayed));
    }

    #[test]
    fn a_state_is_sealed_with_the_key_of_its_position() {
        let (former, new) = (Key::generate(), Key::generate());
        let (giver, joiner) = rings(&former);
        let secrets = giver.secrets();
        // The giver changes its key while it serialises the object.
        giver.turn(new, || ());
        let state = giver.seal_with(&secrets, 1, b"\x00state");
        assert_eq!(joiner.open(process(1), &state[..1], &state[1..]), Ok(Bytes::from("state")));
        let behind = sealed(&giver, b"\x00behind");
        assert!(behind[1 + KEY_ID_BYTES..][..8] > state[1 + KEY_ID_BYTES..][..8], "no nonce is used twice");
    }

    #[test]
    fn a_process_that_joins_again_goes_on_above_its_numbers() {
        let (key, numbers) = (Key::generate(), Arc::<AtomicU64>::default());
        let other = group_keys(2, &key);
        for body in [b"\x00first", b"\x00again"] {
            // Each value stands for one membership of the same process.
            let one = GroupKeys::new(GROUP, process(1), key.clone(), numbers.clone());
            let said = sealed(&one, body);
            assert!(other.open_next(process(1), &said[..1], &said[1..]).is_ok());
        }
        assert_eq!(other.refused(), (0, 0));
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
