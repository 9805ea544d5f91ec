//! The standalone driver with real processes, HTTP and signals.

mod agents;
mod chaos;
mod cluster;
mod docker;
mod docker_host;
mod documents;
mod gpu_memory;
mod harness;
mod http;
mod image;
mod key_file;
mod losses;
mod metrics;
mod original;
mod original_worker;
mod postgres;
mod procs;
#[path = "../../../../tests/prometheus.rs"]
mod prometheus;
#[path = "../../../../tests/promtool.rs"]
mod promtool;
#[path = "../../../console/tests/support/pty.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pty;
mod push;
mod registration;
#[path = "../../../../tests/skip.rs"]
mod skip;
mod terminal;
mod tls;
mod two_hosts;
mod up;
