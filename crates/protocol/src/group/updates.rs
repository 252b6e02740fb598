//! Updates of one sender that are delivered one behind the other, as one event, so that none costs steps of its own.

use bytes::Bytes;

use super::Place;
use crate::ecast::Position;

/// Updates of one sender, in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updates {
    first: Place,
    form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// Each for itself.
    Loose(Vec<Bytes>),
    /// As they travelled, each behind its length.
    Packed(Bytes),
}

impl Updates {
    /// Soft ones, from this number on.
    pub(super) fn soft(first: u64, bodies: Vec<Bytes>) -> Updates {
        Updates { first: Place::Soft(first), form: Form::Loose(bodies) }
    }

    /// A pack's. One that ends inside an update was made by no member; it ends before that, everywhere, and `false` says so.
    pub(super) fn packed(at: Position, pack: Bytes) -> (Updates, bool) {
        // Read as a slice: a reference for each update would be counted, and other threads count, too.
        let mut rest = &pack[..];
        while let Some((length, behind)) = rest.split_first_chunk()
            && let Some(next) = behind.get(u32::from_le_bytes(*length) as usize..)
        {
            rest = next;
        }
        let (whole, is_whole) = (pack.len() - rest.len(), rest.is_empty());
        (Updates { first: Place::Ordered(at, 0), form: Form::Packed(pack.slice(..whole)) }, is_whole)
    }

    /// The place of the first.
    pub fn first(&self) -> Place {
        self.first
    }

    /// Each with its place.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &[u8])> {
        let (mut loose, mut packed): (_, &[u8]) = match &self.form {
            Form::Loose(bodies) => (bodies.iter(), &[]),
            Form::Packed(pack) => ([].iter(), pack),
        };
        let bodies = std::iter::from_fn(move || {
            if let Some(body) = loose.next() {
                return Some(&body[..]);
            }
            let (length, rest) = packed.split_first_chunk()?;
            let (body, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            packed = rest;
            Some(body)
        });
        (0..).zip(bodies).map(|(index, body)| (self.first.behind(index), body))
    }

    /// Bytes of all of them together, about.
    pub fn bytes(&self) -> usize {
        match &self.form {
            Form::Loose(bodies) => bodies.iter().map(Bytes::len).sum(),
            Form::Packed(pack) => pack.len(),
        }
    }
}

impl Place {
    /// The place of the update that comes so many behind this one, in the same row.
    pub fn behind(self, index: u32) -> Place {
        match self {
            Place::Soft(number) => Place::Soft(number + u64::from(index)),
            Place::Ordered(at, first) => Place::Ordered(at, first + index),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::wire::put_bytes;

    fn told(updates: &Updates) -> Vec<(Place, String)> {
        updates.iter().map(|(place, body)| (place, String::from_utf8_lossy(body).into_owned())).collect()
    }

    #[test]
    fn both_forms_tell_places_and_bodies() {
        let bodies = ["ab", "", "c"];
        let loose = Updates::soft(5, bodies.map(|body| Bytes::from_static(body.as_bytes())).into());
        let mut pack = BytesMut::new();
        bodies.iter().for_each(|body| put_bytes(&mut pack, body.as_bytes()));
        let (packed, whole) = Updates::packed(Position(9), pack.clone().freeze());
        assert!(whole);
        let expected =
            |place: fn(u32) -> Place| (0..).zip(bodies).map(move |(i, body)| (place(i), body.to_owned()));
        assert!(told(&loose).into_iter().eq(expected(|index| Place::Soft(5 + u64::from(index)))));
        assert!(told(&packed).into_iter().eq(expected(|index| Place::Ordered(Position(9), index))));
        assert_eq!((loose.bytes(), packed.bytes()), (3, 15));
    }

    #[test]
    fn a_pack_ends_before_what_is_not_whole() {
        let mut pack = BytesMut::new();
        ["ab", "cd"].iter().for_each(|body| put_bytes(&mut pack, body.as_bytes()));
        for end in 6..12 {
            let (updates, whole) = Updates::packed(Position(9), pack.clone().freeze().slice(..end));
            assert_eq!((told(&updates).len(), whole), (1, end == 6), "{end}");
        }
    }
}
