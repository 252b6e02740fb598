//! Rewrites forms that PostgreSQL accepts and the parser does not accept.
//!
//! The rewriting works on tokens and does not see their context. So it only rewrites forms that cannot have
//! another meaning: words that PostgreSQL reserves, and adjacent string literals.

use std::borrow::Cow;

use sqlparser::{
    ast,
    keywords::Keyword,
    tokenizer::{Token, TokenWithSpan, Whitespace},
};

use super::lexer::near;
use crate::error::{Result, SqlError};

/// Returns the tokens of a statement, rewritten if necessary.
pub fn rewrite_tokens(tokens: &[TokenWithSpan]) -> Result<Cow<'_, [TokenWithSpan]>> {
    if let Some(spelled) = fetch(tokens) {
        return Ok(Cow::Owned(spelled));
    }
    if !may_need_rewrite(tokens) {
        return Ok(Cow::Borrowed(tokens));
    }
    let mut spelled: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // The last tokens before the current one without white space, latest first.
    let mut before: [Option<&Token>; 3] = [None; 3];
    // The index of the string literal directly before this token, and whether a line has ended since.
    let mut literal: Option<(usize, bool)> = None;
    for (at, token) in tokens.iter().enumerate() {
        if let Token::Whitespace(space) = &token.token {
            let ends = matches!(space, Whitespace::Newline | Whitespace::SingleLineComment { .. });
            literal = literal.map(|(at, ended)| (at, ended || ends));
            spelled.push(token.clone());
            continue;
        }
        if let Token::SingleQuotedString(more) = &token.token {
            match literal {
                // Two string literals with a line end between them are one literal.
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
            // Rewrites `TABLE t`.
            Keyword::TABLE if before[0].is_none() => spelled.extend(
                [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")].map(instead),
            ),
            // Drops ONLY and UNLOGGED: tables have no inheritance here, and all tables are logged alike.
            Keyword::ONLY if matches!(last, Keyword::FROM | Keyword::JOIN | Keyword::UPDATE) => {}
            Keyword::UNLOGGED if last == Keyword::CREATE => {}
            // Rewrites `RESET TIME ZONE`.
            Keyword::TIME if last == Keyword::RESET && before[1].is_none() => {
                spelled.push(instead(Token::make_word("timezone", None)));
            }
            Keyword::ZONE if last == Keyword::TIME && second == Keyword::RESET && before[2].is_none() => {}
            _ if is_named(&token.token, "isnull")
                && last != Keyword::AS
                && before[0] != Some(&Token::Period) =>
            {
                spelled.extend([Token::make_keyword("IS"), Token::make_keyword("NULL")].map(instead));
            }
            // Rewrites `FOR NO KEY UPDATE` and `FOR KEY SHARE`: all locks of rows are alike here.
            Keyword::NO if last == Keyword::FOR && follows(tokens, at, [Keyword::KEY, Keyword::UPDATE]) => {}
            Keyword::KEY
                if last == Keyword::NO
                    && second == Keyword::FOR
                    && follows(tokens, at, [Keyword::UPDATE]) => {}
            Keyword::KEY if last == Keyword::FOR && follows(tokens, at, [Keyword::SHARE]) => {}
            // Drops FROM in `trim(from x)` and `trim(leading from x)`.
            Keyword::FROM if opened[0] && second == Keyword::TRIM => {}
            Keyword::FROM if opened[1] && third == Keyword::TRIM && TRIMMED.contains(&last) => {}
            // Rewrites `OVERRIDING SYSTEM VALUE`, for which the parser's INSERT has no place.
            _ if is_named(&token.token, "overriding") && overriding(tokens, at).is_some() => {
                // The parser would read PARTITION directly after the table's name as an alias, so the name
                // becomes the alias.
                if let (Some(Token::Word(name)), true) = (before[0], second != Keyword::AS) {
                    let alias = [Token::make_keyword("AS"), Token::Word(name.clone())];
                    spelled.extend(alias.map(instead));
                }
                let words = Token::make_word(overriding(tokens, at).expect("checked above"), Some('"'));
                let partition = [Token::make_keyword("PARTITION"), Token::LParen, words, Token::RParen];
                spelled.extend(partition.map(instead));
            }
            Keyword::SYSTEM | Keyword::USER if before[0].is_some_and(|last| is_named(last, "overriding")) => {
            }
            Keyword::VALUE
                if matches!(last, Keyword::SYSTEM | Keyword::USER)
                    && before[1].is_some_and(|second| is_named(second, "overriding")) => {}
            _ if between && is_named(&token.token, "asymmetric") => continue,
            _ if between && is_named(&token.token, "symmetric") => {
                return Err(SqlError::unsupported("BETWEEN SYMMETRIC")
                    .hint("Write x BETWEEN a AND b OR x BETWEEN b AND a.")
                    .at(token.span));
            }
            _ => spelled.push(token.clone()),
        }
        before = [Some(&token.token), before[0], before[1]];
    }
    Ok(Cow::Owned(spelled))
}

/// Whether these words follow the token at `at`.
fn follows<const N: usize>(tokens: &[TokenWithSpan], at: usize, words: [Keyword; N]) -> bool {
    let solid = tokens[at + 1..].iter().filter(|token| !matches!(token.token, Token::Whitespace(_)));
    solid.map(|token| keyword(Some(&token.token))).take(N).eq(words)
}

/// The values of identity columns that an INSERT stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overriding {
    /// `OVERRIDING SYSTEM VALUE`: the values of the statement.
    System,
    /// `OVERRIDING USER VALUE`: the numbers of the sequences.
    User,
}

