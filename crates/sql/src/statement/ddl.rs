//! Binds CREATE TABLE and DROP TABLE. Each part of a declaration is either kept or refused. No part is
//! ignored.

use std::sync::Arc;

use quorate_table::{
    constraint::Constraint,
    eval::eval,
    expr::Expr,
    schema::{Column, Partition, Schema},
    text::parse_text,
    value::{Type, Value},
};
use sqlparser::{
    ast::{self, Spanned},
    tokenizer::Span,
};

use super::{
    check, coerce,
    expr::{Binder, constant_sequence},
    parameters::{Parameters, SessionValue},
    reference::DeclaredReference,
    scope::{self, Scope},
    sequence_options::set_options,
    unique::{self, Unique, key_columns},
};
use crate::{
    backend::{Catalog, Table},
    catalog,
    error::{Result, SqlError, code},
    index,
    sequence::{self, Identity, SequenceDefinition, SequenceOwner},
    types,
};

pub use super::unique::ProposedIndex;

/// A bound CREATE TABLE.
#[derive(Debug)]
pub struct CreateTable {
    /// The table's definition.
    pub schema: Schema,
    /// The other tables to which the table refers.
    pub parents: Vec<Arc<Table>>,
    /// The indexes of the UNIQUE constraints. Their names may already exist.
    pub indexes: Vec<ProposedIndex>,
    /// The sequences that belong to columns, by the column's position. The names may already exist.
    pub sequences: Vec<(usize, SequenceDefinition)>,
    /// The number of replicas in `replicas = n`. `None` means the cluster's default.
    pub replicas: Option<u32>,
    /// IF NOT EXISTS.
    pub if_not_exists: bool,
}

/// A bound DROP TABLE.
#[derive(Debug)]
pub struct DropTable {
    /// The names of the tables.
    pub names: Vec<String>,
    /// IF EXISTS.
    pub if_exists: bool,
    /// Whether references of other tables to these tables are dropped, too.
    pub cascades: bool,
}

/// Maximum number of columns of a table, as in PostgreSQL.
const COLUMNS_MAX: usize = 1600;

/// Maximum number of replicas that a statement can ask for.
const REPLICAS_MAX: u32 = 16;

