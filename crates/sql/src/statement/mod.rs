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
//! expressions. The relations that a query names decide this, never its text. A feature of SQL that is
//! missing here is refused by name with SQLSTATE 0A000.

pub mod coerce;
mod conflict;
pub mod copy;
pub mod cursor;
pub mod ddl;
pub mod depth;
pub mod encoded_template;
pub mod expr;
pub mod fold;
pub mod grammar;
pub mod lexer;
pub mod parameters;
pub mod parse;
pub mod scope;
pub mod select;
pub mod settings;
pub mod spelling;
mod unsupported_clauses;
pub mod write;

use std::sync::Arc;

use quorate_table::schema::Column;
use sqlparser::ast::{self, Spanned};

use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    types::{self, PgType},
};
use parameters::{Parameters, SettingDependencies};

/// A bound statement.
#[derive(Debug)]
pub enum Statement {
    /// A query.
    Query(Box<select::Query>),
    /// INSERT, UPDATE, DELETE or TRUNCATE.
    Write(Box<write::Write>),
    /// CREATE TABLE.
    CreateTable(Box<ddl::CreateTable>),
    /// DROP TABLE.
    DropTable(ddl::DropTable),
    /// COPY.
    Copy(Box<copy::Copy>),
    /// SET or RESET of a setting; `None` restores the default.
    Set {
        /// The setting's name.
        name: String,
        /// The new value.
        value: Option<String>,
        /// `SET LOCAL`: until the block ends.
        local: bool,
    },
    /// RESET ALL.
    ResetAll,
    /// SHOW of a setting; `None` shows all.
    Show(Option<String>),
    /// The beginning of a block.
    Begin(Modes),
    /// SET TRANSACTION, or SET SESSION CHARACTERISTICS.
    SetTransaction {
        /// The new modes.
        modes: Modes,
        /// Whether the settings are for the session's later blocks rather than the present one.
        session: bool,
    },
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    Rollback,
    /// SAVEPOINT.
    Savepoint(String),
    /// ROLLBACK TO a savepoint.
    RollbackTo(String),
    /// RELEASE of a savepoint.
    Release(String),
    /// EXPLAIN.
    Explain {
        /// The statement.
        statement: Box<Statement>,
        /// Whether EXPLAIN also executes the statement, and reports what happened.
        analyze: bool,
    },
    /// PREPARE.
    Prepare {
        /// The name.
        name: String,
        /// The declared parameter types.
        types: Vec<PgType>,
        /// The statement's text.
        text: String,
    },
    /// EXECUTE.
    Execute {
        /// The name.
        name: String,
        /// The arguments for its parameters.
        arguments: Vec<ast::Expr>,
    },
    /// DEALLOCATE of a prepared statement; `None` removes all.
    Deallocate(Option<String>),
    /// `DISCARD ALL`: resets the session.
    DiscardAll,
    /// DECLARE of a cursor.
    Declare(Box<cursor::Declare>),
    /// FETCH from a cursor.
    Fetch {
        /// The cursor's name.
        name: String,
        /// Number of rows; `None` is all.
        count: Option<u64>,
    },
    /// CLOSE of a cursor; `None` closes all.
    Close(Option<String>),
    /// A statement that has nothing to do, such as `UNLISTEN *`, with its tag.
    Nothing(&'static str),
}

/// The modes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// READ ONLY or READ WRITE, if given.
    pub read_only: Option<bool>,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The column's name.
    pub name: String,
    /// The column's type.
    pub ty: PgType,
    /// The type's modifier for clients, or -1.
    pub modifier: i32,
    /// The table's object id and the column's number, if the column comes directly from a table.
    pub origin: Option<(u32, i16)>,
}

impl Field {
    /// Creates a column that comes from no table.
    pub fn new(name: impl Into<String>, ty: PgType) -> Self {
        Field { name: name.into(), ty, modifier: -1, origin: None }
    }

    /// Whether a client reads both columns in the same way.
    pub fn reads_as(&self, other: &Field) -> bool {
        (&self.name, self.ty, self.modifier) == (&other.name, other.ty, other.modifier)
    }

    /// Creates a column with the type of a table's column, without an origin.
    pub fn of(column: &Column) -> Self {
        let (ty, modifier) = types::of_column(column);
        Field { modifier, ..Field::new(&column.name, ty) }
    }
}

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

    /// Returns the statement's name if it may change data.
    pub fn writes(&self) -> Option<&'static str> {
        match self {
            Statement::Write(write) => Some(write.action.verb()),
            Statement::CreateTable(_) => Some("CREATE TABLE"),
            Statement::DropTable(_) => Some("DROP TABLE"),
            Statement::Copy(copy) if matches!(copy.direction, copy::Direction::In { .. }) => {
                Some("COPY FROM")
            }
            _ => None,
        }
    }
}

/// A bound statement with the types of its parameters.
#[derive(Debug)]
pub struct BoundStatement {
    /// The statement.
    pub statement: Statement,
    /// The types of `$1`, `$2`, ….
    pub parameters: Vec<PgType>,
    /// The settings on which the statement's meaning depends.
    pub depends: SettingDependencies,
}

/// Binds a statement against the catalog. `declared` has the parameter types that the client gave.
pub fn bind(
    statement: &ast::Statement,
    declared: Vec<Option<PgType>>,
    catalog: &Arc<Catalog>,
) -> Result<BoundStatement> {
    let mut parameters = Parameters::declared(declared);
    let statement = bind_statement(statement, &mut parameters, catalog)?;
    let depends = parameters.depends;
    Ok(BoundStatement { statement, parameters: parameters.finish()?, depends })
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
        Ast::CreateTable(create) => Statement::CreateTable(Box::new(ddl::create_table(create, parameters)?)),
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
        Ast::Discard { object_type: ast::DiscardObject::SEQUENCES } => {
            Statement::Nothing("DISCARD SEQUENCES")
        }
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

/// The options of EXPLAIN. All except ANALYZE and FORMAT choose the shown parts of a plan; here all parts are
/// shown.
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

/// Binds the modes of `BEGIN` and `SET TRANSACTION`. Every statement sees its own cut, which is READ
/// COMMITTED. Higher levels over several statements are not offered.
pub fn modes_of(modes: &[ast::TransactionMode]) -> Result<Modes> {
    let mut bound = Modes::default();
    for mode in modes {
        match mode {
            ast::TransactionMode::AccessMode(access) => {
                bound.read_only = Some(*access == ast::TransactionAccessMode::ReadOnly);
            }
            ast::TransactionMode::IsolationLevel(
                ast::TransactionIsolationLevel::ReadCommitted
                | ast::TransactionIsolationLevel::ReadUncommitted,
            ) => {}
            ast::TransactionMode::IsolationLevel(level) => {
                return Err(SqlError::unsupported(format!("isolation level {level}")).hint(
                    "Every statement is atomic; a transaction block of several statements is READ COMMITTED.",
                ));
            }
        }
    }
    Ok(bound)
}

/// Returns the user's table of this name.
pub fn table(catalog: &Catalog, name: &ast::ObjectName) -> Result<Arc<Table>> {
    let bare = scope::table_name(name)?;
    if let Some(table) = catalog.table(&bare) {
        return Ok(table.clone());
    }
    if catalog::is_relation(&bare) {
        return Err(SqlError::new(
            "42809",
            format!("\"{bare}\" is part of the system catalog and cannot be changed"),
        )
        .at(name.span()));
    }
    Err(SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{bare}\" does not exist")).at(name.span()))
}
