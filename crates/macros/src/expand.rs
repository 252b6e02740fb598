//! The code that encodes and decodes a layout.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use crate::layout::{Field, FieldForm, Label, Layout, Shape, Variant};

/// Returns the `impl Wire` of a type.
pub(crate) fn wire(layout: &Layout) -> TokenStream {
    let name = &layout.name;
    let (encode, decode, least) = match &layout.shape {
        Shape::Struct(fields) => of_struct(fields),
        Shape::Enum { rare, variants } => of_enum(*rare, variants),
    };
    quote! {
        #[automatically_derived]
        impl ::quorate_protocol::wire::Wire for #name {
            const BYTES_LEAST: usize = #least;

            fn encode(&self, out: &mut ::bytes::BytesMut) {
                ::quorate_protocol::wire::encode_whole(self, out);
            }

            fn encode_head(&self, out: &mut ::bytes::BytesMut) -> ::core::option::Option<::bytes::Bytes> {
                #encode
            }

            fn decode(
                input: &mut ::bytes::Bytes,
            ) -> ::core::result::Result<Self, ::quorate_protocol::wire::WireError> {
                #decode
            }
        }
    }
}

fn of_struct(fields: &[Field]) -> (TokenStream, TokenStream, TokenStream) {
    let sent = number(fields, &[]);
    let (pattern, put, take) = (pattern(fields, &sent, &[]), put(&sent), take(&sent));
    let encode = quote! {
        let Self #pattern = self;
        #put
    };
    let decode = quote! {
        #take
        ::core::result::Result::Ok(Self #pattern)
    };
    (encode, decode, least(&sent))
}

fn of_enum(rare: Option<u8>, variants: &[Variant]) -> (TokenStream, TokenStream, TokenStream) {
    let (mut puts, mut takes, mut firsts, mut rares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut leasts = Vec::new();
    for Variant { name, fields, labels } in variants {
        for label in labels {
            match label {
                Label::Tag { tag, values } => {
                    let sent = number(fields, values);
                    let (pattern, put, take) = (pattern(fields, &sent, values), put(&sent), take(&sent));
                    puts.push(quote! {
                        Self::#name #pattern => {
                            ::bytes::BufMut::put_u8(out, #tag);
                            #put
                        }
                    });
                    takes.push(quote!(#tag => { #take Self::#name #pattern }));
                    let least = least(&sent);
                    leasts.push(quote!(1 + #least));
                }
                Label::Rare(number_of_variant) => {
                    let sent = number(fields, &[]);
                    let pattern = pattern(fields, &sent, &[]);
                    let names = sent.iter().map(|(name, _)| name);
                    let tuple = quote!((#(#names,)*));
                    puts.push(quote! {
                        Self::#name #pattern => {
                            ::quorate_protocol::wire::encode_rare(out, #rare, #number_of_variant, &#tuple);
                            ::core::option::Option::None
                        }
                    });
                    rares.push(quote! {
                        #number_of_variant => {
                            let #tuple = ::quorate_protocol::wire::read_body(&body)?;
                            Self::#name #pattern
                        }
                    });
                }
                Label::First(first) => {
                    let (low, high) = (first.start(), first.end());
                    let sent = number(fields, &[]);
                    let (pattern, put, take) = (pattern(fields, &sent, &[]), put(&sent), take(&sent));
                    puts.push(quote!(Self::#name #pattern => { #put }));
                    firsts.push(quote! {
                        if let ::core::option::Option::Some(#low..=#high) = input.first() {
                            #take
                            return ::core::result::Result::Ok(Self::#name #pattern);
                        }
                    });
                    leasts.push(least(&sent));
                }
            }
        }
    }
    if let Some(tag) = rare {
        takes.push(quote! {
            #tag => {
                let (number, body) = ::quorate_protocol::wire::decode_rare(input)?;
                match number {
                    #(#rares)*
                    _ => return ::core::result::Result::Err(::quorate_protocol::wire::WireError::Body),
                }
            }
        });
        // The tag has 1 byte, and the length of the body has 4 bytes.
        leasts.push(quote!(1 + 4));
    }
    let encode = quote!(match self { #(#puts)* });
    let decode = quote! {
        #(#firsts)*
        ::core::result::Result::Ok(match ::quorate_protocol::wire::take_u8(input)? {
            #(#takes)*
            tag => return ::core::result::Result::Err(::quorate_protocol::wire::WireError::Tag(tag)),
        })
    };
    (encode, decode, quote!(::quorate_protocol::wire::least(&[#(#leasts),*])))
}

/// Returns the fields that are part of the bytes, each with a name for its value. Leaves out fields with a
/// value in `values`, because the variant's tag gives that value.
fn number<'a>(fields: &'a [Field], values: &[(Ident, syn::Expr)]) -> Vec<(Ident, &'a Field)> {
    let is_sent = |field: &&Field| value_of(field, values).is_none();
    let names = (0..).map(|place: usize| format_ident!("field{place}"));
    names.zip(fields.iter().filter(is_sent)).collect()
}

fn value_of<'a>(field: &Field, values: &'a [(Ident, syn::Expr)]) -> Option<&'a syn::Expr> {
    let syn::Member::Named(name) = &field.member else { return None };
    values.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// Returns the braces of a pattern that takes a value apart. The same braces construct a value.
fn pattern(fields: &[Field], sent: &[(Ident, &Field)], values: &[(Ident, syn::Expr)]) -> TokenStream {
    let mut names = sent.iter().map(|(name, _)| name);
    let parts = fields.iter().map(|field| {
        let member = &field.member;
        match value_of(field, values) {
            Some(value) => quote!(#member: #value),
            None => {
                let name = names.next();
                quote!(#member: #name)
            }
        }
    });
    quote!({ #(#parts),* })
}

/// Returns the code that appends the fields. This code evaluates to the payload that it did not copy.
fn put(sent: &[(Ident, &Field)]) -> TokenStream {
    let mut code = TokenStream::new();
    let pieces = pieces(sent);
    for (place, piece) in pieces.iter().enumerate() {
        let is_last = place + 1 == pieces.len();
        code.extend(match piece {
            [(name, Field { kind, form: FieldForm::Own, .. })] if is_last => {
                quote!(<#kind as ::quorate_protocol::wire::Wire>::encode_head(#name, out))
            }
            [(name, Field { kind, form: FieldForm::Own, .. })] => {
                quote!(<#kind as ::quorate_protocol::wire::Wire>::encode(#name, out);)
            }
            [(name, Field { kind, form: FieldForm::With(form), .. })] => {
                quote!(<#form as ::quorate_protocol::wire::Form<#kind>>::put(#name, out);)
            }
            body => {
                let names = body.iter().map(|(name, _)| name);
                quote!(::quorate_protocol::wire::encode_body(out, &(#(#names,)*));)
            }
        });
    }
    if !matches!(sent.last(), Some((_, Field { form: FieldForm::Own, .. }))) {
        code.extend(quote!(::core::option::Option::None));
    }
    code
}

/// Returns the code that takes the fields, in order.
fn take(sent: &[(Ident, &Field)]) -> TokenStream {
    let take = |piece: &[(Ident, &Field)]| match piece {
        [(name, Field { kind, form: FieldForm::Own, .. })] => {
            quote!(let #name = <#kind as ::quorate_protocol::wire::Wire>::decode(input)?;)
        }
        [(name, Field { kind, form: FieldForm::With(form), .. })] => {
            quote!(let #name = <#form as ::quorate_protocol::wire::Form<#kind>>::take(input)?;)
        }
        body => {
            let names = body.iter().map(|(name, _)| name);
            quote!(let (#(#names,)*) = ::quorate_protocol::wire::decode_body(input)?;)
        }
    };
    pieces(sent).into_iter().map(take).collect()
}

/// Returns the code that adds up the minimum sizes of the fields, in bytes.
fn least(sent: &[(Ident, &Field)]) -> TokenStream {
    let leasts = pieces(sent).into_iter().map(|piece| match piece {
        [(_, Field { kind, form: FieldForm::Own, .. })] => {
            quote!(<#kind as ::quorate_protocol::wire::Wire>::BYTES_LEAST)
        }
        [(_, Field { kind, form: FieldForm::With(form), .. })] => {
            quote!(<#form as ::quorate_protocol::wire::Form<#kind>>::BYTES_LEAST)
        }
        // The size of a body's length, in bytes.
        _ => quote!(4),
    });
    quote!(0 #(+ #leasts)*)
}

/// Splits the fields into groups: neighbours that share a body are one group, and every other field is a
/// group of its own.
fn pieces<'a, 'b>(sent: &'a [(Ident, &'b Field)]) -> Vec<&'a [(Ident, &'b Field)]> {
    let is_body = |(_, field): &(Ident, &Field)| matches!(field.form, FieldForm::Body);
    sent.chunk_by(|one, next| is_body(one) && is_body(next)).collect()
}