/// Binds a CREATE TABLE.
pub fn create_table(
    create: &ast::CreateTable,
    parameters: &mut Parameters,
    catalog: &Catalog,
) -> Result<CreateTable> {
    let name = scope::table_name(&create.name)?;
    if catalog::is_relation(&name) {
        return Err(SqlError::new(
            "42939",
            format!("the name \"{name}\" belongs to a relation of the system catalog"),
        )
        .at(create.name.span()));
    }
    if create.columns.is_empty() {
        return Err(SqlError::unsupported("a table without columns").at(create.name.span()));
    }
    if create.columns.len() > COLUMNS_MAX {
        return Err(SqlError::new("54011", format!("tables can have at most {COLUMNS_MAX} columns")));
    }
    let mut columns: Vec<Column> = Vec::with_capacity(create.columns.len());
    let mut sequences = Vec::new();
    let mut uniques = Vec::new();
    let mut references = Vec::new();
    let mut constraints = Vec::new();
    let mut primary_key: Option<Vec<usize>> = None;
    for column in &create.columns {
        let BoundColumn { column, key_name, unique, references: declared, sequence } =
            bind_column(column, &columns, &name, parameters)?;
        if let Some(key_name) = key_name {
            set_key(&mut primary_key, vec![columns.len()], &name)?;
            constraints.extend(key_name.map(Constraint::KeyName));
        }
        uniques.extend(unique);
        references.extend(declared);
        sequences.extend(sequence.map(|sequence| (columns.len(), sequence)));
        columns.push(column);
    }
    for constraint in &create.constraints {
        match constraint {
            ast::TableConstraint::PrimaryKey(key) => {
                let named = key_columns(&key.columns, "a primary key", "primary key constraint", &columns)?;
                set_key(&mut primary_key, named, &name)?;
                constraints.extend(key.name.as_ref().map(|name| Constraint::KeyName(scope::fold(name))));
            }
            ast::TableConstraint::Unique(unique) => {
                uniques.push(Unique::bind(unique, unique.name.as_ref(), None, &columns)?);
            }
            // Bound below, when all columns are known.
            ast::TableConstraint::Check(_) => {}
            ast::TableConstraint::ForeignKey(declared) => {
                references.push(DeclaredReference::new(declared, declared.name.as_ref(), None, &columns)?);
            }
            other => return Err(SqlError::unsupported(format!("the constraint {other}"))),
        }
    }
    let primary_key = primary_key.unwrap_or_default();
    for &position in &primary_key {
        columns[position].not_null = true;
        coerce::check_key(columns[position].ty)?;
    }
    let options = Options::bind(&create.table_options, &columns)?;
    let partition =
        options.partition.unwrap_or(Partition::Hash { column: primary_key.first().copied().unwrap_or(0) });
    if !primary_key.is_empty() && !primary_key.contains(&partition.column()) {
        return Err(SqlError::unsupported(format!(
            "a primary key without the partition column \"{}\"",
            columns[partition.column()].name
        ))
        .hint("Add the partition column to the primary key, or partition by a column of the primary key."));
    }
    partition.check(&columns)?;
    constraints.retain(|constraint| constraint.name() != format!("{name}_pkey"));
    let mut schema = Schema { name, columns, primary_key, partition, constraints };
    check::add_all(&check::all_of(create), &mut schema, parameters)?;
    let uniques: Vec<Unique> = unique::distinct(uniques, &schema).collect();
    let keys: Vec<Vec<usize>> = uniques.iter().map(|unique| unique.columns.clone()).collect();
    let indexes = uniques.into_iter().map(|unique| unique.index(&schema)).collect();
    let mut parents: Vec<Arc<Table>> = Vec::new();
    if create.if_not_exists && catalog.table(&schema.name).is_some() {
        // The statement does nothing, whatever its references name.
        references.clear();
    }
    for reference in references {
        let (reference, parent) = reference.bind(&schema, &keys, catalog)?;
        schema.constraints.push(Constraint::Reference(reference));
        parents.extend(parent.filter(|parent| parents.iter().all(|known| known.id != parent.id)));
    }
    Ok(CreateTable {
        schema,
        parents,
        indexes,
        sequences,
        replicas: options.replicas,
        if_not_exists: create.if_not_exists,
    })
}

fn set_key(primary_key: &mut Option<Vec<usize>>, columns: Vec<usize>, table: &str) -> Result<()> {
    if primary_key.is_some() {
        return Err(SqlError::new(
            code::INVALID_TABLE_DEFINITION,
            format!("multiple primary keys for table \"{table}\" are not allowed"),
        ));
    }
    *primary_key = Some(columns);
    Ok(())
}

struct BoundColumn<'a> {
    column: Column,
    /// The name of the primary key, if the column is declared as the primary key. `Some(None)` if the
    /// declaration gives no name.
    key_name: Option<Option<String>>,
    /// UNIQUE of the column.
    unique: Option<Unique>,
    /// The references of the column.
    references: Vec<DeclaredReference<'a>>,
    /// The sequence of a serial or identity column.
    sequence: Option<SequenceDefinition>,
}

/// Binds a column that ALTER TABLE adds. Returns the column, whether it is declared as the primary key, and
/// whether it has a sequence of its own.
pub(super) fn bind_added(
    definition: &ast::ColumnDef,
    table: &str,
    parameters: &mut Parameters,
) -> Result<(Column, bool, bool)> {
    let BoundColumn { column, key_name, unique, references, sequence } =
        bind_column(definition, &[], table, parameters)?;
    if !references.is_empty() {
        return Err(SqlError::unsupported("ADD COLUMN … REFERENCES")
            .hint("Add the column, then ALTER TABLE … ADD FOREIGN KEY.")
            .at(definition.name.span));
    }
    if unique.is_some() {
        return Err(SqlError::unsupported("ADD COLUMN … UNIQUE").at(definition.name.span));
    }
    Ok((column, key_name.is_some(), sequence.is_some()))
}

