//! Moves of ranges: export, import, forget; and the digest that shows that no row was lost.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use xxhash_rust::xxh3::Xxh3;

use crate::{
    engine::{Chunk, Cursor, Exported, Failure},
    operation::LoadId,
    schema::{KeyRange, Schema, TableId},
};

use super::{
    OwnedRow, RowPlace, RowView, Rows, Table, Version,
    read::{numbers_of, place_of},
};

/// The rows of a table, or the staged rows of a load.
type Section = (TableId, Option<LoadId>);

impl<R: Rows> Version<R> {
    pub(super) fn export(
        &self,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure> {
        let ranges = KeyRange::union(ranges.to_vec());
        let mut chunk = Chunk { definitions: Vec::new(), rows: Vec::new(), next: None };
        let (from, start) = match cursor {
            None => {
                chunk.definitions =
                    self.tables.iter().map(|(&id, table)| (id, Schema::clone(&table.schema))).collect();
                ((TableId(0), None), RowPlace::first(0))
            }
            Some(cursor) => read_cursor(&cursor)?,
        };
        let start = |section: Section| if section == from { start } else { RowPlace::first(0) };
        let rows = rows.max(1);
        for (&id, table) in self.tables.range(from.0..) {
            if (id, None) >= from {
                fill(&mut chunk, (id, None), table.rows.within(&ranges, start((id, None))), rows);
            }
            for (&load, staged) in &table.staged {
                if chunk.next.is_none() && (id, Some(load)) >= from {
                    let section = (id, Some(load));
                    fill(&mut chunk, section, staged.within(&ranges, start(section)), rows);
                }
            }
            if chunk.next.is_some() {
                break;
            }
        }
        Ok(chunk)
    }

    pub(super) fn import(&mut self, chunk: Chunk) -> Result<(), Failure> {
        for (id, schema) in chunk.definitions {
            schema.check()?;
            self.tables.entry(id).or_insert_with(|| Arc::new(Table::new(schema)));
        }
        // Rows of one section arrive together and are inserted together.
        let mut coming: Option<(Section, Vec<(RowPlace, OwnedRow)>)> = None;
        for Exported { table: id, load, id: number, row } in chunk.rows {
            let table = self.table(id)?;
            table.schema.check_row(&row)?;
            let place = table.place(&row, number);
            if let Some((section, rows)) = coming.take_if(|(section, _)| *section != (id, load)) {
                self.insert_missing(section, rows);
            }
            coming.get_or_insert_with(|| ((id, load), Vec::new())).1.push((place, row.into()));
        }
        if let Some((section, rows)) = coming {
            self.insert_missing(section, rows);
        }
        Ok(())
    }

    /// Inserts the rows that are not here yet.
    fn insert_missing(&mut self, (id, load): Section, mut rows: Vec<(RowPlace, OwnedRow)>) {
        let table = self.table_mut(id);
        rows.sort_by_key(|(place, _)| *place);
        rows.dedup_by_key(|(place, _)| *place);
        match load {
            None => {
                rows.retain(|(place, _)| !table.rows.has(place));
                table.rows.insert(rows, None);
            }
            Some(load) => {
                let staged = table.staged.entry(load).or_default();
                rows.retain(|(place, _)| !staged.has(place));
                staged.add(R::gathered(&table.schema, rows.iter().map(|(place, row)| (*place, &row[..]))));
            }
        }
    }

    pub(super) fn forget(&mut self, ranges: &[KeyRange]) {
        let ranges = KeyRange::union(ranges.to_vec());
        for table in self.tables.values_mut() {
            let table = Arc::make_mut(table);
            let places: Vec<RowPlace> =
                table.rows.within(&ranges, RowPlace::first(0)).map(|(place, _)| place).collect();
            table.rows.remove(&places, None);
            table.staged.values_mut().for_each(|staged| drop(staged.take(&table.schema, &ranges)));
            table.staged.retain(|_, staged| !staged.is_empty());
        }
    }

    /// Returns the tables that have staged rows of this session.
    pub(super) fn loading(&self, session: u128) -> Vec<TableId> {
        let of_session = |table: &Table<R>| table.staged.keys().any(|LoadId(owner, _)| *owner == session);
        self.tables.iter().filter(|(_, table)| of_session(table)).map(|(&id, _)| id).collect()
    }

    pub(super) fn end_session(&mut self, session: u128) {
        for id in self.loading(session) {
            self.table_mut(id).staged.retain(|LoadId(owner, _), _| *owner != session);
        }
    }

    pub(super) fn digest(&self, ranges: &[KeyRange]) -> u64 {
        let ranges = KeyRange::union(ranges.to_vec());
        let mut sum = 0u64;
        for (&id, table) in &self.tables {
            let mut hasher = Xxh3::new();
            id.hash(&mut hasher);
            // Hashing the debug form covers every field, and is cheap because definitions are few.
            format!("{:?}", table.schema).hash(&mut hasher);
            sum = sum.wrapping_add(hasher.finish());
            sum = sum.wrapping_add(digest_of((id, None), table.rows.within(&ranges, RowPlace::first(0))));
            for (&load, staged) in &table.staged {
                sum = sum.wrapping_add(digest_of((id, Some(load)), staged.unordered(&ranges)));
            }
        }
        sum
    }
}

/// Adds a section's rows to a chunk, until the chunk has `rows` rows.
fn fill<'a>(
    chunk: &mut Chunk,
    (table, load): Section,
    section: impl Iterator<Item = (RowPlace, RowView<'a>)>,
    rows: usize,
) {
    for (place, row) in section {
        if chunk.rows.len() >= rows {
            chunk.next = Some(write_cursor(table, load, &place));
            return;
        }
        chunk.rows.push(Exported { table, load, id: place.id, row: row.into_owned() });
    }
}

/// Hashes a section's rows, independently of their order.
fn digest_of<'a>((table, load): Section, section: impl Iterator<Item = (RowPlace, RowView<'a>)>) -> u64 {
    let hash = |(place, row): (RowPlace, RowView<'_>)| {
        let mut hasher = Xxh3::new();
        (table, load, place.id, &row[..]).hash(&mut hasher);
        hasher.finish()
    };
    section.map(hash).fold(0, u64::wrapping_add)
}

/// Encodes the table, whether the row is staged, the load in three parts, and the place of the next row.
fn write_cursor(table: TableId, load: Option<LoadId>, place: &RowPlace) -> Cursor {
    let LoadId(client, number) = load.unwrap_or(LoadId(0, 0));
    let section = [table.0.into(), load.is_some().into(), (client >> 64) as u64, client as u64, number];
    Cursor(section.into_iter().chain(numbers_of(place)).collect())
}

fn read_cursor(cursor: &Cursor) -> Result<(Section, RowPlace), Failure> {
    let malformed = || Failure::malformed("a cursor");
    let Some((&[table, staged, high, low, number], place)) = cursor.0.split_first_chunk::<5>() else {
        return Err(malformed());
    };
    let table = TableId(u32::try_from(table).map_err(|_| malformed())?);
    let load = (staged == 1).then_some(LoadId(u128::from(high) << 64 | u128::from(low), number));
    Ok(((table, load), place_of(place)?))
}
