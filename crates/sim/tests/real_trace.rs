//! The published results on the real trace, on machines that have it.
//!
//! Run `AGENTAFLOW_TRACES=FOLDER cargo test --release -p agentaflow-sim --test real_trace -- --ignored`; the
//! folder contains the Alibaba trace (`alibaba-gpu-v2023`) and the pinned arrivals (`fgd-arrivals`). Debug
//! builds check every invariant after every decision and take minutes.

use std::path::{Path, PathBuf};

use agentaflow_engine::Strategy;
use agentaflow_sim::experiment::{Arrivals, Experiment};
use agentaflow_sim::{Outcome, formats};

fn traces() -> PathBuf {
    let folder = std::env::var_os("AGENTAFLOW_TRACES").map(PathBuf::from);
    folder.expect("AGENTAFLOW_TRACES names a folder with the traces")
}

fn experiment(folder: &Path, seed: u32) -> Experiment {
    let trace = folder.join("alibaba-gpu-v2023");
    let nodes = formats::read_alibaba_nodes(&trace.join("openb_node_list_gpu_node.csv")).unwrap();
    let pods = formats::read_alibaba_pods(&trace.join("openb_pod_list_default.csv")).unwrap();
    let pinned = folder.join("fgd-arrivals");
    let arrivals =
        formats::read_arrivals(&pinned.join(format!("pods_default_{seed}.txt"))).unwrap();
    let ranks = formats::read_ranks(&pinned.join(format!("nodes_default_{seed}.csv"))).unwrap();
    Experiment::new(&nodes, &pods, &Arrivals::Named(arrivals), Some(&ranks)).unwrap()
}

fn run(experiment: &Experiment, strategy: Strategy) -> Outcome {
    let outcome = experiment.run(strategy, &mut |_| {}).unwrap();
    println!(
        "{:<16} {:>8} of {} milli ({:.2} %), fragmentation {:.1} %, dropped {}, {:.3} s",
        outcome.strategy,
        outcome.allocated_milli,
        outcome.capacity_milli,
        outcome.allocation_percent,
        outcome.fragmentation_percent,
        outcome.dropped,
        outcome.seconds
    );
    outcome
}

#[test]
#[ignore = "needs the published traces: see the top of real_trace.rs"]
fn fgd_and_best_fit_match_the_published_results() {
    let folder = traces();
    for (seed, percent) in [(42, "95.29"), (43, "95.32"), (44, "95.44")] {
        let outcome = run(&experiment(&folder, seed), Strategy::Fgd);
        assert_eq!(format!("{:.2}", outcome.allocation_percent), percent, "seed {seed}");
    }
    let outcome = run(&experiment(&folder, 42), Strategy::Fgd);
    assert_eq!(
        (outcome.allocated_milli, outcome.dropped, outcome.decisions),
        (5_919_410, 2532, 10_866)
    );
    let outcome = run(&experiment(&folder, 42), Strategy::PaperBestFit);
    assert_eq!(format!("{:.2}", outcome.allocation_percent), "93.13");
}

#[test]
#[ignore = "needs the published traces: see the top of real_trace.rs"]
fn every_strategy_packs_the_real_trace() {
    let folder = traces();
    for seed in [42, 43, 44] {
        println!("seed {seed}");
        let experiment = experiment(&folder, seed);
        for strategy in Strategy::ALL.iter().copied() {
            let outcome = run(&experiment, strategy);
            assert!(outcome.allocation_percent > 80.0, "{strategy}");
        }
    }
}
