//! Whether a document contains another document, or a key.

use super::{
    order::compare,
    parse::{Escapes, Json, JsonNode, parse},
};
use crate::failure::Failure;

/// Evaluates `outer @> inner`.
pub(crate) fn contains(outer: &str, inner: &str) -> Result<bool, Failure> {
    let (outer, inner) = (parse(outer, Escapes::Decoded)?, parse(inner, Escapes::Decoded)?);
    Ok(match (&outer.node, &inner.node) {
        (JsonNode::Array(_), JsonNode::Array(_)) | (JsonNode::Object(_), JsonNode::Object(_)) => {
            within(&outer, &inner)
        }
        (_, JsonNode::Array(_) | JsonNode::Object(_)) | (JsonNode::Object(_), _) => false,
        // An array contains a scalar document that is one of its elements.
        (JsonNode::Array(elements), _) => elements.iter().any(|element| compare(element, &inner).is_eq()),
        _ => compare(&outer, &inner).is_eq(),
    })
}

fn within(outer: &Json<'_>, inner: &Json<'_>) -> bool {
    match (&outer.node, &inner.node) {
        (JsonNode::Array(elements), JsonNode::Array(wanted)) => {
            wanted.iter().all(|wanted| elements.iter().any(|element| within(element, wanted)))
        }
        (JsonNode::Object(members), JsonNode::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| members.iter().any(|(known, value)| known == key && within(value, wanted))),
        _ => compare(outer, inner).is_eq(),
    }
}

/// Evaluates `document ? key`: whether an object has the key, or an array has it as a string.
pub(crate) fn exists(document: &str, key: &str) -> Result<bool, Failure> {
    let is_key = |json: &Json<'_>| matches!(&json.node, JsonNode::String(text) if text == key);
    let document = parse(document, Escapes::Decoded)?;
    Ok(match &document.node {
        JsonNode::Object(members) => members.iter().any(|(known, _)| known == key),
        JsonNode::Array(elements) => elements.iter().any(is_key),
        _ => is_key(&document),
    })
}
