//! The standalone driver with real processes, HTTP and signals.

mod agents;
mod alerts;
mod chaos;
mod cluster;
mod docker;
mod docker_host;
mod documents;
mod faults;
mod gpu_memory;
mod harness;
mod history;
mod http;
mod image;
#[path = "../../../../tests/job_folder.rs"]
mod job_folder;
mod key_file;
mod losses;
mod metrics;
mod original;
mod original_worker;
#[path = "../../../../tests/ports.rs"]
mod ports;
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
#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../../tests/receiver.rs"]
mod receiver;
mod registration;
#[path = "../../../../tests/skip.rs"]
mod skip;
mod terminal;
mod tls;
mod traces;
mod two_hosts;
mod up;
