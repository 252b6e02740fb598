//! Values as bytes, and back.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

/// The bytes of values, one behind another in memory that they share.
#[derive(Default)]
pub(super) struct Press(BytesMut);

impl Press {
    /// A value's bytes behind others; refused if they are too many.
    pub(super) fn seal(&mut self, front: &[u8], value: &impl Serialize) -> Result<Bytes, String> {
        if self.0.capacity() < PRESS_BYTES_LEFT {
            self.0.reserve(PRESS_BYTES);
        }
        self.0.extend_from_slice(front);
        let sealed = postcard::serialize_with_flavor(value, Ink(&mut self.0));
        let bytes = self.0.split().freeze();
        sealed.map_err(|error| format!("it does not serialise: {error}"))?;
        match bytes.len() {
            length if length > ITEM_BYTES_MAX => Err(format!(
                "{length} bytes are too many for a request, a reply or a change: {ITEM_BYTES_MAX} at most"
            )),
            _ => Ok(bytes),
        }
    }
}

/// Memory that values share, and what is left of it when other memory is taken, in bytes.
const PRESS_BYTES: usize = 32 << 10;
const PRESS_BYTES_LEFT: usize = 512;

/// Where postcard writes.
struct Ink<'a>(&'a mut BytesMut);

impl postcard::ser_flavors::Flavor for Ink<'_> {
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

/// The value that these bytes are, all of them.
pub(super) fn opened<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}

/// No request, reply or change is longer, in bytes.
pub(super) const ITEM_BYTES_MAX: usize = 4 << 20;
