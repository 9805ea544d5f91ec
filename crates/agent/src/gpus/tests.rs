//! GPU watch on a fake source.

use agentaflow_api::ids::JobId;
use agentaflow_api::node::GpuStatus;
use agentaflow_gpu::{MigDevice, Simulated, SimulatedSpec};

use super::*;

#[derive(Default)]
struct FakeSource {
    processes: Mutex<Vec<DeviceProcess>>,
    used: Mutex<u64>,
    fault: Mutex<Option<String>>,
    xids: Mutex<Vec<u64>>,
    broken: AtomicBool,
}

const GPU: &str = "GPU-a";

impl GpuSource for FakeSource {
    fn host(&self) -> Host {
        Host { source: "nvml", ..Host::default() }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        let slice =
            MigDevice { uuid: "MIG-1".into(), profile: "1g.10gb".into(), start: 2, memory: 9_728 };
        let gpu = |index, uuid: &str, memory, mig| Device {
            index,
            uuid: uuid.to_owned(),
            name: "NVIDIA A100".into(),
            memory,
            mig,
            ..Device::default()
        };
        Ok(vec![
            gpu(0, GPU, 81_920, None),
            gpu(1, "GPU-b", 81_920, Some(vec![slice])),
            gpu(2, "GPU-unreadable-2", 0, None),
        ])
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(GpuError::Broken("version mismatch".into()));
        }
        let used = *self.used.lock().unwrap();
        Ok(vec![Sample {
            uuid: GPU.into(),
            memory_used: Some(used),
            memory_free: Some(81_000 - used),
            fault: self.fault.lock().unwrap().clone(),
            xids: std::mem::take(&mut *self.xids.lock().unwrap()),
            ..Sample::default()
        }])
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(self.processes.lock().unwrap().clone())
    }
}

fn task(job: i64, uuid: &str, memory: u64, pids: &[u32]) -> TaskLoad {
    let grant = GpuGrant { index: 0, uuid: uuid.to_owned(), milli: 500, memory, shared: true };
    let key = TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 };
    TaskLoad { key, grants: vec![grant], pids: pids.to_vec() }
}

/// Without a state directory, so that no driver error is saved.
async fn open(source: Arc<dyn GpuSource>) -> Result<GpuWatch, GpuError> {
    GpuWatch::open(source, Path::new("/nonexistent")).await
}

async fn watch() -> (Arc<FakeSource>, GpuWatch) {
    let fake = Arc::new(FakeSource::default());
    let source: Arc<dyn GpuSource> = fake.clone();
    (fake, open(source).await.unwrap())
}

fn status(watch: &GpuWatch) -> Vec<String> {
    watch
        .instances()
        .into_iter()
        .filter_map(|gpu| gpu.status)
        .map(|status| status.as_str().to_owned())
        .collect()
}

#[tokio::test]
async fn instances_include_mig_slices_and_omit_unreadable_gpus() {
    let (_, watch) = watch().await;
    let gpus = watch.instances();
    assert_eq!(gpus.len(), 2);
    assert_eq!(gpus[0].gpu_memory_available, Some(81_000));
    assert_eq!(gpus[0].gpu_memory_foreign, Some(0));
    let slice = &gpus[1].mig.as_ref().unwrap()[0];
    assert_eq!((&*slice.profile, slice.start, &*slice.uuid), ("1g.10gb", 2, "MIG-1"));
    assert!(!watch.simulated());
}

#[tokio::test]
async fn a_gpu_is_busy_with_a_task_on_it_or_on_its_mig_slice() {
    let (_, watch) = watch().await;
    assert_eq!(status(&watch), ["available", "available"]);
    watch.tick(&[task(1, "MIG-1", 100, &[])]).await;
    assert_eq!(status(&watch), ["available", "busy"]);
    watch.tick(&[task(1, GPU, 100, &[])]).await;
    assert_eq!(status(&watch), ["busy", "available"]);
}

