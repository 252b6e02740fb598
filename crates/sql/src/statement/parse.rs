//! Parses text into syntax trees, one per statement.
//!
//! Every returned tree is shallow ([`depth`]), so that later code may walk, copy and drop it by recursion.

use sqlparser::{
    ast,
    parser::{Parser, ParserError},
    tokenizer::{Location, Token, TokenWithSpan},
};

use super::{
    depth,
    grammar::{Grammar, UNSUPPORTED},
    lexer, spelling, unsupported_clauses,
};
use crate::error::{Result, SourcePosition, SqlError, code};

/// Longest statement that is accepted, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 16 << 20;

/// Maximum depth of nested parentheses. PostgreSQL limits its stack depth instead of a count; this limit is
/// stricter.
const DEPTH_MAX: usize = 128;

/// Parses the statements of a text. Empty statements are left out.
pub fn parse(text: &str) -> Result<Vec<ast::Statement>> {
    if text.len() > STATEMENT_BYTES_MAX {
        return Err(SqlError::new(
            code::PROGRAM_LIMIT_EXCEEDED,
            format!("the statement is too long: {} bytes, the limit is {STATEMENT_BYTES_MAX}", text.len()),
        ));
    }
    let tokens = lexer::tokens(text)?;
    let mut statements = Vec::new();
    for tokens in tokens.split(|token| token.token == Token::SemiColon) {
        if tokens.iter().all(|token| matches!(token.token, Token::Whitespace(_) | Token::EOF)) {
            continue;
        }
        let tokens = &spelling::rewrite_tokens(tokens)?;
        let statement = match depth::room(tokens)? {
            None => {
                let shallow = statement(tokens)?;
                unsupported_clauses::refuse(&shallow)?;
                shallow
            }
            Some(bytes) => stacker::grow(bytes, || {
                let mut deep = statement(tokens)?;
                depth::flatten(&mut deep)?;
                unsupported_clauses::refuse(&deep)?;
                Ok::<_, SqlError>(deep)
            })?,
        };
        statements.push(statement);
    }
    Ok(statements)
}

fn statement(tokens: &[TokenWithSpan]) -> Result<ast::Statement> {
    let mut parser =
        Parser::new(&Grammar).with_recursion_limit(DEPTH_MAX).with_tokens_with_locations(tokens.to_vec());
    let statement = parser.parse_statement().map_err(|error| refused(error, tokens))?;
    let rest = parser.next_token();
    if rest.token != Token::EOF {
        return Err(lexer::near(&rest));
    }
    Ok(statement)
}

