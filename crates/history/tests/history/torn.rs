//! Kills at any moment, torn writes and files of other programs: a reading is right or missing, never wrong.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Readings of a series over this number of slots, after a pause of other series.
    Record { series: u8, pause: u16, slots: u16 },
    /// The process is killed: nothing is closed or flushed.
    Kill,
    /// Bytes of a file are overwritten, as by a write that a power failure interrupted.
    Tear { file: u8, at: u32, length: u16, with: u8 },
    /// The end of a file is lost.
    Cut { file: u8, bytes: u32 },
}

const FILES: [&str; 4] =
    ["devices-15s.ring", "devices-5min.ring", "jobs-15s.ring", "jobs-5min.ring"];

fn step(damage: bool) -> impl Strategy<Value = Step> {
    let record = (0..5_u8, 0..400_u16, 1..600_u16)
        .prop_map(|(series, pause, slots)| Step::Record { series, pause, slots });
    let tear = (0..4_u8, any::<u32>(), 1..6000_u16, any::<u8>())
        .prop_map(|(file, at, length, with)| Step::Tear { file, at, length, with });
    let cut = (0..4_u8, any::<u32>()).prop_map(|(file, bytes)| Step::Cut { file, bytes });
    let weight = u32::from(damage);
    prop_oneof![8 => record, 2 => Just(Step::Kill), 2 * weight => tear, weight => cut]
}

/// A value that tells its series and its time.
fn value(series: u8, at: u64) -> f64 {
    f64::from(series) * 700.0 + (at / 15 % 700) as f64
}

struct Model {
    dir: tempfile::TempDir,
    history: Option<History>,
    now: u64,
    written: BTreeMap<(u8, u64), f64>,
}

impl Model {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, history: None, now: START, written: BTreeMap::new() }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Record { series, pause, slots } => {
                self.now += u64::from(pause) * 15;
                for _ in 0..slots {
                    self.record(series);
                    self.now += 15;
                }
            }
            Step::Kill => self.history = None,
            Step::Tear { file, at, length, with } => self.damage(file, |file, size| {
                let at = u64::from(at) % size.max(1);
                let length = u64::from(length).min(size - at) as usize;
                file.write_all_at(&vec![with; length], at).unwrap();
            }),
            Step::Cut { file, bytes } => self.damage(file, |file, size| {
                file.set_len(u64::from(bytes) % (size + 1)).unwrap();
            }),
        }
    }

    fn history(&mut self) -> &History {
        self.history.get_or_insert_with(|| History::open(self.dir.path(), LARGE).unwrap().0)
    }

    fn record(&mut self, series: u8) {
        let (now, value) = (self.now, value(series, self.now));
        let history = self.history();
        history.record(Class::Device, &series.to_string(), now, &row(value)).unwrap();
        history.write_means(now).unwrap();
        self.written.insert((series, now), value);
    }

    /// Damages a file while no process has it open.
    fn damage(&mut self, file: u8, damage: impl FnOnce(&fs::File, u64)) {
        self.history = None;
        let path = self.dir.path().join(FILES[usize::from(file)]);
        if let Ok(file) = fs::File::options().read(true).write(true).open(path) {
            damage(&file, file.metadata().unwrap().len());
        }
    }

    /// Checks every row of the last day; `complete` demands that none is missing.
    fn check_readings(&mut self, complete: bool) -> Result<(), TestCaseError> {
        let (from, now) = (self.now.saturating_sub(DAY), self.now);
        for series in 0..5 {
            let curve = read(self.history(), &series.to_string(), from, now, now);
            for (at, row) in (curve.start..).step_by(15).zip(&curve.rows) {
                let expected = self.written.get(&(series, at)).copied();
                if complete || row[0].is_some() {
                    prop_assert_eq!(row[0], expected, "series {} at {}", series, at);
                }
            }
        }
        Ok(())
    }

    /// Checks that each mean lies within the readings of its interval.
    fn check_means(&mut self) -> Result<(), TestCaseError> {
        let now = self.now + DAY;
        for series in 0..5 {
            let curve = read(self.history(), &series.to_string(), START, now, now);
            for (at, row) in (curve.start..).step_by(300).zip(&curve.rows) {
                let Some(mean) = row[0] else { continue };
                let readings = self.written.range((series, at)..(series, at + 300));
                let readings: Vec<f64> = readings.map(|(_, value)| *value).collect();
                let low = readings.iter().copied().fold(f64::INFINITY, f64::min);
                let high = readings.iter().copied().fold(0.0, f64::max);
                prop_assert!((low - 1.0..=high + 1.0).contains(&mean), "{series} at {at}: {mean}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn kills_lose_no_reading(steps in prop::collection::vec(step(false), 1..20)) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.check_readings(true)?;
        model.history = None;
        model.check_readings(true)?;
        model.check_means()?;
    }

    #[test]
    fn damage_removes_readings_but_never_changes_one(
        steps in prop::collection::vec(step(true), 1..30)
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.history = None;
        model.check_readings(false)?;
        model.check_means()?;
        // The history continues.
        let before = model.written.len();
        model.run(&Step::Record { series: 1, pause: 0, slots: 300 });
        prop_assert_eq!(model.written.len(), before + 300);
        let (from, now) = (model.now - 300 * 15, model.now);
        let curve = read(model.history(), "1", from, now, now);
        prop_assert!(curve.rows.iter().all(|row| row[0].is_some()));
    }
}

#[test]
fn a_file_of_another_format_is_started_anew_with_a_warning() {
    for content in [vec![0xa5; 10_000], vec![0; 8192], b"AFHIST0\n".repeat(1024)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILES[0]);
        fs::write(&path, content).unwrap();
        assert_eq!(warnings(dir.path()), [Warning::Format { path: path.clone() }]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        record(&open(dir.path()), "gpu", START, START + 60, |_| 1.0);
        let curve = read(&open(dir.path()), "gpu", START, START + 60, START + 60);
        assert_eq!(first_column(&curve), [Some(1.0); 4]);
    }
}

#[test]
fn a_torn_header_costs_its_block_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    record(&open(dir.path()), "gpu", START, START + 3 * HOUR, |_| 1.0);
    let path = dir.path().join(FILES[0]);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"torn", 4096 + 20).unwrap();
    assert_eq!(warnings(dir.path()), [Warning::Damaged { path, blocks: 1, of: 3 }]);
    let (history, _) = History::open(dir.path(), LARGE).unwrap();
    let rows = first_column(&read(&history, "gpu", START, START + 3 * HOUR, START + 3 * HOUR));
    assert_eq!(rows.iter().filter(|row| row.is_none()).count(), 330);
}

#[test]
fn a_smaller_limit_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    record(&open(dir.path()), "gpu", START, START + 20 * HOUR, |_| 1.0);
    let limits = Limits { devices: 47 * 4096 / 4, jobs: 1 << 20 };
    let (history, warnings) = History::open(dir.path(), limits).unwrap();
    assert_eq!(warnings, []);
    assert!(history.bytes() <= limits.devices);
    record(&history, "gpu", START + 20 * HOUR, START + 21 * HOUR, |_| 2.0);
    let end = START + 21 * HOUR;
    let rows = first_column(&read(&history, "gpu", end - HOUR, end, end));
    assert_eq!(rows, [Some(2.0); 240]);
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(History::open(&file, LARGE).is_err());
    fs::create_dir(dir.path().join(FILES[0])).unwrap();
    assert!(History::open(dir.path(), LARGE).is_err());
}