/// The name of the partition into which `OVERRIDING SYSTEM VALUE` is rewritten.
const OVERRIDING_SYSTEM: &str = "OVERRIDING SYSTEM VALUE";

/// The name of the partition into which `OVERRIDING USER VALUE` is rewritten.
const OVERRIDING_USER: &str = "OVERRIDING USER VALUE";

/// Returns the OVERRIDING of an INSERT, which was rewritten into a partition.
pub fn overriding_of(insert: &ast::Insert) -> Option<Overriding> {
    let [ast::Expr::Identifier(name)] = insert.partitioned.as_deref()? else { return None };
    match name.value.as_str() {
        OVERRIDING_SYSTEM => Some(Overriding::System),
        OVERRIDING_USER => Some(Overriding::User),
        _ => None,
    }
}

/// Returns the words of `OVERRIDING … VALUE`, which begin at `at`.
fn overriding(tokens: &[TokenWithSpan], at: usize) -> Option<&'static str> {
    if follows(tokens, at, [Keyword::SYSTEM, Keyword::VALUE]) {
        Some(OVERRIDING_SYSTEM)
    } else if follows(tokens, at, [Keyword::USER, Keyword::VALUE]) {
        Some(OVERRIDING_USER)
    } else {
        None
    }
}

/// Rewrites FETCH: adds FROM before the cursor's name if FROM and IN are missing, and turns FORWARD without a
/// number into NEXT.
fn fetch(tokens: &[TokenWithSpan]) -> Option<Vec<TokenWithSpan>> {
    let is_solid = |token: &TokenWithSpan| !matches!(token.token, Token::Whitespace(_) | Token::EOF);
    let first = tokens.iter().find(|token| is_solid(token))?;
    if keyword(Some(&first.token)) != Keyword::FETCH {
        return None;
    }
    let solid: Vec<usize> = (0..tokens.len()).filter(|&at| is_solid(&tokens[at])).collect();
    let words = solid.iter().map(|&at| keyword(Some(&tokens[at].token)));
    let (&name, last) = (solid.last()?, words.clone().next_back()?);
    let named = words.clone().any(|word| matches!(word, Keyword::FROM | Keyword::IN)) || last == Keyword::ALL;
    let word = |index| words.clone().nth(index).unwrap_or(Keyword::NoKeyword);
    let alone = matches!(word(2), Keyword::FROM | Keyword::IN) || (solid.len() == 3 && !named);
    let forward = word(1) == Keyword::FORWARD && alone;
    let between: &[&str] = match solid.len() {
        1 => return None,
        _ if named && !forward => return None,
        _ if named => &[],
        2 => &["NEXT", "FROM"],
        _ => &["FROM"],
    };
    let between = between.iter().map(|word| TokenWithSpan::new(Token::make_keyword(word), tokens[name].span));
    let mut spelled = tokens.to_vec();
    spelled.splice(name..name, between);
    if forward {
        spelled[solid[1]].token = Token::make_keyword("NEXT");
    }
    Some(spelled)
}

/// Whether any token may need rewriting.
fn may_need_rewrite(tokens: &[TokenWithSpan]) -> bool {
    use Keyword::{ABORT, BETWEEN, KEY, ONLY, RESET, TABLE, TRIM, UNLOGGED};
    let mut after_literal = false;
    for token in tokens {
        match &token.token {
            Token::Whitespace(_) => continue,
            Token::SingleQuotedString(_) if after_literal => return true,
            Token::Word(word)
                if matches!(word.keyword, ABORT | BETWEEN | KEY | ONLY | RESET | TABLE | TRIM | UNLOGGED) =>
            {
                return true;
            }
            word if is_named(word, "isnull") || is_named(word, "overriding") => return true,
            _ => {}
        }
        after_literal = matches!(token.token, Token::SingleQuotedString(_));
    }
    false
}

/// The words that may stand before FROM in `trim`.
const TRIMMED: [Keyword; 3] = [Keyword::LEADING, Keyword::TRAILING, Keyword::BOTH];

/// Returns the keyword that a token is.
fn keyword(token: Option<&Token>) -> Keyword {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

fn is_named(token: &Token, name: &str) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(name))
}
