//! Jobs as units: kinds of jobs whose pods are admitted together, through the field that suspends the job.
//!
//! A kind is data ([`KINDS`]): the paths of its suspend field, pod templates, pod counts and end. [`read`] extracts the
//! facts of one object; [`OptIn`] decides which of its pod sets the scheduler places.

mod kinds;
mod opt_in;
mod read;
#[cfg(test)]
mod tests;

pub use kinds::{KINDS, Pods, UnitKind, of_owner};
pub use opt_in::OptIn;
pub use read::{PodSet, UnitSpec, own_annotations, read};
