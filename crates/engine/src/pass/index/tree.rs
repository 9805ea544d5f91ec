//! A flat max-tree over scores with single-leaf updates.
//!
//! Sixteen children per node keep the tree shallow (four levels for 50,000 nodes) and each step within two
//! cache lines. An update stops when the maximum of a block does not change.

/// Score of an unfit node.
pub(crate) const UNFIT: i64 = i64::MIN;

const WIDTH: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// Leaves first, then the maxima of blocks of sixteen, up to a single block.
    levels: Vec<Vec<i64>>,
}

impl Tree {
    pub(crate) fn new(mut leaves: Vec<i64>) -> Self {
        let mut levels = Vec::new();
        loop {
            leaves.resize(leaves.len().next_multiple_of(WIDTH).max(WIDTH), UNFIT);
            let above: Vec<i64> = leaves.chunks(WIDTH).map(maximum).collect();
            levels.push(leaves);
            if above.len() == 1 {
                return Self { levels };
            }
            leaves = above;
        }
    }

    pub(crate) fn get(&self, leaf: usize) -> i64 {
        self.levels[0][leaf]
    }

    pub(crate) fn set(&mut self, leaf: usize, score: i64) {
        let mut at = leaf;
        let mut value = score;
        let mut old = std::mem::replace(&mut self.levels[0][at], score);
        if old == score {
            return;
        }
        for level in 1..self.levels.len() {
            let block = at / WIDTH;
            let top = self.levels[level][block];
            if value < top && old < top {
                return;
            }
            if value < top {
                value = maximum(&self.levels[level - 1][block * WIDTH..(block + 1) * WIDTH]);
                if value == top {
                    return;
                }
            }
            old = std::mem::replace(&mut self.levels[level][block], value);
            at = block;
        }
    }

    /// The best leaf; the first among equals.
    pub(crate) fn best(&self) -> Option<usize> {
        let top = self.levels.last()?;
        let best = maximum(top);
        if best == UNFIT {
            return None;
        }
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let block = &level[at * WIDTH..(at + 1) * WIDTH];
            at = at * WIDTH + block.iter().position(|score| *score == best)?;
        }
        Some(at)
    }

    /// Number of levels, with the implicit root.
    pub(crate) fn height(&self) -> usize {
        self.levels.len()
    }

    /// Maxima of the children of the block that starts with this leaf, each with its first leaf; unfit ones
    /// are skipped.
    pub(crate) fn children(&self, level: usize, leaf: usize) -> impl Iterator<Item = (i64, usize)> {
        let width = WIDTH.pow(level as u32 - 1);
        let row = &self.levels[level - 1];
        let first = leaf / width;
        let block = row[first..].iter().take(WIDTH).enumerate();
        block.filter(|(_, top)| **top != UNFIT).map(move |(at, top)| (*top, (first + at) * width))
    }

    /// The first fitting leaf at or after `from`.
    pub(crate) fn first_from(&self, from: usize) -> Option<usize> {
        let mut at = from;
        let mut level = 0;
        // Ascend until a block to the right has a fitting leaf, then descend into it.
        loop {
            let row = self.levels.get(level)?;
            let end = ((at / WIDTH + 1) * WIDTH).min(row.len());
            if let Some(found) = (at..end).find(|index| row[*index] != UNFIT) {
                at = found;
                break;
            }
            at = end / WIDTH;
            level += 1;
            if self.levels.get(level).is_none_or(|row| at >= row.len()) {
                return None;
            }
        }
        while level > 0 {
            level -= 1;
            let row = &self.levels[level];
            at = (at * WIDTH..(at + 1) * WIDTH).find(|index| row[*index] != UNFIT)?;
        }
        Some(at)
    }
}

fn maximum(block: &[i64]) -> i64 {
    block.iter().copied().fold(UNFIT, i64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slow_best(leaves: &[i64]) -> Option<usize> {
        let best = leaves.iter().copied().max().filter(|best| *best != UNFIT)?;
        leaves.iter().position(|score| *score == best)
    }

    proptest! {
        #[test]
        fn the_tree_agrees_with_a_linear_search(
            mut leaves in prop::collection::vec(prop_oneof![Just(UNFIT), -3..3_i64], 1..700),
            updates in prop::collection::vec((0..700_usize, prop_oneof![Just(UNFIT), -3..3_i64]), 0..80),
        ) {
            let mut tree = Tree::new(leaves.clone());
            for (at, score) in updates {
                let at = at % leaves.len();
                leaves[at] = score;
                tree.set(at, score);
                prop_assert_eq!(tree.best(), slow_best(&leaves));
                let first = (at..leaves.len()).find(|index| leaves[*index] != UNFIT);
                prop_assert_eq!(tree.first_from(at), first);
            }
        }
    }
}
