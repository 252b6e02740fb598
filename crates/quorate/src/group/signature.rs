//! The structure of a replica's types. It is compared when a program joins, so that a program whose types
//! differ from the group's types gets an error.
//!
//! The structure of a type is found by decoding the type with `serde` from made-up values, and recording
//! which kind of value the type reads next. A type that accepts only certain values (a date as text, a number
//! above zero) has no known structure. Of such a type only the replica's name is compared.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_reflection::{Samples, Tracer, TracerConfig};
use xxhash_rust::xxh3::xxh3_128;

use super::Object;

/// The structure of a replica's updates, queries and replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signature {
    pub(super) name: String,
    updates: Option<String>,
    queries: Option<String>,
    replies: Option<String>,
}

/// The advice in the error of a program whose join is refused.
const CURE: &str = "run the same program everywhere, or use another group";

/// Length above which a hash stands for a structure, in bytes.
const STRUCTURE_BYTES_MAX: usize = 4 << 10;

impl Signature {
    pub(super) fn of<R: Object>(object: &R) -> Signature {
        Signature {
            name: object.name().to_owned(),
            updates: structure::<R::Update>(),
            queries: structure::<R::Query>(),
            replies: structure::<R::Reply>(),
        }
    }

    /// Returns the reason why a replica with this signature does not fit into a group with the signature
    /// `theirs`; `None` if it fits.
    pub(super) fn differs(&self, theirs: &Signature) -> Option<String> {
        if self.name != theirs.name {
            let (theirs, ours) = (&theirs.name, &self.name);
            return Some(format!(
                "the group's replicas are of type `{theirs}`, and this replica is of type `{ours}`: \
                     {CURE}"
            ));
        }
        let parts = [
            ("updates", &self.updates, &theirs.updates),
            ("queries", &self.queries, &theirs.queries),
            ("replies", &self.replies, &theirs.replies),
        ];
        parts.into_iter().find_map(|(what, ours, theirs)| match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                Some(format!("the group's {what} are {theirs}, and this replica's {what} are {ours}: {CURE}"))
            }
            _ => None,
        })
    }
}

/// Returns the structure of this type as `serde` reads it, or `None` if the structure cannot be found out.
fn structure<T: DeserializeOwned>() -> Option<String> {
    // The user's type may panic on made-up values.
    let structure = catch_unwind(AssertUnwindSafe(|| {
        let mut tracer = Tracer::new(TracerConfig::default());
        let (format, _) = tracer.trace_type::<T>(&Samples::new()).ok()?;
        let types = tracer.registry_unchecked();
        if types.is_empty() {
            serde_json::to_string(&format)
        } else {
            serde_json::to_string(&(format, types))
        }
        .ok()
    }));
    let structure = structure.ok()??;
    Some(match structure.len() {
        ..=STRUCTURE_BYTES_MAX => structure,
        _ => format!("{:032x}", xxh3_128(structure.as_bytes())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only its structure is looked at")]
    enum StockOrder {
        Buy { symbol: String, lots: u32 },
        Cancel(u64),
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only its structure is looked at")]
    struct Positive(std::num::NonZeroU64);

    #[test]
    fn types_with_one_encoding_share_a_structure() {
        assert_eq!(structure::<(String, i64)>(), structure::<(Box<str>, i64)>());
        assert_ne!(structure::<(String, i64)>(), structure::<(String, i32)>());
        assert_ne!(structure::<Option<u8>>(), structure::<u8>());
        let order = structure::<StockOrder>().expect("it says");
        assert!(order.contains("symbol") && order.contains("Cancel"), "{order}");
        assert_eq!(structure::<Positive>(), None, "made-up values are zero");
        assert!(structure::<()>().is_some());
    }
}
