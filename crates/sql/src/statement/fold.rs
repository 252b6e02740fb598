//! Replaces parameters by arguments, and computes constants.
//!
//! A statement is bound once with open parameters. Each execution replaces the parameters and computes every
//! part that does not depend on a row. So the engine and the pruning of ranges see plain constants.

use quorate_table::{
    eval::eval,
    expr::Expr,
    value::{Type, Value},
};

use super::parameters::{Arguments, array_parameter};

/// Computes an expression whose operands are constants. If the computation fails, the expression stays, and
/// the engine reports the error if it ever evaluates the expression.
pub fn constant(mut expr: Expr) -> Expr {
    collapse(&mut expr);
    expr
}

fn collapse(expr: &mut Expr) {
    if matches!(expr, Expr::Column(..) | Expr::Constant(..) | Expr::Parameter(..)) {
        return;
    }
    if expr.children().iter().all(|child| matches!(child, Expr::Constant(..)))
        && let Ok(value) = eval(expr, &[])
    {
        *expr = Expr::Constant(value, expr.ty());
    }
}

/// Returns the expression with its parameters replaced by the arguments and with its constant parts computed.
pub fn substitute(expr: &Expr, arguments: &Arguments<'_>) -> Expr {
    let mut substituted = expr.clone();
    replace(&mut substituted, arguments);
    substituted
}

fn replace(expr: &mut Expr, arguments: &Arguments<'_>) {
    if let Expr::Parameter(number, ty) = *expr {
        *expr = Expr::Constant(arguments.value(number), ty);
        return;
    }
    if let Expr::In(_, list) = expr {
        spread(list.items_mut(), arguments);
    }
    for child in expr.children_mut() {
        replace(child, arguments);
    }
    expr.join_alternatives();
    if matches!(expr, Expr::In(_, list) if list.is_empty()) {
        *expr = Expr::Constant(Value::Bool(false), Type::Bool);
    }
    collapse(expr);
}

/// Replaces an item that stands for all elements of an array by one item for each element.
fn spread(list: &mut Vec<Expr>, arguments: &Arguments<'_>) {
    if !list.iter().any(|item| array_in(item).is_some()) {
        return;
    }
    for item in std::mem::take(list) {
        match array_in(&item) {
            None => list.push(item),
            Some((number, ty)) => {
                list.extend(arguments.elements(number, ty).into_iter().map(|element| {
                    let mut item = item.clone();
                    put_element(&mut item, &element);
                    item
                }));
            }
        }
    }
}

/// Returns the array parameter whose elements an expression stands for, with the type of the elements.
fn array_in(expr: &Expr) -> Option<(usize, Type)> {
    match expr {
        Expr::Parameter(number, ty) => array_parameter(*number).map(|number| (number, *ty)),
        other => other.children().into_iter().find_map(array_in),
    }
}

fn put_element(expr: &mut Expr, element: &Value) {
    if let Expr::Parameter(number, ty) = *expr
        && array_parameter(number).is_some()
    {
        *expr = Expr::Constant(element.clone(), ty);
        return;
    }
    for child in expr.children_mut() {
        put_element(child, element);
    }
}

/// Computes an expression that depends on no row.
pub fn value(expr: &Expr, arguments: &Arguments<'_>) -> crate::error::Result<Value> {
    match substitute(expr, arguments) {
        Expr::Constant(value, _) => Ok(value),
        open => Ok(eval(&open, &[])?),
    }
}

/// Whether `expr` or any part of it satisfies `test`.
pub fn any(expr: &Expr, test: &dyn Fn(&Expr) -> bool) -> bool {
    test(expr) || expr.children().into_iter().any(|child| any(child, test))
}
