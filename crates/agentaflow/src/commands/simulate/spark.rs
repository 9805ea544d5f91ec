//! Sparkline of a curve.

use agentaflow_sim::Sample;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Allocation over time from the start to `end`, `width` characters wide; a full block is 100 %.
/// Each character is the mean over its interval.
pub(super) fn allocation(curve: &[Sample], end: f64, width: usize) -> String {
    (0..width)
        .map(|index| {
            let edge = |index: usize| end * index as f64 / width as f64;
            block(average(curve, edge(index), edge(index + 1)))
        })
        .collect()
}

fn block(percent: f64) -> char {
    let step = (percent / 100.0 * BLOCKS.len() as f64).floor() as usize;
    if percent < 0.5 { ' ' } else { BLOCKS[step.min(BLOCKS.len() - 1)] }
}

/// Time-weighted mean; a sample holds until the next one, and 0 follows the last.
fn average(curve: &[Sample], from: f64, to: f64) -> f64 {
    let mut sum = 0.0;
    for (index, sample) in curve.iter().enumerate() {
        let next = curve.get(index + 1).map_or(sample.at_seconds, |next| next.at_seconds);
        let overlap = next.min(to) - sample.at_seconds.max(from);
        sum += sample.allocated_percent * overlap.max(0.0);
    }
    if to > from { sum / (to - from) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_the_mean_of_its_interval() {
        let sample = |at_seconds, allocated_percent| Sample {
            at_seconds,
            allocated_percent,
            fragmentation_percent: 0.0,
            running: 0,
            waiting: 0,
        };
        let curve = [sample(0.0, 100.0), sample(10.0, 50.0), sample(15.0, 0.0), sample(20.0, 0.0)];
        assert_eq!(allocation(&curve, 20.0, 4), "██▅ ");
        assert_eq!(allocation(&[], 20.0, 3), "   ");
    }
}
