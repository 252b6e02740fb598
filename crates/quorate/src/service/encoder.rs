//! The encoding of requests, replies, changes and states as bytes, and their decoding. Stubs and executors
//! use it.

use bytes::{BufMut, Bytes, BytesMut};
use quorate_roles::services::ITEM_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// An encoder that puts values one after another into one piece of memory, which they share.
#[derive(Default)]
pub(super) struct Encoder(BytesMut);

impl Encoder {
    /// Returns `front` followed by the value's bytes. Fails if the result is longer than `ITEM_BYTES_MAX`.
    pub(super) fn encode(&mut self, front: &[u8], value: &impl Serialize) -> Result<Bytes, String> {
        if self.0.capacity() < ENCODER_BYTES_LEFT_MIN {
            self.0.reserve(ENCODER_BYTES);
        }
        self.0.extend_from_slice(front);
        let encoded = postcard::serialize_with_flavor(value, EncoderOutput(&mut self.0));
        let bytes = self.0.split().freeze();
        encoded.map_err(|error| format!("the value does not serialise: {error}"))?;
        match bytes.len() {
            length if length > ITEM_BYTES_MAX => Err(format!(
                "{length} bytes are too many for a request, a reply or a change: {ITEM_BYTES_MAX} at most"
            )),
            _ => Ok(bytes),
        }
    }
}

/// Size of the shared memory, in bytes. The encoder takes new memory once fewer than `ENCODER_BYTES_LEFT_MIN`
/// bytes are left.
const ENCODER_BYTES: usize = 32 << 10;
const ENCODER_BYTES_LEFT_MIN: usize = 512;

/// The place to which postcard writes.
struct EncoderOutput<'a>(&'a mut BytesMut);

impl postcard::ser_flavors::Flavor for EncoderOutput<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.put_u8(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Decodes a value that takes up all of `bytes`.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}

/// Upper bound of a state, in bytes of its checkpoint.
pub(super) const STATE_BYTES_MAX: usize = 1 << 30;
