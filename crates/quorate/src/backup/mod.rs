//! Backups: all rows of tables as of one position, written to a file while the cluster runs, and restored.
//!
//! ```no_run
//! # async fn run(db: quorate::Db) -> Result<(), quorate::Error> {
//! let made = db.backup("tuesday.backup").await?;
//! println!("{} tables at position {}", made.tables.len(), made.position);
//! quorate::backup::verify("tuesday.backup").await?;
//! db.restore("tuesday.backup").only(["flights"]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Promise.** A backup is one read in the total order: it has every write that was acknowledged before its
//! beginning, and each write is in it completely or not at all, over all tables together. Reads and writes go
//! on meanwhile. The file is complete and on disk, or it does not exist. A restore first reads the whole
//! file, and sends nothing to the cluster if any of it is damaged.
//!
//! **How.** The read names its tables. One replica answers for each range of the ring. The replica keeps the
//! rows' versions as of the read's position, and sends pages as fast as the file takes them, or at a
//! [pace](Transfer::bytes_per_second_max) ([`Operation::Backup`]). If a replica is lost meanwhile, or drops
//! these versions because they take too much memory (256 MiB of overwritten rows), the backup fails, and
//! leaves no file.
//!
//! A restore makes new tables in any cluster. Each row goes to the processes to which that cluster's ring
//! assigns it. The restore first stages all rows, as COPY does, and publishes one table after another once
//! all rows are there. A restore that fails drops the incomplete tables that it has made.
//!
//! **References.** A table is saved and restored only together with the tables to which it refers. A restore
//! makes such tables in one message, and publishes them in one transaction. So no client sees a row without
//! the row to which it refers, and no client can delete that row in between.
//!
//! | file | subject |
//! |---|---|
//! | `file` | the form of the file: sections, checksums |
//! | `save` | writing a backup |
//! | `load` | restoring a backup, and verifying one |
//!
//! [`Operation::Backup`]: quorate_table::operation::Operation::Backup

mod file;
mod fuzz;
mod load;
mod save;
mod transfer;

use std::{future::IntoFuture, num::NonZeroU64, path::Path};

use quorate_sql::{index::IndexDefinition, sequence::SequenceDefinition};
use quorate_table::schema::Schema;

pub(crate) use self::fuzz::fuzz;
use crate::{
    db::Db,
    error::Error,
    pending::{Pending, on_a_thread},
};

use transfer::What;

pub use transfer::{Progress, Summary, Transfer};

impl Transfer {
    fn new(what: What, file: impl AsRef<Path>) -> Transfer {
        Transfer {
            what,
            file: file.as_ref().to_owned(),
            tables: Vec::new(),
            pace: None,
            watch: Box::new(|_| {}),
        }
    }

    /// Restricts the transfer to these tables, by their names as they are stored.
    pub fn only<N: Into<String>>(mut self, tables: impl IntoIterator<Item = N>) -> Self {
        self.tables = tables.into_iter().map(Into::into).collect();
        self
    }

    /// Limits the speed of a backup, in bytes of rows a second before compression, so that the backup leaves
    /// more of the machines to other work. The slower the backup is, the more versions of overwritten rows
    /// are kept for it. Restores and verifications have no limit.
    pub fn bytes_per_second_max(mut self, most: NonZeroU64) -> Self {
        self.pace = Some(most);
        self
    }

    /// Sets a function that gets the progress every 100 ms, on the thread that does the transfer.
    pub fn watch(mut self, watch: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.watch = Box::new(watch);
        self
    }

