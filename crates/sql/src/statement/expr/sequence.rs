//! Binds calls of `nextval`, `currval`, `lastval` and `setval`.

use std::sync::Arc;

use quorate_table::{
    expr::Expr,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned},
    tokenizer::Span,
};

use super::{binder::Binder, function::no_function, operand::session_value};
use crate::{
    backend::Catalog,
    error::{Result, SqlError},
    sequence::{self, Sequence, SequenceCall, SequenceName},
    statement::{
        coerce::{self, Operand},
        scope,
    },
};

impl Binder<'_> {
    /// Binds a call. The call is executed once for the statement. So a call that changes a sequence can stand
    /// only where an expression is evaluated once.
    pub(super) fn sequence_call(
        &mut self,
        name: &str,
        arguments: &[FunctionArg],
        span: Span,
    ) -> Result<Operand> {
        let reads = matches!(name, "currval" | "lastval");
        let catalog = match &self.parameters.sequences {
            Some(catalog) if self.extension.is_none() && (reads || self.scope.schema.is_none()) => {
                catalog.clone()
            }
            _ => {
                return Err(SqlError::unsupported(format!("{name} in an expression over rows"))
                    .hint("Call it in VALUES, as a DEFAULT, or in a SELECT without FROM.")
                    .at(span));
            }
        };
        let exprs: Option<Vec<&ast::Expr>> = arguments
            .iter()
            .map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
                _ => None,
            })
            .collect();
        let call = match (name, exprs.as_deref()) {
            ("nextval", Some([named])) => SequenceCall::Next(self.sequence_name(&catalog, named)?),
            ("currval", Some([named])) => SequenceCall::Current(self.sequence_name(&catalog, named)?),
            ("lastval", Some([])) => SequenceCall::Last,
            ("setval", Some([named, value, rest @ ..])) if rest.len() < 2 => SequenceCall::Set {
                sequence: self.sequence_name(&catalog, named)?,
                value: self.sequence_argument(name, value, Type::Int8)?,
                is_called: match rest.first() {
                    Some(is_called) => self.sequence_argument(name, is_called, Type::Bool)?,
                    None => Expr::Constant(Value::Bool(true), Type::Bool),
                },
            },
            _ => return Err(no_function(name, &vec!["unknown"; arguments.len()], span)),
        };
        Ok(session_value(self.parameters.call(call)))
    }

    fn sequence_argument(&mut self, name: &str, argument: &ast::Expr, ty: Type) -> Result<Expr> {
        let operand = self.operand(argument)?;
        if let Some(from) = operand.ty()
            && coerce::wider(from, ty) != Some(ty)
        {
            return Err(no_function(name, &["unknown", from.name()], argument.span()));
        }
        operand.coerce_implicit(ty, self.parameters)
    }

    fn sequence_name(&mut self, catalog: &Arc<Catalog>, named: &ast::Expr) -> Result<SequenceName> {
        let bare = without_casts(named);
        if let Some(sequence) = constant_sequence(catalog, bare)? {
            return Ok(SequenceName::Known(sequence));
        }
        if self.scope.schema.is_some() {
            return Err(SqlError::unsupported("a sequence that is not named by a constant, over rows")
                .at(named.span()));
        }
        let operand = self.operand(bare)?;
        if operand.ty().is_some_and(|ty| ty != Type::Text) {
            return Err(SqlError::unsupported("a sequence that is not named by a text").at(named.span()));
        }
        Ok(SequenceName::Computed(operand.coerce_implicit(Type::Text, self.parameters)?))
    }
}

/// Returns the sequence that a constant names: a string, or `pg_get_serial_sequence` of strings. `None` if
/// the expression is no such constant.
pub fn constant_sequence(catalog: &Catalog, named: &ast::Expr) -> Result<Option<Arc<Sequence>>> {
    let named = without_casts(named);
    if let Some(text) = string(named) {
        return sequence::named(catalog, text).map(Some).map_err(|error| error.at(named.span()));
    }
    let ast::Expr::Function(function) = named else { return Ok(None) };
    let is_serial = scope::parts(&function.name)?.last().is_some_and(|name| name == "pg_get_serial_sequence");
    let FunctionArguments::List(list) = &function.args else { return Ok(None) };
    let [
        FunctionArg::Unnamed(FunctionArgExpr::Expr(table)),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(column)),
    ] = &list.args[..]
    else {
        return Ok(None);
    };
    let (Some(table), Some(column), true) = (string(table), string(column), is_serial) else {
        return Ok(None);
    };
    let table = crate::catalog::identifier::parts(table).and_then(|mut parts| parts.pop());
    let owned = sequence::of_column(catalog, &table.unwrap_or_default(), column);
    let owned = owned.ok_or_else(|| {
        SqlError::new("22004", format!("column \"{column}\" has no sequence")).at(named.span())
    })?;
    sequence::find(catalog, &owned.name).map(Some)
}

/// Returns an expression without parentheses and casts to `regclass` or a string type.
fn without_casts(mut expr: &ast::Expr) -> &ast::Expr {
    loop {
        expr = match expr {
            ast::Expr::Nested(inner) => inner,
            ast::Expr::Cast {
                expr: inner,
                data_type:
                    ast::DataType::Regclass
                    | ast::DataType::Text
                    | ast::DataType::Varchar(None)
                    | ast::DataType::CharacterVarying(None),
                ..
            } => inner,
            bare => return bare,
        };
    }
}

fn string(expr: &ast::Expr) -> Option<&str> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        ast::Expr::Nested(_) | ast::Expr::Cast { .. } if !std::ptr::eq(without_casts(expr), expr) => {
            string(without_casts(expr))
        }
        _ => None,
    }
}
