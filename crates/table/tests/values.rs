//! Values as text, in order, as keys and on the wire.

use proptest::prelude::*;
use quorate_table::{
    expr::{DEPTH_MAX, Expr, Unary},
    numeric::Numeric,
    text::parse_text,
    value::{Type, Value, key_of},
};

/// Reads `input` as `ty` and writes it again. The result is the text, or the SQLSTATE and message.
fn check(ty: Type, input: &str, expected: &str) {
    let outcome = match parse_text(ty, input) {
        Ok(value) => value.text().expect("not NULL"),
        Err(failure) => format!("{}: {}", failure.sqlstate, failure.message),
    };
    assert_eq!(outcome, expected, "{input:?} as {}", ty.name());
}

#[test]
fn values_are_parsed_and_printed_as_in_postgresql() {
    check(Type::Bool, " tRu ", "t");
    check(Type::Bool, "of", "f");
    check(Type::Bool, "o", "22P02: invalid input syntax for type boolean: \"o\"");
    check(Type::Int2, " -32768 ", "-32768");
    check(Type::Int2, "32768", "22003: value \"32768\" is out of range for type smallint");
    check(Type::Int4, "", "22P02: invalid input syntax for type integer: \"\"");
    check(Type::Int8, "1e3", "22P02: invalid input syntax for type bigint: \"1e3\"");
    check(Type::Float8, "0.1", "0.1");
    check(Type::Float8, "1e15", "1e+15");
    check(Type::Float8, "123456789012345", "123456789012345");
    check(Type::Float8, "0.00001", "1e-05");
    check(Type::Float8, "-0", "-0");
    check(Type::Float8, "nan", "NaN");
    check(Type::Float8, "-inf", "-Infinity");
    check(Type::Float8, "1e400", "22003: \"1e400\" is out of range for type double precision");
    check(Type::Float8, "1e-400", "22003: \"1e-400\" is out of range for type double precision");
    check(Type::Numeric, "00012.5000", "12.5000");
    check(Type::Numeric, "-.5e-3", "-0.0005");
    check(Type::Numeric, "1.5e3", "1500");
    check(Type::Numeric, "1e-16384", &format!("0.{}", "0".repeat(16_383)));
    check(Type::Numeric, "0e999999999999999999999", "0");
    check(Type::Numeric, "1e131072", "22003: value overflows numeric format");
    check(Type::Numeric, "1e999999999999999999999", "22003: value overflows numeric format");
    check(Type::Numeric, "NaN", "0A000: NaN and infinity are not supported for type numeric");
    check(Type::Numeric, "1..2", "22P02: invalid input syntax for type numeric: \"1..2\"");
    check(Type::Date, "2013-01-31", "2013-01-31");
    check(Type::Date, "1/31/2013", "2013-01-31");
    check(Type::Date, "20130131", "2013-01-31");
    check(Type::Date, "0044-03-15 BC", "0044-03-15 BC");
    check(Type::Date, "infinity", "infinity");
    check(Type::Date, "2013-02-29", "22008: date/time field value out of range: \"2013-02-29\"");
    check(Type::Date, "5874898-01-01", "22008: date out of range: \"5874898-01-01\"");
    check(Type::Date, "soon", "22007: invalid input syntax for type date: \"soon\"");
    check(Type::Timestamp, "2013-01-31T23:59:60", "2013-02-01 00:00:00");
    check(Type::Timestamp, "2013-01-31 24:00", "2013-02-01 00:00:00");
    check(Type::Timestamp, "2013-01-31 05:06:07.1234567+03", "2013-01-31 05:06:07.123457");
    check(Type::Timestamptz, "2013-01-31 05:06:07+05:30", "2013-01-30 23:36:07+00");
    check(Type::Timestamptz, "2013-01-31 05:06:07.5 Z", "2013-01-31 05:06:07.5+00");
    check(Type::Text, " as it is ", " as it is ");
    check(Type::Float4, "1e6", "1e+06");
    check(Type::Float4, "123456", "123456");
    check(Type::Float4, "0.1", "0.1");
    check(Type::Float4, "1e39", "22003: \"1e39\" is out of range for type real");
    check(Type::Float4, "1e-46", "22003: \"1e-46\" is out of range for type real");
    check(Type::Float4, "x", "22P02: invalid input syntax for type real: \"x\"");
    check(Type::Time, "1:2:3.4567891", "01:02:03.456789");
    check(Type::Time, "010203", "01:02:03");
    check(Type::Time, "24:00", "24:00:00");
    check(Type::Time, "2013-01-01 12:30+02", "12:30:00");
    check(Type::Time, "24:01", "22008: date/time field value out of range: \"24:01\"");
    check(Type::Time, "12", "22007: invalid input syntax for type time: \"12\"");
    check(Type::Uuid, "{A0EEBC99-9C0B4EF8-bb6d6bb9-bd380a11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11");
    check(Type::Uuid, "a0eebc99", "22P02: invalid input syntax for type uuid: \"a0eebc99\"");
    check(Type::Bytea, "a\\000\\\\", "\\x61005c");
    check(Type::Bytea, "\\x0", "22023: invalid hexadecimal data: odd number of digits");
    check(Type::Json, " {\"b\":1, \"a\" : [ ] } ", " {\"b\":1, \"a\" : [ ] } ");
    check(Type::Jsonb, " {\"b\":1, \"a\" : [ ] } ", "{\"a\": [], \"b\": 1}");
    check(Type::Jsonb, "{", "22P02: invalid input syntax for type json");
}

