//! Bound statements: the output of the binder, which sessions execute.

use sqlparser::ast;

use super::{
    alter_table::AlterTable,
    copy::Copy,
    create_index::CreateIndex,
    create_sequence::CreateSequence,
    ddl::{CreateTable, DropTable},
    modes::Modes,
    parameters::SettingDependencies,
    query::Query,
    write::Write,
};
use crate::{sequence::SequenceCall, types::PgType};

/// A bound statement.
#[derive(Debug)]
pub enum Statement {
    /// A query.
    Query(Box<Query>),
    /// INSERT, UPDATE, DELETE or TRUNCATE.
    Write(Box<Write>),
    /// CREATE TABLE.
    CreateTable(Box<CreateTable>),
    /// DROP TABLE.
    DropTable(DropTable),
    /// ALTER TABLE.
    AlterTable(Box<AlterTable>),
    /// CREATE SEQUENCE.
    CreateSequence(Box<CreateSequence>),
    /// DROP SEQUENCE.
    DropSequence(DropTable),
    /// CREATE INDEX.
    CreateIndex(Box<CreateIndex>),
    /// DROP INDEX.
    DropIndex(DropTable),
    /// COPY.
    Copy(Box<Copy>),
    /// SET or RESET of a setting; `None` restores the default.
    Set {
        /// The setting's name.
        name: String,
        /// The new value; `None` restores the default.
        value: Option<String>,
        /// Whether the setting lasts only until the block ends (`SET LOCAL`).
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
        /// Whether the modes are for the session's later blocks rather than for the present block.
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
        /// The statement to explain.
        statement: Box<Statement>,
        /// Whether EXPLAIN also executes the statement, and reports what happened.
        analyze: bool,
    },
    /// PREPARE.
    Prepare {
        /// The name under which the session keeps the statement.
        name: String,
        /// The declared parameter types.
        types: Vec<PgType>,
        /// The text of the statement to keep.
        text: String,
    },
    /// EXECUTE.
    Execute {
        /// The name of the prepared statement.
        name: String,
        /// The arguments for the prepared statement's parameters.
        arguments: Vec<ast::Expr>,
    },
    /// DEALLOCATE of a prepared statement; `None` removes all.
    Deallocate(Option<String>),
    /// `DISCARD ALL`: resets the session.
    DiscardAll,
    /// `DISCARD SEQUENCES`: forgets the session's latest numbers.
    DiscardSequences,
    /// DECLARE of a cursor.
    Declare(Box<Declare>),
    /// FETCH from a cursor.
    Fetch {
        /// The cursor's name.
        name: String,
        /// Number of rows; `None` is all.
        count: Option<u64>,
    },
    /// CLOSE of a cursor; `None` closes all.
    Close(Option<String>),
    /// A statement without an effect here, such as `UNLISTEN *`, with its tag.
    Nothing(&'static str),
}

/// A bound statement with the types of its parameters.
#[derive(Debug)]
pub struct BoundStatement {
    /// The statement itself.
    pub statement: Statement,
    /// The types of `$1`, `$2`, ….
    pub parameters: Vec<PgType>,
    /// The settings on which the statement's meaning depends.
    pub depends: SettingDependencies,
    /// The calls of sequence functions, which a session executes before all else.
    pub calls: Vec<SequenceCall>,
}

/// A bound DECLARE.
#[derive(Debug)]
pub struct Declare {
    /// The cursor's name.
    pub name: String,
    /// The query of the cursor's rows.
    pub query: Query,
}
