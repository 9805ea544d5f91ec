//! Replays a workload trace through the engine in virtual time.
//!
//! A [`Load`] is a cluster and everything that will be handed in. It comes from a public trace
//! ([`formats`]), from a file of one's own ([`scenario`]) or out of thin air ([`synthetic`]).
//! [`replay`] runs it with one strategy and says in an [`Outcome`] what came of it. The packing
//! experiment of "Beware of Fragmentation" has rules of its own: [`experiment`].
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
//! Here are files, a clock (only to measure how long deciding takes) and a random generator (only
//! to make loads): everything that the engine must not have. Equal input gives equal outcomes.
//!
//! Where to look first: `replay.rs` is the event loop, `experiment.rs` the experiment.

mod curve;
mod error;
pub mod experiment;
pub mod formats;
pub mod html;
mod load;
mod meter;
mod outcome;
mod random;
mod replay;
pub mod scenario;
pub mod synthetic;
mod tally;

pub use error::SimError;
pub use load::{Job, Load};
pub use outcome::{CutOff, Dropped, Outcome, Progress, Sample, Stats};
pub use replay::{Options, replay};
