//! Text to syntax trees, one statement at a time.

use sqlparser::{
    ast,
    dialect::PostgreSqlDialect,
    parser::{Parser, ParserError},
    tokenizer::{Token, TokenWithSpan, Tokenizer},
};

use crate::error::{Place, Result, SqlError, code};

/// Longest statement taken, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 16 << 20;

/// How deep expressions may nest. PostgreSQL stops at its stack depth; so does this, earlier and by count.
const DEPTH_MAX: usize = 128;

/// The statements of a text. Empty ones are left out.
pub fn parse(text: &str) -> Result<Vec<ast::Statement>> {
    if text.len() > STATEMENT_BYTES_MAX {
        return Err(SqlError::new(
            code::PROGRAM_LIMIT_EXCEEDED,
            format!("the statement is too long: {} bytes, the limit is {STATEMENT_BYTES_MAX}", text.len()),
        ));
    }
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect, text).tokenize_with_location().map_err(|error| {
        let mut refused = SqlError::new(code::SYNTAX_ERROR, error.message);
        refused.place = place(error.location.line, error.location.column);
        refused
    })?;
    let mut statements = Vec::new();
    for tokens in tokens.split(|token| token.token == Token::SemiColon) {
        if tokens.iter().all(|token| matches!(token.token, Token::Whitespace(_) | Token::EOF)) {
            continue;
        }
        let mut parser =
            Parser::new(&dialect).with_recursion_limit(DEPTH_MAX).with_tokens_with_locations(tokens.to_vec());
        statements.push(parser.parse_statement().map_err(|error| refused(error, tokens))?);
        let rest = parser.next_token();
        if rest.token != Token::EOF {
            return Err(near(&rest));
        }
    }
    Ok(statements)
}

fn near(token: &TokenWithSpan) -> SqlError {
    let message = match &token.token {
        Token::EOF => "syntax error at end of input".to_owned(),
        other => format!("syntax error at or near \"{other}\""),
    };
    SqlError::new(code::SYNTAX_ERROR, message).at(token.span)
}

/// sqlparser's errors carry their place as words: " at Line: 1, Column: 8".
fn refused(error: ParserError, tokens: &[TokenWithSpan]) -> SqlError {
    let message = match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
        ParserError::RecursionLimitExceeded => {
            return SqlError::new("54001", "the statement nests too deeply")
                .detail(format!("Expressions may nest {DEPTH_MAX} levels."));
        }
    };
    let located = message.rsplit_once(" at Line: ").and_then(|(what, at)| {
        let (line, column) = at.split_once(", Column: ")?;
        Some((what.to_owned(), line.parse::<u64>().ok()?, column.trim().parse::<u64>().ok()?))
    });
    match located {
        Some((what, line, column)) => {
            let token = tokens.iter().find(|t| t.span.start.line == line && t.span.start.column == column);
            let mut error = match token {
                Some(token) => near(token),
                None => SqlError::new(code::SYNTAX_ERROR, "syntax error"),
            };
            error.place = place(line, column);
            error.detail(what)
        }
        None => {
            let mut error = SqlError::new(code::SYNTAX_ERROR, "syntax error at end of input").detail(message);
            error.place = tokens.last().and_then(|t| place(t.span.end.line, t.span.end.column));
            error
        }
    }
}

fn place(line: u64, column: u64) -> Option<Place> {
    (line > 0).then_some(Place { line, column })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_semicolons_and_leaves_the_empty_out() {
        assert_eq!(parse(";; select 1; ;select ';'").unwrap().len(), 2);
        assert_eq!(parse(" -- nothing\n").unwrap().len(), 0);
        assert_eq!(parse("copy t from stdin; select 1").unwrap().len(), 2);
    }

    #[test]
    fn names_the_place_of_an_error() {
        let text = "select a,\n  (1 2) from t";
        let error = parse(text).unwrap_err();
        assert_eq!((error.code.as_ref(), error.place.unwrap().offset(text)), ("42601", 16));
        let error = parse("selec 1").unwrap_err();
        assert_eq!(error.place.unwrap().offset("selec 1"), 1);
        assert_eq!(error.message, "syntax error at or near \"selec\"");
    }
}
