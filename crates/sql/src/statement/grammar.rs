//! The precedence of operators, as in PostgreSQL's grammar (`gram.y`, from `%left OR` to `%left '.'`).
//!
//! The parser asks its dialect for the precedence of the next token. The parser's own dialect of PostgreSQL
//! differs from PostgreSQL in these points. Pattern operators (`~~`) bind like `=`, and `OPERATOR()` like
//! BETWEEN. The right side of IS DISTINCT FROM reaches to the end. Signs bind more loosely than `^`. Words of
//! other databases (`XOR`, `DIV`, `REGEXP`) are operators. No operator is non-associative. So this module has
//! the whole table of precedences, and parses the forms whose operands the parser would read differently.
//!
//! A form that PostgreSQL refuses is a syntax error. A form of PostgreSQL for which the syntax tree has no
//! place is refused by name (`unsupported_clauses`). No form is read with another meaning.

use std::any::TypeId;

use sqlparser::{
    ast::{BinaryOperator, CastKind, ColumnOption, Expr, Statement, UnaryOperator, Value},
    dialect::{Dialect, PostgreSqlDialect, Precedence},
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::{Token, TokenWithSpan},
};

use super::sequence_syntax;

type Parsed<T = Expr> = Result<T, ParserError>;

/// PostgreSQL's dialect with PostgreSQL's precedences.
#[derive(Debug)]
pub struct Grammar;

const POSTGRES: PostgreSqlDialect = PostgreSqlDialect {};

// The precedences, from the loosest to the tightest.
const NOTHING: u8 = 0;
const OR: u8 = 10;
const AND: u8 = 20;
const NOT: u8 = 30;
/// IS, ISNULL and NOTNULL, which are not associative.
const IS: u8 = 40;
/// `<`, `>`, `=`, `<=`, `>=`, `<>`, which are not associative.
const COMPARISON: u8 = 50;
/// BETWEEN, IN, LIKE, ILIKE, SIMILAR, which are not associative.
const LIKE: u8 = 60;
/// Any operator without an entry of its own.
const OPERATOR: u8 = 70;
const SUM: u8 = 80;
const PRODUCT: u8 = 90;
const POWER: u8 = 100;
const AT_TIME_ZONE: u8 = 110;
const COLLATE: u8 = 120;
const SIGN: u8 = 125;
const SUBSCRIPT: u8 = 130;
const CAST: u8 = 140;
const PERIOD: u8 = 200;

/// The prefix of an error about a form that PostgreSQL has and Quorate does not have.
pub const UNSUPPORTED: &str = "unsupported: ";

macro_rules! as_theirs {
    ($($question:ident)*) => { $(fn $question(&self) -> bool { POSTGRES.$question() })* };
}

impl Dialect for Grammar {
    fn dialect(&self) -> TypeId {
        POSTGRES.dialect()
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        POSTGRES.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, character: char) -> bool {
        POSTGRES.is_delimited_identifier_start(character)
    }

    fn is_identifier_start(&self, character: char) -> bool {
        POSTGRES.is_identifier_start(character)
    }

    fn is_identifier_part(&self, character: char) -> bool {
        POSTGRES.is_identifier_part(character)
    }

    /// Whether a keyword cannot be a name. If an expression that begins with such a keyword fails, the parser
    /// does not try the keyword as a name.
    fn is_reserved_for_identifier(&self, keyword: Keyword) -> bool {
        matches!(keyword, Keyword::ARRAY | Keyword::CASE | Keyword::CAST | Keyword::NOT)
            || POSTGRES.is_reserved_for_identifier(keyword)
    }

    /// Always `false`, because [`super::lexer`] assembles operators.
    fn is_custom_operator_part(&self, _: char) -> bool {
        false
    }

    /// Always `false`, because PostgreSQL has had no factorial `5 !` since version 14.
    fn supports_factorial_operator(&self) -> bool {
        false
    }

