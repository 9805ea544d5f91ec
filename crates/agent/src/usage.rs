//! Use of the running tasks: sampled for heartbeats and metrics, and saved so that a restart of the agent loses none.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::warn;

use agentaflow_api::link::{TaskKey, TaskUse};

use crate::guardian::record;
use crate::runtime::TaskUsage;
use crate::tasks::Tasks;

/// Longest interval between two samples of a task.
const LONGEST_INTERVAL: Duration = Duration::from_secs(15);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the use of GPUs is saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(15);
/// File in the folder of a task.
const GPU_FILE: &str = "gpu-use.json";

/// Last sample of each running task.
#[derive(Debug, Default)]
pub(crate) struct UsageTable(Mutex<BTreeMap<TaskKey, TaskUsage>>);

impl UsageTable {
    fn table(&self) -> MutexGuard<'_, BTreeMap<TaskKey, TaskUsage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, key: TaskKey, usage: TaskUsage) {
        let mut table = self.table();
        let known = table.entry(key).or_default();
        // Without a cgroup the time of ended children is missing.
        *known = TaskUsage { cpu: known.cpu.max(usage.cpu), ..usage };
    }
}

/// Samples the running tasks, at about the interval of heartbeats.
pub(crate) async fn watch_usage(tasks: Tasks, heartbeats: Duration) {
    let interval = heartbeats.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    let mut saved = Instant::now();
    loop {
        sleep(interval).await;
        tasks.sample_usage().await;
        if saved.elapsed() >= SAVE_INTERVAL {
            saved = Instant::now();
            tasks.save_gpu_usage();
        }
    }
}

impl Tasks {
    async fn sample_usage(&self) {
        let live = self.live();
        self.usage().table().retain(|key, _| live.iter().any(|task| task.key == *key));
        for task in live.iter().filter(|task| task.started.get().is_some()) {
            let usage = task.runtime.used(task.key).await;
            // All zero: the runtime does not measure usage.
            if usage != TaskUsage::default() {
                self.usage().record(task.key, usage);
            }
        }
    }

    /// Use of every running task as of its last sample.
    pub(crate) fn uses(&self) -> Vec<TaskUse> {
        let sampled = self.usage().table().clone();
        let running = self.live().into_iter().filter(|task| task.started.get().is_some());
        let each = running.map(|task| {
            let key = task.key;
            let usage = sampled.get(&key);
            let (gpu_memory, gpu_joules) = self.gpus().present(key);
            TaskUse {
                key,
                cpu_ms: usage.map(|usage| usage.cpu.as_millis() as u64),
                memory: usage.map(|usage| usage.memory_now).filter(|memory| *memory > 0),
                gpu_memory,
                gpu_joules,
                gpu: self.gpus().usage(key),
            }
        });
        each.collect()
    }

    fn save_gpu_usage(&self) {
        for task in self.live() {
            let Some(meter) = self.gpus().meter(task.key) else { continue };
            let folder = self.folder(task.key);
            // The folder of a task that has just ended is gone.
            if let Err(error) = record::write(&folder, GPU_FILE, &meter)
                && folder.exists()
            {
                warn!(key = %task.key, %error, "cannot save the use of GPUs");
            }
        }
    }

    /// Continues the meter that an earlier agent saved.
    pub(crate) fn resume_gpu_usage(&self, key: TaskKey) {
        if let Some(meter) = record::read(&self.folder(key).join(GPU_FILE)) {
            self.gpus().resume_meter(key, meter);
        }
    }
}
