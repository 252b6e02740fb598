//! Lists of alternatives, of any length, mean the same as comparisons joined by OR.

use quorate_table::{
    eval::eval,
    expr::{Binary, Expr},
    numeric::Numeric,
    value::{Type, Value},
};

fn numeric(text: &str) -> Value {
    Value::Numeric(Numeric::parse(text).expect("a number"))
}

/// Searches for each value of `probes` in lists of `members`, short and long, with NULL and without.
fn check(ty: Type, members: &[Value], probes: &[Value]) {
    let constant = |value: &Value| Expr::constant(value.clone(), ty);
    let column = || Expr::Column(0, ty);
    for length in [1, 3, 7, 8, 9, 50] {
        for nulls in [false, true] {
            let mut list: Vec<Expr> = members.iter().cycle().take(length).map(constant).collect();
            if nulls {
                list.insert(length / 2, Expr::constant(Value::Null, ty));
            }
            let equal = |item: &Expr| Expr::binary(Binary::Equal, column(), item.clone());
            let apart = Expr::any(list.iter().map(equal).collect());
            let among = Expr::In(Box::new(column()), list.into());
            let joined = apart.clone().fold();
            if length > 1 {
                assert_eq!(joined, among, "an OR of equalities becomes a list");
            }
            for probe in probes.iter().chain([&Value::Null]) {
                let row = std::slice::from_ref(probe);
                let expected = eval(&apart, row);
                assert_eq!(eval(&among, row), expected, "{probe:?} among {length}, nulls: {nulls}");
            }
        }
    }
}

#[test]
fn a_value_is_found_in_a_list_as_by_comparisons() {
    let integers: Vec<Value> = (0..40).map(|i| Value::Int4(i * 7 % 40)).collect();
    let probes: Vec<Value> = (-3..50).map(Value::Int4).collect();
    check(Type::Int4, &integers, &probes);
    // Integers of any width, and numerics, are equal by value.
    let wide = [Value::Int2(3), Value::Int8(7), Value::Int8(i64::MAX), numeric("3.0"), numeric("3.5")];
    check(Type::Int4, &integers, &wide);
    let numbers = ["1.0", "1.00", "2.5", "-0.0", "1e30", "-7", "0.1", "12345678901234567890"].map(numeric);
    check(Type::Numeric, &numbers, &numbers);
    check(Type::Numeric, &numbers, &[numeric("1"), numeric("2.50"), numeric("0"), Value::Int4(-7)]);
    let floats = [0.0, -1.5, f64::NAN, f64::INFINITY, 3.0, 1e-300, 2.0, 8.0, 9.0].map(Value::Float8);
    check(Type::Float8, &floats, &[-0.0, 0.0, f64::NAN, -f64::NAN, 3.0, 4.0].map(Value::Float8));
    let texts = ["", "a", "ab", "b", "\u{1F600}", "\u{FFFF}", "z", "Z", "é"].map(Value::text_of);
    check(Type::Text, &texts, &["", "a", "aa", "\u{1F600}", "zz"].map(Value::text_of));
    let dates: Vec<Value> = (0..20).map(|day| Value::Date(day * 3)).collect();
    check(Type::Date, &dates, &(0..20).map(Value::Date).collect::<Vec<_>>());
}

#[test]
fn a_changed_list_is_searched_with_its_new_items() {
    let item = |i: i32| Expr::constant(Value::Int4(i), Type::Int4);
    let mut among = Expr::In(Box::new(Expr::Column(0, Type::Int4)), (0..20).map(item).collect());
    let row = [Value::Int4(100)];
    assert_eq!(eval(&among, &row), Ok(Value::Bool(false)));
    let Expr::In(_, list) = &mut among else { unreachable!("it is one") };
    list.items_mut().push(item(100));
    assert_eq!(eval(&among, &row), Ok(Value::Bool(true)));
    let Expr::In(_, list) = &mut among else { unreachable!("it is one") };
    list.items_mut().insert(0, Expr::binary(Binary::Divide, item(1), item(0)));
    assert!(eval(&among, &row).is_err(), "what fails before the equal one fails");
}

#[test]
fn a_list_of_another_type_than_the_column_is_an_error() {
    let list = (0..20).map(|i| Expr::constant(Value::Int4(i), Type::Int4)).collect();
    let among = Expr::In(Box::new(Expr::Column(0, Type::Text)), list);
    assert_eq!(eval(&among, &[Value::text_of("1")]).expect_err("no order").sqlstate, "XX000");
}
