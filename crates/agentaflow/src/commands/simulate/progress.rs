//! Progress bar on stderr, if it is a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use agentaflow_sim::Progress;

/// Shortest time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(50);

/// Width of the bar in characters.
const WIDTH: u64 = 30;

pub(super) struct Bar {
    runs: usize,
    is_visible: bool,
}

impl Bar {
    pub(super) fn new(runs: usize) -> Self {
        Self { runs, is_visible: std::io::stderr().is_terminal() }
    }

    /// Resets the bar for the next run and returns its progress callback.
    pub(super) fn start_run(
        &self,
        strategy: &str,
        done: usize,
        total: usize,
    ) -> impl FnMut(Progress) + use<> {
        let prefix = format!("[{}/{}] {strategy:<16}", done + 1, self.runs);
        let is_visible = self.is_visible;
        let mut drawn = Instant::now();
        if is_visible {
            print(&line(&prefix, 0, total as u64));
        }
        move |progress: Progress| {
            let is_due = drawn.elapsed() >= REDRAW_INTERVAL || progress.done == progress.total;
            if is_visible && is_due {
                drawn = Instant::now();
                print(&line(&prefix, progress.done, progress.total));
            }
        }
    }

    pub(super) fn finish(&self) {
        if self.is_visible {
            print("");
        }
    }
}

fn line(prefix: &str, done: u64, total: u64) -> String {
    let total = total.max(1);
    let filled = (done.min(total) * WIDTH / total) as usize;
    let bar = "█".repeat(filled) + &"░".repeat(WIDTH as usize - filled);
    format!("{prefix} {bar} {:>3} %", done.min(total) * 100 / total)
}

/// Replaces the last line of the terminal.
fn print(line: &str) {
    let mut stderr = std::io::stderr().lock();
    // A closed terminal must not stop the simulation.
    let _ = write!(stderr, "\r\x1b[2K{line}").and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_bar_grows_with_the_progress_and_never_beyond_its_width() {
        assert_eq!(
            line("[1/2] pack", 1, 2),
            format!("[1/2] pack {}{}  50 %", "█".repeat(15), "░".repeat(15))
        );
        assert_eq!(line("x", 0, 0), format!("x {}   0 %", "░".repeat(30)));
        assert_eq!(line("x", 5, 4), format!("x {} 100 %", "█".repeat(30)));
    }
}
