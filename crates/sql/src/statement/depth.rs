//! Bounds the depth of a statement, before and after it is parsed.
//!
//! Trees are bound, shown, copied and dropped by recursion, so the depth of every tree is bounded first. The
//! parser counts its own recursion. But the parser builds a chain `a + b + c …` in a loop, and the tree of
//! such a chain is as deep to the left as the chain is long. So there are two steps:
//!
//! 1. [`room`] reads the tokens and computes the most levels that their tree can have. Above `LEVELS_MAX` the
//!    statement is refused (54001). A statement that may be deep is parsed on a stack with enough room.
//! 2. [`flatten`] then makes the tree shallow, still on that stack. It balances long chains of AND, of OR,
//!    and of one set operation, which does not change their meaning. A tree that is still deeper than
//!    `DEPTH_MAX` is refused (54001).
//!
//! So [`super::parse`] returns only shallow trees, and no later code has to consider its stack.

use std::ops::ControlFlow;

use sqlparser::{
    ast::{self, BinaryOperator, SetExpr, VisitMut, VisitorMut},
    keywords::Keyword,
    tokenizer::{Token, TokenWithSpan},
};

use crate::error::{Result, SqlError, code};

/// Maximum number of levels of a tree while it is parsed.
const LEVELS_MAX: usize = 1 << 16;

/// Maximum number of levels of a tree that the parser returns. A tree is not checked again if its tokens rule
/// out more levels.
const DEPTH_MAX: usize = 256;

/// Maximum number of joins of one FROM. The parser may read joins by a recursion that the parser does not
/// count.
const JOINS_MAX: usize = 128;

/// Maximum number of consecutive tokens of the kinds that the parser reads by an uncounted recursion other
/// than that of joins: `INTERVAL INTERVAL …`, `array<array<…`, `int[][]…`.
const RUN_MAX: usize = 64;

/// Maximum depth of nested calls. The parser reads each argument twice, so each level of calls doubles the
/// work for the innermost call.
const CALLS_MAX: usize = 16;

/// Maximum number of consecutive NOTs. The parser reports a longer run as a syntax error.
const NOTS_MAX: usize = 120;

/// Stack for one level of a tree that is built, flattened and dropped, in bytes.
const LEVEL_BYTES: usize = 1 << 10;

/// Stack for the parser itself, in bytes.
const PARSER_BYTES: usize = 4 << 20;

/// Longest chain of one operator that is not balanced.
const CHAIN: usize = 32;

/// The counts of the tokens within one open parenthesis or bracket, or outside of all of them.
#[derive(Default)]
struct OpenBracket {
    /// Number of operators since the last comma. Each operator may be a level of the tree.
    operators: usize,
    /// Levels of the deepest parenthesis since the last comma.
    within: usize,
    /// Levels of the deepest item before the last comma.
    deepest: usize,
    /// Number of set operations. A comma does not reset this count.
    sets: usize,
    /// Joins since the last SELECT.
    joins: usize,
    /// Whether the parenthesis encloses a call's arguments.
    call: bool,
}

impl OpenBracket {
    fn separate(&mut self) {
        self.deepest = self.deepest.max(self.operators + self.within);
        (self.operators, self.within) = (0, 0);
    }

    fn levels(mut self) -> usize {
        self.separate();
        self.sets + self.deepest
    }
}

/// Returns the extra stack that parsing these tokens may need, in bytes. `None` if the tree of the tokens
/// cannot be deep.
pub fn room(tokens: &[TokenWithSpan]) -> Result<Option<usize>> {
    let mut outer = Vec::new();
    let mut open = OpenBracket::default();
    let (mut run, mut nots, mut calls) = (0, 0, 0);
    // Whether a parenthesis at this place would enclose a call's arguments.
    let mut named = false;
    for token in tokens {
        let mut runs = matches!(token.token, Token::LBracket | Token::RBracket | Token::Lt);
        match &token.token {
            Token::Whitespace(_) => continue,
            Token::LParen | Token::LBracket | Token::LBrace => {
                open.operators += 1;
                outer.push(std::mem::take(&mut open));
                open.call = named && token.token == Token::LParen;
                calls += usize::from(open.call);
                if calls > CALLS_MAX {
                    return Err(refused(CALLS_MAX));
                }
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                let parent = outer.pop().unwrap_or_default();
                let closed = std::mem::replace(&mut open, parent);
                calls -= usize::from(closed.call);
                open.within = open.within.max(closed.levels() + 1);
            }
            Token::Comma => open.separate(),
            Token::Word(name) => {
                runs = matches!(name.keyword, Keyword::INTERVAL | Keyword::ARRAY);
                match name.keyword {
                    Keyword::NoKeyword => {}
                    Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT => {
                        open.sets += 1;
                        open.separate();
                    }
                    Keyword::SELECT => open.joins = 0,
                    Keyword::JOIN => open.joins += 1,
                    _ => open.operators += 1,
                }
            }
            Token::Number(..) | Token::SingleQuotedString(_) | Token::Placeholder(_) | Token::Period => {}
            _ => open.operators += 1,
        }
        named = is_name(&token.token);
        run = if runs { run + 1 } else { 0 };
        let not = matches!(&token.token, Token::Word(name) if name.keyword == Keyword::NOT);
        nots = if not { nots + 1 } else { 0 };
        if nots > NOTS_MAX {
            return Err(refused(NOTS_MAX));
        }
        if open.joins > JOINS_MAX {
            return Err(refused(JOINS_MAX));
        }
        if run > RUN_MAX {
            return Err(refused(RUN_MAX));
        }
    }
    while let Some(parent) = outer.pop() {
        let levels = std::mem::replace(&mut open, parent).levels();
        open.within = open.within.max(levels + 1);
    }
    match open.levels() {
        ..=DEPTH_MAX => Ok(None),
        levels @ ..=LEVELS_MAX => Ok(Some(PARSER_BYTES + levels * LEVEL_BYTES)),
        _ => Err(refused(LEVELS_MAX)),
    }
}

