//! Status of a pending job on stderr: one line that is overwritten on a terminal, else lines of a log.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal as _, Write as _};

use crate::output;

pub(super) struct StatusLine {
    /// The line may be overwritten; false after the first output of the job.
    live: Cell<bool>,
    /// Current text of the line.
    shown: RefCell<String>,
    /// Topic of the last message.
    topic: RefCell<String>,
}

impl StatusLine {
    pub(super) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let live = io::stderr().is_terminal() && !dumb;
        Self { live: Cell::new(live), shown: RefCell::default(), topic: RefCell::default() }
    }

    /// Shows a transient message, such as a queue position; `short` replaces it on a narrow terminal. Without a terminal, only a new `topic` is printed. Returns
    /// true for a new topic.
    pub(super) fn show_transient(&self, topic: &str, text: &str, short: &str) -> bool {
        if !self.live.get() {
            return self.print(topic, text);
        }
        let text = cut(text, short, width());
        if *self.shown.borrow() != text {
            put(&format!("\r{text}\u{1b}[K"));
            *self.shown.borrow_mut() = text;
        }
        self.topic.replace(topic.to_owned()) != topic
    }

    /// Prints a message of a new topic; returns true for a new topic.
    pub(super) fn print(&self, topic: &str, text: &str) -> bool {
        let is_new = self.topic.replace(topic.to_owned()) != topic;
        if is_new {
            self.clear();
            put(&format!("{text}\n"));
        }
        is_new
    }

    /// Removes the transient message.
    pub(super) fn clear(&self) {
        if !self.shown.take().is_empty() {
            put("\r\u{1b}[K");
        }
    }

    /// Starts a new line after the transient message or an echoed `^C`.
    pub(super) fn finish(&self, echoed: bool) {
        if !self.shown.take().is_empty() || echoed {
            put("\n");
        }
    }

    /// Stops overwriting, since the job is about to write.
    pub(super) fn retire(&self) {
        self.clear();
        self.live.set(false);
    }
}

/// Usable columns. A character in the last column moves the cursor on some terminals.
fn width() -> usize {
    let size = terminal_size::terminal_size_of(io::stderr());
    size.map_or(80, |(width, _)| usize::from(width.0)).saturating_sub(1).max(1)
}

fn cut(text: &str, short: &str, room: usize) -> String {
    let fits = |text: &&str| text.chars().count() <= room;
    let (text, short) = (&*output::stderr_line(text), &*output::stderr_line(short));
    match [text, short].into_iter().find(fits) {
        Some(text) => text.to_owned(),
        None => short.chars().take(room - 1).collect::<String>() + "…",
    }
}

/// Errors are ignored: stderr may be closed.
fn put(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_its_width() {
        assert_eq!(cut("Job 1 pending", "Job 1", 13), "Job 1 pending");
        assert_eq!(cut("Job 1 pending", "Job 1", 6), "Job 1");
        assert_eq!(cut("Job 1 pending", "Job 1", 4), "Job…");
        assert_eq!(cut("job", "job", 1), "…");
    }
}
