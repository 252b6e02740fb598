//! The bound on the values that functions build.

use crate::failure::Failure;

/// The longest text or string of bytes that a function returns, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// Refuses a text longer than [`TEXT_BYTES_MAX`].
pub(crate) fn bounded(bytes: usize) -> Result<(), Failure> {
    if bytes > TEXT_BYTES_MAX { Err(Failure::new("54000", "requested length too large")) } else { Ok(()) }
}
