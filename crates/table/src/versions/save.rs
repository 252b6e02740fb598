//! Versions as bytes on a disk, and back ([`crate::saved`]).

use std::sync::Arc;

use crate::{
    engine::{Cursor, Failure},
    operation::LoadId,
    saved::{self, OutlineLine, Records, SaveTarget, SavedPart, Saver},
    schema::TableId,
};

use super::{Rows, Table, Version};

/// The section that lines of an outline belong to: the rows of a table, or the staged rows of a load.
pub(super) type Section = (TableId, Option<LoadId>);

impl<R: Rows> Version<R> {
    /// Saves the next part of the version, from `cursor` on.
    pub(super) fn save(&self, saving: &SaveTarget, cursor: Option<Cursor>) -> Result<SavedPart, Failure> {
        let mut saver = Saver::new(saving);
        let (first, mut section, mut from) = match cursor {
            None => (TableId(0), 0, (0, 0)),
            Some(Cursor(numbers)) => match numbers[..] {
                [table, section, at, run] => {
                    let table = TableId(u32::try_from(table).map_err(|_| saved::malformed())?);
                    (table, section as usize, (at as usize, run as usize))
                }
                _ => return Err(Failure::malformed("a cursor")),
            },
        };
        for (&id, table) in self.tables.range(first..) {
            let staged =
                table.staged.iter().flat_map(|(&load, staged)| staged.runs().map(move |run| (load, run)));
            let rows = std::iter::once((None, &table.rows));
            let sections = rows.chain(staged.map(|(load, run)| (Some(load), run)));
            for (number, (load, rows)) in sections.enumerate().skip(section) {
                if from == (0, 0) {
                    if !saver.has_room() {
                        let next = [u64::from(id.0), number as u64, 0, 0];
                        return Ok(saver.finish(Some(Cursor(next.to_vec()))));
                    }
                    saver.line(&match load {
                        None => OutlineLine::Table(id, (*table.schema).clone()),
                        Some(load) => OutlineLine::Staged(id, load),
                    });
                }
                if let Some((at, run)) = rows.save(from, &mut saver) {
                    let next = [u64::from(id.0), number as u64, at as u64, run as u64];
                    // The next position lies behind the section's beginning. Otherwise saving would never
                    // end.
                    assert!((at, run) != (0, 0), "saving a section makes progress");
                    return Ok(saver.finish(Some(Cursor(next.to_vec()))));
                }
                from = (0, 0);
            }
            section = 0;
        }
        Ok(saver.finish(None))
    }

    /// Restores a piece of an outline. `section` is the section that its first lines belong to. Fails if it
    /// is malformed.
    pub(super) fn restore(
        &mut self,
        outline: &[u8],
        records: &Records,
        section: &mut Option<Section>,
    ) -> Result<(), Failure> {
        for line in saved::lines(outline)? {
            match line {
                OutlineLine::Table(id, schema) => {
                    schema.check()?;
                    self.tables.insert(id, Arc::new(Table::new(schema)));
                    *section = Some((id, None));
                }
                OutlineLine::Staged(id, load) => {
                    self.table(id)?;
                    let table = self.table_mut(id);
                    let run = R::new(&table.schema);
                    table.staged.entry(load).or_default().begin(run);
                    *section = Some((id, Some(load)));
                }
                line => {
                    let (id, load) = section.ok_or_else(saved::malformed)?;
                    let table = self.table_mut(id);
                    let rows = match load {
                        None => Some(&mut table.rows),
                        Some(load) => table.staged.get_mut(&load).and_then(|staged| staged.last()),
                    };
                    rows.ok_or_else(saved::malformed)?.restore(line, records)?;
                }
            }
        }
        Ok(())
    }
}
