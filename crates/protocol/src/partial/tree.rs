//! The hash tree of a map at one cell: the number of entries in any arc of the ring, and a hash of all of
//! them.
//!
//! Each entry has a hash of its own, made of its key's token and its stamps. A stamp belongs to one write, so
//! the tree need not look at values. The hash of an arc is the sum of the hashes of its entries. So a write
//! changes one sum on each level, and the hash of an arc can be computed even if no node has exactly this
//! arc. A leaf with many entries is split in sixteen. Leaves are never joined.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{
    entry::Entry,
    stamp::Stamp,
    token::{Arc, Token},
};

/// The number and the hash of an arc's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Sum {
    /// The number of entries.
    pub(super) count: u32,
    /// The sum of the entries' hashes.
    pub(super) print: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.count += other.count;
        self.print = self.print.wrapping_add(other.print);
    }

    fn replace(&mut self, before: Option<u64>, after: Option<u64>) {
        self.count = self.count + u32::from(after.is_some()) - u32::from(before.is_some());
        self.print = self.print.wrapping_sub(before.unwrap_or(0)).wrapping_add(after.unwrap_or(0));
    }
}

/// Returns the hash of an entry of a key at this token.
pub(super) fn print(token: Token, entry: &Entry) -> u64 {
    let base = mix(token.0, entry.base().stamp);
    let tallies = entry.tallies().map(|(begun, tally)| mix(mix(token.0, begun), tally.stamp));
    let base = tallies.fold(base, u64::wrapping_add);
    entry.fields().fold(base, |print, (name, register)| {
        print.wrapping_add(mix(xxh3_64_with_seed(name, token.0), register.stamp))
    })
}

fn mix(place: u64, stamp: Stamp) -> u64 {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&place.to_le_bytes());
    bytes[8..16].copy_from_slice(&stamp.time.to_le_bytes());
    bytes[16..].copy_from_slice(&stamp.cell.0.to_le_bytes());
    xxh3_64(&bytes)
}

#[derive(Clone, Copy, Debug, Default)]
struct TreeNode {
    sum: Sum,
    /// The index of the first of the node's sixteen children. Zero for a leaf.
    children: u32,
}

/// A hash tree. Node 0 is its root.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<TreeNode>,
}

const BITS: u32 = 4;
const CHILDREN: usize = 1 << BITS;
/// Maximum number of entries of a leaf. A leaf with more entries is split.
const LEAF_MAX: u32 = 32;

impl Tree {
    pub(super) fn new() -> Tree {
        Tree { nodes: vec![TreeNode::default()] }
    }

    /// Records that an entry at a token appeared, changed or disappeared. `before` and `after` are the
    /// entry's hashes, and `entries` returns the present hashes of an arc's entries.
    pub(super) fn change<I: Iterator<Item = (Token, u64)>>(
        &mut self,
        token: Token,
        before: Option<u64>,
        after: Option<u64>,
        entries: impl Fn(Arc) -> I,
    ) {
        let (mut at, mut arc) = (0, Arc::WHOLE);
        loop {
            let node = &mut self.nodes[at];
            node.sum.replace(before, after);
            if node.children == 0 {
                if node.sum.count > LEAF_MAX && arc.first != arc.last {
                    self.split(at, arc, entries(arc));
                }
                return;
            }
            let child = child_of(arc, token);
            (at, arc) = (node.children as usize + child, child_arc(arc, child));
        }
    }

    fn split(&mut self, at: usize, arc: Arc, entries: impl Iterator<Item = (Token, u64)>) {
        let children = self.nodes.len();
        self.nodes.resize(children + CHILDREN, TreeNode::default());
        self.nodes[at].children = u32::try_from(children).expect("a tree has fewer nodes than a u32 counts");
        for (token, print) in entries {
            self.nodes[children + child_of(arc, token)].sum.replace(None, Some(print));
        }
    }

