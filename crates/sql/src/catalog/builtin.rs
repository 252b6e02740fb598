//! The functions of the catalog.

/// A function that queries of the catalog can call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Builtin {
    /// A function whose result does not depend on its arguments.
    Fixed(Fixed),
    ArrayLength,
    /// The function `array_lower`. The number is the index of the first element of its argument.
    ArrayLower(i64),
    ArrayToString,
    /// The function `array_upper`. The number is the index of the first element of its argument.
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
    GetSerialSequence,
    GetUserById,
    GenerateSeries,
    IsVisible,
    JsonObject,
    QuoteIdent,
    QuoteLiteral,
    SetConfig,
    SizePretty,
    /// The function `generate_subscripts`. The number is the index of the first element of its argument.
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
