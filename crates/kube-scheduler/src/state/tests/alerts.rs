//! Facts for the alert rules.

use agentaflow_alerts::{Facts, JobFacts};
use agentaflow_api::units::Stamp;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Harness;
use super::objects::{node, pod};

fn report(second: u64, phase: &str) -> Value {
    let time = jiff::Timestamp::from_second(second as i64).expect("a time");
    json!({
        "metadata": {"name": "n", "namespace": ""},
        "spec": {"nodeName": "n", "gpuDevices": [
            {"id": "GPU-a", "name": "NVIDIA L4", "memoryTotal": 23_034},
            {"id": "GPU-b", "name": "NVIDIA L4", "memoryTotal": 23_034}]},
        "status": {
            "phase": phase,
            "gpuStatus": [
                {"id": "GPU-a", "available": true, "utilization": 90.0, "temperature": 91.0,
                    "powerUsage": 70.0, "powerLimit": 72.0, "memoryUsed": 23_000, "eccErrors": 2,
                    "currentWorkload": "team/train"},
                {"id": "GPU-b", "available": false, "xid": 79, "lost": true, "reason": "fell off the bus"}],
            "lastUpdated": time.to_string(),
            "conditions": [],
        },
    })
}

fn facts(harness: &Harness) -> Facts {
    harness.state.alert_facts(harness.now)
}

#[test]
fn reports_of_monitors_become_facts_about_gpus() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::GpuNode, report(harness.server.seconds, "Active"));
    harness.settle();
    let found = facts(&harness);
    let [busy, broken] = &found.gpus[..] else { panic!("{found:?}") };
    assert_eq!((busy.node.as_str(), busy.gpu.as_str(), busy.stale), ("n", "GPU-a", false));
    assert_eq!((busy.temperature, busy.ecc_errors), (Some(91.0), Some(2)));
    assert_eq!((busy.power, busy.power_limit), (Some(70.0), Some(72.0)));
    assert_eq!((busy.memory_used, busy.memory_total), (Some(23_000), Some(23_034)));
    let job = JobFacts { job: "team/train".into(), user: Some("team".into()) };
    assert_eq!(busy.job, Some(job));
    assert_eq!((broken.xid, broken.lost, broken.temperature), (Some(79), true, None));
    assert_eq!(broken.problem.as_deref(), Some("fell off the bus"));
    assert_eq!(found.cluster.and_then(|cluster| cluster.utilization), Some(90.0));
}

#[test]
fn a_lost_monitor_is_a_silent_node_unless_the_node_is_in_maintenance() {
    for (phase, silent) in [("Active", true), ("Maintenance", false)] {
        let mut harness = Harness::new();
        harness.put(Kind::Node, node("n", 2));
        harness.put(Kind::GpuNode, report(harness.server.seconds, phase));
        harness.settle();
        assert!(!facts(&harness).nodes[0].silent);
        harness.pass(181_000);
        harness.settle();
        let found = facts(&harness);
        assert_eq!(found.nodes[0].silent, silent, "{phase}");
        assert!(found.gpus.iter().all(|gpu| gpu.stale), "old readings change no alert");
    }
}

#[test]
fn the_oldest_pending_pod_of_a_queue_and_the_turn_are_facts() {
    let mut harness = Harness::new();
    harness.put(Kind::Pod, pod("waits", 1));
    harness.settle();
    let found = facts(&harness);
    assert_eq!(found.cluster.map(|cluster| cluster.pending), Some(1));
    let [queue] = &found.queues[..] else { panic!("{found:?}") };
    assert!(queue.oldest_pending.is_some_and(|since| since.0 <= harness.now.0 as i64));
    let turn = found.scheduler.map(|scheduler| scheduler.last_turn);
    assert_eq!(turn, Some(Stamp(harness.now.0 as i64)));
    harness.put(Kind::Node, node("n", 1));
    harness.settle();
    assert!(facts(&harness).queues.is_empty());
}