    /// Returns the number and the hash of an arc's entries.
    pub(super) fn sum<I: Iterator<Item = (Token, u64)>>(
        &self,
        wanted: Arc,
        entries: &impl Fn(Arc) -> I,
    ) -> Sum {
        self.sum_at(0, Arc::WHOLE, wanted, entries)
    }

    fn sum_at<I: Iterator<Item = (Token, u64)>>(
        &self,
        at: usize,
        arc: Arc,
        wanted: Arc,
        entries: &impl Fn(Arc) -> I,
    ) -> Sum {
        let node = &self.nodes[at];
        let both = Arc { first: arc.first.max(wanted.first), last: arc.last.min(wanted.last) };
        if both == arc {
            return node.sum;
        }
        let mut sum = Sum::default();
        if both.first > both.last || node.sum.count == 0 {
            return sum;
        }
        if node.children == 0 {
            for (_, print) in entries(both) {
                sum.replace(None, Some(print));
            }
        } else {
            for child in child_of(arc, both.first)..=child_of(arc, both.last) {
                sum.add(self.sum_at(node.children as usize + child, child_arc(arc, child), wanted, entries));
            }
        }
        sum
    }
}

/// Returns the index of the child that contains a token. The size of a node's arc is a power of sixteen.
fn child_of(arc: Arc, token: Token) -> usize {
    ((token.0 - arc.first.0) / child_width(arc)) as usize
}

fn child_arc(arc: Arc, child: usize) -> Arc {
    let width = child_width(arc);
    let first = arc.first.0 + child as u64 * width;
    Arc { first: Token(first), last: Token(first + (width - 1)) }
}

fn child_width(arc: Arc) -> u64 {
    (arc.last.0 - arc.first.0) / CHILDREN as u64 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state ^ (*state >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// After any sequence of changes, in dense or spread tokens, the sum of any arc equals the sum of its
    /// entries.
    #[test]
    fn sums_are_those_of_a_plain_walk() {
        for dense in [false, true] {
            let (mut tree, mut prints, mut chance) = (Tree::new(), BTreeMap::new(), 7u64);
            for step in 0..6_000u64 {
                let token = Token(if dense { random(&mut chance) % 700 } else { random(&mut chance) });
                let known: Vec<Token> = prints.keys().copied().take(1).collect();
                let token = if step % 5 == 0 { known.first().copied().unwrap_or(token) } else { token };
                let after = (step % 5 != 0).then(|| random(&mut chance));
                let before = match after {
                    Some(print) => prints.insert(token, print),
                    None => prints.remove(&token),
                };
                let entries = |arc: Arc| {
                    let range = prints.range(arc.first..=arc.last);
                    range.map(|(token, print)| (*token, *print)).collect::<Vec<_>>().into_iter()
                };
                if before.is_some() || after.is_some() {
                    tree.change(token, before, after, entries);
                }
                if step % 7 == 0 {
                    let (a, b) = (random(&mut chance), random(&mut chance));
                    let (a, b) = if dense { (a % 800, b % 800) } else { (a, b) };
                    let arc = Arc { first: Token(a.min(b)), last: Token(a.max(b)) };
                    let mut plain = Sum::default();
                    entries(arc).for_each(|(_, print)| plain.replace(None, Some(print)));
                    assert_eq!(tree.sum(arc, &entries), plain);
                }
            }
            assert!(tree.nodes.len() > CHILDREN, "nothing was split");
        }
    }

    #[test]
    fn different_entries_have_different_prints() {
        let stamp = |time| Stamp { time, cell: super::super::CellNumber(1) };
        let field = |time, name: &'static str| {
            Entry::of_fields(stamp(time), [(bytes::Bytes::from_static(name.as_bytes()), None)])
        };
        let entries = [
            Entry::whole(stamp(1), None, None),
            Entry::whole(stamp(2), None, None),
            field(1, "a"),
            field(2, "a"),
            field(1, "b"),
        ];
        let mut prints: Vec<u64> = entries.iter().map(|entry| print(Token(9), entry)).collect();
        prints.push(print(Token(8), &entries[0]));
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), 6);
    }
}
