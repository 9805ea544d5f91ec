//! A curve of bounded size for runs of any length.

use crate::meter::Meter;
use crate::outcome::Sample;

/// More points than a screen is wide add nothing.
const MAX_POINTS: usize = 500;

/// Samples the state at a falling rate: a full curve drops every second sample and doubles the interval.
#[derive(Debug, Default)]
pub(crate) struct Curve {
    samples: Vec<Sample>,
    step: f64,
}

impl Curve {
    /// Adds a sample unless the interval since the last one is too short.
    pub(crate) fn note(&mut self, at: f64, meter: &Meter, running: u32, waiting: u32) {
        let due = self.samples.last().is_none_or(|last| at - last.at_seconds >= self.step);
        if !due {
            return;
        }
        if self.samples.len() >= MAX_POINTS {
            self.thin();
        }
        self.push(at, meter, running, waiting);
    }

    /// Adds the final sample and returns the curve.
    pub(crate) fn finish(
        mut self,
        at: f64,
        meter: &Meter,
        running: u32,
        waiting: u32,
    ) -> Vec<Sample> {
        if self.samples.len() >= MAX_POINTS {
            self.thin();
        }
        self.push(at, meter, running, waiting);
        self.samples
    }

    fn push(&mut self, at: f64, meter: &Meter, running: u32, waiting: u32) {
        if self.samples.last().is_some_and(|last| last.at_seconds >= at) {
            self.samples.pop();
        }
        self.samples.push(Sample {
            at_seconds: at,
            allocated_percent: meter.allocated_percent(),
            fragmentation_percent: meter.fragmentation_percent(),
            running,
            waiting,
        });
    }

    fn thin(&mut self) {
        let mut keep = false;
        self.samples.retain(|_| {
            keep = !keep;
            keep
        });
        let span = match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => last.at_seconds - first.at_seconds,
            _ => 0.0,
        };
        self.step = (self.step * 2.0).max(span / MAX_POINTS as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_a_bounded_curve() {
        let meter = Meter::new(&[], std::iter::empty());
        let mut curve = Curve::default();
        for at in 0..100_000 {
            curve.note(f64::from(at), &meter, 0, 0);
        }
        let samples = curve.finish(100_000.0, &meter, 0, 0);
        assert!((250..=MAX_POINTS).contains(&samples.len()), "{}", samples.len());
        assert!(samples.is_sorted_by(|a, b| a.at_seconds < b.at_seconds));
        assert!(samples[0].at_seconds < 1.0);
        assert!((samples[samples.len() - 1].at_seconds - 100_000.0).abs() < 1e-9);
    }
}
