//! Answers to questions: wait reasons with numbers, alternatives, start times, and views of the current state.
//!
//! Open `explanation.rs` first. Every question runs on a copy of the scheduler or reads it; none changes a
//! decision. Answers are data: the crate `agentaflow-explain` turns them into sentences.

pub(crate) mod explanation;
pub(crate) mod fit_summary;
pub(crate) mod forecast;
pub(crate) mod last_reason;
pub(crate) mod ranking;
pub(crate) mod shortfall;
pub(crate) mod view;
pub(crate) mod wait_reason;
