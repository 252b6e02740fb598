//! Derive macros of the workspace. The only macro so far writes the code that encodes and decodes a message,
//! from the declaration of the message.
//!
//! The crate stands below floor 0, because `protocol` imports it. The code that the derive writes uses the
//! trait and the functions in `quorate_protocol::wire`, which this crate cannot import. So the tests that
//! encode and decode are in that crate (`protocol/tests/wire/derive.rs`). The tests here check the
//! declarations that the derive refuses.
//!
//! | module | subject |
//! |---|---|
//! | `layout` | a declaration and its attributes, read and checked |
//! | `expand` | the code that encodes and decodes this layout |

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

mod expand;
mod layout;
#[cfg(test)]
mod tests;

/// Implements the trait `quorate_protocol::wire::Wire` for a struct or an enum.
///
/// The byte form is the same as that of code written by hand: an enum begins with the tag of its variant,
/// then the fields follow in the order of their declaration. Each field has its own byte form, and there are
/// neither padding nor names. So the declaration describes the bytes, and a tag must always keep its meaning.
/// A large payload in the last field is not copied (`Wire::encode_head`).
///
/// Decoding refuses what a hand-written decoder refuses: an unknown tag with `WireError::Tag`, missing bytes
/// with `WireError::Short`, and a count that exceeds the bytes behind it with `WireError::Length`, before
/// anything is allocated. For this last check the derive computes `Wire::BYTES_LEAST` of the type.
///
/// # Attributes of a variant
///
/// A variant needs one of these attributes:
///
/// - `#[wire(tag = 3)]`: the first byte of the variant.
/// - `#[wire(tag = 6, applied = true)]` and `#[wire(tag = 7, applied = false)]`: the first byte also gives
///   the value of a field, so the bytes do not contain that field.
/// - `#[wire(first = 0..=63)]`: the variant has no tag of its own. The variant's only field is another
///   message whose first bytes lie in this range.
/// - `#[wire(rare = 0)]`: the variant shares the tag that `#[wire(rare = 12)]` at the enum names. After this
///   tag comes one `postcard` body with this number and the fields, as if the rare variants were a `serde`
///   enum. A new rare variant takes the next number.
///
/// # Attributes of a field
///
/// - `#[wire(with = Pass)]`: the field has the byte form of `Pass`, which implements `wire::Form` for the
///   field's type.
/// - `#[wire(body)]`: the field is a length and a `postcard` body. Neighbours with this attribute share one
///   body.
///
/// # Mistakes
///
/// The compiler rejects a tag or a number that is given twice, and an enum variant without a tag. If the tags
/// of a variant do not cover all values of a field, the compiler reports a missing pattern.
///
/// # Example
///
/// This message has every kind of variant and field. `quorate_protocol::wire` repeats it as a test, with its
/// bytes.
///
/// ```text
/// #[derive(Debug, PartialEq, Wire)]
/// #[wire(rare = 9)]
/// enum Message {
///     /// 01, position, count of keys, keys, length of the payload, payload.
///     #[wire(tag = 1)]
///     Write { at: u64, keys: Vec<u64>, payload: Bytes },
///     /// 02 or 03, position.
///     #[wire(tag = 2, done = true)]
///     #[wire(tag = 3, done = false)]
///     Ended {
///         done: bool,
///         at: u64,
///     },
///     /// 04, length of the body, names and address, length of the pass, pass.
///     #[wire(tag = 4)]
///     Hello {
///         #[wire(body)]
///         names: Vec<String>,
///         #[wire(body)]
///         address: Option<String>,
///         #[wire(with = Pass)]
///         pass: Bytes,
///     },
///     /// 09, length of the body, 00, reason.
///     #[wire(rare = 0)]
///     Refused { reason: String },
///     /// 09, length of the body, 01.
///     #[wire(rare = 1)]
///     Away,
///     /// The bytes of another message, which begins with 64 or more.
///     #[wire(first = 64..=255)]
///     Other(Other),
/// }
/// ```
#[proc_macro_derive(Wire, attributes(wire))]
pub fn derive_wire(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    layout::Layout::read(&input).map_or_else(Error::into_compile_error, |layout| expand::wire(&layout)).into()
}