/// Refuses the name of a column that the system uses.
pub(super) fn refuse_system_name(name: &str, span: Span) -> Result<()> {
    let system = ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", sequence::KEY, index::KEY];
    if system.contains(&name) {
        let message = format!("column name \"{name}\" conflicts with a system column name");
        return Err(SqlError::new(code::DUPLICATE_COLUMN, message).at(span));
    }
    Ok(())
}

fn bind_column<'a>(
    definition: &'a ast::ColumnDef,
    known: &[Column],
    table: &str,
    parameters: &mut Parameters,
) -> Result<BoundColumn<'a>> {
    let span = definition.name.span;
    let name = scope::fold(&definition.name);
    if known.iter().any(|column| column.name == name) {
        return Err(SqlError::new(
            code::DUPLICATE_COLUMN,
            format!("column \"{name}\" specified more than once"),
        )
        .at(span));
    }
    refuse_system_name(&name, span)?;
    let serial = types::serial(&definition.data_type);
    let (ty, modifier) = match serial {
        Some(ty) => (ty, None),
        None => types::modified(&definition.data_type).map_err(|error| error.at(span))?,
    };
    let mut column = Column { name, ty, modifier, not_null: serial.is_some(), default: None };
    let mut sequence = serial.map(|_| owned_sequence(table, &column));
    let mut nullable = false;
    let mut key_name = None;
    let mut unique = None;
    let mut references = Vec::new();
    for option in &definition.options {
        match &option.option {
            ast::ColumnOption::Null => nullable = true,
            ast::ColumnOption::NotNull => column.not_null = true,
            ast::ColumnOption::Default(expr) => column.default = Some(default(expr, &column, parameters)?),
            ast::ColumnOption::PrimaryKey(_) => key_name = Some(option.name.as_ref().map(scope::fold)),
            ast::ColumnOption::Unique(declared) => {
                unique = Some(Unique::bind(declared, option.name.as_ref(), Some(known.len()), known)?);
            }
            // Bound when all columns are known.
            ast::ColumnOption::Check(_) => {}
            ast::ColumnOption::ForeignKey(declared) => {
                let (name, position) = (option.name.as_ref(), Some(known.len()));
                references.push(DeclaredReference::new(declared, name, position, known)?);
            }
            ast::ColumnOption::Generated {
                generated_as: kind @ (ast::GeneratedAs::Always | ast::GeneratedAs::ByDefault),
                sequence_options: Some(options),
                generation_expr: None,
                ..
            } => {
                if sequence.is_some() {
                    return Err(several_defaults(&column.name).at(span));
                }
                let always = *kind == ast::GeneratedAs::Always;
                sequence = Some(identity(always, options, table, &column).map_err(|error| error.at(span))?);
                column.not_null = true;
            }
            ast::ColumnOption::Generated { .. } | ast::ColumnOption::Identity(_) => {
                return Err(SqlError::unsupported("a generated column").at(span));
            }
            ast::ColumnOption::Collation(collation) => {
                let name = scope::parts(collation)?.pop().unwrap_or_default();
                if !matches!(name.as_str(), "C" | "POSIX") {
                    return Err(SqlError::unsupported(format!("collation \"{name}\"")).at(collation.span()));
                }
            }
            other => return Err(SqlError::unsupported(format!("the column option {other}")).at(span)),
        }
    }
    if let Some(sequence) = &sequence {
        if column.default.is_some() {
            return Err(several_defaults(&column.name).at(span));
        }
        column.default = Some(sequence::nextval(&sequence.name, column.ty));
    }
    if nullable && (column.not_null || key_name.is_some()) {
        return Err(SqlError::new(
            code::SYNTAX_ERROR,
            format!("conflicting NULL/NOT NULL declarations for column \"{}\"", column.name),
        )
        .at(span));
    }
    Ok(BoundColumn { column, key_name, unique, references, sequence })
}

