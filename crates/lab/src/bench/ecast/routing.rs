//! The bench's routing: receivers on a ring; each message goes to the receivers that follow its key.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    ecast::{Class, Destinations, MessageId, Position, Refusal, Routing},
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Minimum length of a body in bytes: key and number.
pub(super) const BODY_BYTES_MIN: usize = 16;

/// The members of the order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) copies: usize,
    pub(super) receivers: Vec<ProcessId>,
    pub(super) loads: Vec<ProcessId>,
}

/// The role that a joiner announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Join {
    Receiver,
    Load,
}

impl Join {
    pub(super) fn encode(self) -> Bytes {
        Bytes::copy_from_slice(&[u8::from(self == Join::Load)])
    }
}

pub(super) struct Ring;

impl Routing for Ring {
    type Config = Config;
    type Ledger = ();

    fn admit(_: &mut (), _: Position, _: Class, _: &Bytes) -> Result<(), Refusal> {
        Ok(())
    }

    fn apply(
        config: &Config,
        _at: Position,
        sender: ProcessId,
        body: &Bytes,
    ) -> Result<Option<Config>, Refusal> {
        let mut config = config.clone();
        let list = match body[..] {
            [0] => &mut config.receivers,
            [1] => &mut config.loads,
            _ => return Err(Refusal(0)),
        };
        if list.contains(&sender) {
            return Ok(None);
        }
        list.push(sender);
        list.sort_unstable();
        Ok(Some(config))
    }

    fn destinations(
        config: &Config,
        _id: MessageId,
        class: Class,
        body: &Bytes,
    ) -> Result<Destinations, Refusal> {
        if class == Class::Control {
            return Ok(Destinations { processes: Self::members(config).into(), groups: SmallVec::new() });
        }
        if body.len() < BODY_BYTES_MIN || config.receivers.is_empty() {
            return Err(Refusal(0));
        }
        let key = body.slice(..8).get_u64_le();
        let receivers = following(key, config.receivers.len(), config.copies);
        let mut found = Destinations::default();
        for receiver in receivers {
            found.processes.push(config.receivers[receiver]);
        }
        // A group names its processes by the bits of a word. If there are more processes than bits, all
        // processes must confirm.
        if found.processes.len() < u64::BITS as usize {
            found.groups.push((1 << found.processes.len()) - 1);
        }
        Ok(found)
    }

    fn is_member(config: &Config, process: ProcessId) -> bool {
        // The lists of receivers and of loads are sorted.
        config.receivers.binary_search(&process).is_ok() || config.loads.binary_search(&process).is_ok()
    }

    fn members(config: &Config) -> Vec<ProcessId> {
        config.receivers.iter().chain(&config.loads).copied().collect()
    }

    fn attachment(config: &Config, _id: MessageId, _body: &Bytes, _to: ProcessId) -> Option<Bytes> {
        // Every joiner gets the number of receivers, so that the load knows when to start.
        Some(Bytes::copy_from_slice(&(config.receivers.len() as u64).to_le_bytes()))
    }
}

/// Returns the indexes of the receivers of `key`.
pub(super) fn following(key: u64, receivers: usize, copies: usize) -> impl Iterator<Item = usize> {
    let first = ((u128::from(key) * receivers as u128) >> 64) as usize;
    (0..copies.min(receivers)).map(move |step| (first + step) % receivers)
}

/// Builds a message: its key, its number, and bytes that follow from the number.
pub(super) fn body(key: u64, number: u64, bytes: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(bytes);
    body.put_u64_le(key);
    body.put_u64_le(number);
    body.resize(bytes, number as u8);
    body.freeze()
}

/// Returns the number of an unchanged message; `None` if it was changed.
pub(super) fn number_of(body: &Bytes, bytes: usize) -> Option<u64> {
    if body.len() != bytes {
        return None;
    }
    let (number, rest) = body.get(8..)?.split_first_chunk()?;
    let number = u64::from_le_bytes(*number);
    // The loop looks at all bytes, several at a time: stopping at the first difference took a fifth of a
    // receiver's time.
    let differing = rest.iter().fold(0, |differing, byte| differing | (byte ^ number as u8));
    (differing == 0).then_some(number)
}
