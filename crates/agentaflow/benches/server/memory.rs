//! Resident memory of an idle server, an idle agent, and of `up` over many jobs.

use std::thread::sleep;
use std::time::Duration;

use crate::Row;
use crate::load::complete_thousand;
use crate::system::{System, resident};

/// Long enough for everything that is only needed at the start to be over.
const SETTLE: Duration = Duration::from_secs(5);

/// Thousands of jobs before the first measurement: caches and buffers have their size.
const WARM: usize = 5;
/// Thousands of jobs between the two measurements.
const MORE: usize = 20;
/// Limit of the growth in MiB: 1 KiB for each job would be a leak.
const GROWTH: f64 = (MORE * 1000) as f64 / 1024.0;

/// Growth of `up` over 20,000 jobs of `true`.
pub(crate) fn over_jobs() -> Vec<Row> {
    let system = System::up(&[]);
    let after = |thousands: usize| {
        for _ in 0..thousands {
            complete_thousand(&system);
        }
        sleep(SETTLE);
        resident(system.pid())
    };
    let (warm, more) = (after(WARM), after(MORE));
    let what =
        format!("resident memory of `up` after {WARM},000 and {},000 jobs of `true`", WARM + MORE);
    let row = Row::new(what, format!("{warm:.1} MiB, {more:.1} MiB"));
    vec![Row { exceeds_limit: more - warm > GROWTH, ..row }]
}

pub(crate) fn idle() -> Vec<Row> {
    let mut system = System::start("server", &[]);
    let agent = system.agent(&["--runtime", "process", "--allow-process"]);
    sleep(SETTLE);
    let mut rows = vec![
        Row::new("resident memory of an idle server", format!("{:.1} MiB", resident(system.pid()))),
        Row::new("resident memory of an idle agent", format!("{:.1} MiB", resident(agent))),
    ];
    if let Some(guardian) = system.guardian() {
        let memory = format!("{:.1} MiB", resident(guardian));
        rows.push(Row::new("resident memory of its guardian", memory));
    }
    rows
}
