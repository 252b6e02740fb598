//! SQL text to bound statements.
//!
//! Text is parsed by `sqlparser` ([`parse`]); what an operator is and how tightly it binds is PostgreSQL's ([`lexer`],
//! [`grammar`]). It is bound once, when it is prepared: names resolved against the catalog, types decided and
//! conversions made explicit by PostgreSQL's rules ([`coerce`]), parameters left open. What comes out is a [`Statement`]
//! that an execution only substitutes its arguments into ([`fold`]), which costs microseconds.
//!
//! A select is of one table of the cluster, or of none ([`select`]); the relations of the catalog, and whatever a
//! statement without tables asks beyond plain expressions, go to the evaluator of [`crate::catalog`]. Which it is
//! follows from the relations named, never from the text. Everything that SQL has and this has not is refused by
//! name with SQLSTATE 0A000.

pub mod coerce;
mod conflict;
pub mod copy;
pub mod cursor;
pub mod ddl;
pub mod depth;
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
pub mod stencil;
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
use parameters::Parameters;

/// A statement, bound.
#[derive(Debug)]
pub enum Statement {
    /// Rows are asked for.
    Query(Box<select::Query>),
    /// Rows change.
    Write(Box<write::Write>),
    /// A table is to exist.
    CreateTable(Box<ddl::CreateTable>),
    /// Tables are to go.
    DropTable(ddl::DropTable),
    /// Rows move in or out in bulk.
    Copy(Box<copy::Copy>),
    /// A setting changes; `None` puts the default back.
    Set {
        /// Which.
        name: String,
        /// To what.
        value: Option<String>,
        /// `SET LOCAL`: until the block ends.
        local: bool,
    },
    /// All settings go back to their defaults.
    ResetAll,
    /// A setting is asked for; `None` is all of them.
    Show(Option<String>),
    /// A block begins.
    Begin(Modes),
    /// The characteristics of the block change.
    SetTransaction {
        /// To these.
        modes: Modes,
        /// For the session's later blocks rather than the present one.
        session: bool,
    },
    /// A block ends well.
    Commit,
    /// A block ends otherwise.
    Rollback,
    /// A place in a block is named.
    Savepoint(String),
    /// A block goes back to such a place.
    RollbackTo(String),
    /// Such a place is forgotten.
    Release(String),
    /// Where a statement would go.
    Explain {
        /// The statement.
        statement: Box<Statement>,
        /// Whether it is carried out, to tell how.
        analyze: bool,
    },
    /// A statement is given a name.
    Prepare {
        /// The name.
        name: String,
        /// Its declared parameters.
        types: Vec<PgType>,
        /// Its text.
        text: String,
    },
    /// A named statement is executed.
    Execute {
        /// The name.
        name: String,
        /// What for its parameters.
        arguments: Vec<ast::Expr>,
    },
    /// A named statement is forgotten; `None` forgets all.
    Deallocate(Option<String>),
    /// `DISCARD ALL`: the session becomes as new.
    DiscardAll,
    /// A cursor is opened.
    Declare(Box<cursor::Declare>),
    /// Rows of a cursor are asked for; `None` is all.
    Fetch {
        /// Which.
        name: String,
        /// How many.
        count: Option<u64>,
    },
    /// A cursor is forgotten; `None` forgets all.
    Close(Option<String>),
    /// Nothing to do, and that is what was asked (`UNLISTEN *`).
    Nothing(&'static str),
}

/// What a block was begun with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// READ ONLY or READ WRITE, if said.
    pub read_only: Option<bool>,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: PgType,
    /// Its type's modifier as clients are told it, or -1.
    pub modifier: i32,
    /// The object id of the table and the number of the column it comes from, if it is one.
    pub origin: Option<(u32, i16)>,
}

impl Field {
    /// A column that comes from nowhere.
    pub fn new(name: impl Into<String>, ty: PgType) -> Self {
        Field { name: name.into(), ty, modifier: -1, origin: None }
    }

    /// Whether a client reads both alike.
    pub fn reads_as(&self, other: &Field) -> bool {
        (&self.name, self.ty, self.modifier) == (&other.name, other.ty, other.modifier)
    }

    /// A column of a table, whose place nobody asks for.
    pub fn of(column: &Column) -> Self {
        let (ty, modifier) = types::of_column(column);
        Field { modifier, ..Field::new(&column.name, ty) }
    }
}

impl Statement {
    /// The columns of its result, if it has one.
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

    /// What it is called if it may change data.
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

/// A statement with the types of its parameters.
#[derive(Debug)]
pub struct Bound {
    /// What to do.
    pub statement: Statement,
    /// The types of `$1`, `$2`, ….
    pub parameters: Vec<PgType>,
}

/// Binds a statement against the catalog. `declared` are the parameter types that the client named.
pub fn bind(
    statement: &ast::Statement,
    declared: Vec<Option<PgType>>,
    catalog: &Arc<Catalog>,
) -> Result<Bound> {
    let mut parameters = Parameters::declared(declared);
    let statement = bind_statement(statement, &mut parameters, catalog)?;
    Ok(Bound { statement, parameters: parameters.finish()? })
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
        Ast::CreateTable(create) => Statement::CreateTable(Box::new(ddl::create_table(create)?)),
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
            let says = |option: &ast::UtilityOption, words: &[&str]| {
                let argument = option.arg.as_ref().map(|argument| argument.to_string().to_ascii_lowercase());
                argument.is_some_and(|argument| words.contains(&argument.trim_matches('\'')))
            };
            if format.is_some() || option("format").is_some_and(|option| !says(option, &["text"])) {
                return Err(SqlError::unsupported("EXPLAIN in another format than text"));
            }
            let asked = option("analyze").is_some_and(|option| !says(option, &["false", "off", "0"]));
            let analyze = *analyze || asked;
            let inner = bind_statement(statement, parameters, catalog)?;
            if !matches!(inner, Statement::Query(_) | Statement::Write(_)) {
                return Err(SqlError::unsupported("EXPLAIN of this statement"));
            }
            if analyze && !matches!(inner, Statement::Query(_)) {
                return Err(SqlError::unsupported("EXPLAIN ANALYZE of a write")
                    .hint("EXPLAIN without ANALYZE tells where it would go."));
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

/// What `BEGIN` and `SET TRANSACTION` may ask. Every statement sees a cut of its own, which is READ COMMITTED; more
/// than that over several statements is not offered.
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
                return Err(SqlError::unsupported(format!("isolation level {level}"))
                    .hint("Every statement is atomic; a block of several is READ COMMITTED."));
            }
        }
    }
    Ok(bound)
}

/// The user's table of this name.
pub fn table(catalog: &Catalog, name: &ast::ObjectName) -> Result<Arc<Table>> {
    let bare = scope::table_name(name)?;
    if let Some(table) = catalog.table(&bare) {
        return Ok(table.clone());
    }
    if catalog::is_relation(&bare) {
        return Err(SqlError::new(
            "42809",
            format!("\"{bare}\" is part of the catalog and cannot be changed"),
        )
        .at(name.span()));
    }
    Err(SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{bare}\" does not exist")).at(name.span()))
}