fn several_defaults(column: &str) -> SqlError {
    let message = format!("multiple default values specified for column \"{column}\"");
    SqlError::new(code::SYNTAX_ERROR, message)
}

/// Returns the sequence of a serial column.
fn owned_sequence(table: &str, column: &Column) -> SequenceDefinition {
    let name = format!("{table}_{}_seq", column.name);
    let owner = SequenceOwner { table: table.to_owned(), column: column.name.clone() };
    SequenceDefinition { owner: Some(owner), ..SequenceDefinition::new(name, column.ty) }
}

/// Returns the sequence of an identity column.
fn identity(
    always: bool,
    options: &[ast::SequenceOptions],
    table: &str,
    column: &Column,
) -> Result<SequenceDefinition> {
    if !column.ty.is_integer() {
        return Err(invalid("identity column type must be smallint, integer, or bigint"));
    }
    let mut sequence = owned_sequence(table, column);
    sequence.identity = Some(if always { Identity::Always } else { Identity::ByDefault });
    set_options(&mut sequence, options)?;
    Ok(sequence)
}

/// Returns the default `nextval('name')` of a column. `None` if the expression is no call of `nextval`.
fn nextval(expr: &ast::Expr, column: &Column, parameters: &Parameters) -> Result<Option<Expr>> {
    let mut call = expr;
    while let ast::Expr::Nested(inner) = call {
        call = inner;
    }
    let ast::Expr::Function(function) = call else { return Ok(None) };
    let ast::FunctionArguments::List(list) = &function.args else { return Ok(None) };
    let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(named))] = &list.args[..] else {
        return Ok(None);
    };
    let is_nextval = scope::parts(&function.name)?.last().is_some_and(|name| name == "nextval");
    let (true, Some(catalog)) = (is_nextval, &parameters.sequences) else { return Ok(None) };
    let Some(sequence) = constant_sequence(catalog, named)? else { return Ok(None) };
    if !column.ty.is_number() {
        let message = format!(
            "column \"{}\" is of type {} but default expression is of type bigint",
            column.name,
            column.ty.name()
        );
        return Err(SqlError::new(code::DATATYPE_MISMATCH, message).at(expr.span()));
    }
    Ok(Some(sequence::nextval(&sequence.definition.name, column.ty)))
}

/// Binds a column's default: a constant, or a value of the inserting session, such as the time.
pub(super) fn default(expr: &ast::Expr, column: &Column, parameters: &mut Parameters) -> Result<Expr> {
    if let Some(nextval) = nextval(expr, column, parameters)? {
        return Ok(nextval);
    }
    let scope = Scope::empty();
    let operand = Binder::new(&scope, parameters, Err("DEFAULT expressions")).operand(expr).map_err(
        |error| match error.code.as_ref() {
            code::UNDEFINED_COLUMN => SqlError::new(
                code::FEATURE_NOT_SUPPORTED,
                "cannot use column reference in DEFAULT expression",
            )
            .at(expr.span()),
            _ => error,
        },
    )?;
    let bound = operand.coerce_stored(column, expr.span(), parameters)?;
    let is_session_value = |number: usize| match SessionValue::from_number(number) {
        None | Some(SessionValue::SequenceResult(_)) => false,
        Some(_) => true,
    };
    let of_session = |expr: &Expr| matches!(expr, Expr::Parameter(number, _) if is_session_value(*number));
    match &bound {
        Expr::Constant(..) => Ok(bound),
        Expr::Cast(inner, _) if of_session(inner) => Ok(bound),
        session if of_session(session) => Ok(bound),
        computed => {
            // An expression whose operands are all constants is still here only because its evaluation
            // failed.
            if computed.children().iter().all(|child| matches!(child, Expr::Constant(..))) {
                eval(computed, &[]).map_err(|failure| SqlError::from(failure).at(expr.span()))?;
            }
            Err(SqlError::unsupported(
                "a DEFAULT that is neither a constant nor a value of the session such as now()",
            )
            .at(expr.span()))
        }
    }
}

struct Options {
    partition: Option<Partition>,
    replicas: Option<u32>,
}

