//! The forms that only queries of the catalog can use.

use sqlparser::{ast, tokenizer::Span};

use crate::{
    error::Result,
    statement::{coerce::Operand, parameters::Parameters},
    types::PgType,
};

/// Binds what expressions over tables lack: types that no column of a table has, sub-selects, arrays,
/// functions about the catalog. The binder asks it at these places, and binds all else by itself.
pub trait Extension {
    /// Finds a column by its name, qualified or not.
    fn column(&mut self, name: &[ast::Ident]) -> Result<Operand>;

    /// Binds a form of syntax that expressions over tables lack.
    fn form(&mut self, expr: &ast::Expr, span: Span, parameters: &mut Parameters) -> Result<Operand>;

    /// Binds a call. `None` if the function is one that tables have.
    fn function(
        &mut self,
        function: &ast::Function,
        span: Span,
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>>;

    /// Binds an operator. `None` if it is one of the engine on these operands.
    fn operator(
        &mut self,
        symbol: &str,
        operands: [&Operand; 2],
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>>;

    /// Binds a cast. `None` if it is between two types that tables have.
    fn cast(
        &mut self,
        operand: &Operand,
        data_type: &ast::DataType,
        span: Span,
        parameters: &mut Parameters,
    ) -> Result<Option<Operand>>;

    /// Returns a parameter of this type.
    fn parameter(&mut self, number: usize, ty: PgType) -> Operand;

    /// Converts the operands without a type that meet one of a type which tables lack.
    fn meet(&mut self, operands: &mut [Operand], parameters: &mut Parameters) -> Result<()>;
}
