//! Simulator: replays a workload trace through the engine in virtual time.
//!
//! A [`Load`] is a cluster and its submissions. It comes from a public trace ([`formats`]), from a scenario
//! file ([`scenario`]) or from a generator ([`synthetic`]). [`replay`] runs it with one strategy and returns
//! an [`Outcome`]. The packing experiment of "Beware of Fragmentation" has its own rules: [`experiment`].
//!
//! ```
//! use agentaflow_sim::{Options, replay, scenario};
//!
//! let text = "
//! nodes: [{ name: rack, count: 2, gpus: 8 }]
//! jobs: [{ name: train, gpus: 4, duration: 2h, count: 10, every: 10m }]
//! ";
//! let load = scenario::parse(text, "the example")?;
//! let outcome = replay(&load, &Options::new(load.policy.strategy), &mut |_| {})?;
//! assert_eq!((outcome.finished, outcome.dropped), (10, 0));
//! # Ok::<(), agentaflow_sim::SimError>(())
//! ```
//!
//! The simulator contains everything that the engine must not have: files, a clock (only to measure decision
//! time) and a random generator (only to generate loads). Equal input gives equal outcomes.
//!
//! Open `replay.rs` first: it is the event loop. `experiment.rs` is the packing experiment.

mod curve;
mod error;
pub mod experiment;
pub mod formats;
pub mod html;
mod load;
mod meter;
mod metrics;
mod outcome;
mod pending_example;
mod random;
mod replay;
pub mod scenario;
pub mod synthetic;

pub use error::SimError;
pub use load::{Job, Load};
pub use outcome::{CutOff, Dropped, Outcome, Progress, Sample, Stats};
pub use pending_example::{PendingExample, pending_example};
pub use replay::{Options, replay};
