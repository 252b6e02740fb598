//! Binds what the catalog adds to expressions: its columns, its types, sub-selects and arrays.

use quorate_table::{
    expr::{Binary, Expr, Unary},
    value::{Type, Value},
};
use sqlparser::{ast, tokenizer::Span};

use super::{Binder, Typed, Using, element_of, known, operand, query::one_column, text_if_unknown};
use crate::{
    catalog::{
        functions::first_index,
        plan::{LeafNode, carrier},
    },
    error::{Result, SqlError, code},
    statement::{
        coerce::{self, Operand},
        expr::Extension,
        parameters::Parameters,
        scope,
    },
    types::{self, PgType},
};

impl Extension for Binder<'_> {
    fn column(&mut self, name: &[ast::Ident]) -> Result<Operand> {
        self.column_named(name).map(operand)
    }

    fn form(&mut self, expr: &ast::Expr, span: Span, parameters: &mut Parameters) -> Result<Operand> {
        self.with(parameters, |binder| binder.form_of_catalog(expr, span)).map(operand)
    }

    fn function(
        &mut self,
        function: &ast::Function,
        span: Span,
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>> {
        Ok(self.with(parameters, |binder| binder.function_of_catalog(function, span))?.map(operand))
    }

    fn operator(
        &mut self,
        symbol: &str,
        operands: [&Operand; 2],
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>> {
        let types = operands.map(|operand| self.type_of(operand));
        let is_match = matches!(symbol, "~" | "!~" | "~*" | "!~*");
        let is_array = types.iter().any(|ty| ty.info().category == 'A');
        if !(is_match || symbol == "&" || symbol == "||" && is_array) {
            return Ok(None);
        }
        let [a, b] = operands.map(|operand| operand.clone());
        self.with(parameters, |binder| {
            let (a, b) = (binder.typed(a)?, binder.typed(b)?);
            let bound = if is_match {
                let (a, b) = (binder.coerced(a, PgType::TEXT)?, binder.coerced(b, PgType::TEXT)?);
                let node = LeafNode::Match { text: a.0, pattern: b.0, insensitive: symbol.ends_with('*') };
                binder.leaf(node, PgType::BOOL)
            } else {
                let a = binder.coerced(a, text_if_unknown(types[1]))?;
                let b = binder.coerced(b, text_if_unknown(types[0]))?;
                if symbol == "&" {
                    binder.leaf(LeafNode::BitAnd(a.0, b.0), known(types[0], types[1]))
                } else {
                    let array = if types[0].info().category == 'A' { types[0] } else { types[1] };
                    binder.leaf(LeafNode::Joined(a.0, b.0), array)
                }
            };
            Ok(Some(operand(negated(symbol.starts_with('!'), bound))))
        })
    }

    fn cast(
        &mut self,
        operand: &Operand,
        data_type: &ast::DataType,
        _span: Span,
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>> {
        let Ok(to) = types::named(data_type) else { return Ok(None) };
        let from = self.type_of(operand);
        if matches!((from, to), (PgType::Plain(_) | PgType::Unknown, PgType::Plain(_)))
            || matches!(operand, Operand::Interval(_))
        {
            return Ok(None);
        }
        let operand = operand.clone();
        self.with(parameters, |binder| {
            if let Operand::Parameter(number, _) = operand {
                binder.parameters.decide(number, to);
                return Ok(Some(super::operand(binder.parameter_of(number, to))));
            }
            let Typed(expr, _) = binder.typed(operand)?;
            Ok(Some(super::operand(binder.leaf(LeafNode::Cast(expr, from, to), to))))
        })
    }

    fn parameter(&mut self, number: usize, ty: PgType) -> Operand {
        operand(self.parameter_of(number, ty))
    }

    fn meet(&mut self, operands: &mut [Operand], parameters: &mut Parameters) -> Result<()> {
        let types: Vec<PgType> = operands.iter().map(|operand| self.type_of(operand)).collect();
        let plain = |ty: &&PgType| matches!(ty, PgType::Plain(_) | PgType::Unknown | PgType::Interval);
        let of_catalog = types.iter().find(|ty| !plain(ty));
        let Some(&of_catalog) = of_catalog else { return Ok(()) };
        let numbers = types.iter().any(|ty| ty.is_oid() && carrier(*ty) != Type::Text || is_integer(*ty));
        self.with(parameters, |binder| {
            for (met, ty) in operands.iter_mut().zip(types) {
                let names_function = ty.is_oid() && carrier(ty) == Type::Text;
                if ty != PgType::Unknown && !(names_function && numbers) {
                    continue;
                }
                let typed = binder.typed(std::mem::replace(met, Operand::Null))?;
                *met = operand(if ty == PgType::Unknown {
                    binder.coerced(typed, of_catalog)?
                } else {
                    // A function that is compared with a number is converted to its object id.
                    binder.leaf(LeafNode::Cast(typed.0, ty, PgType::Oid), PgType::Oid)
                });
            }
            Ok(())
        })
    }
}

fn is_integer(ty: PgType) -> bool {
    matches!(ty, PgType::Plain(Type::Int2 | Type::Int4 | Type::Int8))
}

/// Returns the condition, or with `not` its negation.
fn negated(not: bool, Typed(expr, ty): Typed) -> Typed {
    Typed(if not { Expr::Unary(Unary::Not, Box::new(expr)) } else { expr }, ty)
}

impl Binder<'_> {
    /// Runs `work` with the current parameters of the binder of scalar expressions in place of this binder's
    /// own.
    fn with<T>(
        &mut self,
        parameters: &mut Parameters,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        std::mem::swap(self.parameters, parameters);
        let done = work(self);
        std::mem::swap(self.parameters, parameters);
        done
    }

    fn column_named(&mut self, idents: &[ast::Ident]) -> Result<Typed> {
        let names: Vec<String> = idents.iter().map(scope::fold).collect();
        let (table, name) = match names.as_slice() {
            [name] => (None, name),
            [table, name] | [_, table, name] => (Some(table), name),
            _ => return Err(SqlError::unsupported(format!("the name {}", names.join(".")))),
        };
        for (level, columns) in self.levels.iter().rev().enumerate() {
            let mut found = columns.iter().enumerate().filter(|(_, column)| {
                column.name == *name
                    && table.map_or(column.using != Using::Merged, |table| *table == column.table)
            });
            match (found.next(), found.next()) {
                (None, _) => {}
                (Some((index, column)), None) => {
                    let ty = column.ty;
                    return Ok(self.leaf(LeafNode::Column { level, index }, ty));
                }
                (Some(_), Some(_)) => {
                    let message = format!("column reference \"{name}\" is ambiguous");
                    return Err(SqlError::new(code::AMBIGUOUS_COLUMN, message).at(idents[0].span));
                }
            }
        }
        let shown = match table {
            Some(table) => format!("column {table}.{name} does not exist"),
            None => format!("column \"{name}\" does not exist"),
        };
        Err(SqlError::new(code::UNDEFINED_COLUMN, shown).at(idents[0].span))
    }

    fn form_of_catalog(&mut self, expr: &ast::Expr, span: Span) -> Result<Typed> {
        match expr {
            ast::Expr::Subquery(query) => {
                let (plan, columns) = self.query(query)?;
                one_column(&columns, span)?;
                Ok(self.leaf(LeafNode::Scalar(Box::new(plan)), columns[0].ty))
            }
            ast::Expr::Exists { subquery, negated: not } => {
                let (plan, _) = self.query(subquery)?;
                Ok(negated(*not, self.leaf(LeafNode::Exists(Box::new(plan)), PgType::BOOL)))
            }
            ast::Expr::InSubquery { expr, subquery, negated: not } => {
                let subject = self.expr(expr)?;
                let rows = self.rows_of_query(subquery, span)?;
                self.any(subject, Binary::Equal, rows, false).map(|any| negated(*not, any))
            }
            ast::Expr::AnyOp { left, compare_op, right, .. } => {
                self.quantified(left, compare_op, right, false, span)
            }
            ast::Expr::AllOp { left, compare_op, right } => {
                self.quantified(left, compare_op, right, true, span)
            }
            ast::Expr::Array(array) => {
                if !array.named {
                    return Err(SqlError::new(code::SYNTAX_ERROR, "syntax error at or near \"[\"").at(span));
                }
                if array.elem.iter().any(|element| matches!(element, ast::Expr::Array(_))) {
                    return Err(SqlError::unsupported("an array of several dimensions").at(span));
                }
                let elements = array.elem.iter().map(|element| self.expr(element));
                let elements = elements.collect::<Result<Vec<_>>>()?;
                let ty = elements.iter().fold(PgType::Unknown, |ty, Typed(_, element)| known(ty, *element));
                let mut items = Vec::with_capacity(elements.len());
                for element in elements {
                    items.push(self.coerced(element, text_if_unknown(ty))?.0);
                }
                let array = text_if_unknown(ty).array().unwrap_or(PgType::TextArray);
                Ok(self.leaf(LeafNode::Array(items), array))
            }
            ast::Expr::CompoundFieldAccess { root, access_chain } => {
                // The first names are a column, preceded by its table if the column is qualified.
                let mut name = match &**root {
                    ast::Expr::Identifier(ident) => vec![ident.clone()],
                    ast::Expr::CompoundIdentifier(idents) => idents.clone(),
                    _ => Vec::new(),
                };
                let mut rest = &access_chain[..];
                if !name.is_empty() {
                    while let [ast::AccessExpr::Dot(ast::Expr::Identifier(part)), more @ ..] = rest {
                        name.push(part.clone());
                        rest = more;
                    }
                }
                let root = if name.is_empty() { self.expr(root)? } else { self.column_named(&name)? };
                rest.iter().try_fold(root, |value, access| self.part(value, access, span))
            }
            other => Err(SqlError::unsupported(format!("the expression {other}")).at(span)),
        }
    }

    /// Binds an element of an array, or a field of a record.
    fn part(&mut self, Typed(value, ty): Typed, access: &ast::AccessExpr, span: Span) -> Result<Typed> {
        match access {
            ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                let index = self.expr(index)?;
                let Typed(index, _) = self.coerced(index, PgType::INT8)?;
                let first = Expr::Constant(Value::Int8(1 - first_index(ty)), Type::Int8);
                let place = Expr::binary(Binary::Add, coerce::cast(index, Type::Int8), first);
                Ok(self.leaf(LeafNode::Element(value, place), element_of(ty)))
            }
            ast::AccessExpr::Dot(ast::Expr::Identifier(field)) if ty == PgType::Record => {
                let (place, ty) = record_field(field)?;
                Ok(self.leaf(LeafNode::Field(value, place), ty))
            }
            _ => Err(SqlError::unsupported("this field or slice of a value").at(span)),
        }
    }

    /// Binds the rows of a sub-select as an array.
    pub(super) fn rows_of_query(&mut self, query: &ast::Query, span: Span) -> Result<Typed> {
        let (plan, columns) = self.query(query)?;
        one_column(&columns, span)?;
        let ty = columns[0].ty.array().unwrap_or(PgType::TextArray);
        Ok(self.leaf(LeafNode::ArrayOf(Box::new(plan)), ty))
    }

    fn quantified(
        &mut self,
        left: &ast::Expr,
        op: &ast::BinaryOperator,
        right: &ast::Expr,
        all: bool,
        span: Span,
    ) -> Result<Typed> {
        let op = match op.to_string().as_str() {
            "=" => Binary::Equal,
            "<>" => Binary::NotEqual,
            "<" => Binary::Less,
            "<=" => Binary::LessEqual,
            ">" => Binary::Greater,
            ">=" => Binary::GreaterEqual,
            _ => return Err(SqlError::unsupported("ANY with this operator").at(span)),
        };
        let left = self.expr(left)?;
        let mut unwrapped = right;
        while let ast::Expr::Nested(inner) = unwrapped {
            unwrapped = inner;
        }
        let right = match unwrapped {
            ast::Expr::Subquery(query) => self.rows_of_query(query, span)?,
            other => {
                let right = self.expr(other)?;
                let wanted = text_if_unknown(left.1).array().unwrap_or(PgType::TextArray);
                self.coerced(right, wanted)?
            }
        };
        self.any(left, op, right, all)
    }

    fn any(&mut self, left: Typed, op: Binary, Typed(right, array): Typed, all: bool) -> Result<Typed> {
        let element = element_of(array);
        let Typed(left, ty) = self.coerced(left, element)?;
        let compared = coerce::wider(carrier(ty), carrier(element)).unwrap_or(Type::Text);
        Ok(self.leaf(LeafNode::Any { left, op, right, all, compared }, PgType::BOOL))
    }
}

/// Returns the index and the type of a record's field. All records come from `_pg_expandarray` and have two
/// fields: an element and the element's number.
fn record_field(field: &ast::Ident) -> Result<(usize, PgType)> {
    match scope::fold(field).as_str() {
        "x" => Ok((0, PgType::Plain(Type::Int2))),
        "n" => Ok((1, PgType::INT4)),
        other => Err(SqlError::new(
            code::UNDEFINED_COLUMN,
            format!("could not identify column \"{other}\" in record data type"),
        )
        .at(field.span)),
    }
}
