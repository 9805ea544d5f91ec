//! The Kubernetes body.
