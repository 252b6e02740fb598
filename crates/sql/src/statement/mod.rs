//! Turns SQL text into bound statements.
//!
//! `sqlparser` parses the text ([`parse`]), with the operators and precedences of PostgreSQL ([`lexer`],
//! [`grammar`]). A statement is bound once, when it is prepared: names are resolved against the catalog,
//! types are decided, conversions become explicit by PostgreSQL's rules ([`coerce`]), and parameters stay
//! open. The result is a [`Statement`]. An execution only replaces its parameters ([`fold`]), which takes
//! microseconds.
//!
//! A select reads one table of the cluster, or none ([`select`]). The evaluator of [`crate::catalog`]
//! executes queries of the catalog's relations, and statements without tables that need more than plain
//! expressions. The relations that a query names decide which of the two executes it, never the query's text.
//! A feature of SQL that is missing here is refused by name with SQLSTATE 0A000.

pub mod action;
pub mod alter_table;
mod assignment;
mod bound;
mod check;
pub mod coerce;
pub(crate) mod condition_text;
mod conflict;
pub mod copy;
pub mod create_index;
pub mod create_sequence;
pub mod cursor;
pub mod ddl;
pub mod depth;
pub mod encoded_template;
pub mod expr;
mod field;
pub mod fold;
pub mod grammar;
pub mod lexer;
mod modes;
pub mod parameters;
pub mod parse;
pub mod query;
pub(crate) mod reference;
pub mod scope;
pub mod select;
mod sequence_options;
mod sequence_syntax;
pub mod settings;
pub mod spelling;
mod unique;
mod unsupported_clauses;
pub mod upkeep;
mod values_select;
pub mod write;

use std::sync::Arc;

use sqlparser::ast::{self, Spanned};

use crate::{
    backend::Catalog,
    error::{Result, SqlError, code},
    types::{self, PgType},
};
use parameters::Parameters;

pub use bound::{BoundStatement, Statement};
pub use field::Field;
pub use modes::{Isolation, Modes, modes_of};
pub use scope::table;

impl Statement {
    /// Returns the columns of the statement's result, if it has a result.
    pub fn fields(&self) -> Option<Vec<Field>> {
        match self {
            Statement::Query(query) => Some(query.fields.clone()),
            Statement::Write(write) if !write.fields.is_empty() => Some(write.fields.clone()),
            Statement::Show(Some(name)) => Some(vec![Field::new(settings::display(name), PgType::TEXT)]),
            Statement::Show(None) => {
                Some(["name", "setting", "description"].map(|name| Field::new(name, PgType::TEXT)).to_vec())
            }
            Statement::Explain { .. } => Some(vec![Field::new("QUERY PLAN", PgType::TEXT)]),
            _ => None,
        }
    }

    /// Whether the statement is a definition, which takes effect at once, also in a block.
    pub fn is_definition(&self) -> bool {
        matches!(
            self,
            Statement::CreateTable(_)
                | Statement::DropTable(_)
                | Statement::AlterTable(_)
                | Statement::CreateSequence(_)
                | Statement::DropSequence(_)
                | Statement::CreateIndex(_)
                | Statement::DropIndex(_)
        )
    }

    /// Returns the statement's name if the statement may change data.
    pub fn writes(&self) -> Option<&'static str> {
        match self {
            Statement::Write(write) => Some(write.action.verb()),
            Statement::CreateTable(_) => Some("CREATE TABLE"),
            Statement::DropTable(_) => Some("DROP TABLE"),
            Statement::AlterTable(_) => Some("ALTER TABLE"),
            Statement::CreateSequence(_) => Some("CREATE SEQUENCE"),
            Statement::DropSequence(_) => Some("DROP SEQUENCE"),
            Statement::CreateIndex(_) => Some("CREATE INDEX"),
            Statement::DropIndex(_) => Some("DROP INDEX"),
            Statement::Copy(copy) if matches!(copy.direction, copy::Direction::In { .. }) => {
                Some("COPY FROM")
            }
            _ => None,
        }
    }
}

