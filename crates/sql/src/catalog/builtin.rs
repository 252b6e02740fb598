//! The functions of the catalog.

/// A function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Builtin {
    /// A function whose result does not depend on its arguments.
    Fixed(Fixed),
    ArrayLength,
    /// The index of the first element.
    ArrayLower(i64),
    ArrayToString,
    /// The index of the first element.
    ArrayUpper(i64),
    CurrentSchemas,
    CurrentSetting,
    Encoding,
    EncodingToChar,
    ExpandArray,
    FormatType,
    GetConstraintDefinition,
    GetExpression,
    GetIndexDefinition,
    GetUserById,
    GenerateSeries,
    IsVisible,
    JsonObject,
    QuoteIdent,
    QuoteLiteral,
    SetConfig,
    SizePretty,
    /// The index of the first element.
    Subscripts(i64),
    ToRegclass,
    ToRegtype,
}

/// The result of a function that ignores its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fixed {
    Null,
    True,
    False,
    Zero,
}
