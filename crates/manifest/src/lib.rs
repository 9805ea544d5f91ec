//! GPU manifests for people who do not want to remember twenty fields: builds them, checks them, and tells which
//! work needs GPUs and how many.
//!
//! Pure: text and values in, objects and findings out. Files and clusters are the business of the command line.

pub mod build;
pub mod catalogue;
pub mod cloud;
pub mod detect;
pub mod lint;
pub mod mig;
pub mod yaml;
