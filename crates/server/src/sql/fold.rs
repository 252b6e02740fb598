//! Putting arguments in for parameters, and computing what is constant.
//!
//! A statement is bound once with its parameters open; an execution replaces them and computes whatever no longer
//! depends on a row, so that the engine and the pruning see plain constants.

use quorate_table::{eval::eval, expr::Expr, value::Value};

use super::parameters::Arguments;

/// Computes an expression whose operands are constants. Left alone when that fails: the engine will report it if it
/// ever evaluates it.
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

/// The expression with its parameters replaced and its constant parts computed.
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
    for child in expr.children_mut() {
        replace(child, arguments);
    }
    collapse(expr);
}

/// The value of an expression over no row.
pub fn value(expr: &Expr, arguments: &Arguments<'_>) -> crate::error::Result<Value> {
    match substitute(expr, arguments) {
        Expr::Constant(value, _) => Ok(value),
        open => Ok(eval(&open, &[])?),
    }
}

/// Whether `expr` or anything in it satisfies `test`.
pub fn any(expr: &Expr, test: &dyn Fn(&Expr) -> bool) -> bool {
    test(expr) || expr.children().into_iter().any(|child| any(child, test))
}