#[tokio::test]
async fn task_memory_has_a_peak_and_other_memory_is_foreign() {
    let (fake, watch) = watch().await;
    let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mine = task(1, GPU, 40_000, &[4_000_000]);
    for (used, foreign) in [(1_000, 300), (5_000, 200), (2_000, 100)] {
        let process = |pid, memory| DeviceProcess { uuid: GPU.into(), pid, memory };
        *fake.processes.lock().unwrap() =
            vec![process(4_000_000, used), process(other.id(), foreign)];
        assert!(watch.tick(std::slice::from_ref(&mine)).await.is_empty());
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(watch.peak_memory(mine.key), Some(5_000));
    assert_eq!(watch.instances()[0].gpu_memory_foreign, Some(100));
    watch.forget(mine.key);
    assert_eq!(watch.peak_memory(mine.key), None);
}

#[tokio::test]
async fn a_lost_gpu_has_status_error_and_no_memory() {
    let (fake, watch) = watch().await;
    *fake.fault.lock().unwrap() = Some("fell off the bus".into());
    watch.tick(&[]).await;
    let gpu = &watch.instances()[0];
    assert_eq!((gpu.status, gpu.gpu_memory_available), (Some(GpuStatus::Error), Some(0)));
    assert_eq!(gpu.problem.as_deref(), Some("fell off the bus"));
    assert!(!watch.is_unusable(), "the other GPU works");
}

#[tokio::test]
async fn each_class_of_xid_takes_out_nothing_a_gpu_or_the_machine() {
    for (xid, expected, unusable) in [
        (63, ["available", "available"], false),
        (94, ["available", "available"], false),
        (109, ["error", "available"], false),
        (54, ["error", "available"], false),
        (79, ["error", "error"], true),
    ] {
        let (fake, watch) = watch().await;
        fake.xids.lock().unwrap().push(xid);
        watch.tick(&[]).await;
        watch.tick(&[]).await;
        assert_eq!(status(&watch), expected, "XID {xid}");
        assert_eq!(watch.is_unusable(), unusable, "XID {xid}");
        let readings = watch.device_readings("n1");
        assert_eq!(readings[0].last_xid, Some(xid));
        assert_eq!(readings[0].xid_errors, [(xid.to_string(), 1)]);
        assert!(readings[1].xid_errors.is_empty());
    }
}

#[tokio::test]
async fn every_gpu_has_status_error_while_the_driver_fails() {
    let (fake, watch) = watch().await;
    fake.broken.store(true, Ordering::Relaxed);
    assert!(watch.tick(&[task(1, GPU, 1, &[])]).await.is_empty());
    assert_eq!(status(&watch), ["error", "error"]);
    assert!(watch.instances()[0].problem.as_ref().unwrap().contains("version mismatch"));
    assert!(watch.is_unusable());
    fake.broken.store(false, Ordering::Relaxed);
    watch.tick(&[]).await;
    assert_eq!(status(&watch), ["available", "available"]);
    fake.broken.store(true, Ordering::Relaxed);
    assert!(open(fake).await.is_err());
}

#[tokio::test]
async fn simulated_gpus_show_the_load_of_their_tasks() {
    let source: Arc<dyn GpuSource> = Arc::new(Simulated::new(&SimulatedSpec::default()).unwrap());
    let watch = open(source).await.unwrap();
    let uuid = watch.instances()[0].gpu_uuid.clone().unwrap();
    assert!(watch.simulated());
    assert!(watch.tick(&[task(1, &uuid, 50_000, &[])]).await.is_empty());
    let gpu = &watch.instances()[0];
    assert_eq!(gpu.gpu_memory_available, Some(143_771 - 50_000));
    assert!(gpu.utilization.unwrap() > 30.0);
    assert_eq!((gpu.status, gpu.gpu_memory_foreign), (Some(GpuStatus::Busy), None));
}

#[tokio::test]
#[ignore = "needs an NVIDIA GPU and a python3 with torch"]
async fn on_a_real_gpu_only_the_task_over_its_share_is_reported() {
    let watch = open(agentaflow_gpu::detect().unwrap().into()).await.unwrap();
    let uuid = watch.instances()[0].gpu_uuid.clone().unwrap();
    let take = |gib: u32| {
        let code = format!(
            "import sys, torch; x = torch.ones({gib} << 30, dtype=torch.uint8, device='cuda'); sys.stdin.read()"
        );
        // Through a shell, so that the process on the GPU is a grandchild. The process ends with its input.
        let script = format!("python3 -c \"{code}\"; true");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script]).stdin(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut children = [take(6), take(2), take(1)];
    let tasks =
        [task(1, &uuid, 4_096, &[children[0].id()]), task(2, &uuid, 4_096, &[children[1].id()])];
    let mut found = Vec::new();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        found = watch.tick(&tasks).await;
        let gpu = &watch.instances()[0];
        println!("{:?} {:?} {found:?}", gpu.gpu_memory_available, gpu.gpu_memory_foreign);
        if !found.is_empty() && gpu.gpu_memory_foreign > Some(1_024) {
            break;
        }
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    println!("{:?} {:?}", watch.peak_memory(tasks[0].key), watch.peak_memory(tasks[1].key));
    assert_eq!(found.iter().map(|over| over.key).collect::<Vec<_>>(), [tasks[0].key]);
    assert!(watch.peak_memory(tasks[0].key) > Some(6 << 10));
    assert!(watch.peak_memory(tasks[1].key) > Some(2 << 10));
}
