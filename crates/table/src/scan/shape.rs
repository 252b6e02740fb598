//! Shapes: the columns that queries want, and the rows that a pass has noted for them.

use super::{block::Block, received::ReceivedRows};

/// The most columns of a shape, because the NULLs of a row are the bits of one word.
const WIDTH_MAX: usize = 64;

/// The shapes of a pass.
pub(super) struct OutputShapes {
    pub(super) all: Vec<OutputShape>,
    /// Whether the shapes remember the rows that queries receive.
    pub(super) corrected_later: bool,
    pub(super) received: Vec<ReceivedRows>,
}

/// Rows of certain columns, for all queries that want these columns.
#[derive(Default)]
pub(super) struct OutputShape {
    pub(super) columns: Vec<usize>,
    /// The rows of the present block, behind the gathered rows if these are remembered.
    pub(super) rows: Vec<u32>,
    /// The number of remembered rows that have been gathered.
    pub(super) gathered: usize,
    /// The blocks of the gathered rows, each as the index of its first row and the block's index.
    pub(super) blocks: Vec<(u32, u32)>,
    /// The query of each row, those of the present block included.
    pub(super) queries: Vec<u32>,
    /// The numbers of the gathered rows, one for each column, row by row.
    pub(super) numbers: Vec<u64>,
    /// The NULLs of each gathered row, a bit for each column.
    pub(super) nulls: Vec<u64>,
}

impl OutputShapes {
    pub(super) fn new(corrected_later: bool) -> OutputShapes {
        OutputShapes { all: Vec::new(), corrected_later, received: Vec::new() }
    }

    /// Returns the same shapes, without rows.
    pub(super) fn alike(&self) -> OutputShapes {
        let alike =
            |shape: &OutputShape| OutputShape { columns: shape.columns.clone(), ..OutputShape::default() };
        OutputShapes {
            all: self.all.iter().map(alike).collect(),
            corrected_later: self.corrected_later,
            received: Vec::new(),
        }
    }

    /// Returns the index of the shape of these columns; `None` if one of them is computed or there are too
    /// many.
    pub(super) fn find(
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

    pub(super) fn columns(&self, shape: usize) -> &[usize] {
        &self.all[shape].columns
    }

    /// Prefetches the values of a row of the present block that will be noted.
    #[inline]
    pub(super) fn prefetch(&self, shape: usize, block: &Block, row: u32) {
        for &column in &self.all[shape].columns {
            block.columns[column].numbers.prefetch(row as usize);
        }
    }

    /// Notes that a query wants a row of the present block.
    #[inline]
    pub(super) fn note(&mut self, shape: usize, query: u32, row: u32) {
        let shape = &mut self.all[shape];
        shape.rows.push(row);
        shape.queries.push(query);
    }
}
