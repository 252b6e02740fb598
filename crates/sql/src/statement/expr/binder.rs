//! The binder of expressions: the scope, the parameters and the aggregates that its parts share.

use quorate_table::expr::Aggregate;

use super::extension::Extension;
use crate::{
    error::Result,
    statement::{coerce::Operand, parameters::Parameters, scope::Scope},
};

/// Number of the first aggregate's result as a column. The number is replaced when the select knows how many
/// grouping keys precede the results.
pub const AGGREGATE: usize = 1 << 32;

/// Binds expressions over the columns of one scope.
pub struct Binder<'a> {
    /// The columns that can be named.
    pub scope: &'a Scope<'a>,
    /// Types of parameters, decided while binding.
    pub parameters: &'a mut Parameters,
    /// The list that collects aggregates, or the name of a place where aggregates are not allowed.
    pub aggregates: Result<&'a mut Vec<Aggregate>, &'static str>,
    /// The forms of the catalog; `None` outside of queries of the catalog.
    pub extension: Option<&'a mut (dyn Extension + 'a)>,
}

impl<'a> Binder<'a> {
    /// Creates a binder of expressions over a table, or over no columns.
    pub fn new(
        scope: &'a Scope<'a>,
        parameters: &'a mut Parameters,
        aggregates: Result<&'a mut Vec<Aggregate>, &'static str>,
    ) -> Self {
        Binder { scope, parameters, aggregates, extension: None }
    }

    /// Converts the strings, NULLs and parameters among operands of one operator or list to a type of the
    /// catalog, if another operand has such a type.
    pub(super) fn meet(&mut self, operands: &mut [Operand]) -> Result<()> {
        match &mut self.extension {
            Some(extension) => extension.meet(operands, self.parameters),
            None => Ok(()),
        }
    }
}
