//! Alterations of a table's columns: chunks and dictionaries are taken over as they are.

use std::sync::Arc;

use crate::{
    alter::{Alteration, ColumnSource},
    schema::Schema,
    versions::Rows,
};

use super::{Columns, block::Block, code::chunk::Chunk};

impl Columns {
    /// Returns the rows of an altered table. An integer keeps its number when it becomes wider
    /// (`code/ordinal.rs`), so every chunk fits its new column.
    pub(super) fn altered(&self, schema: &Arc<Schema>, alteration: &Alteration) -> Columns {
        let mut altered = Columns { merge_due: self.merge_due, rows: self.rows, ..Columns::new(schema) };
        let mut constants = vec![None; alteration.columns.len()];
        for (column, source) in alteration.columns.iter().enumerate() {
            match source {
                ColumnSource::Column(index) => {
                    altered.dictionaries[column] = self.dictionaries[*index].clone();
                }
                ColumnSource::Constant(value) => {
                    constants[column] = altered.number(column, value);
                    altered.order_tail(column);
                }
            }
        }
        let block = |block: &Arc<Block>| {
            let chunk = |(column, source): (usize, &ColumnSource)| match source {
                ColumnSource::Column(index) => block.columns[*index].clone(),
                ColumnSource::Constant(_) => Arc::new(Chunk::new(&vec![constants[column]; block.len()])),
            };
            let columns = alteration.columns.iter().enumerate().map(chunk).collect();
            Arc::new(Block {
                last: block.last,
                crowded: block.crowded,
                places: block.places.clone(),
                columns,
            })
        };
        altered.blocks = self.blocks.iter().map(block).collect();
        altered
    }
}
