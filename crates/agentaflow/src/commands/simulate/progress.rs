//! Progress bar on stderr, if it is a terminal.

use agentaflow_sim::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Workloads between two redraws.
const REDRAW_STEP: u64 = 64;

pub(super) struct Bar {
    bar: ProgressBar,
    runs: usize,
}

impl Bar {
    pub(super) fn new(runs: usize) -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {percent:>3} % {msg}") {
            bar.set_style(style.progress_chars("█▌░"));
        }
        Self { bar, runs }
    }

    /// Resets the bar for the next run and returns its progress callback.
    pub(super) fn start_run(
        &self,
        strategy: &str,
        done: usize,
        total: usize,
    ) -> impl FnMut(Progress) {
        let bar = self.bar.clone();
        // Each call may redraw: set the numbers before the name. A length of 0 would count as complete.
        bar.set_length(total.max(1) as u64);
        bar.set_position(0);
        bar.set_prefix(format!("[{}/{}] {strategy:<16}", done + 1, self.runs));
        let mut drawn = 0;
        move |progress: Progress| {
            if progress.done < drawn + REDRAW_STEP && progress.done != progress.total {
                return;
            }
            drawn = progress.done;
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