    /// Returns the indices of the requested tables among these names, in the order of the names. The error is
    /// the name of a missing table.
    fn choose<'a>(&self, all: impl Iterator<Item = &'a Schema> + Clone) -> Result<Vec<usize>, &str> {
        if let Some(missing) = self.tables.iter().find(|table| !all.clone().any(|one| one.name == **table)) {
            return Err(missing);
        }
        let is_named = |name: &String| self.tables.contains(name);
        let is_wanted = |schema: &Schema| {
            self.tables.is_empty() || is_named(&schema.name) || owner(schema).is_some_and(|it| is_named(&it))
        };
        Ok(all.enumerate().filter(|(_, schema)| is_wanted(schema)).map(|(place, _)| place).collect())
    }

    /// Refuses tables of which one refers to a table that is not among them. Its restored rows could refer to
    /// rows that do not exist.
    fn check_references<'a>(chosen: impl Iterator<Item = &'a Schema> + Clone) -> Result<(), String> {
        for schema in chosen.clone() {
            let is_missing = |parent: &String| !chosen.clone().any(|other| other.name == *parent);
            if let Some(reference) = schema.references().find(|reference| is_missing(&reference.parent)) {
                let (child, parent) = (&schema.name, &reference.parent);
                return Err(format!("table \"{child}\" refers to table \"{parent}\", so choose both"));
            }
        }
        Ok(())
    }

    fn perform(&self) -> Result<Summary, Error> {
        match &self.what {
            What::Save(db) => save::save(db, self),
            What::Load(db) => load::load(db, self),
            What::Verify => load::verify(self),
        }
    }

    fn wrong(&self, why: impl ToString) -> Error {
        Error::file(&self.file, why)
    }
}

/// Returns the user's table for the table of an index, or for the table of a sequence that a column owns. A
/// backup saves and restores both together. The user's table needs the index for its constraints, and the
/// sequence for its defaults.
fn owner(schema: &Schema) -> Option<String> {
    let index = IndexDefinition::of(schema).map(|index| index.table);
    index.or_else(|| Some(SequenceDefinition::of(schema)?.owner?.table))
}

impl IntoFuture for Transfer {
    type Output = Result<Summary, Error>;
    type IntoFuture = Pending<'static, Summary>;

    fn into_future(self) -> Self::IntoFuture {
        on_a_thread("backup", move || self.perform())
    }
}

impl Db {
    /// Writes all rows of all tables, as of one position, to a file that must not exist. Other requests go on
    /// meanwhile.
    pub fn backup(&self, file: impl AsRef<Path>) -> Transfer {
        Transfer::new(What::Save(self.clone()), file)
    }

    /// Restores the tables of a backup, which must not exist. The whole file is verified first.
    pub fn restore(&self, file: impl AsRef<Path>) -> Transfer {
        Transfer::new(What::Load(self.clone()), file)
    }
}

/// Reads a backup's file completely: it checks all checksums, every row against its table's definition, and
/// the number of rows.
pub fn verify(file: impl AsRef<Path>) -> Transfer {
    Transfer::new(What::Verify, file)
}

#[cfg(test)]
mod tests {
    use quorate_sql::{
        index::{EnforcedKeys, IndexKey},
        sequence::SequenceOwner,
    };
    use quorate_table::{
        schema::{Column, Partition},
        value::Type,
    };

    use super::*;

    #[test]
    fn a_chosen_table_brings_its_keys_and_sequences() {
        let column =
            Column { name: "a".to_owned(), ty: Type::Int4, modifier: None, not_null: true, default: None };
        let table = |name: &str| Schema {
            name: name.to_owned(),
            columns: vec![column.clone()],
            primary_key: vec![0],
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        };
        let key = IndexKey { column: "a".to_owned(), class: None, descends: false, nulls_first: false };
        let index = |name: &str, table: &str| {
            let index = IndexDefinition {
                name: name.to_owned(),
                table: table.to_owned(),
                method: "btree".to_owned(),
                is_unique: true,
                keys: vec![key.clone()],
                enforced: Some(EnforcedKeys { is_constraint: true, columns: vec![column.clone()] }),
            };
            index.schema()
        };
        let owner = SequenceOwner { table: "t".to_owned(), column: "a".to_owned() };
        let sequence = SequenceDefinition {
            owner: Some(owner),
            ..SequenceDefinition::new("t_a_seq".to_owned(), Type::Int4)
        };
        let all = [table("t"), index("t_a_key", "t"), sequence.schema(), table("u"), index("u_a_key", "u")];
        let chosen = |names: &[&str]| {
            let mut transfer = Transfer::new(What::Verify, "f");
            transfer.tables = names.iter().map(|name| (*name).to_owned()).collect();
            transfer.choose(all.iter()).map_err(str::to_owned)
        };
        assert_eq!(chosen(&[]), Ok(vec![0, 1, 2, 3, 4]));
        assert_eq!(chosen(&["t"]), Ok(vec![0, 1, 2]));
        assert_eq!(chosen(&["u", "t_a_key"]), Ok(vec![1, 3, 4]));
        assert_eq!(chosen(&["v"]), Err("v".to_owned()));
    }
}
