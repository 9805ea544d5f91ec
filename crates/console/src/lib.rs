//! Full-screen terminal view of nodes, GPUs, jobs and the queue.
//!
//! `Source` supplies the data. `model` holds the state and maps keys to `model::Effect`s, `layout` and
//! `view` draw the state; these three do no I/O. `poll` reads the source in the background, and `screen` owns the
//! terminal. `format` and `labels` hold the text of amounts, jobs and nodes, shared with the tables of the command
//! line.

mod detail;
#[cfg(test)]
mod fixture;
pub mod format;
pub mod labels;
mod layout;
mod model;
mod poll;
mod screen;
mod source;
mod text;
mod view;

pub use model::Snapshot;
pub use screen::run;
pub use source::{Request, Source};
pub use view::Theme;
