use agentaflow_engine::{GpuRequest, MilliGpu, Span, Time};

use super::*;

const SMALL: &str = "
seed: 7
policy: { order: fifo, patience: 10m, backfill: false }
nodes:
  - { name: h100, count: 2, gpus: 8, model: NVIDIA H100 80GB, gpu_memory: 80Gi, cpu: 96, memory: 1Ti, labels: { rack: a } }
  - { name: head, cpu: 500m, memory: 2Gi }
queues:
  - { name: research, weight: 200, guaranteed: { gpus: 8 } }
  - { name: vision, parent: research, limit: { gpus: 4.5 }, borrow: false }
jobs:
  - { name: train, queue: research, gpus: 4, tasks: 2, topology: { same: rack }, duration: 4h, count: 3, every: 30m, at: 1h }
  - { name: notebook, gpus: 0.25, duration: { from: 10m, to: 8h }, count: 5, every: 5m, random: true, estimate: 1h }
  - { name: slice, mig: 1g.10gb, duration: 90s, estimate: 0s, priority: 9, preemptible: true }
";

fn message(text: &str) -> String {
    parse(text, "the scenario").unwrap_err().to_string()
}

#[test]
fn a_scenario_expands_nodes_queues_and_jobs() {
    let load = parse(SMALL, "small").unwrap();
    let names: Vec<_> = load.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!(names, ["h100-0", "h100-1", "head"]);
    assert_eq!((load.nodes[0].gpus.len(), load.nodes[0].memory.0), (8, 1 << 20));
    assert_eq!((load.nodes[2].gpus.len(), load.nodes[2].cpu.0), (0, 500));
    assert_eq!(load.queues[0].guaranteed.gpu, Some(8000));
    assert_eq!(
        (load.queues[1].limit.gpu, load.queues[1].parent.as_str()),
        (Some(4500), "research")
    );
    assert_eq!((load.policy.order(), load.policy.patience), (QueueOrder::Fifo, Span::minutes(10)));
    assert_eq!(load.jobs.len(), 9);
    let times: Vec<_> = load.jobs[..3].iter().map(|job| job.at).collect();
    assert_eq!(times, [Time(3_600_000), Time(5_400_000), Time(7_200_000)]);
    assert_eq!(load.jobs[0].workload.request.gpu, GpuRequest::Whole(4));
    assert_eq!(
        load.jobs[3].workload.request.gpu,
        GpuRequest::Fraction(MilliGpu::new(250).unwrap())
    );
    assert_eq!(load.jobs[8].workload.id.as_str(), "slice");
}

#[test]
fn durations_and_estimates_follow_the_scenario() {
    let load = parse(SMALL, "small").unwrap();
    assert_eq!(load.jobs[0].workload.estimate, Some(Span::minutes(240)));
    for job in &load.jobs[3..8] {
        assert!((Span::minutes(10)..=Span::minutes(480)).contains(&job.duration));
        assert_eq!(job.workload.estimate, Some(Span::minutes(60)));
    }
    assert!(load.jobs[3..8].is_sorted_by_key(|job| job.at));
    assert_eq!(load.jobs[8].workload.estimate, None);
}

#[test]
fn random_values_depend_on_the_seed_alone() {
    let other = SMALL.replace("seed: 7", "seed: 8");
    assert_eq!(parse(SMALL, "a").unwrap(), parse(SMALL, "b").unwrap());
    assert_ne!(parse(SMALL, "a").unwrap().jobs, parse(&other, "a").unwrap().jobs);
}

#[test]
fn a_scenario_written_as_yaml_or_json_reads_the_same() {
    let scenario: Scenario = serde_saphyr::from_str(SMALL).unwrap();
    let yaml = serde_saphyr::to_string(&scenario).unwrap();
    assert_eq!(serde_saphyr::from_str::<Scenario>(&yaml).unwrap(), scenario, "{yaml}");
    let json = serde_json::to_string_pretty(&scenario).unwrap();
    assert_eq!(parse(&json, "json").unwrap(), parse(SMALL, "yaml").unwrap(), "{json}");
}

#[test]
fn syntax_errors_are_reported_with_their_position() {
    let table = [
        ("nodes:\n  - name: a\n    gpu: 8\n", "line 3", "unknown field `gpu`"),
        ("jobs:\n  - name: a\n    duration: soon\n", "line 3", "a length of time such as `90s`"),
        (
            "jobs:\n  - name: a\n    gpus: -1\n    duration: 1h\n",
            "line 3",
            "a number of GPUs such as `2`",
        ),
        ("nodes:\n  - name: a\n    memory: 8GB\n", "line 3", "a size such as `512Mi`"),
        ("policy: { strategy: fastest }\n", "line 1", "fastest"),
        ("jobs:\n  - { name: a, mig: 9g.999gb, duration: 1h }\n", "line 2", "MIG profile"),
        ("nodes: [", "line 1", ""),
    ];
    for (text, place, what) in table {
        let message = message(text);
        assert!(message.starts_with("the scenario is not a scenario: "), "{message}");
        assert!(message.contains(place) && message.contains(what), "{text}: {message}");
    }
}