#[test]
fn deep_expressions_are_refused_before_the_stack_ends() {
    let nested = |depth: usize| {
        let leaf = Expr::constant(Value::Bool(true), Type::Bool);
        (1..depth).fold(leaf, |inner, _| Expr::Unary(Unary::Not, Box::new(inner)))
    };
    let deepest = nested(DEPTH_MAX);
    assert_eq!(deepest.depth(), DEPTH_MAX);
    let bytes = postcard::to_stdvec(&deepest).expect("encodes");
    assert_eq!(postcard::from_bytes::<Expr>(&bytes).expect("decodes"), deepest);
    // One level takes two bytes: the variant and the operator.
    let bytes = [&[bytes[0], bytes[1]].repeat(1_000_000), &bytes[..]].concat();
    assert!(postcard::from_bytes::<Expr>(&bytes).is_err());
    assert_eq!(postcard::from_bytes::<Expr>(&bytes[2_000_000..]).expect("decodes again"), deepest);
    let many = (0..100_000).map(|_| nested(1)).collect();
    assert!(Expr::any(many).depth() < 20);
}

/// Generates a value of a type that earlier builds lack.
fn later_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|truth| truth.to_string()),
        "-?(0|[1-9][0-9]{0,2})(\\.[0-9]{1,2})?(e-?[0-2])?",
        "\"[a-c\u{e9}]{0,2}\"",
    ];
    let document = scalar.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|all| format!("[{}]", all.join(","))),
            proptest::collection::vec(("[a-b]{0,2}", inner), 0..3).prop_map(|all| {
                let members: Vec<String> =
                    all.iter().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
                format!("{{{}}}", members.join(" , "))
            }),
        ]
    });
    let read = |ty: Type| move |text: String| parse_text(ty, &text).expect("a document");
    prop_oneof![
        any::<[u8; 16]>().prop_map(Value::Uuid),
        any::<f32>().prop_map(Value::Float4),
        prop_oneof![Just(0.0), Just(-0.0), Just(f32::NAN), Just(1e6)].prop_map(Value::Float4),
        (0i64..=86_400_000_000).prop_map(Value::Time),
        "[ab]{0,2} {0,2}".prop_map(|text| Value::Bpchar(text.as_str().into())),
        proptest::collection::vec(0u8..3, 0..3).prop_map(Value::bytes_of),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::bytes_of),
        document.clone().prop_map(read(Type::Json)),
        document.prop_map(read(Type::Jsonb)),
        // Texts from another process may be malformed.
        "[\\[\\]{}\":,0-9a]{0,4}".prop_map(|text| Value::Jsonb(text.as_str().into())),
    ]
}

/// Generates any value of any type, often an extreme or close to another value.
pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let small = -3i64..3;
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i16>().prop_map(Value::Int2),
        any::<i32>().prop_map(Value::Int4),
        any::<i64>().prop_map(Value::Int8),
        small.clone().prop_map(|i| Value::Int2(i as i16)),
        small.clone().prop_map(|i| Value::Int4(i as i32)),
        small.prop_map(Value::Int8),
        any::<f64>().prop_map(Value::Float8),
        prop_oneof![Just(0.0), Just(-0.0), Just(f64::NAN), Just(f64::INFINITY)].prop_map(Value::Float8),
        "-?[0-9]{1,3}(\\.[0-9]{1,3})?"
            .prop_map(|text| Value::Numeric(Numeric::parse(&text).expect("a decimal"))),
        "-?[0-9]{1,40}(\\.[0-9]{1,30})?"
            .prop_map(|text| Value::Numeric(Numeric::parse(&text).expect("a decimal"))),
        "[a-c]{0,2}".prop_map(Value::text_of),
        "\\PC{0,12}".prop_map(Value::text_of),
        (-2_000_000i32..4_000_000).prop_map(Value::Date),
        (-2_000_000_000_000_000i64..4_000_000_000_000_000).prop_map(Value::Timestamp),
        (-2_000_000_000_000_000i64..4_000_000_000_000_000).prop_map(Value::Timestamptz),
        later_value(),
    ]
}

proptest! {
    #[test]
    fn order_is_total_and_keys_agree_with_it(a in any_value(), b in any_value(), c in any_value()) {
        prop_assert_eq!(a.order(&b), b.order(&a).reverse());
        if a.order(&b).is_le() && b.order(&c).is_le() {
            prop_assert!(a.order(&c).is_le());
        }
        prop_assert_eq!(a.order(&b).is_eq(), key_of([&a]) == key_of([&b]));
    }

    #[test]
    fn text_and_wire_give_the_same_value_back(value in any_value()) {
        let bytes = postcard::to_stdvec(&value).expect("encodes");
        prop_assert_eq!(&postcard::from_bytes::<Value>(&bytes).expect("decodes"), &value);
        if let (Some(ty), Some(text)) = (value.ty(), value.text()) {
            let Ok(read) = parse_text(ty, &text) else {
                prop_assert!(ty == Type::Jsonb, "{ty:?} reads what it wrote");
                return Ok(());
            };
            if ty == Type::Jsonb && read != value {
                return Ok(());
            }
            prop_assert_eq!(read.text().expect("not NULL"), text);
            prop_assert!(read.order(&value).is_eq());
        }
    }

    #[test]
    fn bytes_from_outside_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = postcard::from_bytes::<Value>(&bytes);
    }
}
