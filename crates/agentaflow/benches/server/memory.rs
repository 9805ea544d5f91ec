//! Resident memory of an idle server and an idle agent.

use std::thread::sleep;
use std::time::Duration;

use crate::Row;
use crate::system::{System, resident};

/// Long enough for everything that is only needed at the start to be over.
const SETTLE: Duration = Duration::from_secs(5);

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
