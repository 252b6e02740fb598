//! Turns text into tokens, with operators cut as in PostgreSQL (`scan.l`, the rule for `{operator}`).
//!
//! Adjacent signs are one operator: `!=-` is a single undefined operator, and not `!=` with a sign. An
//! operator may end in `+` or `-` only if it contains a sign that standard SQL does not use for operators. So
//! `=-1` is `=` and `-1`.

use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};

use super::grammar::{self, Grammar};
use crate::error::{Result, SourcePosition, SqlError, code};

/// Returns the tokens of a text, including white space.
pub fn tokens(text: &str) -> Result<Vec<TokenWithSpan>> {
    let tokens = Tokenizer::new(&Grammar, text).tokenize_with_location().map_err(|error| {
        let mut refused = SqlError::new(code::SYNTAX_ERROR, error.message);
        refused.place = SourcePosition::of(error.location);
        refused
    })?;
    Ok(if touching(&tokens, 0).is_some() { joined(tokens, text) } else { tokens })
}

/// Returns the range of the first run of at least two adjacent operators, from index `from` on.
fn touching(tokens: &[TokenWithSpan], from: usize) -> Option<(usize, usize)> {
    let is_operator = |token: &TokenWithSpan| grammar::is_operator(&token.token);
    let start =
        (from + 1..tokens.len()).find(|at| is_operator(&tokens[*at]) && is_operator(&tokens[at - 1]))? - 1;
    let length = tokens[start..].iter().take_while(|token| is_operator(token)).count();
    Some((start, start + length))
}

/// Cuts every run of adjacent operators again, by PostgreSQL's rule.
fn joined(tokens: Vec<TokenWithSpan>, text: &str) -> Vec<TokenWithSpan> {
    let mut cut = Vec::with_capacity(tokens.len());
    let mut reader = TokenReader { rest: text, at: Location { line: 1, column: 1 } };
    let mut done = 0;
    while let Some((start, end)) = touching(&tokens, done) {
        cut.extend_from_slice(&tokens[done..start]);
        let place = tokens[start].span.start;
        let length = tokens[end - 1].span.end.column - place.column;
        let signs = reader.signs(place, length as usize);
        let mut at = 0;
        while at < signs.len() {
            let length = first_operator(&signs[at..]);
            let here = |offset: usize| Location { line: place.line, column: place.column + offset as u64 };
            let token = operator(&signs[at..at + length]);
            cut.push(TokenWithSpan::new(token, Span::new(here(at), here(at + length))));
            at += length;
        }
        done = end;
    }
    cut.extend_from_slice(&tokens[done..]);
    cut
}

/// Finds places in a text. The places must be asked for in ascending order.
struct TokenReader<'a> {
    rest: &'a str,
    at: Location,
}

impl<'a> TokenReader<'a> {
    /// Returns the `length` characters at `place`. The characters are operator signs, so each has one byte.
    fn signs(&mut self, place: Location, length: usize) -> &'a str {
        let mut characters = self.rest.char_indices();
        while self.at != place
            && let Some((_, character)) = characters.next()
        {
            match character {
                '\n' => self.at = Location { line: self.at.line + 1, column: 1 },
                _ => self.at.column += 1,
            }
        }
        self.rest = characters.as_str();
        &self.rest[..length]
    }
}

/// Signs that allow an operator to end in `+` or `-`.
const UNUSUAL: &str = "~!@#^&|`?%";

/// Returns the length of the first operator in adjacent signs, in bytes.
fn first_operator(signs: &str) -> usize {
    if !signs.ends_with(['+', '-']) || signs.contains(|sign| UNUSUAL.contains(sign)) {
        return signs.len();
    }
    signs.trim_end_matches(['+', '-']).len().max(1)
}

/// Returns the token of an operator.
fn operator(signs: &str) -> Token {
    match signs {
        "+" => Token::Plus,
        "-" => Token::Minus,
        "*" => Token::Mul,
        "/" => Token::Div,
        "%" => Token::Mod,
        "^" => Token::Caret,
        "=" => Token::Eq,
        "<" => Token::Lt,
        ">" => Token::Gt,
        "<=" => Token::LtEq,
        ">=" => Token::GtEq,
        "<>" | "!=" => Token::Neq,
        "=>" => Token::RArrow,
        "||" => Token::StringConcat,
        "~" => Token::Tilde,
        "~*" => Token::TildeAsterisk,
        "!~" => Token::ExclamationMarkTilde,
        "!~*" => Token::ExclamationMarkTildeAsterisk,
        "~~" => Token::DoubleTilde,
        "~~*" => Token::DoubleTildeAsterisk,
        "!~~" => Token::ExclamationMarkDoubleTilde,
        "!~~*" => Token::ExclamationMarkDoubleTildeAsterisk,
        "&" => Token::Ampersand,
        "|" => Token::Pipe,
        "#" => Token::Sharp,
        "->" => Token::Arrow,
        "->>" => Token::LongArrow,
        other => Token::CustomBinaryOperator(other.to_owned()),
    }
}

/// Returns the syntax error at a token.
pub fn near(token: &TokenWithSpan) -> SqlError {
    let message = match &token.token {
        Token::EOF => "syntax error at end of input".to_owned(),
        other => format!("syntax error at or near \"{other}\""),
    };
    SqlError::new(code::SYNTAX_ERROR, message).at(token.span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_split_as_postgresql_splits_them() {
        for (text, cut) in [
            ("a=-1", "a = - 1"),
            ("a<>-1", "a <> - 1"),
            ("a!=-1", "a !=- 1"),
            ("a>=-+1", "a >= - + 1"),
            ("a+-1", "a + - 1"),
            ("a*-1", "a * - 1"),
            ("a%-1", "a %- 1"),
            ("a||-1", "a ||- 1"),
            ("a<-1", "a < - 1"),
            ("a->-1", "a -> - 1"),
            ("a=@b", "a =@ b"),
            ("é\n, a>=-1", "é \n ,   a >= - 1"),
            ("a**b", "a ** b"),
        ] {
            let tokens = tokens(text).unwrap();
            let joined: Vec<String> = tokens.iter().map(|token| token.token.to_string()).collect();
            assert_eq!(joined.join(" "), cut, "{text}");
        }
        let read = tokens("1 >=-2").unwrap();
        assert_eq!((read[3].span.start.column, read[3].span.end.column), (5, 6));
    }
}
