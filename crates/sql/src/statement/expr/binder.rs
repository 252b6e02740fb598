//! The binder of expressions: the scope, the parameters and the aggregates that its parts share.

use quorate_table::expr::Aggregate;

use crate::{
    error::Result,
    statement::{parameters::Parameters, scope::Scope},
};

/// Number of the first aggregate's result as a column, until the select knows how many grouping keys come
/// first.
pub const AGGREGATE: usize = 1 << 32;

/// Binds expressions over the columns of one scope.
pub struct Binder<'a> {
    /// The columns that can be named.
    pub scope: &'a Scope<'a>,
    /// Types of parameters, decided while binding.
    pub parameters: &'a mut Parameters,
    /// The list that collects aggregates, or the name of a place where aggregates are not allowed.
    pub aggregates: Result<&'a mut Vec<Aggregate>, &'static str>,
}
