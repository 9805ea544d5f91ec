//! The core on a real store, with agents that the test simulates.

mod clock;
mod faults;
mod jobs;
mod metrics;
mod money;
mod nodes;
mod retention;
mod rig;
mod waste;
