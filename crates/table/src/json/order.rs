//! The order of documents, and their keys.

use std::cmp::Ordering;

use crate::numeric::Numeric;

use super::{
    parse::{Escapes, Json, JsonNode, parse},
    write_string,
};

/// Compares two documents in PostgreSQL's order. An array is less than a longer array, and an object less
/// than an object with more members. An empty array that is the whole document is less than everything else.
pub(crate) fn order(a: &str, b: &str) -> Ordering {
    if a == b {
        return Ordering::Equal;
    }
    match (parse(a, Escapes::Decoded), parse(b, Escapes::Decoded)) {
        (Ok(a), Ok(b)) => {
            let is_empty =
                |json: &Json<'_>| matches!(&json.node, JsonNode::Array(elements) if elements.is_empty());
            // PostgreSQL treats a scalar document as an array of one element, so an empty array is less.
            match (is_empty(&a), is_empty(&b)) {
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                _ => compare(&a, &b),
            }
        }
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.as_bytes().cmp(b.as_bytes()),
    }
}

fn rank(node: &JsonNode<'_>) -> u8 {
    match node {
        JsonNode::Null => 0,
        JsonNode::String(_) => 1,
        JsonNode::Number => 2,
        JsonNode::Bool(_) => 3,
        JsonNode::Array(_) => 4,
        JsonNode::Object(_) => 5,
    }
}

pub(super) fn compare(a: &Json<'_>, b: &Json<'_>) -> Ordering {
    match (&a.node, &b.node) {
        (JsonNode::String(a), JsonNode::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (JsonNode::Bool(a), JsonNode::Bool(b)) => a.cmp(b),
        (JsonNode::Number, JsonNode::Number) => match (Numeric::parse(a.raw), Numeric::parse(b.raw)) {
            (Ok(a), Ok(b)) => a.order(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.raw.cmp(b.raw),
        },
        (JsonNode::Array(a), JsonNode::Array(b)) => {
            a.len().cmp(&b.len()).then_with(|| first_difference(a.iter().zip(b).map(|(a, b)| compare(a, b))))
        }
        (JsonNode::Object(a), JsonNode::Object(b)) => a.len().cmp(&b.len()).then_with(|| {
            first_difference(a.iter().zip(b).map(|((key_a, a), (key_b, b))| {
                key_a.as_bytes().cmp(key_b.as_bytes()).then_with(|| compare(a, b))
            }))
        }),
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

fn first_difference(mut orders: impl Iterator<Item = Ordering>) -> Ordering {
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Appends bytes that are equal exactly for documents that [`order`] calls equal. The bytes of one document
/// are never a prefix of another document's bytes.
pub(crate) fn write_key(text: &str, key: &mut Vec<u8>) {
    let mut canonical = String::with_capacity(text.len());
    match parse(text, Escapes::Decoded) {
        Ok(document) => {
            key.push(0);
            write(&document, &mut canonical);
        }
        Err(_) => {
            key.push(1);
            canonical.push_str(text);
        }
    }
    key.extend((canonical.len() as u64).to_le_bytes());
    key.extend(canonical.as_bytes());
}

/// Writes a document without blanks and without zeros at the end of numbers.
fn write(json: &Json<'_>, out: &mut String) {
    match &json.node {
        JsonNode::Number => match Numeric::parse(json.raw) {
            Ok(number) => out.push_str(&number.normalized().to_string()),
            Err(_) => {
                out.push('!');
                out.push_str(json.raw);
            }
        },
        JsonNode::String(text) => write_string(text, out),
        JsonNode::Array(elements) => {
            out.push('[');
            for element in elements {
                write(element, out);
                out.push(',');
            }
            out.push(']');
        }
        JsonNode::Object(members) => {
            out.push('{');
            for (key, value) in members {
                write_string(key, out);
                out.push(':');
                write(value, out);
                out.push(',');
            }
            out.push('}');
        }
        JsonNode::Null | JsonNode::Bool(_) => out.push_str(json.raw),
    }
}
