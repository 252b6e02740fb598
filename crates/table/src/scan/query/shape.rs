//! Shapes: the columns that queries want, and the rows that a pass has noted for them.

use crate::scan::block::Block;

use super::received::ReceivedRows;

/// Maximum number of columns of a shape, because the NULLs of a row are the bits of one word.
const WIDTH_MAX: usize = 64;

/// The shapes of a pass.
pub(in crate::scan) struct OutputShapes {
    pub(in crate::scan) all: Vec<OutputShape>,
    /// Whether the shapes remember the rows that queries receive.
    pub(in crate::scan) corrected_later: bool,
    pub(in crate::scan) received: Vec<ReceivedRows>,
}

/// Rows of certain columns, for all queries that want these columns.
#[derive(Default)]
pub(in crate::scan) struct OutputShape {
    pub(in crate::scan) columns: Vec<usize>,
    /// The rows of the present block. If gathered rows are remembered, they stand in front of these rows.
    pub(in crate::scan) rows: Vec<u32>,
    /// The number of remembered rows that have been gathered.
    pub(in crate::scan) gathered: usize,
    /// The blocks of the gathered rows, each as the index of its first row and the block's index.
    pub(in crate::scan) blocks: Vec<(u32, u32)>,
    /// The query of each row, those of the present block included.
    pub(in crate::scan) queries: Vec<u32>,
    /// The numbers of the gathered rows, one for each column, row by row.
    pub(in crate::scan) numbers: Vec<u64>,
    /// The NULLs of each gathered row, a bit for each column.
    pub(in crate::scan) nulls: Vec<u64>,
}

impl OutputShapes {
    pub(in crate::scan) fn new(corrected_later: bool) -> OutputShapes {
        OutputShapes { all: Vec::new(), corrected_later, received: Vec::new() }
    }

    /// Returns the same shapes, without rows.
    pub(in crate::scan) fn alike(&self) -> OutputShapes {
        let alike =
            |shape: &OutputShape| OutputShape { columns: shape.columns.clone(), ..OutputShape::default() };
        OutputShapes {
            all: self.all.iter().map(alike).collect(),
            corrected_later: self.corrected_later,
            received: Vec::new(),
        }
    }

    /// Returns the index of the shape of these columns; `None` if a column is computed or the columns are too
    /// many.
    pub(in crate::scan) fn find(
        &mut self,
        columns: impl ExactSizeIterator<Item = Option<usize>> + Clone,
    ) -> Option<usize> {
        if columns.len() > WIDTH_MAX || columns.clone().any(|column| column.is_none()) {
            return None;
        }
        let found =
            self.all.iter().position(|shape| columns.clone().flatten().eq(shape.columns.iter().copied()));
        Some(found.unwrap_or_else(|| {
            self.all.push(OutputShape { columns: columns.flatten().collect(), ..OutputShape::default() });
            self.all.len() - 1
        }))
    }

    pub(in crate::scan) fn columns(&self, shape: usize) -> &[usize] {
        &self.all[shape].columns
    }

    /// Prefetches the values of a row of the present block that will be noted.
    #[inline]
    pub(in crate::scan) fn prefetch(&self, shape: usize, block: &Block, row: u32) {
        for &column in &self.all[shape].columns {
            block.columns[column].numbers.prefetch(row as usize);
        }
    }

    /// Notes that a query wants a row of the present block.
    #[inline]
    pub(in crate::scan) fn note(&mut self, shape: usize, query: u32, row: u32) {
        let shape = &mut self.all[shape];
        shape.rows.push(row);
        shape.queries.push(query);
    }
}
