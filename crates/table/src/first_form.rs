//! The operations and expressions that every build of Quorate can read.
//!
//! Early builds lack some types, values, functions and operations, and their storage processes cannot decode
//! them. So a gateway refuses these in a domain that an early build founded.

use crate::{
    expr::{Expr, Function},
    operation::{Conflict, Operation, Select, TransactionStatement},
    value::{Row, Value},
};

impl Value {
    /// Whether every build can read the value.
    fn is_of_first_form(&self) -> bool {
        self.ty().is_none_or(|ty| ty.is_of_first_form())
    }
}

impl Function {
    /// Whether every build knows the function.
    fn is_of_first_form(self) -> bool {
        !matches!(
            self,
            Function::Encode
                | Function::Decode
                | Function::JsonField
                | Function::JsonFieldText
                | Function::JsonPath
                | Function::JsonPathText
                | Function::JsonContains
                | Function::JsonExists
                | Function::JsonTypeOf
                | Function::JsonArrayLength
        )
    }
}

impl Expr {
    /// Whether every build can read the expression.
    pub fn is_of_first_form(&self) -> bool {
        let own = match self {
            Expr::Constant(value, ty) => value.is_of_first_form() && ty.is_of_first_form(),
            Expr::Column(_, ty) | Expr::Parameter(_, ty) | Expr::Cast(_, ty) | Expr::Case { ty, .. } => {
                ty.is_of_first_form()
            }
            Expr::Call(function, _) => function.is_of_first_form(),
            Expr::Unary(..) | Expr::Binary(..) | Expr::IsNull(_) | Expr::In(..) | Expr::Like { .. } => true,
        };
        own && self.children().into_iter().all(Expr::is_of_first_form)
    }
}

impl Operation {
    /// Whether every build can read the operation, judged by its kind and by its types, values and functions.
    pub fn is_of_first_form(&self) -> bool {
        let rows = |rows: &[Row]| rows.iter().flatten().all(Value::is_of_first_form);
        let many = |exprs: &[Expr]| exprs.iter().all(Expr::is_of_first_form);
        let filter = |filter: &Option<Expr>| filter.as_ref().is_none_or(Expr::is_of_first_form);
        let assigned =
            |assignments: &[(usize, Expr)]| assignments.iter().all(|(_, expr)| expr.is_of_first_form());
        match self {
            Operation::CreateTable { schema, .. } => schema.is_of_first_form(),
            Operation::Insert { rows: added, returning, .. } => rows(added) && many(returning),
            Operation::Update { assignments, filter: condition, returning, .. } => {
                assigned(assignments) && filter(condition) && many(returning)
            }
            Operation::Delete { filter: condition, returning, .. } => filter(condition) && many(returning),
            Operation::Stage { rows: added, .. } => rows(added),
            Operation::Upsert { rows: added, conflict, returning, .. } => {
                let changed = match conflict {
                    Conflict::Skip => true,
                    Conflict::Update { assignments, filter: condition } => {
                        assigned(assignments) && filter(condition)
                    }
                };
                rows(added) && changed && many(returning)
            }
            Operation::Select(select) | Operation::Explain(select) => select.is_of_first_form(),
            Operation::Backup(selects) => selects.iter().all(Select::is_of_first_form),
            Operation::Transaction(transaction) => transaction.statements().all(is_of_first_form),
            Operation::Trial(trial) => trial.statements().all(is_of_first_form),
            // Earlier builds alter no tables.
            Operation::AlterTable { .. } => false,
            Operation::DropTable { .. } | Operation::Publish { .. } | Operation::Discard { .. } => true,
        }
    }
}

fn is_of_first_form(statement: &TransactionStatement) -> bool {
    statement.operation.is_of_first_form()
}

impl Select {
    fn is_of_first_form(&self) -> bool {
        self.filter.iter().chain(self.output.expressions()).all(Expr::is_of_first_form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{schema::TableId, value::Type};

    #[test]
    fn later_types_and_functions_are_found_at_any_depth() {
        let column = Expr::Column(0, Type::Text);
        let delete =
            |filter| Operation::Delete { table: TableId(1), filter: Some(filter), returning: Vec::new() };
        let of_text = |expr| Expr::IsNull(Box::new(Expr::Cast(Box::new(expr), Type::Text)));
        assert!(delete(of_text(column.clone())).is_of_first_form());
        let cast = Expr::Cast(Box::new(column.clone()), Type::Uuid);
        let constant = Expr::Constant(Value::Uuid([0; 16]), Type::Uuid);
        let call = Expr::Call(Function::Decode, vec![column.clone(), column]);
        for later in [cast, constant, call] {
            assert!(!delete(of_text(later)).is_of_first_form());
        }
        let insert =
            |value| Operation::Insert { table: TableId(1), rows: vec![vec![value]], returning: Vec::new() };
        assert!(insert(Value::Int4(1)).is_of_first_form());
        assert!(!insert(Value::bytes_of([1])).is_of_first_form());
    }
}