impl Options {
    fn bind(options: &ast::CreateTableOptions, columns: &[Column]) -> Result<Options> {
        let list = match options {
            ast::CreateTableOptions::None => &[][..],
            ast::CreateTableOptions::With(list) => list,
            _ => return Err(SqlError::unsupported("this kind of table option")),
        };
        let mut bound = Options { partition: None, replicas: None };
        for option in list {
            let ast::SqlOption::KeyValue { key, value } = option else {
                return Err(SqlError::unsupported(format!("the table option {option}")));
            };
            let span = key.span;
            let name = scope::fold(key);
            let again = |given: bool| match given {
                false => Ok(()),
                true => Err(invalid(format!("parameter \"{name}\" specified more than once")).at(span)),
            };
            match name.as_str() {
                "partition_by" => {
                    again(bound.partition.is_some())?;
                    let Some(text) = string(value) else {
                        return Err(invalid("partition_by takes a string such as 'hash(column)'").at(span));
                    };
                    bound.partition =
                        Some(partition(&text, columns).map_err(|error| error.at(value.span()))?);
                }
                "replicas" => {
                    again(bound.replicas.is_some())?;
                    let replicas = value.to_string().trim_matches('\'').parse::<u32>().ok();
                    bound.replicas =
                        Some(replicas.filter(|n| (1..=REPLICAS_MAX).contains(n)).ok_or_else(|| {
                            invalid(format!("replicas takes a number from 1 to {REPLICAS_MAX}, not {value}"))
                                .at(span)
                        })?);
                }
                other => {
                    return Err(invalid(format!("unrecognized parameter \"{other}\""))
                        .hint("The parameters are partition_by and replicas.")
                        .at(span));
                }
            }
        }
        Ok(bound)
    }
}

fn invalid(message: impl std::fmt::Display) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, message)
}

fn string(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Value(value) => value.value.clone().into_string(),
        _ => None,
    }
}

/// Reads `hash(column)` or `range(column[, low, high])`.
fn partition(text: &str, columns: &[Column]) -> Result<Partition> {
    let malformed = || {
        invalid(format!("partition_by takes 'hash(column)' or 'range(column[, low, high])', not '{text}'"))
    };
    let (kind, rest) = text.trim().split_once('(').ok_or_else(malformed)?;
    let inner = rest.trim_end().strip_suffix(')').ok_or_else(malformed)?;
    let mut arguments = inner.split(',').map(str::trim);
    let named = arguments.next().filter(|name| !name.is_empty()).ok_or_else(malformed)?;
    let name = match named.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.to_owned(),
        None => named.to_lowercase(),
    };
    let column = columns.iter().position(|column| column.name == name).ok_or_else(|| {
        SqlError::new(code::UNDEFINED_COLUMN, format!("partition column \"{name}\" does not exist"))
    })?;
    let bounds: Vec<&str> = arguments.collect();
    match (kind.trim().to_lowercase().as_str(), bounds.as_slice()) {
        ("hash", []) => Ok(Partition::Hash { column }),
        ("range", []) => Ok(Partition::Range { column, low: None, high: None }),
        ("range", [low, high]) => Ok(Partition::Range {
            column,
            low: Some(bound(low, columns[column].ty)?),
            high: Some(bound(high, columns[column].ty)?),
        }),
        _ => Err(malformed()),
    }
}

fn bound(text: &str, ty: Type) -> Result<Value> {
    let bare = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).unwrap_or(text);
    Ok(parse_text(ty, bare)?)
}

/// Binds a DROP TABLE.
pub fn drop_table(statement: &ast::Statement) -> Result<DropTable> {
    let ast::Statement::Drop { object_type, if_exists, names, cascade, .. } = statement else {
        unreachable!("only DROP is bound here")
    };
    if *object_type != ast::ObjectType::Table {
        return Err(SqlError::unsupported(format!("DROP {object_type}")).at(statement.span()));
    }
    let names = names.iter().map(scope::table_name).collect::<Result<_>>()?;
    Ok(DropTable { names, if_exists: *if_exists, cascades: *cascade })
}
