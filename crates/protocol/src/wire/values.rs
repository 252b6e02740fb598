//! The byte forms of values of which messages are made.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::{Array, SmallVec};

use super::{
    Form, Wire, WireError, decode_list, encode_whole, put_bytes, put_count, put_generation, put_opinion,
    put_pass, put_payload, put_process, take_bytes, take_generation, take_opinion, take_pass, take_process,
    take_u8, take_u32, take_u64, take_u128,
};
use crate::{
    detector::Opinion,
    id::{Generation, ProcessId, RequestId},
};

/// The empty record of a protocol without records.
impl Wire for () {
    fn encode(&self, _: &mut BytesMut) {}

    fn decode(_: &mut Bytes) -> Result<(), WireError> {
        Ok(())
    }
}

/// Implements [`trait@Wire`] for values of one length by two functions.
macro_rules! fixed {
    ($($type:ty, $bytes:literal, $put:path, $take:path;)*) => {$(
        impl Wire for $type {
            const BYTES_LEAST: usize = $bytes;

            #[inline]
            fn encode(&self, out: &mut BytesMut) {
                $put(out, *self);
            }

            #[inline]
            fn decode(input: &mut Bytes) -> Result<$type, WireError> {
                $take(input)
            }
        }
    )*};
}

fixed! {
    u8, 1, BufMut::put_u8, take_u8;
    u32, 4, BufMut::put_u32_le, take_u32;
    u64, 8, BufMut::put_u64_le, take_u64;
    u128, 16, BufMut::put_u128_le, take_u128;
    bool, 1, put_flag, take_flag;
    Opinion, 1, put_opinion, take_opinion;
    ProcessId, 24, put_process, take_process;
    Generation, 20, put_generation, take_generation;
}

impl Wire for RequestId {
    const BYTES_LEAST: usize = u128::BYTES_LEAST + u64::BYTES_LEAST;

    fn encode(&self, out: &mut BytesMut) {
        self.session.encode(out);
        self.number.encode(out);
    }

    fn decode(input: &mut Bytes) -> Result<RequestId, WireError> {
        Ok(RequestId { session: take_u128(input)?, number: take_u64(input)? })
    }
}

fn put_flag(out: &mut BytesMut, flag: bool) {
    out.put_u8(u8::from(flag));
}

fn take_flag(input: &mut Bytes) -> Result<bool, WireError> {
    match take_u8(input)? {
        0 => Ok(false),
        1 => Ok(true),
        tag => Err(WireError::Tag(tag)),
    }
}

/// A length, then the bytes.
impl Wire for Bytes {
    const BYTES_LEAST: usize = 4;

    fn encode(&self, out: &mut BytesMut) {
        put_bytes(out, self);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        put_payload(out, self)
    }

    fn decode(input: &mut Bytes) -> Result<Bytes, WireError> {
        take_bytes(input)
    }
}

impl<T: Wire> Wire for Box<T> {
    const BYTES_LEAST: usize = T::BYTES_LEAST;

    fn encode(&self, out: &mut BytesMut) {
        (**self).encode(out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        (**self).encode_head(out)
    }

    fn decode(input: &mut Bytes) -> Result<Box<T>, WireError> {
        T::decode(input).map(Box::new)
    }
}

/// A flag, and the value if there is one.
impl<T: Wire> Wire for Option<T> {
    const BYTES_LEAST: usize = 1;

    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        put_flag(out, self.is_some());
        self.as_ref()?.encode_head(out)
    }

    fn decode(input: &mut Bytes) -> Result<Option<T>, WireError> {
        if take_flag(input)? { T::decode(input).map(Some) } else { Ok(None) }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const BYTES_LEAST: usize = A::BYTES_LEAST + B::BYTES_LEAST;

    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        self.0.encode(out);
        self.1.encode_head(out)
    }

    fn decode(input: &mut Bytes) -> Result<(A, B), WireError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

/// Appends a count and the items, as [`encode_list`](super::encode_list). Returns a large payload at the end
/// of the last item instead of copying it.
fn encode_list_head<T: Wire>(out: &mut BytesMut, items: &[T]) -> Option<Bytes> {
    put_count(out, items.len());
    let (last, before) = items.split_last()?;
    before.iter().for_each(|item| item.encode(out));
    last.encode_head(out)
}

impl<T: Wire> Wire for Vec<T> {
    const BYTES_LEAST: usize = 4;

    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        encode_list_head(out, self)
    }

    fn decode(input: &mut Bytes) -> Result<Vec<T>, WireError> {
        decode_list(input)
    }
}

impl<A: Array<Item: Wire>> Wire for SmallVec<A> {
    const BYTES_LEAST: usize = 4;

    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        encode_list_head(out, self)
    }

    fn decode(input: &mut Bytes) -> Result<SmallVec<A>, WireError> {
        decode_list(input)
    }
}

/// A count, then the pairs in the order of their keys.
impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    const BYTES_LEAST: usize = 4;

    fn encode(&self, out: &mut BytesMut) {
        put_count(out, self.len());
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }

    fn decode(input: &mut Bytes) -> Result<BTreeMap<K, V>, WireError> {
        decode_list::<(K, V), _>(input)
    }
}

/// The form of a pass: its length is limited, and the decoded pass has memory of its own, because it lives as
/// long as a link.
#[derive(Debug)]
pub struct Pass;

impl Form<Bytes> for Pass {
    const BYTES_LEAST: usize = 4;

    fn put(pass: &Bytes, out: &mut BytesMut) {
        put_pass(out, pass);
    }

    fn take(input: &mut Bytes) -> Result<Bytes, WireError> {
        take_pass(input)
    }
}

/// The form of a flag in which every byte except 0 means yes. The oldest messages have their flags in this
/// form.
#[derive(Debug)]
pub struct AnyFlag;

impl Form<bool> for AnyFlag {
    const BYTES_LEAST: usize = 1;

    fn put(flag: &bool, out: &mut BytesMut) {
        put_flag(out, *flag);
    }

    fn take(input: &mut Bytes) -> Result<bool, WireError> {
        Ok(take_u8(input)? != 0)
    }
}

impl<T: Wire> Form<Option<T>> for AnyFlag {
    const BYTES_LEAST: usize = 1;

    fn put(value: &Option<T>, out: &mut BytesMut) {
        value.encode(out);
    }

    fn take(input: &mut Bytes) -> Result<Option<T>, WireError> {
        if take_u8(input)? == 0 { Ok(None) } else { T::decode(input).map(Some) }
    }
}
