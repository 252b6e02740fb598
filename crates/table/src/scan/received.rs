//! The rows that queries received, kept so that later writes of the batch can correct the results.

use crate::versions::Spot;

use super::block::BLOCK_ROWS;

/// Collects the rows that queries of one shape received. Takes over the lists of the shape without a copy.
pub(super) struct ReceivedRows {
    /// The rows' indexes in their blocks, in the order of gathering.
    pub(super) rows: Vec<u32>,
    /// The blocks, each as the index of its first row in `rows` and the block's index.
    pub(super) blocks: Vec<(u32, u32)>,
    /// The positions of the rows in `rows`, query by query.
    pub(super) order: Vec<u32>,
    /// The queries, each with the end of its slice of `order`.
    pub(super) runs: Vec<(u32, u32)>,
    /// The query of each row.
    pub(super) queries: Vec<u32>,
}

impl ReceivedRows {
    /// Finds the sorted `spots` that some query received, and calls `found` for each such query.
    pub(super) fn receivers_of<'g>(&'g self, spots: &'g [Spot], mut found: impl FnMut(Spot, u32)) {
        let mut marks = [0u64; BLOCK_ROWS / 64];
        let ends = self.blocks[1..].iter().map(|(first, _)| *first).chain([self.rows.len() as u32]);
        for (&(first, block), end) in self.blocks.iter().zip(ends) {
            let here = spots.partition_point(|spot| spot.block < block);
            let here = &spots[here..][..spots[here..].partition_point(|spot| spot.block == block)];
            if here.is_empty() {
                continue;
            }
            let bit = |row: u32| (row as usize / 64, 1 << (row % 64));
            for (word, bit) in here.iter().map(|spot| bit(spot.row)) {
                marks[word] |= bit;
            }
            let received = first as usize..end as usize;
            for (&row, &query) in self.rows[received.clone()].iter().zip(&self.queries[received]) {
                let (word, bit) = bit(row);
                if marks[word] & bit != 0 {
                    found(Spot { block, row }, query);
                }
            }
            here.iter().for_each(|spot| marks[bit(spot.row).0] = 0);
        }
    }

    /// Returns the rows that a query received, in order.
    pub(super) fn to(&self, query: usize) -> impl Iterator<Item = Spot> + '_ {
        let positions = match self.runs.binary_search_by_key(&query, |(query, _)| *query as usize) {
            Ok(run) => {
                let start = run.checked_sub(1).map_or(0, |before| self.runs[before].1);
                start as usize..self.runs[run].1 as usize
            }
            Err(_) => 0..0,
        };
        self.order[positions].iter().map(|&position| {
            let block = self.blocks.partition_point(|(first, _)| *first <= position) - 1;
            Spot { block: self.blocks[block].1, row: self.rows[position as usize] }
        })
    }
}
