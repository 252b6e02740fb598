//! The options of sequences, in CREATE SEQUENCE and of identity columns.

use sqlparser::ast;

use crate::{
    error::{Result, SqlError, code},
    sequence::{SequenceDefinition, greatest},
};

/// Applies the options of a sequence.
pub(super) fn set_options(
    definition: &mut SequenceDefinition,
    options: &[ast::SequenceOptions],
) -> Result<()> {
    use ast::SequenceOptions::{Cache, Cycle, IncrementBy, MaxValue, MinValue, StartWith};
    let (mut start, mut min, mut max) = (None, None, None);
    for (index, option) in options.iter().enumerate() {
        let kind = std::mem::discriminant(option);
        if options[..index].iter().any(|other| std::mem::discriminant(other) == kind) {
            return Err(SqlError::new(code::SYNTAX_ERROR, "conflicting or redundant options"));
        }
        match option {
            IncrementBy(number, _) => definition.increment = integer(number)?,
            MinValue(number) => min = number.as_ref().map(integer).transpose()?,
            MaxValue(number) => max = number.as_ref().map(integer).transpose()?,
            StartWith(number, _) => start = Some(integer(number)?),
            Cache(number) => definition.cache = integer(number)?,
            Cycle(true) => {}
            Cycle(false) => {
                return Err(SqlError::unsupported("a sequence with CYCLE, which gives a number twice"));
            }
        }
    }
    let is_rising = definition.increment > 0;
    let (least, greatest) = (-greatest(definition.ty) - 1, greatest(definition.ty));
    let min = min.unwrap_or(if is_rising { 1 } else { least });
    let max = max.unwrap_or(if is_rising { greatest } else { -1 });
    let start = start.unwrap_or(if is_rising { min } else { max });
    (definition.min, definition.max, definition.start) = (min, max, start);
    let ty = definition.ty.name();
    let message = if definition.increment == 0 {
        "INCREMENT must not be zero".to_owned()
    } else if max > greatest || max < least {
        format!("MAXVALUE ({max}) is out of range for sequence data type {ty}")
    } else if min > greatest || min < least {
        format!("MINVALUE ({min}) is out of range for sequence data type {ty}")
    } else if min >= max {
        format!("MINVALUE ({min}) must be less than MAXVALUE ({max})")
    } else if start < min {
        format!("START value ({start}) cannot be less than MINVALUE ({min})")
    } else if start > max {
        format!("START value ({start}) cannot be greater than MAXVALUE ({max})")
    } else if definition.cache < 1 {
        format!("CACHE ({}) must be greater than zero", definition.cache)
    } else {
        return Ok(());
    };
    Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message))
}

fn integer(number: &ast::Expr) -> Result<i64> {
    let text = number.to_string();
    text.trim_start_matches('+')
        .parse()
        .map_err(|_| SqlError::new("22003", format!("value \"{text}\" is out of range for type bigint")))
}