#[test]
fn invalid_parts_are_rejected_by_name() {
    let table = [
        (
            "jobs: [{ name: a, gpus: 1.5, duration: 1h }]",
            "the scenario: job `a`: `gpus` is 1.5; use whole GPUs or a fraction of one",
        ),
        (
            "jobs: [{ name: a, gpus: 1, mig: 1g.10gb, duration: 1h }]",
            "the scenario: job `a`: set only one of `gpus`, `gpu_memory` and `mig`",
        ),
        (
            "jobs: [{ name: a, duration: { from: 2h, to: 1h } }]",
            "the scenario: job `a`: the duration's `from` of 2h is above its `to` of 1h; swap them",
        ),
        (
            "jobs: [{ name: a, duration: 1h, tasks: 0 }]",
            "the scenario: job `a`: the number of tasks must be at least 1",
        ),
        (
            "nodes: [{ name: a, gpus: 1, mig_gpus: 2 }]",
            "the scenario: node `a`: `mig_gpus` is 2, more than its 1 GPUs",
        ),
        (
            "nodes: [{ name: a, count: 2000000 }]",
            "the scenario: node `a`: with its `count` of 2000000 there are 2000000 nodes; at most 200000 are allowed",
        ),
        (
            "queues: [{ name: a, weight: 0 }]",
            "the scenario: queue `a`: the queue's weight must be at least 1",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(message(text), expected);
    }
}

#[test]
fn an_oversized_cluster_is_rejected_before_expansion() {
    let table = [
        (
            "nodes: [{ name: a, gpus: 4000000000 }]",
            "the scenario: node `a`: `gpus` is 4000000000; a node has at most 4096; use `count` for \
             more nodes",
        ),
        (
            "nodes: [{ name: a, count: 100000, gpus: 8 }, { name: b, count: 4000, gpus: 64 }]",
            "the scenario: node `b`: with its `count` of 4000 and its `gpus` of 64 there are \
             1056000 GPUs; at most 1000000 are allowed",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(message(text), expected);
    }
    assert!(message("nodes: [{ name: a, count: 1000000, gpus: 64 }]").contains("at most 200000"));
}

#[test]
fn names_are_unique_and_queues_exist() {
    let table = [
        (
            "nodes: [{ name: n, count: 2 }, { name: n-1 }]",
            "the scenario: node `n-1`: the node name `n-1` is already in use; names must be unique",
        ),
        (
            "queues: [{ name: q }, { name: q, weight: 2 }]",
            "the scenario: queue `q`: the queue name `q` is already in use; names must be unique",
        ),
        (
            "queues: [{ name: q, parent: p }, { name: p }]",
            "the scenario: queue `q`: parent `p` is not defined; list parents first",
        ),
        (
            "jobs: [{ name: j-0, duration: 1s }, { name: j, count: 2, duration: 1s, at: 1h }]",
            "the scenario: job `j`: the job name `j-0` is already in use; names must be unique",
        ),
        (
            "jobs: [{ name: j, queue: missing, duration: 1s }]",
            "the scenario: job `j`: queue `missing` is not defined in `queues`",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(message(text), expected);
    }
    let root = "nodes: [{ name: n }]\njobs: [{ name: j, queue: root, duration: 1s }]";
    assert!(parse(root, "root").is_ok());
}

#[test]
fn arrivals_in_the_distant_future_are_rejected() {
    for random in [false, true] {
        let text = format!(
            "jobs: [{{ name: j, count: 1000000, every: 800000d, random: {random}, duration: 1s }}]"
        );
        let message = message(&text);
        assert!(message.starts_with("the scenario: job `j`: number "), "{message}");
        assert!(message.ends_with("100 years; check `at`, `every` and `count`"), "{message}");
    }
}

#[test]
fn empty_scenarios_are_rejected() {
    let nodes = "the scenario: `nodes`: must not be empty; add at least one node";
    assert_eq!(message("{}"), nodes);
    assert_eq!(message("nodes: [{ name: n, count: 0 }]\njobs: [{ name: j, duration: 1s }]"), nodes);
    assert_eq!(
        message("nodes: [{ name: n }]"),
        "the scenario: `jobs`: must not be empty; add at least one job"
    );
    let tiny = message("jobs: [{ name: j, gpus: 0.0004, duration: 1s }]");
    assert!(tiny.contains("with at most three decimals"), "{tiny}");
}
