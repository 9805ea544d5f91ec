//! Use of each GPU by each task: share, memory, multiprocessors, energy.

use std::collections::BTreeMap;
use std::time::Instant;

use agentaflow_api::link::TaskKey;
use agentaflow_gpu::{DeviceProcess, EnergyMeter, GpuUse, ProcessLoad, Sample};

use super::TaskLoad;
use super::owners::Owner;

/// One tick of all GPUs. UUIDs of MIG slices belong to the GPU that `parents` names.
pub(super) struct Tick<'a> {
    pub(super) tasks: &'a [TaskLoad],
    pub(super) processes: &'a [(DeviceProcess, Owner)],
    pub(super) loads: &'a [ProcessLoad],
    pub(super) parents: &'a BTreeMap<String, String>,
    pub(super) samples: &'a BTreeMap<String, Sample>,
}

#[derive(Debug, Default)]
pub(super) struct UsageTable {
    uses: Vec<GpuUse<TaskKey>>,
    /// MiB by task and GPU.
    memory: BTreeMap<(TaskKey, String), u64>,
    energy: EnergyMeter<TaskKey>,
    processes: BTreeMap<String, u32>,
}

impl UsageTable {
    pub(super) fn record(&mut self, tick: &Tick<'_>, now: Instant) {
        let gpu = |uuid: &String| tick.parents.get(uuid).unwrap_or(uuid).clone();
        let mut uses: BTreeMap<(TaskKey, String), (Option<u32>, u32)> = BTreeMap::new();
        for task in tick.tasks {
            for grant in &task.grants {
                uses.entry((task.key, gpu(&grant.uuid))).or_default().1 += grant.milli;
            }
        }
        self.memory.clear();
        self.processes.clear();
        let mut owners = BTreeMap::new();
        for (process, owner) in tick.processes {
            *self.processes.entry(gpu(&process.uuid)).or_default() += 1;
            if let Owner::Task(key) = owner {
                owners.insert(process.pid, *key);
                let slot = (*key, gpu(&process.uuid));
                uses.entry(slot.clone()).or_default();
                *self.memory.entry(slot).or_default() += process.memory;
            }
        }
        for load in tick.loads {
            let Some(key) = owners.get(&load.pid) else { continue };
            let sum = &mut uses.entry((*key, gpu(&load.uuid))).or_default().0;
            *sum = Some(sum.unwrap_or(0).saturating_add(load.utilization).min(100));
        }
        let each = uses.into_iter().map(|((workload, uuid), (utilization, milli))| GpuUse {
            workload,
            uuid,
            utilization,
            milli,
        });
        self.uses = each.collect();
        self.energy.observe(now, tick.samples, &self.uses);
    }

    pub(super) fn uses(&self) -> &[GpuUse<TaskKey>] {
        &self.uses
    }

    /// MiB by task and GPU.
    pub(super) fn held(&self) -> &BTreeMap<(TaskKey, String), u64> {
        &self.memory
    }

    /// MiB that processes of a task hold on a GPU.
    pub(super) fn memory(&self, key: TaskKey, uuid: &str) -> u64 {
        self.memory.get(&(key, uuid.to_owned())).copied().unwrap_or(0)
    }

    /// Joules since the task was first seen on the GPU.
    pub(super) fn joules(&self, key: TaskKey, uuid: &str) -> Option<f64> {
        self.energy.joules(&key, uuid)
    }

    pub(super) fn processes(&self, uuid: &str) -> u32 {
        self.processes.get(uuid).copied().unwrap_or(0)
    }

    /// Thousandths of a GPU granted to tasks.
    pub(super) fn granted(&self, uuid: &str) -> u32 {
        let here = self.uses.iter().filter(|entry| entry.uuid == uuid);
        here.map(|entry| entry.milli).sum::<u32>().min(1_000)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agentaflow_api::ids::JobId;
    use agentaflow_api::link::GpuGrant;

    use super::*;

    const GPU: &str = "GPU-a";

    fn key(job: i64) -> TaskKey {
        TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 }
    }

    fn task(job: i64, uuid: &str, milli: u32) -> TaskLoad {
        let grant = GpuGrant { index: 0, uuid: uuid.to_owned(), milli, memory: 1, shared: true };
        TaskLoad { key: key(job), grants: vec![grant], pids: Vec::new() }
    }

    fn process(pid: u32, uuid: &str, memory: u64, owner: Owner) -> (DeviceProcess, Owner) {
        (DeviceProcess { uuid: uuid.to_owned(), pid, memory }, owner)
    }

    #[test]
    fn tasks_on_a_shared_gpu_have_their_own_memory_use_and_energy() {
        let tasks = [task(1, GPU, 500), task(2, GPU, 250)];
        let processes = [
            process(10, GPU, 100, Owner::Task(key(1))),
            process(11, GPU, 50, Owner::Task(key(1))),
            process(20, GPU, 7, Owner::Task(key(2))),
            process(30, GPU, 9, Owner::Foreign),
        ];
        let load = |pid, utilization| ProcessLoad { uuid: GPU.into(), pid, utilization };
        let loads = [load(10, 20), load(11, 10), load(20, 10), load(30, 60)];
        let sample = Sample { uuid: GPU.into(), power: Some(400.0), ..Sample::default() };
        let samples = [(GPU.to_owned(), sample)].into();
        let parents = BTreeMap::new();
        let tick = Tick {
            tasks: &tasks,
            processes: &processes,
            loads: &loads,
            parents: &parents,
            samples: &samples,
        };
        let (mut table, start) = (UsageTable::default(), Instant::now());
        table.record(&tick, start);
        table.record(&tick, start + Duration::from_secs(1));
        assert_eq!((table.memory(key(1), GPU), table.memory(key(2), GPU)), (150, 7));
        assert_eq!((table.processes(GPU), table.granted(GPU)), (4, 750));
        let used: Vec<_> = table.uses().iter().map(|entry| entry.utilization).collect();
        assert_eq!(used, [Some(30), Some(10)]);
        assert_eq!(table.joules(key(1), GPU), Some(300.0));
        assert_eq!(table.joules(key(2), GPU), Some(100.0));
    }

    #[test]
    fn slices_count_for_their_gpu() {
        let tasks = [task(1, "MIG-1", 429)];
        let processes = [process(10, "MIG-1", 5, Owner::Task(key(1)))];
        let parents = [("MIG-1".to_owned(), GPU.to_owned())].into();
        let samples = BTreeMap::new();
        let tick = Tick {
            tasks: &tasks,
            processes: &processes,
            loads: &[],
            parents: &parents,
            samples: &samples,
        };
        let mut table = UsageTable::default();
        table.record(&tick, Instant::now());
        assert_eq!((table.granted(GPU), table.memory(key(1), GPU)), (429, 5));
        assert_eq!(table.uses()[0].uuid, GPU);
    }
}
