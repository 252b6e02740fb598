//! `jsonb || jsonb`.

use super::{
    parse::{Escapes, Json, JsonNode, parse},
    write_array, write_object,
};
use crate::failure::Failure;

/// Evaluates `left || right`. Two objects give an object with the members of both; if both have a key, the
/// member of `right` stays. All other documents give an array of both sides' elements, and a side that is no
/// array counts as an array of one element.
pub(crate) fn concat(left: &str, right: &str) -> Result<String, Failure> {
    let (left, right) = (parse(left, Escapes::Decoded)?, parse(right, Escapes::Decoded)?);
    let mut joined = String::with_capacity(left.raw.len() + right.raw.len());
    match (&left.node, &right.node) {
        (JsonNode::Object(a), JsonNode::Object(b)) => write_object(a.iter().chain(b), &mut joined)?,
        _ => write_array(elements(&left).iter().chain(elements(&right)), &mut joined)?,
    }
    Ok(joined)
}

fn elements<'j, 'a>(json: &'j Json<'a>) -> &'j [Json<'a>] {
    match &json.node {
        JsonNode::Array(elements) => elements,
        _ => std::slice::from_ref(json),
    }
}
