//! Ring keys and pruning.

use proptest::prelude::*;
use quorate_table::{
    expr::{Binary, Expr},
    schema::{KeyRange, Partition},
    text::parse_text,
    value::{Type, Value},
};

fn column(ty: Type) -> Expr {
    Expr::Column(0, ty)
}

fn compared(operator: Binary, value: Value) -> Expr {
    let ty = value.ty().unwrap_or(Type::Int4);
    let probe = if ty == Type::Int4 { column(ty) } else { Expr::Cast(Box::new(column(Type::Int4)), ty) };
    Expr::binary(operator, probe, Expr::constant(value, ty))
}

fn hash() -> Partition {
    Partition::Hash { column: 0 }
}

fn range(low: i32, high: i32) -> Partition {
    Partition::Range { column: 0, low: Some(Value::Int4(low)), high: Some(Value::Int4(high)) }
}

fn holds(ranges: &[KeyRange], key: u64) -> bool {
    ranges.iter().any(|range| range.contains(key))
}

#[test]
fn hash_keys_never_change() {
    // Every process of a cluster, of any version, must place a row alike.
    assert_eq!(hash().key_of(&Value::Int4(1)), hash().key_of(&Value::Int8(1)));
    let keys: Vec<u64> = [Value::Null, Value::Int4(1), Value::text_of("N14228"), Value::Date(4748)]
        .iter()
        .map(|value| hash().key_of(value))
        .collect();
    assert_eq!(keys, GOLDEN);
}

const GOLDEN: [u64; 4] = [
    14_144_645_293_874_801_883,
    12_748_996_370_485_020_505,
    15_786_196_541_538_928_717,
    9_435_812_579_080_529_351,
];

#[test]
fn equality_prunes_to_points_and_intervals_to_arcs() {
    let one = hash().ranges(&compared(Binary::Equal, Value::Int8(1)));
    let key = hash().key_of(&Value::Int4(1));
    assert_eq!(one, [KeyRange { low: key, high: key }]);
    assert!(hash().ranges(&compared(Binary::Equal, Value::Int8(1 << 40))).is_empty());
    assert!(hash().ranges(&compared(Binary::Equal, Value::Null)).is_empty());
    assert_eq!(hash().ranges(&compared(Binary::Less, Value::Int4(3))), [KeyRange::ALL]);
    let list = [5, 6, 6].map(|number| Expr::constant(Value::Int4(number), Type::Int4)).to_vec();
    assert_eq!(hash().ranges(&Expr::In(Box::new(column(Type::Int4)), list.into())).len(), 2);

    let between = Expr::all(vec![
        compared(Binary::GreaterEqual, Value::Int4(25)),
        compared(Binary::LessEqual, Value::Int4(75)),
    ]);
    let arcs = range(0, 100).ranges(&between);
    assert_eq!(arcs, [KeyRange { low: u64::MAX / 4, high: u64::MAX / 4 * 3 + 2 }]);
    let outside =
        Expr::any(vec![compared(Binary::Less, Value::Int4(25)), compared(Binary::Greater, Value::Int4(75))]);
    assert_eq!(range(0, 100).ranges(&outside).len(), 2);
}

/// Generates filters over one integer column.
fn any_filter() -> impl Strategy<Value = Expr> {
    let operator = prop_oneof![
        Just(Binary::Equal),
        Just(Binary::NotEqual),
        Just(Binary::Less),
        Just(Binary::LessEqual),
        Just(Binary::Greater),
        Just(Binary::GreaterEqual),
    ];
    let constant = prop_oneof![
        (-6i32..6).prop_map(Value::Int4),
        (-6i64..6).prop_map(Value::Int8),
        any::<i64>().prop_map(Value::Int8),
        "-?[0-6]\\.[05]".prop_map(|text| parse_text(Type::Numeric, &text).expect("a decimal")),
        Just(Value::Null),
    ];
    let leaf = prop_oneof![
        4 => (operator, constant).prop_map(|(operator, constant)| compared(operator, constant)),
        1 => Just(Expr::IsNull(Box::new(column(Type::Int4)))),
    ];
    leaf.prop_recursive(4, 16, 2, |inner| {
        (any::<bool>(), inner.clone(), inner).prop_map(|(and, left, right)| {
            Expr::binary(if and { Binary::And } else { Binary::Or }, left, right)
        })
    })
}

/// Evaluates a filter on a value by SQL's rules, in the most direct way. A comparison with NULL is unknown.
fn satisfies(filter: &Expr, value: &Value) -> Option<bool> {
    match filter {
        Expr::Binary(Binary::And, left, right) => match (satisfies(left, value), satisfies(right, value)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        },
        Expr::Binary(Binary::Or, left, right) => match (satisfies(left, value), satisfies(right, value)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        },
        Expr::Binary(operator, _, right) => {
            let Expr::Constant(constant, _) = &**right else { unreachable!("a comparison with a constant") };
            if constant.is_null() || value.is_null() {
                return None;
            }
            let order = value.order(constant);
            Some(match operator {
                Binary::Equal => order.is_eq(),
                Binary::NotEqual => order.is_ne(),
                Binary::Less => order.is_lt(),
                Binary::LessEqual => order.is_le(),
                Binary::Greater => order.is_gt(),
                _ => order.is_ge(),
            })
        }
        Expr::IsNull(_) => Some(value.is_null()),
        other => unreachable!("no such filter here: {other:?}"),
    }
}

proptest! {
    #[test]
    fn pruning_never_loses_a_row(filter in any_filter(), low in -4i32..0, width in 1i32..8) {
        for partition in [hash(), range(low, low + width), Partition::Range { column: 0, low: None, high: None }] {
            let ranges = partition.ranges(&filter);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].high < pair[1].low));
            for value in (-8..8).map(Value::Int4).chain([Value::Null, Value::Int4(i32::MIN), Value::Int4(i32::MAX)]) {
                if satisfies(&filter, &value) == Some(true) {
                    prop_assert!(holds(&ranges, partition.key_of(&value)), "{value:?} in {ranges:?}");
                }
            }
        }
    }

    #[test]
    fn range_keys_are_monotone(
        a in super::values::any_value(), b in super::values::any_value(),
        low in super::values::any_value(), high in super::values::any_value(),
    ) {
        let free = Partition::Range { column: 0, low: None, high: None };
        let same_type = |value: &Value| value.ty().is_none() || value.ty() == a.ty();
        if a.ty() == b.ty() && a.order(&b).is_le() {
            prop_assert!(free.key_of(&a) <= free.key_of(&b));
            if !low.is_null() && !high.is_null() && same_type(&low) && same_type(&high) && low.order(&high).is_lt() {
                let bounded = Partition::Range { column: 0, low: Some(low.clone()), high: Some(high.clone()) };
                prop_assert!(bounded.key_of(&a) <= bounded.key_of(&b));
            }
        }
    }
}
