//! Tests of the mistakes that the derive refuses, and of the code that it writes.

use proc_macro2::TokenStream;
use syn::{DeriveInput, parse_quote};

use crate::{expand, layout::Layout};

fn derive(input: &DeriveInput) -> Result<TokenStream, String> {
    Layout::read(input).map(|layout| expand::wire(&layout)).map_err(|error| error.to_string())
}

/// Returns the code without spaces and line breaks, so that two texts can be compared. The spaces in a
/// printed stream of tokens depend on the way in which its tokens were made.
fn without_spaces(code: &str) -> String {
    code.split_whitespace().collect()
}

#[track_caller]
fn refused(input: &DeriveInput, why: &str) {
    let error = derive(input).expect_err("the declaration is accepted");
    assert!(error.contains(why), "{error:?} does not say {why:?}");
}

#[test]
fn a_tag_has_one_meaning() {
    let twice = parse_quote! { enum E { #[wire(tag = 1)] A, #[wire(tag = 2)] B, #[wire(tag = 1)] C } };
    refused(&twice, "the tag 1 belongs to A already");
    let within = parse_quote! { enum E { #[wire(first = 0..=63)] A(Log), #[wire(tag = 63)] B } };
    refused(&within, "the tag 63 belongs to A already");
    let overlap = parse_quote! { enum E { #[wire(first = 0..=9)] A(X), #[wire(first = 9..=12)] B(Y) } };
    refused(&overlap, "the tag 9 belongs to A already");
    let as_rare = parse_quote! { #[wire(rare = 3)] enum E { #[wire(rare = 0)] A, #[wire(tag = 3)] B } };
    refused(&as_rare, "the tag 3 belongs to all rare variants already");
    let rare = parse_quote! { #[wire(rare = 3)] enum E { #[wire(rare = 0)] A, #[wire(rare = 0)] B } };
    refused(&rare, "the number 0 belongs to A already");
    let values = parse_quote! {
        enum E { #[wire(tag = 1, last = true)] #[wire(tag = 1, last = false)] A { last: bool } }
    };
    refused(&values, "the tag 1 belongs to A already");
}

#[test]
fn a_variant_is_told_by_its_first_bytes() {
    refused(&parse_quote! { enum E { A } }, "the variant has no tag");
    refused(&parse_quote! { enum E { #[wire(tag = 256)] A } }, "number too large");
    refused(&parse_quote! { enum E { #[wire(tag = 1)] #[wire(tag = 2)] A } }, "several tags");
    refused(&parse_quote! { enum E { #[wire(tag = 1, tag = 2)] A } }, "one attribute has one tag");
    refused(&parse_quote! { enum E { #[wire(last = true)] A { last: bool } } }, "goes with a `tag`");
    refused(&parse_quote! { enum E { #[wire(tag = 1, last = true)] A } }, "nor a field of the variant");
    refused(&parse_quote! { enum E { #[wire(first = 0..=9)] A } }, "has one field");
    refused(&parse_quote! { enum E { #[wire(rare = 0)] A } }, "add `#[wire(rare = TAG)]` to the enum");
    refused(&parse_quote! { #[wire(rare = 1)] enum E { #[wire(tag = 0)] A } }, "no variant is rare");
}

#[test]
fn attributes_are_known_and_agree() {
    refused(&parse_quote! { #[wire(tag = 1)] struct S; }, "a struct has no tag");
    refused(&parse_quote! { #[wire(tag = 1)] enum E {} }, "no attribute but `rare = TAG`");
    refused(
        &parse_quote! { struct S { #[wire(tag = 1)] a: u8 } },
        "no attribute but `body` and `with = FORM`",
    );
    refused(&parse_quote! { struct S { #[wire(body, with = Pass)] a: u8 } }, "one byte form");
    let rare = parse_quote! { #[wire(rare = 1)] enum E { #[wire(rare = 0)] A(#[wire(body)] u8) } };
    refused(&rare, "remove their attributes");
    refused(&parse_quote! { struct S<T>(T); }, "a generic type");
    refused(&parse_quote! { union U { a: u8 } }, "a union");
}

#[test]
fn neighbours_share_a_body_and_the_last_field_keeps_its_payload() {
    let code = derive(&parse_quote! {
        struct S { #[wire(body)] a: A, #[wire(body)] b: B, c: u8, #[wire(body)] d: D, e: Bytes }
    });
    let code = without_spaces(&code.expect("the declaration is right").to_string());
    let has = |text: &str| code.contains(&without_spaces(text));
    assert!(has("encode_body(out, &(field0, field1,))") && has("encode_body(out, &(field3,))"), "{code}");
    assert!(has("<u8 as ::quorate_protocol::wire::Wire>::encode(field2, out);"), "{code}");
    assert!(has("<Bytes as ::quorate_protocol::wire::Wire>::encode_head(field4, out)"), "{code}");
    assert!(!has("::core::option::Option::None"), "{code}");
}