/// Converts an error of sqlparser, which carries its place as words: " at Line: 1, Column: 8".
fn refused(error: ParserError, tokens: &[TokenWithSpan]) -> SqlError {
    let message = match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
        ParserError::RecursionLimitExceeded => {
            return depth::refused(DEPTH_MAX);
        }
    };
    let located = message.rsplit_once(" at Line: ").and_then(|(what, at)| {
        let (line, column) = at.split_once(", Column: ")?;
        Some((what.to_owned(), line.parse::<u64>().ok()?, column.trim().parse::<u64>().ok()?))
    });
    match located {
        Some((what, line, column)) => {
            let place = SourcePosition::of(Location { line, column });
            if let Some(what) = what.strip_prefix(UNSUPPORTED) {
                let mut error = SqlError::unsupported(what);
                error.place = place;
                return error;
            }
            let token = tokens.iter().find(|t| t.span.start.line == line && t.span.start.column == column);
            let mut error = match token {
                Some(token) => lexer::near(token),
                None => SqlError::new(code::SYNTAX_ERROR, "syntax error"),
            };
            error.place = place;
            error.detail(what)
        }
        None => {
            let mut error = SqlError::new(code::SYNTAX_ERROR, "syntax error at end of input").detail(message);
            error.place = tokens.last().and_then(|token| SourcePosition::of(token.span.end));
            error
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_split_at_semicolons_and_empty_statements_are_dropped() {
        assert_eq!(parse(";; select 1; ;select ';'").unwrap().len(), 2);
        assert_eq!(parse(" -- nothing\n").unwrap().len(), 0);
        assert_eq!(parse("copy t from stdin; select 1").unwrap().len(), 2);
    }

    #[test]
    fn string_literals_on_two_lines_are_joined() {
        for text in ["select 'a'\n'b'", "select 'a' -- first\n  'b'"] {
            assert_eq!(parse(text).unwrap()[0].to_string(), "SELECT 'ab'");
        }
        let text = "select 'a' 'b'";
        let error = parse(text).unwrap_err();
        assert_eq!((error.code.as_ref(), error.place.unwrap().offset(text)), ("42601", 12));
    }

    #[test]
    fn postgresqls_spellings_of_a_statement_are_read_as_one() {
        for (text, read) in [
            ("abort", "ROLLBACK"),
            ("table t order by a", "SELECT * FROM t ORDER BY a"),
            ("select a from only t", "SELECT a FROM t"),
            ("select trim(trailing from b), trim(from b)", "SELECT TRIM(TRAILING b), TRIM(b)"),
            ("select trim(both 'x' from b)", "SELECT TRIM(BOTH 'x' FROM b)"),
            ("select 1 where 1 between asymmetric 0 and 2", "SELECT 1 WHERE 1 BETWEEN 0 AND 2"),
            ("create unlogged table t (a int)", "CREATE TABLE t (a INT)"),
            ("reset time zone", "RESET timezone"),
            ("fetch all c", "FETCH ALL FROM c"),
            ("fetch 2 c", "FETCH 2 FROM c"),
            ("fetch forward 2 c", "FETCH FORWARD 2 FROM c"),
            ("fetch c", "FETCH NEXT FROM c"),
            ("fetch forward c", "FETCH NEXT FROM c"),
            ("fetch forward in c", "FETCH NEXT IN c"),
            ("fetch forward from c", "FETCH NEXT FROM c"),
            ("fetch forward all in c", "FETCH FORWARD ALL IN c"),
            ("fetch next in c", "FETCH NEXT IN c"),
        ] {
            assert_eq!(parse(text).unwrap()[0].to_string(), read);
        }
        assert_eq!(parse("select 1 between symmetric 2 and 0").unwrap_err().code, "0A000");
    }

    #[test]
    fn deep_statements_are_flattened_or_refused() {
        let chain = |count: usize, term: &str, between: &str| vec![term; count].join(between);
        let on_a_small_stack = |text: String| {
            let parsed = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
                parse(&text).map(|statements| drop(statements[0].clone())).map_err(|error| error.code.clone())
            });
            parsed.unwrap().join().unwrap()
        };
        for text in [
            format!("select {}", chain(30_000, "a = 1", " or ")),
            format!("select {}", chain(10_000, "not a is null", " and ")),
            chain(5_000, "select a from t where b = 1", " union all "),
            format!("select 1 where {}", chain(3_000, "(a = 1 and b = 2)", " or ")),
            format!("select case {} end", chain(5_000, "when a = 1 then 2", " ")),
            format!("insert into t values {}", chain(50_000, "(1, -2, 'c' || 'd')", ",")),
            format!("select {}", chain(200, "a", " + ")),
        ] {
            assert_eq!(on_a_small_stack(text.clone()), Ok(()), "{}", &text[..60]);
        }
        for text in [
            format!("select {}", chain(2_000, "1", " + ")),
            format!("select {}", chain(20_000, "'a'", " || ")),
            format!("select {}", chain(200_000, "a", " or ")),
            format!("select 1{}", "::int".repeat(5_000)),
            format!("select 1{}", "::int".repeat(500_000)),
            format!("select {}true", "not ".repeat(5_000)),
            format!("select {}1", "- ".repeat(50_000)),
            format!("select {}1{}", "(".repeat(5_000), ")".repeat(5_000)),
            format!("select {}1{}", "abs(".repeat(5_000), ")".repeat(5_000)),
            format!("select {}1{}", "array[".repeat(50_000), "]".repeat(50_000)),
            format!("select {}'1 day'", "interval ".repeat(50_000)),
            format!("select cast(1 as {}int", "array<".repeat(50_000)),
            format!("select 1::int{}", "[]".repeat(50_000)),
            format!("select a{}", "[1]".repeat(5_000)),
            format!("select 1 from t{}", " join t".repeat(5_000)),
            format!("select a{}", " is null".repeat(5_000)),
            format!("select a{}", " between 1 and 2".repeat(5_000)),
            chain(5_000, "select 1", " except "),
            chain(5_000, "select 1 union select 2", " union all "),
            "explain ".repeat(50_000),
            format!("select {} +", chain(30_000, "a", " or ")),
        ] {
            let refused = on_a_small_stack(text.clone()).expect_err(&text[..60]);
            assert!(matches!(refused.as_ref(), "54001" | "42601"), "{refused}: {}", &text[..60]);
        }
    }

    #[test]
    fn a_syntax_error_names_its_place() {
        let text = "select a,\n  (1 2) from t";
        let error = parse(text).unwrap_err();
        assert_eq!((error.code.as_ref(), error.place.unwrap().offset(text)), ("42601", 16));
        let error = parse("selec 1").unwrap_err();
        assert_eq!(error.place.unwrap().offset("selec 1"), 1);
        assert_eq!(error.message, "syntax error at or near \"selec\"");
    }
}