    as_theirs! {
        allow_extract_custom allow_extract_single_quotes supports_alter_column_type_using
        supports_array_typedef_with_brackets supports_bitwise_shift_operators supports_comma_separated_trim
        supports_comment_on supports_comment_optimizer_hint supports_create_index_with_clause
        supports_create_table_like_parenthesized supports_empty_projections supports_explain_with_utility_options
        supports_filter_during_aggregation supports_geometric_types supports_group_by_expr
        supports_insert_table_alias supports_interval_options supports_listen_notify supports_load_extension
        supports_named_fn_args_with_colon_operator supports_named_fn_args_with_expr_name supports_nested_comments
        supports_notnull_operator supports_numeric_literal_underscores supports_select_wildcard_with_alias
        supports_set_names supports_string_escape_constant supports_unicode_string_literal supports_xml_expressions
    }

    /// Returns a precedence that the parser asks for by name: for the operands of POSITION, and for bounds of
    /// subscripts.
    fn prec_value(&self, asked: Precedence) -> u8 {
        match asked {
            Precedence::Colon => NOTHING,
            asked => POSTGRES.prec_value(asked),
        }
    }

    fn parse_statement(&self, parser: &mut Parser) -> Option<Parsed<Statement>> {
        let first = parser.peek_token_ref();
        if word(&first.token) == Keyword::ALTER
            && word(&parser.peek_nth_token_ref(1).token) == Keyword::SEQUENCE
        {
            return Some(unsupported("ALTER SEQUENCE", first));
        }
        let is_constraints = |token: &Token| matches!(token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case("constraints"));
        let is_setting = |token: &Token| *token == Token::Eq || word(token) == Keyword::TO;
        if word(&first.token) == Keyword::SET
            && is_constraints(&parser.peek_nth_token_ref(1).token)
            && !is_setting(&parser.peek_nth_token_ref(2).token)
        {
            return Some(unsupported("SET CONSTRAINTS", first));
        }
        sequence_syntax::create_sequence(parser)
    }

    fn parse_column_option(&self, parser: &mut Parser) -> Parsed<Option<Parsed<Option<ColumnOption>>>> {
        Ok(sequence_syntax::identity(parser)?.map(|option| Ok(Some(option))))
    }

    fn get_next_precedence(&self, parser: &Parser) -> Option<Parsed<u8>> {
        let follows = |at: usize, keyword| word(&parser.peek_nth_token_ref(at).token) == keyword;
        Some(Ok(match &parser.peek_token_ref().token {
            Token::Word(next) => match next.keyword {
                Keyword::OR => OR,
                Keyword::AND => AND,
                Keyword::IS | Keyword::NOTNULL => IS,
                Keyword::IN | Keyword::BETWEEN | Keyword::LIKE | Keyword::ILIKE | Keyword::OVERLAPS => LIKE,
                Keyword::SIMILAR if follows(1, Keyword::TO) => LIKE,
                Keyword::NOT => match word(&parser.peek_nth_token_ref(1).token) {
                    Keyword::IN | Keyword::BETWEEN | Keyword::LIKE | Keyword::ILIKE | Keyword::SIMILAR => {
                        LIKE
                    }
                    _ => NOTHING,
                },
                Keyword::OPERATOR if parser.peek_nth_token_ref(1).token == Token::LParen => OPERATOR,
                Keyword::AT if follows(1, Keyword::TIME) && follows(2, Keyword::ZONE) => AT_TIME_ZONE,
                // In a column's definition, COLLATE belongs to the column.
                Keyword::COLLATE if POSTGRES.get_next_precedence(parser).is_some() => COLLATE,
                _ => NOTHING,
            },
            Token::Eq | Token::Neq | Token::Lt | Token::LtEq | Token::Gt | Token::GtEq => COMPARISON,
            Token::Plus | Token::Minus => SUM,
            Token::Mul | Token::Div | Token::Mod => PRODUCT,
            Token::Caret => POWER,
            Token::LBracket => SUBSCRIPT,
            Token::DoubleColon => CAST,
            Token::Period => PERIOD,
            // `=>` separates an argument's name from its value, so it is no operator.
            Token::RArrow => NOTHING,
            other if is_operator(other) => OPERATOR,
            _ => NOTHING,
        }))
    }