/// Whether the token may be the name of a function.
fn is_name(token: &Token) -> bool {
    let Token::Word(word) = token else { return false };
    !matches!(
        word.keyword,
        Keyword::ALL
            | Keyword::AND
            | Keyword::ANY
            | Keyword::AS
            | Keyword::BETWEEN
            | Keyword::BY
            | Keyword::ELSE
            | Keyword::EXCEPT
            | Keyword::EXISTS
            | Keyword::FROM
            | Keyword::HAVING
            | Keyword::IN
            | Keyword::INTERSECT
            | Keyword::JOIN
            | Keyword::LIKE
            | Keyword::NOT
            | Keyword::ON
            | Keyword::OR
            | Keyword::SELECT
            | Keyword::THEN
            | Keyword::UNION
            | Keyword::VALUES
            | Keyword::WHEN
            | Keyword::WHERE
    )
}

/// Makes a tree shallow, or refuses it.
pub fn flatten(statement: &mut ast::Statement) -> Result<()> {
    match VisitMut::visit(statement, &mut Flatten { depth: 0 }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Flatten {
    depth: usize,
}

impl Flatten {
    fn enter(&mut self, levels: usize) -> ControlFlow<SqlError> {
        self.depth += levels;
        if self.depth > DEPTH_MAX {
            return ControlFlow::Break(refused(DEPTH_MAX));
        }
        ControlFlow::Continue(())
    }
}

impl VisitorMut for Flatten {
    type Break = SqlError;

    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<SqlError> {
        if let ast::Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } = expr {
            let op = op.clone();
            balance(expr, &op);
        }
        // Each link of the chain becomes a level of the bound tree.
        let links = match expr {
            ast::Expr::CompoundFieldAccess { access_chain, .. } => access_chain.len(),
            _ => 0,
        };
        self.enter(1 + links)?;
        self.depth -= links;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &mut ast::Expr) -> ControlFlow<SqlError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<SqlError> {
        balance_sets(&mut query.body);
        let mut rest = &*query.body;
        let mut levels = 1;
        while let SetExpr::SetOperation { left, .. } = rest {
            rest = left;
            levels += 1;
        }
        self.enter(levels)?;
        self.depth -= levels - 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut ast::Query) -> ControlFlow<SqlError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
}

/// Balances a long chain of one associative operator.
fn balance(chain: &mut ast::Expr, op: &BinaryOperator) {
    let mut length = 0;
    let mut rest = &*chain;
    while let ast::Expr::BinaryOp { left, op: other, .. } = rest
        && other == op
    {
        rest = left;
        length += 1;
    }
    if length <= CHAIN {
        return;
    }
    let nothing = ast::Expr::Value(ast::Value::Null.with_empty_span());
    let mut rest = std::mem::replace(chain, nothing);
    let mut terms = Vec::with_capacity(length + 1);
    for _ in 0..length {
        let ast::Expr::BinaryOp { left, right, .. } = rest else {
            unreachable!("the operators of the chain were counted before")
        };
        terms.push(*right);
        rest = *left;
    }
    terms.push(rest);
    terms.reverse();
    let join =
        |left, right| ast::Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) };
    *chain = balanced(terms, &join);
}

/// Balances a long chain of set operations, in parts of the same operation.
fn balance_sets(chain: &mut SetExpr) {
    let SetExpr::SetOperation { op, set_quantifier, .. } = chain else { return };
    let (op, set_quantifier) = (*op, *set_quantifier);
    if op == ast::SetOperator::Except || op == ast::SetOperator::Minus {
        return;
    }
    let mut length = 0;
    let mut rest = &*chain;
    while let SetExpr::SetOperation { left, op: other, set_quantifier: quantifier, .. } = rest
        && (*other, *quantifier) == (op, set_quantifier)
    {
        rest = left;
        length += 1;
    }
    if length <= CHAIN {
        return;
    }
    let nothing = SetExpr::Table(Box::new(ast::Table { table_name: None, schema_name: None }));
    let mut rest = std::mem::replace(chain, nothing);
    let mut terms = Vec::with_capacity(length + 1);
    for _ in 0..length {
        let SetExpr::SetOperation { left, right, .. } = rest else {
            unreachable!("the operators of the chain were counted before")
        };
        terms.push(*right);
        rest = *left;
    }
    terms.push(rest);
    terms.reverse();
    let join = |left, right| SetExpr::SetOperation {
        left: Box::new(left),
        op,
        set_quantifier,
        right: Box::new(right),
    };
    *chain = balanced(terms, &join);
}

fn balanced<T>(mut terms: Vec<T>, join: &dyn Fn(T, T) -> T) -> T {
    if terms.len() == 1 {
        return terms.pop().expect("a chain has at least one term");
    }
    let rest = terms.split_off(terms.len() / 2);
    join(balanced(terms, join), balanced(rest, join))
}

/// Returns the error about a statement that is too deep (54001).
pub fn refused(levels: usize) -> SqlError {
    SqlError::new(code::STATEMENT_TOO_COMPLEX, "the statement nests too deeply")
        .detail(format!("A statement may have at most {levels} levels."))
        .hint("Chains of AND, of OR and of UNION ALL may be long; each other operator in a row counts as a level.")
}
