//! Forms that PostgreSQL reads and the parser does not, spelled so that it does.
//!
//! What happens here happens between tokens and is blind to what stands around it, so only that is respelled which can
//! mean nothing else: words that PostgreSQL reserves, and string literals side by side.

use std::borrow::Cow;

use sqlparser::{
    keywords::Keyword,
    tokenizer::{Token, TokenWithSpan, Whitespace},
};

use super::parse::near;
use crate::error::{Result, SqlError};

/// The tokens of a statement, respelled.
pub fn respelled(tokens: &[TokenWithSpan]) -> Result<Cow<'_, [TokenWithSpan]>> {
    if !may_differ(tokens) {
        return Ok(Cow::Borrowed(tokens));
    }
    let mut spelled: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // The solid tokens before, the last one first.
    let mut before: [Option<&Token>; 3] = [None; 3];
    // Where the literal is that stood just before, and whether a line ended since.
    let mut literal: Option<(usize, bool)> = None;
    for token in tokens {
        if let Token::Whitespace(space) = &token.token {
            let ends = matches!(space, Whitespace::Newline | Whitespace::SingleLineComment { .. });
            literal = literal.map(|(at, ended)| (at, ended || ends));
            spelled.push(token.clone());
            continue;
        }
        if let Token::SingleQuotedString(more) = &token.token {
            match literal {
                // On two lines they are one.
                Some((at, true)) => {
                    if let Token::SingleQuotedString(text) = &mut spelled[at].token {
                        text.push_str(more);
                    }
                    literal = Some((at, false));
                    continue;
                }
                Some((_, false)) => return Err(near(token)),
                None => literal = Some((spelled.len(), false)),
            }
        } else {
            literal = None;
        }
        let word = keyword(Some(&token.token));
        let [last, second, third] = before.map(keyword);
        let opened = before.map(|token| token == Some(&Token::LParen));
        let between = last == Keyword::BETWEEN;
        let instead = |token_instead| TokenWithSpan::new(token_instead, token.span);
        match word {
            Keyword::ABORT if before[0].is_none() => spelled.push(instead(Token::make_keyword("ROLLBACK"))),
            // TABLE t
            Keyword::TABLE if before[0].is_none() => spelled.extend(
                [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")].map(instead),
            ),
            // There is no inheritance, and no log.
            Keyword::ONLY if matches!(last, Keyword::FROM | Keyword::JOIN | Keyword::UPDATE) => {}
            Keyword::UNLOGGED if last == Keyword::CREATE => {}
            _ if is_named(&token.token, "isnull")
                && last != Keyword::AS
                && before[0] != Some(&Token::Period) =>
            {
                spelled.extend([Token::make_keyword("IS"), Token::make_keyword("NULL")].map(instead));
            }
            // trim(from x), trim(leading from x)
            Keyword::FROM if opened[0] && second == Keyword::TRIM => {}
            Keyword::FROM if opened[1] && third == Keyword::TRIM && TRIMMED.contains(&last) => {}
            _ if between && is_named(&token.token, "asymmetric") => continue,
            _ if between && is_named(&token.token, "symmetric") => {
                return Err(SqlError::unsupported("BETWEEN SYMMETRIC")
                    .hint("Compare with both bounds in both orders.")
                    .at(token.span));
            }
            _ => spelled.push(token.clone()),
        }
        before = [Some(&token.token), before[0], before[1]];
    }
    Ok(Cow::Owned(spelled))
}

/// Whether there is anything in the tokens that is looked at more closely.
fn may_differ(tokens: &[TokenWithSpan]) -> bool {
    use Keyword::{ABORT, BETWEEN, ONLY, TABLE, TRIM, UNLOGGED};
    let mut after_literal = false;
    for token in tokens {
        match &token.token {
            Token::Whitespace(_) => continue,
            Token::SingleQuotedString(_) if after_literal => return true,
            Token::Word(word) if matches!(word.keyword, ABORT | BETWEEN | ONLY | TABLE | TRIM | UNLOGGED) => {
                return true;
            }
            word if is_named(word, "isnull") => return true,
            _ => {}
        }
        after_literal = matches!(token.token, Token::SingleQuotedString(_));
    }
    false
}

/// What `trim` may take away, in words.
const TRIMMED: [Keyword; 3] = [Keyword::LEADING, Keyword::TRAILING, Keyword::BOTH];

/// The keyword that a token is.
fn keyword(token: Option<&Token>) -> Keyword {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

fn is_named(token: &Token, name: &str) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(name))
}
