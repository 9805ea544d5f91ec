//! The progress bar: on stderr, only on a terminal, gone when the numbers come.

use agentaflow_sim::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Updates closer together than this many workloads are not drawn.
const STEP: u64 = 64;

/// One bar for all runs.
pub(super) struct Bar {
    bar: ProgressBar,
    runs: usize,
}

impl Bar {
    /// A bar for so many runs. Where stderr is no terminal nothing is ever drawn.
    pub(super) fn new(runs: usize) -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {percent:>3} % {msg}") {
            bar.set_style(style.progress_chars("█▌░"));
        }
        Self { bar, runs }
    }

    /// Announces the next run and returns what it reports to.
    pub(super) fn begin(&self, strategy: &str, done: usize, total: usize) -> impl FnMut(Progress) {
        let bar = self.bar.clone();
        // Each of these may draw: the numbers first, or the old ones are seen beside the new name.
        // A length of nothing would count as all of it.
        bar.set_length(total.max(1) as u64);
        bar.set_position(0);
        bar.set_prefix(format!("[{}/{}] {strategy:<16}", done + 1, self.runs));
        let mut drawn = 0;
        move |progress: Progress| {
            if progress.done < drawn + STEP && progress.done != progress.total {
                return;
            }
            drawn = progress.done;
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