    fn parse_prefix(&self, parser: &mut Parser) -> Option<Parsed> {
        let next = parser.peek_token_ref();
        match &next.token {
            Token::Plus => Some(signed(parser, UnaryOperator::Plus)),
            Token::Minus => Some(signed(parser, UnaryOperator::Minus)),
            // INTERVAL is the name of a column if no literal follows.
            Token::Word(name) if name.keyword == Keyword::INTERVAL => {
                let literal = matches!(
                    parser.peek_nth_token_ref(1).token,
                    Token::SingleQuotedString(_)
                        | Token::EscapedStringLiteral(_)
                        | Token::UnicodeStringLiteral(_)
                        | Token::DollarQuotedString(_)
                        | Token::Placeholder(_)
                        | Token::LParen
                        | Token::Word(_)
                );
                (!literal).then(|| parser.parse_identifier().map(Expr::Identifier))
            }
            other if is_operator(other) && !is_named_operator(other) => {
                Some(unsupported(&format!("the prefix operator {other}"), next))
            }
            _ => None,
        }
    }

    /// Parses the forms that the parser would read differently. Copies the left operand only for forms that
    /// cannot follow each other in a chain, so that a chain does not copy the statement once per operator.
    fn parse_infix(&self, parser: &mut Parser, left: &Expr, _: u8) -> Option<Parsed> {
        let next = parser.peek_token_ref();
        let keyword = |at: usize| word(&parser.peek_nth_token_ref(at).token);
        match &next.token {
            Token::Eq | Token::Neq | Token::Lt | Token::LtEq | Token::Gt | Token::GtEq => {
                is_comparison(left).then(|| syntax_error(next))
            }
            Token::DoubleEq | Token::Spaceship => {
                Some(unsupported(&format!("operator {}", next.token), next))
            }
            Token::Word(first) => match first.keyword {
                Keyword::IS | Keyword::NOTNULL if is_distinction(left) => Some(syntax_error(next)),
                Keyword::IS => match (keyword(1), keyword(2), keyword(3)) {
                    (Keyword::DISTINCT, Keyword::FROM, _) => Some(distinction(parser, left, false)),
                    (Keyword::NOT, Keyword::DISTINCT, Keyword::FROM) => Some(distinction(parser, left, true)),
                    _ => None,
                },
                Keyword::NOT
                | Keyword::IN
                | Keyword::BETWEEN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::SIMILAR
                    if is_like(left) =>
                {
                    Some(syntax_error(next))
                }
                Keyword::NOT if keyword(1) == Keyword::BETWEEN => Some(between(parser, left, true)),
                Keyword::BETWEEN => Some(between(parser, left, false)),
                Keyword::NOT if matches!(keyword(1), Keyword::LIKE | Keyword::ILIKE) => {
                    Some(like(parser, left, true))
                }
                Keyword::LIKE | Keyword::ILIKE => Some(like(parser, left, false)),
                Keyword::COLLATE => Some(collated(parser, left)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Parses the operand of a sign, as in `- a`. The sign binds more tightly than all operators except a cast
/// and a subscript.
fn signed(parser: &mut Parser, op: UnaryOperator) -> Parsed {
    parser.advance_token();
    let mut operand = parser.parse_subexpr(SIGN)?;
    // The parser attaches COLLATE to the operand, so COLLATE is moved outside of the sign.
    let mut inner = &mut operand;
    loop {
        match inner {
            Expr::Cast { kind: CastKind::DoubleColon, expr, .. } if has_collation(expr) => {
                inner = expr;
            }
            Expr::Collate { expr, .. } => {
                let nothing = Expr::Value(Value::Null.with_empty_span());
                let collated = std::mem::replace(&mut **expr, nothing);
                **expr = Expr::UnaryOp { op, expr: Box::new(collated) };
                return Ok(operand);
            }
            _ => return Ok(Expr::UnaryOp { op, expr: Box::new(operand) }),
        }
    }
}

/// Parses `a IS [NOT] DISTINCT FROM b`.
fn distinction(parser: &mut Parser, left: &Expr, not: bool) -> Parsed {
    for _ in 0..if not { 4 } else { 3 } {
        parser.advance_token();
    }
    let (left, right) = (Box::new(left.clone()), Box::new(parser.parse_subexpr(IS)?));
    Ok(if not { Expr::IsNotDistinctFrom(left, right) } else { Expr::IsDistinctFrom(left, right) })
}

/// Parses `a [NOT] BETWEEN low AND high`. The lower bound is a `b_expr` of PostgreSQL's grammar: it ends only
/// at AND, and the only operator of words that it may contain is IS DISTINCT FROM.
fn between(parser: &mut Parser, left: &Expr, negated: bool) -> Parsed {
    if negated {
        parser.advance_token();
    }
    parser.advance_token();
    let start = parser.peek_token_ref().clone();
    let low = parser.parse_subexpr(NOT)?;
    if !is_b_expr(&low) {
        return syntax_error(&start);
    }
    parser.expect_keyword(Keyword::AND)?;
    let high = parser.parse_subexpr(LIKE)?;
    Ok(Expr::Between { expr: Box::new(left.clone()), negated, low: Box::new(low), high: Box::new(high) })
}

/// Parses `a [NOT] LIKE b [ESCAPE c]`, and LIKE with ANY or ALL of an array.
fn like(parser: &mut Parser, left: &Expr, negated: bool) -> Parsed {
    if negated {
        parser.advance_token();
    }
    let insensitive = parser.peek_keyword(Keyword::ILIKE);
    parser.advance_token();
    let next = parser.peek_token_ref();
    let quantifier = word(&next.token);
    if matches!(quantifier, Keyword::ANY | Keyword::SOME | Keyword::ALL) {
        // PostgreSQL has no operator for the result of ANY or ALL, and a chain of such forms would be copied
        // many times.
        if matches!(left, Expr::AnyOp { .. } | Expr::AllOp { .. }) {
            return unsupported("LIKE on the result of ANY or ALL", next);
        }
        parser.advance_token();
        parser.expect_token(&Token::LParen)?;
        let array = Box::new(parser.parse_expr()?);
        parser.expect_token(&Token::RParen)?;
        let compare_op = match (negated, insensitive) {
            (false, false) => BinaryOperator::PGLikeMatch,
            (true, false) => BinaryOperator::PGNotLikeMatch,
            (false, true) => BinaryOperator::PGILikeMatch,
            (true, true) => BinaryOperator::PGNotILikeMatch,
        };
        let left = Box::new(left.clone());
        return Ok(match quantifier {
            Keyword::ALL => Expr::AllOp { left, compare_op, right: array },
            _ => Expr::AnyOp { left, compare_op, right: array, is_some: quantifier == Keyword::SOME },
        });
    }
    let pattern = Box::new(parser.parse_subexpr(LIKE)?);
    let escape_char = match parser.parse_keyword(Keyword::ESCAPE) {
        false => None,
        true => {
            let next = parser.peek_token_ref().clone();
            match parser.parse_subexpr(LIKE)? {
                Expr::Value(value) => Some(value),
                _ => return unsupported("an ESCAPE that is not a constant", &next),
            }
        }
    };
    let (expr, any) = (Box::new(left.clone()), false);
    Ok(match insensitive {
        false => Expr::Like { negated, any, expr, pattern, escape_char },
        true => Expr::ILike { negated, any, expr, pattern, escape_char },
    })
}

/// Parses `a COLLATE b` if the operand `a` is neither a name nor a constant.
fn collated(parser: &mut Parser, left: &Expr) -> Parsed {
    let start = parser.peek_token_ref();
    if has_collation(left) {
        return unsupported("a second COLLATE on the same expression", start);
    }
    parser.advance_token();
    let collation = parser.parse_object_name(false)?;
    Ok(Expr::Collate { expr: Box::new(left.clone()), collation })
}

/// Whether the expression ends in a collation, possibly followed by casts.
fn has_collation(mut expr: &Expr) -> bool {
    while let Expr::Cast { expr: inner, .. } = expr {
        expr = inner;
    }
    matches!(expr, Expr::Collate { .. })
}

/// Whether the expression is a comparison, which no other comparison may follow. A comparison in parentheses
/// is an [`Expr::Nested`], and ANY and ALL end in parentheses.
fn is_comparison(left: &Expr) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(left, Expr::BinaryOp { op: Eq | NotEq | Lt | LtEq | Gt | GtEq, .. })
}

/// Whether IS may not follow the expression.
fn is_distinction(left: &Expr) -> bool {
    matches!(left, Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..))
}

/// Whether the expression is one after which BETWEEN, LIKE and similar operators may not follow. After IN
/// they may follow, because the list of IN has an end.
fn is_like(left: &Expr) -> bool {
    matches!(left, Expr::Like { .. } | Expr::ILike { .. } | Expr::SimilarTo { .. } | Expr::Between { .. })
}

/// Whether the expression is a `b_expr` of PostgreSQL's grammar.
fn is_b_expr(expr: &Expr) -> bool {
    let mut rest = vec![expr];
    while let Some(expr) = rest.pop() {
        match expr {
            Expr::BinaryOp { op: BinaryOperator::And | BinaryOperator::Or, .. } => return false,
            Expr::UnaryOp { op: UnaryOperator::Not, .. } => return false,
            Expr::BinaryOp { left, right, .. } => rest.extend([&**left, &**right]),
            Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right) => {
                rest.extend([&**left, &**right]);
            }
            Expr::UnaryOp { expr, .. } => rest.push(expr),
            Expr::Cast { kind: CastKind::DoubleColon, expr, .. } => rest.push(expr),
            Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsNotTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsNotFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotUnknown(_)
            | Expr::Like { .. }
            | Expr::ILike { .. }
            | Expr::SimilarTo { .. }
            | Expr::Between { .. }
            | Expr::InList { .. }
            | Expr::InSubquery { .. }
            | Expr::AnyOp { .. }
            | Expr::AllOp { .. }
            | Expr::AtTimeZone { .. }
            | Expr::Exists { negated: true, .. }
            | Expr::Collate { .. } => return false,
            _ => {}
        }
    }
    true
}

/// Returns the keyword of a token, or `NoKeyword`.
fn word(token: &Token) -> Keyword {
    match token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Whether a token consists of signs that make operators.
pub(super) fn is_operator(token: &Token) -> bool {
    use Token::*;
    matches!(
        token,
        Eq | Neq
            | Lt
            | Gt
            | LtEq
            | GtEq
            | Plus
            | Minus
            | Mul
            | Div
            | Mod
            | Caret
            | StringConcat
            | Tilde
            | TildeAsterisk
            | ExclamationMarkTilde
            | ExclamationMarkTildeAsterisk
            | DoubleTilde
            | DoubleTildeAsterisk
            | ExclamationMarkDoubleTilde
            | ExclamationMarkDoubleTildeAsterisk
            | DoubleEq
            | Spaceship
            | RArrow
            | Ampersand
            | Pipe
            | Sharp
            | DoubleSharp
            | ExclamationMark
            | DoubleExclamationMark
            | AtSign
            | CaretAt
            | ShiftLeft
            | ShiftRight
            | Overlap
            | PGSquareRoot
            | PGCubeRoot
            | Arrow
            | LongArrow
            | HashArrow
            | HashLongArrow
            | AtArrow
            | ArrowAt
            | HashMinus
            | AtQuestion
            | AtAt
            | Question
            | QuestionAnd
            | QuestionPipe
            | CustomBinaryOperator(_)
            | TildeEqual
            | ShiftLeftVerticalBar
            | VerticalBarShiftRight
            | VerticalBarAmpersandRightAngleBracket
            | AmpersandLeftAngleBracket
            | AmpersandRightAngleBracket
            | AmpersandLeftAngleBracketVerticalBar
            | TwoWayArrow
            | LeftAngleBracketCaret
            | RightAngleBracketCaret
            | QuestionMarkSharp
            | QuestionMarkDash
            | QuestionMarkDashVerticalBar
            | QuestionMarkDoubleVerticalBar
            | AtDashAt
            | DuckIntDiv
            | VerticalBarRightAngleBracket
    )
}

/// Whether PostgreSQL's grammar names the operator. A named operator cannot be a prefix, unless it is a sign.
fn is_named_operator(token: &Token) -> bool {
    use Token::*;
    matches!(token, Eq | Neq | Lt | Gt | LtEq | GtEq | Plus | Minus | Mul | Div | Mod | Caret | RArrow)
}

/// Returns the syntax error at a token.
fn syntax_error<T>(token: &TokenWithSpan) -> Parsed<T> {
    Err(ParserError::ParserError(format!("{} does not follow here{}", token.token, token.span.start)))
}

/// Returns the error about a form that PostgreSQL has and Quorate does not have.
fn unsupported<T>(what: &str, token: &TokenWithSpan) -> Parsed<T> {
    Err(ParserError::ParserError(format!("{UNSUPPORTED}{what}{}", token.span.start)))
}
