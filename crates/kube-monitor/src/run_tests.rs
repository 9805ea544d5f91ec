use super::*;
use crate::observation::PodName;
use agentaflow_gpu::{Simulated, SimulatedSpec};
use serde_json::json;

#[test]
fn time_slices_come_from_the_node_or_from_the_kubelet() {
    let output = |ids: &[&str]| KubeletDevices {
        allocatable: ids.iter().map(|id| (*id).to_owned()).collect(),
        ..KubeletDevices::default()
    };
    let facts = |replicas| NodeFacts { replicas, ..NodeFacts::default() };
    let sliced = output(&["GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b::1"]);
    for (label, output, expected) in [
        (1, None, 1),
        (4, None, 4),
        (4, Some(&sliced), 4),
        (1, Some(&sliced), 2),
        (1, Some(&output(&["GPU-a", "GPU-b"])), 1),
    ] {
        assert_eq!(replicas(&facts(label), output), expected);
    }
}

#[test]
fn simulated_gpus_are_busy_where_the_scheduler_put_pods() {
    let pod: slim::Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ml",
        "annotations": {names::POD_ASSIGNED_GPU: "n1/SIM-1, n1/SIM-2"}}}))
        .unwrap();
    let name = PodName { namespace: "ml".into(), name: "p".into() };
    let plan = planned(&pod).unwrap();
    assert_eq!((&plan.pod, &*plan.ids), (&name, &["SIM-1".to_owned(), "SIM-2".to_owned()][..]));
    let gpu = |uuid: &str| Device { uuid: uuid.into(), memory: 400, ..Device::default() };
    let devices = [gpu("SIM-1"), gpu("SIM-2"), gpu("SIM-3")];
    let holders = PodDevices::of(&[plan], &devices, 1);
    assert_eq!(load(&holders, &devices), [("SIM-1".into(), 950, 300), ("SIM-2".into(), 950, 300)]);
}

#[tokio::test]
async fn a_driver_that_failed_is_opened_again() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let output = Arc::clone(&broken);
    let opener: Opener = Arc::new(move || {
        if output.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(GpuError::Broken("version mismatch".into()));
        }
        Ok(Box::new(Simulated::new(&SimulatedSpec { count: 2, ..SimulatedSpec::default() })?))
    });
    let mut sampler = GpuSampler::new(opener, "/proc".into());
    assert!(matches!(sampler.sample().await, Err(GpuError::Broken(_))));
    broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(sampler.sample().await.unwrap().gpus.devices.len(), 2);
}
