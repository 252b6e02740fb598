//! Finding: the rows of one block that satisfy the terms of one query.
//!
//! Terms come with the most selective one first. The first term decides whether the block can hold a match.
//! Then all rows are compared with it, and with the next terms as long as many rows remain. After that, each
//! remaining row is tested separately.

use std::ops::Range;

use crate::scan::{
    block::Block,
    query::{compile::Term, costs::Costs},
};

use super::marks::Marks;

/// The longest list of single numbers that all rows of a block are compared with.
const LISTED_MAX: usize = 8;
/// The number of rows below which each row of a slice is tested separately.
const SHORT: usize = 64;

/// Appends to `matches` the rows of a slice that pass all terms. Returns whether it looked at any row.
pub(in crate::scan) fn find(
    block: &Block,
    terms: &[Term],
    slice: Range<usize>,
    costs: &Costs,
    matches: &mut Vec<u32>,
) -> bool {
    let chunk = |term: &Term| &*block.columns[term.column];
    if slice.is_empty() || terms.first().is_some_and(|term| !term.may_pass(chunk(term))) {
        return false;
    }
    let first = matches.len();
    if slice.len() < SHORT {
        matches.extend(slice.start as u32..slice.end as u32);
        terms.iter().for_each(|term| term.retain(chunk(term), matches, first));
        return true;
    }
    let few = slice.len() as f64 / costs.row;
    let compared = |term: &Term| term.others.len() <= LISTED_MAX;
    let mut marks = Marks::none();
    let mut rest = match terms.split_first() {
        Some((term, rest)) if compared(term) => {
            marks.pass(chunk(term), term);
            if slice.len() < block.len() {
                marks.only(slice);
            }
            rest
        }
        _ => {
            marks.all(slice);
            terms
        }
    };
    let mut left = marks.count();
    while left as f64 >= few
        && let Some((term, behind)) = rest.split_first()
        && compared(term)
    {
        let mut passing = Marks::none();
        passing.pass(chunk(term), term);
        marks.and(&passing);
        left = marks.count();
        rest = behind;
    }
    if left == 0 {
        return true;
    }
    match rest.split_first() {
        Some((term, behind)) if term.is_range() && chunk(term).nulls().is_none() => {
            chunk(term).numbers.list_within(term.low, term.high, &marks, left, matches);
            rest = behind;
        }
        _ => {
            matches.reserve(left);
            marks.each(|row| matches.push(row));
        }
    }
    rest.iter().for_each(|term| term.retain(chunk(term), matches, first));
    true
}