/// Binds a statement against the catalog. `declared` holds the parameter types that the client declared.
pub fn bind(
    statement: &ast::Statement,
    declared: Vec<Option<PgType>>,
    catalog: &Arc<Catalog>,
) -> Result<BoundStatement> {
    let mut parameters = Parameters::declared(declared);
    parameters.sequences = Some(catalog.clone());
    let statement = bind_statement(statement, &mut parameters, catalog)?;
    let (depends, calls) = (parameters.depends, std::mem::take(&mut parameters.calls));
    Ok(BoundStatement { statement, parameters: parameters.finish()?, depends, calls })
}

fn bind_statement(
    statement: &ast::Statement,
    parameters: &mut Parameters,
    catalog: &Arc<Catalog>,
) -> Result<Statement> {
    use ast::Statement as Ast;
    Ok(match statement {
        Ast::Query(query) => Statement::Query(Box::new(select::bind(query, parameters, catalog)?)),
        Ast::Insert(insert) => Statement::Write(Box::new(write::insert(insert, parameters, catalog)?)),
        Ast::Update(update) => Statement::Write(Box::new(write::update(update, parameters, catalog)?)),
        Ast::Delete(delete) => Statement::Write(Box::new(write::delete(delete, parameters, catalog)?)),
        Ast::Truncate(truncate) => Statement::Write(Box::new(write::truncate(truncate, catalog)?)),
        Ast::AlterTable(alter) => {
            Statement::AlterTable(Box::new(alter_table::bind(alter, parameters, catalog)?))
        }
        Ast::CreateTable(create) => {
            Statement::CreateTable(Box::new(ddl::create_table(create, parameters, catalog)?))
        }
        Ast::CreateSequence { .. } => {
            Statement::CreateSequence(Box::new(create_sequence::bind(statement, catalog)?))
        }
        Ast::Drop { object_type: ast::ObjectType::Sequence, .. } => {
            Statement::DropSequence(create_sequence::drop_sequence(statement)?)
        }
        Ast::CreateIndex(create) => Statement::CreateIndex(Box::new(create_index::bind(create, catalog)?)),
        Ast::Drop { object_type: ast::ObjectType::Index, .. } => {
            Statement::DropIndex(create_index::drop_index(statement)?)
        }
        Ast::Drop { .. } => Statement::DropTable(ddl::drop_table(statement)?),
        Ast::Copy { .. } => Statement::Copy(Box::new(copy::bind(statement, parameters, catalog)?)),
        Ast::Set(set) => settings::bind(set)?,
        Ast::Reset(reset) => match &reset.reset {
            ast::Reset::ALL => Statement::ResetAll,
            ast::Reset::ConfigurationParameter(name) => {
                Statement::Set { name: settings::name(&scope::parts(name)?)?, value: None, local: false }
            }
        },
        Ast::ShowVariable { variable } => settings::show(variable)?,
        Ast::StartTransaction { modes, statements, exception: None, modifier: None, .. }
            if statements.is_empty() =>
        {
            Statement::Begin(modes_of(modes)?)
        }
        Ast::Commit { chain: false, modifier: None, .. } => Statement::Commit,
        Ast::Rollback { chain: false, savepoint: None } => Statement::Rollback,
        Ast::Commit { .. } => return Err(SqlError::unsupported("COMMIT AND CHAIN")),
        Ast::Rollback { chain: true, .. } => return Err(SqlError::unsupported("ROLLBACK AND CHAIN")),
        Ast::Rollback { savepoint: Some(name), .. } => Statement::RollbackTo(scope::fold(name)),
        Ast::Savepoint { name } => Statement::Savepoint(scope::fold(name)),
        Ast::ReleaseSavepoint { name } => Statement::Release(scope::fold(name)),
        Ast::Explain { statement, analyze, format, options, .. } => {
            let option = |name: &str| {
                let mut options = options.iter().flatten();
                options.find(|option| option.name.value.eq_ignore_ascii_case(name))
            };
            for option in options.iter().flatten() {
                if !EXPLAIN_OPTIONS.iter().any(|known| option.name.value.eq_ignore_ascii_case(known)) {
                    return Err(SqlError::new(
                        code::SYNTAX_ERROR,
                        format!("unrecognized EXPLAIN option \"{}\"", option.name.value.to_lowercase()),
                    )
                    .at(option.name.span));
                }
            }
            let says = |option: &ast::UtilityOption, words: &[&str]| {
                let argument = option.arg.as_ref().map(|argument| argument.to_string().to_ascii_lowercase());
                argument.is_some_and(|argument| words.contains(&argument.trim_matches('\'')))
            };
            if format.is_some() || option("format").is_some_and(|option| !says(option, &["text"])) {
                return Err(SqlError::unsupported("EXPLAIN in a format other than text"));
            }
            let asked = option("analyze").is_some_and(|option| !says(option, &["false", "off", "0"]));
            let analyze = *analyze || asked;
            let inner = bind_statement(statement, parameters, catalog)?;
            if !matches!(inner, Statement::Query(_) | Statement::Write(_)) {
                return Err(SqlError::unsupported("EXPLAIN of this statement"));
            }
            if analyze && !matches!(inner, Statement::Query(_)) {
                return Err(SqlError::unsupported("EXPLAIN ANALYZE of a write")
                    .hint("EXPLAIN without ANALYZE shows where the write would go."));
            }
            Statement::Explain { statement: Box::new(inner), analyze }
        }
        Ast::Prepare { name, data_types, statement } => Statement::Prepare {
            name: scope::fold(name),
            types: data_types.iter().map(types::named).collect::<Result<_>>()?,
            text: statement.to_string(),
        },
        Ast::Execute { name: Some(name), parameters: arguments, .. } => Statement::Execute {
            name: scope::parts(name)?.pop().unwrap_or_default(),
            arguments: arguments.clone(),
        },
        Ast::Deallocate { name, .. } => {
            let all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
            Statement::Deallocate((!all).then(|| scope::fold(name)))
        }
        Ast::Declare { stmts } => cursor::declare(stmts, parameters, catalog)?,
        Ast::Fetch { name, direction, into: None, .. } => cursor::fetch(name, direction)?,
        Ast::Close { cursor: ast::CloseCursor::All } => Statement::Close(None),
        Ast::Close { cursor: ast::CloseCursor::Specific { name } } => {
            Statement::Close(Some(scope::fold(name)))
        }
        Ast::Discard { object_type: ast::DiscardObject::ALL } => Statement::DiscardAll,
        Ast::Discard { object_type: ast::DiscardObject::PLANS } => Statement::Nothing("DISCARD PLANS"),
        Ast::Discard { object_type: ast::DiscardObject::TEMP } => Statement::Nothing("DISCARD TEMP"),
        Ast::Discard { object_type: ast::DiscardObject::SEQUENCES } => Statement::DiscardSequences,
        Ast::UNLISTEN { .. } => Statement::Nothing("UNLISTEN"),
        other => {
            let text = other.to_string();
            let words: Vec<&str> = text.split_whitespace().take(2).collect();
            let shown = match words.as_slice() {
                [verb @ ("CREATE" | "DROP" | "ALTER"), object] => {
                    format!("{verb} {}", object.trim_matches('('))
                }
                [verb, ..] => (*verb).to_owned(),
                [] => "this statement".to_owned(),
            };
            return Err(SqlError::unsupported(shown).at(other.span()));
        }
    })
}

/// The options of EXPLAIN. All except ANALYZE and FORMAT choose the parts of a plan that are shown. Here all
/// parts are always shown.
const EXPLAIN_OPTIONS: [&str; 10] = [
    "analyze",
    "verbose",
    "costs",
    "settings",
    "generic_plan",
    "buffers",
    "wal",
    "timing",
    "summary",
    "format",
];
