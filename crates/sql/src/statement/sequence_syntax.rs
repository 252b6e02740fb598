//! Parses CREATE SEQUENCE and identity columns. Their options may come in any order, as in PostgreSQL.

use sqlparser::{
    ast::{ColumnOption, GeneratedAs, Ident, ObjectName, SequenceOptions, Statement},
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::Token,
};

type Parsed<T> = Result<T, ParserError>;

/// Parses CREATE SEQUENCE. Returns `None` for any other statement.
pub(super) fn create_sequence(parser: &mut Parser) -> Option<Parsed<Statement>> {
    let word = |nth: usize| match &parser.peek_nth_token_ref(nth).token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    };
    let temporary = matches!(word(1), Keyword::TEMP | Keyword::TEMPORARY);
    if word(0) != Keyword::CREATE || word(if temporary { 2 } else { 1 }) != Keyword::SEQUENCE {
        return None;
    }
    for _ in 0..if temporary { 3 } else { 2 } {
        parser.advance_token();
    }
    Some(definition(parser, temporary))
}

fn definition(parser: &mut Parser, temporary: bool) -> Parsed<Statement> {
    let if_not_exists = parser.parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
    let name = parser.parse_object_name(false)?;
    let (mut data_type, mut owned_by, mut sequence_options) = (None, None, Vec::new());
    loop {
        if data_type.is_none() && parser.parse_keyword(Keyword::AS) {
            data_type = Some(parser.parse_data_type()?);
        } else if owned_by.is_none() && parser.parse_keywords(&[Keyword::OWNED, Keyword::BY]) {
            owned_by = Some(match parser.parse_keyword(Keyword::NONE) {
                true => ObjectName::from(vec![Ident::new("NONE")]),
                false => parser.parse_object_name(false)?,
            });
        } else if let Some(option) = option(parser)? {
            sequence_options.push(option);
        } else {
            break;
        }
    }
    Ok(Statement::CreateSequence { temporary, if_not_exists, name, data_type, sequence_options, owned_by })
}

/// Parses `GENERATED … AS IDENTITY [(options)]`. Returns `None` for any other option of a column.
pub(super) fn identity(parser: &mut Parser) -> Parsed<Option<ColumnOption>> {
    const ALWAYS: [Keyword; 4] = [Keyword::GENERATED, Keyword::ALWAYS, Keyword::AS, Keyword::IDENTITY];
    const BY_DEFAULT: [Keyword; 5] =
        [Keyword::GENERATED, Keyword::BY, Keyword::DEFAULT, Keyword::AS, Keyword::IDENTITY];
    let generated_as = if parser.parse_keywords(&ALWAYS) {
        GeneratedAs::Always
    } else if parser.parse_keywords(&BY_DEFAULT) {
        GeneratedAs::ByDefault
    } else {
        return Ok(None);
    };
    let mut options = Vec::new();
    if parser.consume_token(&Token::LParen) {
        while let Some(option) = option(parser)? {
            options.push(option);
        }
        parser.expect_token(&Token::RParen)?;
    }
    Ok(Some(ColumnOption::Generated {
        generated_as,
        sequence_options: Some(options),
        generation_expr: None,
        generation_expr_mode: None,
        generated_keyword: true,
    }))
}

/// Parses one option of a sequence.
fn option(parser: &mut Parser) -> Parsed<Option<SequenceOptions>> {
    Ok(Some(if parser.parse_keyword(Keyword::INCREMENT) {
        let by = parser.parse_keyword(Keyword::BY);
        SequenceOptions::IncrementBy(parser.parse_number()?, by)
    } else if parser.parse_keyword(Keyword::START) {
        let with = parser.parse_keyword(Keyword::WITH);
        SequenceOptions::StartWith(parser.parse_number()?, with)
    } else if parser.parse_keyword(Keyword::MINVALUE) {
        SequenceOptions::MinValue(Some(parser.parse_number()?))
    } else if parser.parse_keyword(Keyword::MAXVALUE) {
        SequenceOptions::MaxValue(Some(parser.parse_number()?))
    } else if parser.parse_keyword(Keyword::CACHE) {
        SequenceOptions::Cache(parser.parse_number()?)
    } else if parser.parse_keyword(Keyword::CYCLE) {
        SequenceOptions::Cycle(false)
    } else if parser.parse_keywords(&[Keyword::NO, Keyword::MINVALUE]) {
        SequenceOptions::MinValue(None)
    } else if parser.parse_keywords(&[Keyword::NO, Keyword::MAXVALUE]) {
        SequenceOptions::MaxValue(None)
    } else if parser.parse_keywords(&[Keyword::NO, Keyword::CYCLE]) {
        SequenceOptions::Cycle(true)
    } else {
        return Ok(None);
    }))
}
