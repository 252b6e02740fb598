//! Ranges on the move: export, import, forget; and the digest that shows that nothing was lost.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use xxhash_rust::xxh3::Xxh3;

use crate::{
    engine::{Chunk, Cursor, Exported, Failure},
    operation::LoadId,
    schema::{KeyRange, TableId},
};

use super::{
    Table, Version,
    blocks::{Blocks, Place},
    read::{numbers_of, place_of},
};

impl Version {
    /// Everything that holds rows, in order: every table's visible ones, then its loads.
    fn sections(&self) -> impl Iterator<Item = (TableId, Option<LoadId>, &Blocks)> {
        self.tables.iter().flat_map(|(&id, table)| {
            let staged = table.staged.iter().map(move |(&load, blocks)| (id, Some(load), blocks));
            std::iter::once((id, None, &table.rows)).chain(staged)
        })
    }

    pub(crate) fn export(
        &self,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure> {
        let ranges = KeyRange::union(ranges.to_vec());
        let mut chunk = Chunk { definitions: Vec::new(), rows: Vec::new(), next: None };
        let (from, mut start) = match cursor {
            None => {
                chunk.definitions =
                    self.tables.iter().map(|(&id, table)| (id, table.schema.clone())).collect();
                ((TableId(0), None), Place::first(0))
            }
            Some(cursor) => read_cursor(&cursor)?,
        };
        for (table, load, blocks) in self.sections().filter(|(table, load, _)| (*table, *load) >= from) {
            if (table, load) > from {
                start = Place::first(0);
            }
            for (place, row) in blocks.within(&ranges, start) {
                if chunk.rows.len() >= rows.max(1) {
                    chunk.next = Some(write_cursor(table, load, place));
                    return Ok(chunk);
                }
                chunk.rows.push(Exported { table, load, id: place.id, row: row.to_vec() });
            }
        }
        Ok(chunk)
    }

    pub(crate) fn import(&mut self, chunk: Chunk) -> Result<(), Failure> {
        for (id, schema) in chunk.definitions {
            schema.check()?;
            let empty = || Arc::new(Table { schema, rows: Blocks::default(), staged: Default::default() });
            self.tables.entry(id).or_insert_with(empty);
        }
        for Exported { table, load, id, row } in chunk.rows {
            self.table(table)?.schema.check_row(&row)?;
            let table = self.table_mut(table);
            let place = table.place(&row, id);
            let blocks = match load {
                None => &mut table.rows,
                Some(load) => table.staged.entry(load).or_default(),
            };
            if blocks.at(&place).is_none() {
                blocks.insert(place, row.into());
            }
        }
        Ok(())
    }

    pub(crate) fn forget(&mut self, ranges: &[KeyRange]) {
        let ranges = KeyRange::union(ranges.to_vec());
        let clear = |blocks: &mut Blocks| {
            let places: Vec<Place> =
                blocks.within(&ranges, Place::first(0)).map(|(place, _)| *place).collect();
            for place in places {
                blocks.remove(&place);
            }
        };
        for table in self.tables.values_mut() {
            let table = Arc::make_mut(table);
            clear(&mut table.rows);
            table.staged.values_mut().for_each(clear);
            table.staged.retain(|_, blocks| blocks.len() > 0);
        }
    }

    pub(crate) fn digest(&self, ranges: &[KeyRange]) -> u64 {
        let ranges = KeyRange::union(ranges.to_vec());
        let mut sum = 0u64;
        for (id, table) in &self.tables {
            let mut hasher = Xxh3::new();
            id.hash(&mut hasher);
            // Definitions are few, and their printed form tells all of them.
            format!("{:?}", table.schema).hash(&mut hasher);
            sum = sum.wrapping_add(hasher.finish());
        }
        for (table, load, blocks) in self.sections() {
            for (place, row) in blocks.within(&ranges, Place::first(0)) {
                let mut hasher = Xxh3::new();
                (table, load, place.id, row).hash(&mut hasher);
                sum = sum.wrapping_add(hasher.finish());
            }
        }
        sum
    }
}

/// Table, whether staged, the load in three parts, and the place of the row to go on with.
fn write_cursor(table: TableId, load: Option<LoadId>, place: &Place) -> Cursor {
    let LoadId(client, number) = load.unwrap_or(LoadId(0, 0));
    let section = [table.0.into(), load.is_some().into(), (client >> 64) as u64, client as u64, number];
    Cursor(section.into_iter().chain(numbers_of(place)).collect())
}

#[allow(clippy::type_complexity)] // A section and a place in it, used once.
fn read_cursor(cursor: &Cursor) -> Result<((TableId, Option<LoadId>), Place), Failure> {
    let malformed = || Failure::malformed("a cursor");
    let Some((&[table, staged, high, low, number], place)) = cursor.0.split_first_chunk::<5>() else {
        return Err(malformed());
    };
    let table = TableId(u32::try_from(table).map_err(|_| malformed())?);
    let load = (staged == 1).then_some(LoadId(u128::from(high) << 64 | u128::from(low), number));
    Ok(((table, load), place_of(place)?))
}
