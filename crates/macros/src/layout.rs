//! The layout of a message: its declaration and its attributes, read and checked.

use std::{collections::BTreeMap, ops::RangeInclusive};

use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Fields, Ident, LitInt, Member, Result, Token, Type,
    meta::ParseNestedMeta, spanned::Spanned,
};

/// A type that gets a byte form.
pub(crate) struct Layout {
    pub(crate) name: Ident,
    pub(crate) shape: Shape,
}

/// The parts of the type.
pub(crate) enum Shape {
    Struct(Vec<Field>),
    Enum {
        /// The tag of all rare variants.
        rare: Option<u8>,
        variants: Vec<Variant>,
    },
}

/// A variant and its labels. It has at least one label.
pub(crate) struct Variant {
    pub(crate) name: Ident,
    pub(crate) fields: Vec<Field>,
    pub(crate) labels: Vec<Label>,
}

/// The mark by which a decoder recognises a variant.
pub(crate) enum Label {
    /// A first byte, and the values of fields that go with this byte.
    Tag { tag: u8, values: Vec<(Ident, Expr)> },
    /// The number of a rare variant.
    Rare(u32),
    /// The first bytes of the message in the variant.
    First(RangeInclusive<u8>),
}

/// A field in the order of the bytes.
pub(crate) struct Field {
    pub(crate) member: Member,
    pub(crate) kind: Type,
    pub(crate) form: FieldForm,
}

/// The byte form of a field.
pub(crate) enum FieldForm {
    /// The byte form of the field's type.
    Own,
    /// The byte form of another type, which implements `Form` for the field's type.
    With(Box<Type>),
    /// A `postcard` body, which neighbouring fields share.
    Body,
}

impl Layout {
    /// Reads a declaration, and refuses contradictions.
    pub(crate) fn read(input: &DeriveInput) -> Result<Layout> {
        if !input.generics.params.is_empty() {
            return Err(Error::new_spanned(
                &input.generics,
                "a generic type has its byte form by hand: implement `Wire` without the derive",
            ));
        }
        let shape = match &input.data {
            Data::Struct(data) => {
                each_key(&input.attrs, |meta| {
                    Err(meta.error("a struct has no tag: put the tag in its enum"))
                })?;
                Shape::Struct(read_fields(&data.fields)?)
            }
            Data::Enum(data) => {
                let mut rare = None;
                each_key(&input.attrs, |meta| {
                    if !meta.path.is_ident("rare") {
                        return Err(meta.error("an enum has no attribute but `rare = TAG`"));
                    }
                    rare = Some(meta.value()?.parse::<LitInt>()?.base10_parse()?);
                    Ok(())
                })?;
                let variants = data.variants.iter().map(read_variant).collect::<Result<Vec<_>>>()?;
                check_labels(input, rare, &variants)?;
                Shape::Enum { rare, variants }
            }
            Data::Union(_) => return Err(Error::new_spanned(input, "a union has no byte form")),
        };
        Ok(Layout { name: input.ident.clone(), shape })
    }
}

/// Calls `read` for each key in the type's, variant's or field's `#[wire(…)]`.
fn each_key(attributes: &[Attribute], mut read: impl FnMut(ParseNestedMeta) -> Result<()>) -> Result<()> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("wire"))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut read))
}

fn read_variant(variant: &syn::Variant) -> Result<Variant> {
    let fields = read_fields(&variant.fields)?;
    let attributes = variant.attrs.iter().filter(|attribute| attribute.path().is_ident("wire"));
    let labels = attributes.map(|attribute| read_label(attribute, &fields)).collect::<Result<Vec<_>>>()?;
    let is_plain = |label: &Label| !matches!(label, Label::Tag { values, .. } if !values.is_empty());
    let refuse = |text| Err(Error::new(variant.span(), text));
    if labels.is_empty() {
        return refuse("the variant has no tag: add `#[wire(tag = …)]`, `rare` or `first`");
    }
    if labels.len() > 1 && labels.iter().any(is_plain) {
        return refuse("the variant has several tags: say which value of a field each of them means");
    }
    if matches!(labels[..], [Label::First(_)]) && !matches!(fields[..], [Field { form: FieldForm::Own, .. }])
    {
        return refuse("a variant with `first` has one field, the message that begins with these bytes");
    }
    if matches!(labels[..], [Label::Rare(_)])
        && fields.iter().any(|field| !matches!(field.form, FieldForm::Own))
    {
        return refuse("all fields of a rare variant are in its body: remove their attributes");
    }
    Ok(Variant { name: variant.ident.clone(), fields, labels })
}

