//! The parts of a document: `->`, `->>`, `#>`, `#>>`, and scalars of other types.

use super::{
    parse::{Escapes, Json, JsonNode, parse},
    write,
};
use crate::failure::Failure;

/// The type of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `json`, which shows its parts as they were written.
    Json,
    /// `jsonb`.
    Jsonb,
}

/// A step into a document.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    /// The member of an object with this key.
    Key(&'a str),
    /// The element of an array with this index; a negative index counts from the end.
    Index(i64),
    /// A part of a path: a key of an object, or the index of an array as a text.
    Either(&'a str),
}

impl<'a> Json<'a> {
    fn step(self, step: Step<'_>) -> Option<Json<'a>> {
        match (self.node, step) {
            (JsonNode::Object(members), Step::Key(key) | Step::Either(key)) => {
                members.into_iter().rev().find_map(|(known, value)| (known == key).then_some(value))
            }
            (JsonNode::Array(elements), Step::Index(index)) => element(elements, index),
            (JsonNode::Array(elements), Step::Either(text)) => {
                // As C's `strtol` does, blanks before the number and a sign are read.
                let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
                element(elements, text.parse::<i32>().ok()?.into())
            }
            _ => None,
        }
    }

    fn is_scalar(&self) -> bool {
        !matches!(self.node, JsonNode::Array(_) | JsonNode::Object(_))
    }

    /// Returns the text of a part.
    fn text(&self, kind: Kind) -> Result<String, Failure> {
        match kind {
            Kind::Json => Ok(self.raw.to_owned()),
            Kind::Jsonb => {
                let mut text = String::with_capacity(self.raw.len());
                write(self, &mut text)?;
                Ok(text)
            }
        }
    }
}

fn element(mut elements: Vec<Json<'_>>, index: i64) -> Option<Json<'_>> {
    let index = if index < 0 { elements.len() as i64 + index } else { index };
    let index = usize::try_from(index).ok().filter(|index| *index < elements.len())?;
    Some(elements.swap_remove(index))
}

/// Returns the part of a document behind one step. `None` if there is no such part.
pub(crate) fn field(document: &str, kind: Kind, step: Step<'_>) -> Result<Option<String>, Failure> {
    // PostgreSQL treats a scalar `jsonb` as an array of one element, so the indexes 0 and -1 mean the scalar.
    if let (Kind::Jsonb, Step::Index(0 | -1)) = (kind, step)
        && parse(document, Escapes::Decoded)?.is_scalar()
    {
        return Ok(Some(document.to_owned()));
    }
    at_path(document, kind, &[step])
}

/// Returns the part of a document at a path. `None` if there is no such part.
pub(crate) fn at_path(document: &str, kind: Kind, path: &[Step<'_>]) -> Result<Option<String>, Failure> {
    if let (Kind::Json, []) = (kind, path) {
        // An empty path means the whole document, which keeps the blanks around it.
        return Ok(Some(document.to_owned()));
    }
    let document = parse(document, Escapes::Decoded)?;
    let part = path.iter().try_fold(document, |json, step| json.step(*step));
    part.map(|part| part.text(kind)).transpose()
}

/// Returns a part as `->>` shows it: a string without quotes, and `None` for null.
pub(crate) fn shown(part: &str) -> Result<Option<String>, Failure> {
    let part = parse(part, Escapes::Decoded)?;
    Ok(match part.node {
        JsonNode::Null => None,
        JsonNode::String(text) => Some(text.into_owned()),
        _ => Some(part.raw.to_owned()),
    })
}

/// Returns the name of the document's type, as `jsonb_typeof` does.
pub(crate) fn type_name(document: &str) -> Result<&'static str, Failure> {
    Ok(name(&parse(document, Escapes::Kept)?.node))
}

fn name(node: &JsonNode<'_>) -> &'static str {
    match node {
        JsonNode::Null => "null",
        JsonNode::String(_) => "string",
        JsonNode::Number => "number",
        JsonNode::Bool(_) => "boolean",
        JsonNode::Array(_) => "array",
        JsonNode::Object(_) => "object",
    }
}

/// Returns the number of elements of an array.
pub(crate) fn array_length(document: &str) -> Result<usize, Failure> {
    match parse(document, Escapes::Kept)?.node {
        JsonNode::Array(elements) => Ok(elements.len()),
        JsonNode::Object(_) => Err(Failure::new("22023", "cannot get array length of a non-array")),
        _ => Err(Failure::new("22023", "cannot get array length of a scalar")),
    }
}

/// Returns the text of a scalar that is cast to a type of the name `ty`: a boolean, or a number.
pub(crate) fn scalar(document: &str, is_bool: bool, ty: &str) -> Result<String, Failure> {
    let document = parse(document, Escapes::Decoded)?;
    match (&document.node, is_bool) {
        (JsonNode::Bool(_), true) | (JsonNode::Number, false) => Ok(document.raw.to_owned()),
        (JsonNode::Number, _) => Err(uncastable("numeric", ty)),
        (node, _) => Err(uncastable(name(node), ty)),
    }
}

fn uncastable(kind: &str, ty: &str) -> Failure {
    Failure::new("22023", format!("cannot cast jsonb {kind} to type {ty}"))
}
