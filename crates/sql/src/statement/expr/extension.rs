//! The forms that only queries of the catalog can use.

use sqlparser::{ast, tokenizer::Span};

use crate::{
    error::Result,
    statement::{coerce::Operand, parameters::Parameters},
    types::PgType,
};

/// Binds what only queries of the catalog can use: types that no column of a table has, sub-selects, arrays,
/// functions about the catalog. The binder calls the extension for these forms, and binds all other forms by
/// itself.
pub trait Extension {
    /// Finds a column by its name, qualified or not.
    fn column(&mut self, name: &[ast::Ident]) -> Result<Operand>;

    /// Binds a form of syntax that expressions over tables lack.
    fn form(&mut self, expr: &ast::Expr, span: Span, parameters: &mut Parameters) -> Result<Operand>;

    /// Binds a call. `None` if the function is one that expressions over tables have, too.
    fn function(
        &mut self,
        function: &ast::Function,
        span: Span,
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>>;

    /// Binds an operator. `None` if the engine has this operator for these operands.
    fn operator(
        &mut self,
        symbol: &str,
        operands: [&Operand; 2],
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>>;

    /// Binds a cast. `None` if columns of tables can have both types.
    fn cast(
        &mut self,
        operand: &Operand,
        data_type: &ast::DataType,
        span: Span,
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>>;

    /// Returns a parameter of this type.
    fn parameter(&mut self, number: usize, ty: PgType) -> Operand;

    /// Converts the operands without a type if another operand has a type that no column of a table has.
    fn meet(&mut self, operands: &mut [Operand], parameters: &mut Parameters) -> Result<()>;
}