/// Reads one `#[wire(…)]` of a variant.
fn read_label(attribute: &Attribute, fields: &[Field]) -> Result<Label> {
    let (mut label, mut values) = (None, Vec::new());
    attribute.parse_nested_meta(|meta| {
        let key = meta.path.require_ident()?;
        let value = meta.value()?;
        let read = match key.to_string().as_str() {
            "tag" => {
                let tag = value.parse::<LitInt>()?.base10_parse()?;
                Label::Tag { tag, values: Vec::new() }
            }
            "rare" => Label::Rare(value.parse::<LitInt>()?.base10_parse()?),
            "first" => {
                let low: LitInt = value.parse()?;
                value.parse::<Token![..=]>()?;
                Label::First(low.base10_parse()?..=value.parse::<LitInt>()?.base10_parse()?)
            }
            _ if fields.iter().any(|field| matches!(&field.member, Member::Named(name) if name == key)) => {
                values.push((key.clone(), value.parse()?));
                return Ok(());
            }
            _ => return Err(meta.error("neither `tag`, `rare`, `first` nor a field of the variant")),
        };
        match label.replace(read) {
            None => Ok(()),
            Some(_) => Err(meta.error("one attribute has one tag: write a second attribute")),
        }
    })?;
    match label {
        Some(Label::Tag { tag, .. }) => Ok(Label::Tag { tag, values }),
        Some(label) if values.is_empty() => Ok(label),
        _ => Err(Error::new_spanned(attribute, "a value of a field goes with a `tag`")),
    }
}

fn read_fields(fields: &Fields) -> Result<Vec<Field>> {
    let read = |(member, field): (Member, &syn::Field)| {
        let mut form = FieldForm::Own;
        each_key(&field.attrs, |meta| {
            let read = if meta.path.is_ident("body") {
                FieldForm::Body
            } else if meta.path.is_ident("with") {
                FieldForm::With(Box::new(meta.value()?.parse()?))
            } else {
                return Err(meta.error("a field has no attribute but `body` and `with = FORM`"));
            };
            match std::mem::replace(&mut form, read) {
                FieldForm::Own => Ok(()),
                _ => Err(meta.error("a field has one byte form")),
            }
        })?;
        Ok(Field { member, kind: field.ty.clone(), form })
    };
    fields.members().zip(fields).map(read).collect()
}

/// Refuses first bytes and numbers of rare variants that are given twice, and rare variants without a tag.
fn check_labels(input: &DeriveInput, rare: Option<u8>, variants: &[Variant]) -> Result<()> {
    let (mut tags, mut numbers) = (BTreeMap::<u8, String>::new(), BTreeMap::new());
    if let Some(tag) = rare {
        tags.insert(tag, "all rare variants".to_owned());
    }
    for Variant { name, labels, .. } in variants {
        let twice = |what: String, other: &str| {
            Err(Error::new_spanned(name, format!("{what} belongs to {other} already")))
        };
        for label in labels {
            let first = match label {
                Label::Tag { tag, .. } => *tag..=*tag,
                Label::First(first) => first.clone(),
                Label::Rare(number) => {
                    if let Some(other) = numbers.insert(*number, name.to_string()) {
                        return twice(format!("the number {number}"), &other);
                    }
                    continue;
                }
            };
            for tag in first {
                if let Some(other) = tags.insert(tag, name.to_string()) {
                    return twice(format!("the tag {tag}"), &other);
                }
            }
        }
    }
    match (rare, numbers.is_empty()) {
        (None, false) => Err(Error::new_spanned(
            &input.ident,
            "rare variants share a tag: add `#[wire(rare = TAG)]` to the enum",
        )),
        (Some(_), true) => Err(Error::new_spanned(&input.ident, "no variant is rare")),
        _ => Ok(()),
    }
}
