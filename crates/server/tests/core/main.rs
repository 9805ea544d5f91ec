//! The core on a real store, with agents that are played by the test.

mod faults;
mod jobs;
mod money;
mod nodes;
mod rig;
