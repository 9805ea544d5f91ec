//! Readings of the last 30 days in files of bounded size: one value every 15 seconds for 24 hours, one mean every 5 minutes
//! for 30 days.
//!
//! A file is a ring of 4 KiB blocks (`ring.rs`). A block belongs to one series and describes itself (`block.rs`): its header and
//! each of its records have a checksum. There is no other index, so a process that is killed loses at most the record that it
//! was writing, and a torn or foreign block counts as empty. Nothing is synced: after a power failure the last seconds may
//! be missing.
//!
//! `history.rs` is the interface; open it first.

mod block;
mod history;
mod ring;
mod tiers;
mod value;

pub use block::{COLUMNS, Values};
pub use history::{Class, Curve, History, Limits, OpenError, Range, Warning};
