//! Builds, checks and sizes GPU manifests, and detects GPU workloads in text.
//!
//! Pure: text and values in, objects and findings out. The command line does the I/O.

pub mod build;
pub mod catalogue;
pub mod cloud;
pub mod detect;
pub mod lint;
pub mod mig;
pub mod yaml;
