//! The history as its users see it: resolution, bounds, restarts and damage.

mod resolution;
mod torn;

use std::path::Path;

use agentaflow_history::{Class, Curve, History, Limits, Range, Values, Warning};

/// Start of the tests, in seconds since 1970; a border of a mean.
const START: u64 = 1_800_000_000;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const LARGE: Limits = Limits { devices: 8 << 20, jobs: 8 << 20 };

fn open(dir: &Path) -> History {
    let (history, warnings) = History::open(dir, LARGE).unwrap();
    assert_eq!(warnings, []);
    history
}

fn row(value: f64) -> Values {
    [Some(value), None, None, None, None]
}

/// Records `value` of the time every 15 seconds, from `from` to before `to`.
fn record(history: &History, name: &str, from: u64, to: u64, value: impl Fn(u64) -> f64) {
    for at in (from..to).step_by(15) {
        history.record(Class::Device, name, at, &row(value(at))).unwrap();
        history.write_means(at).unwrap();
    }
}

fn read(history: &History, name: &str, from: u64, to: u64, now: u64) -> Curve {
    let range = Range { from, to, points: 100_000, now };
    history.read(Class::Device, name, range).unwrap()
}

fn first_column(curve: &Curve) -> Vec<Option<f64>> {
    curve.rows.iter().map(|row| row[0]).collect()
}

fn warnings(dir: &Path) -> Vec<Warning> {
    History::open(dir, LARGE).unwrap().1
}
