//! Safety and liveness properties.
//!
//! Random clusters, queues, workloads and long random histories are played to the engine by a driver that
//! confirms, refuses, delays, loses and contradicts (`driver.rs`). An independent ledger checks every
//! decision (`ledger.rs`), so an error in the engine's own accounting cannot hide; the engine's linter runs
//! beside it. `PROPTEST_CASES` makes the runs longer.

#![allow(unreachable_pub, missing_debug_implementations, reason = "a test has no public interface")]

mod cluster;
mod devices;
mod driver;
mod foresight;
mod history;
mod invalid_event;
mod ledger;
mod liveness;
mod preemption;
mod request;
mod rights;
mod safety;
mod terms;

use std::sync::Arc;

use agentaflow_engine::{Request, Workload};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

/// Number of cases, scaled by `PROPTEST_CASES`. The seed is fixed, so that results change only with the code;
/// `PROPTEST_RNG_SEED` selects another one.
fn cases(usual: u32) -> Config {
    let mut config = Config::default();
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(42);
    }
    Config { cases: usual * config.cases / 256, max_shrink_iters: 3000, ..config }
}

/// Workloads without terms between tasks.
fn plain(of: impl Strategy<Value = Workload>) -> impl Strategy<Value = Workload> {
    of.prop_map(|mut workload| {
        let requests = workload.roles.iter_mut().map(|role| &mut role.request);
        for request in requests.chain([&mut workload.request]) {
            *request = Arc::new(Request {
                affinity: Vec::new(),
                spread: Vec::new(),
                tokens: std::collections::BTreeMap::new(),
                ..(**request).clone()
            });
        }
        workload
    })
}
