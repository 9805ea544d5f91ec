//! Synthetic loads of any size, as uneven as real ones, reproducible by seed.

use agentaflow_engine::{
    Gpu, GpuRequest, MiB, MigMode, MilliCpu, MilliGpu, Node, Priority, Queue, Request, Span, Time,
    Workload,
};

use crate::random::Random;
use crate::{Job, Load, SimError};

/// Parameters of a synthetic load.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Equal seeds give equal loads.
    pub seed: u64,
    pub nodes: u32,
    /// GPUs per node.
    pub gpus_per_node: u32,
    /// GPU models, assigned to the nodes in turn.
    pub models: Vec<String>,
    /// Requested GPU time as a multiple of the capacity.
    pub load: f64,
    /// Duration of the submissions in hours.
    pub hours: f64,
}

impl Default for Synthetic {
    fn default() -> Self {
        let models = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "Tesla T4"];
        Self {
            seed: 42,
            nodes: 32,
            gpus_per_node: 8,
            models: models.map(String::from).to_vec(),
            load: 0.9,
            hours: 24.0,
        }
    }
}

/// Queues with weights: a few large teams and some small ones.
const QUEUES: [(u32, &str); 4] =
    [(40, "research"), (30, "product"), (20, "vision"), (10, "students")];

/// GPU thousandths with weights. As in published traces, most jobs are small, and most GPU time goes to large
/// ones.
const SIZES: [(u32, u32); 9] = [
    (8, 100),
    (12, 250),
    (10, 500),
    (44, 1000),
    (9, 2000),
    (8, 4000),
    (6, 8000),
    (2, 16_000),
    (1, 32_000),
];

/// Median run time; the distribution has a long tail.
const MEDIAN_SECONDS: f64 = 20.0 * 60.0;
const TAIL: f64 = 1.6;
const SHORTEST_SECONDS: f64 = 10.0;

impl Synthetic {
    pub fn load(&self) -> Result<Load, SimError> {
        self.check()?;
        let mut random = Random::new(self.seed);
        let nodes: Vec<Node> = (0..self.nodes).map(|index| self.node(index)).collect();
        let queues = QUEUES.map(|(share, name)| Queue { weight: share, ..Queue::new(name) });
        let jobs = self.jobs(&mut random);
        Ok(Load { nodes, queues: queues.to_vec(), jobs, ..Load::default() })
    }

    fn check(&self) -> Result<(), SimError> {
        let wrong = |name, value: String, help| Err(SimError::Parameter { name, value, help });
        crate::load::check_size(self.nodes, self.gpus_per_node)?;
        if self.models.is_empty() || self.models.iter().any(String::is_empty) {
            return wrong("the list of models", "empty".to_owned(), "name at least one GPU model");
        }
        if !(self.load > 0.0 && self.load <= 100.0) {
            return wrong(
                "the load",
                self.load.to_string(),
                "give a multiple of the cluster above 0 and at most 100",
            );
        }
        if !(self.hours > 0.0 && self.hours <= 100_000.0) {
            return wrong(
                "the number of hours",
                self.hours.to_string(),
                "give more than 0 and at most 100000",
            );
        }
        Ok(())
    }

    fn node(&self, index: u32) -> Node {
        let model = &self.models[index as usize % self.models.len()];
        let mut node = Node::new(format!("node-{index}"));
        node.rank = index;
        node.cpu = MilliCpu(12_000 * u64::from(self.gpus_per_node));
        node.memory = MiB((96 << 10) * u64::from(self.gpus_per_node));
        let gpu = |index: u32| Gpu {
            id: index.to_string().into(),
            model: model.as_str().into(),
            memory: memory_of(model),
            nvlink: None,
            mig: MigMode::Off,
        };
        node.gpus = (0..self.gpus_per_node).map(gpu).collect();
        node
    }

    /// Draws jobs until the demand is reached. Given their number, arrivals of a Poisson process are
    /// independent and uniform.
    fn jobs(&self, random: &mut Random) -> Vec<Job> {
        let gpus = f64::from(self.nodes) * f64::from(self.gpus_per_node);
        let mut wanted = self.load * gpus * self.hours * 3600.0;
        let mut jobs = Vec::new();
        while wanted > 0.0 {
            let milli = self.size(random);
            let longest = (self.hours * 3600.0).max(SHORTEST_SECONDS);
            let seconds = random.log_normal(MEDIAN_SECONDS, TAIL).clamp(SHORTEST_SECONDS, longest);
            wanted -= seconds * f64::from(milli) / 1000.0;
            let at = Time((random.unit() * self.hours * 3_600_000.0) as u64);
            let duration = Span((seconds * 1000.0) as u64);
            jobs.push(self.job(jobs.len(), at, duration, milli, random));
        }
        jobs.sort_by_key(|job| job.at);
        jobs
    }

    /// A size that fits the empty cluster.
    fn size(&self, random: &mut Random) -> u32 {
        let most = 1000_u64 * u64::from(self.nodes) * u64::from(self.gpus_per_node);
        loop {
            let milli = random.weighted(&SIZES);
            if u64::from(milli) <= most {
                return milli;
            }
        }
    }

    fn job(&self, number: usize, at: Time, duration: Span, milli: u32, random: &mut Random) -> Job {
        let (gpu, tasks) = self.gpu_request(milli);
        let gpus_of_task = u64::from((milli / tasks).div_ceil(1000));
        let cores = u64::from(random.weighted(&[(3, 2_u32), (4, 4), (3, 8)]));
        let request = Request {
            gpu,
            cpu: MilliCpu(cores * 1000 * gpus_of_task),
            memory: MiB(cores * gpus_of_task * (6 << 10)),
            ..Request::default()
        };
        let mut workload = Workload::new(format!("job-{number}"), request);
        workload.tasks = tasks;
        workload.queue = random.weighted(&QUEUES).into();
        workload.priority = Priority(random.weighted(&[(2, 3), (6, 5), (2, 7)]));
        workload.preemptible = workload.priority < Priority(5);
        // Users overestimate run times.
        workload.estimate = Some(Span((duration.0 as f64 * (1.0 + random.unit())) as u64));
        Job { at, workload, duration }
    }

    /// GPU request per task, and number of tasks.
    fn gpu_request(&self, milli: u32) -> (GpuRequest, u32) {
        match MilliGpu::new(milli) {
            Ok(share) if share < MilliGpu::WHOLE => (GpuRequest::Fraction(share), 1),
            _ => {
                let gpus = milli / 1000;
                let limit = gpus.min(self.gpus_per_node);
                let each = (1..=limit).rev().find(|each| gpus.is_multiple_of(*each)).unwrap_or(1);
                (GpuRequest::Whole(each), gpus / each)
            }
        }
    }
}

/// Memory of a GPU from its name: a number before `GB`, or a known model.
fn memory_of(model: &str) -> MiB {
    let named =
        model.split([' ', '-', '_']).find_map(|word| word.strip_suffix("GB")?.parse::<u64>().ok());
    MiB(named.filter(|gib| (1..=1024).contains(gib)).unwrap_or(16) << 10)
}

/// The small cluster of `agentaflow simulate --demo`: mixed GPUs, two queues, gangs, shares, MIG.
pub fn demo() -> Load {
    crate::scenario::parse(include_str!("demo.yaml"), "the demo").expect("a test reads it too")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synthetic_load_has_the_requested_demand() {
        let synthetic = Synthetic { nodes: 16, hours: 48.0, load: 0.8, ..Synthetic::default() };
        let load = synthetic.load().unwrap();
        let gpus = |request: &Request| match request.gpu {
            GpuRequest::Fraction(share) => f64::from(share.get()) / 1000.0,
            _ => f64::from(request.gpu_count()),
        };
        let time = |job: &Job| {
            job.duration.0 as f64 * gpus(&job.workload.request) * f64::from(job.workload.tasks)
        };
        let asked: f64 = load.jobs.iter().map(time).sum();
        let ratio = asked / (128.0 * 48.0 * 3_600_000.0);
        assert!((0.8..1.1).contains(&ratio), "{ratio}");
        assert!(load.jobs.is_sorted_by_key(|job| job.at));
        assert!(load.jobs.iter().any(|job| job.workload.tasks > 1));
        assert_eq!(load, synthetic.load().unwrap());
        assert_ne!(load.jobs, Synthetic { seed: 1, ..synthetic }.load().unwrap().jobs);
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        let usual = Synthetic::default;
        let table = [
            (Synthetic { nodes: 0, ..usual() }, "the number of nodes is 0: give 1 to 200000"),
            (
                Synthetic { nodes: 200_000, ..usual() },
                "the number of GPUs of all nodes is 1600000: give at most 1000000",
            ),
            (
                Synthetic { gpus_per_node: 4097, ..usual() },
                "the number of GPUs of a node is 4097: give 1 to 4096",
            ),
            (
                Synthetic { models: Vec::new(), ..usual() },
                "the list of models is empty: name at least one GPU model",
            ),
            (
                Synthetic { load: f64::NAN, ..usual() },
                "the load is NaN: give a multiple of the cluster above 0 and at most 100",
            ),
            (
                Synthetic { hours: -1.0, ..usual() },
                "the number of hours is -1: give more than 0 and at most 100000",
            ),
        ];
        for (synthetic, message) in table {
            assert_eq!(synthetic.load().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn the_demo_contains_every_kind_of_request() {
        let load = demo();
        assert_eq!((load.nodes.len(), load.queues.len()), (12, 2));
        let asks = |test: fn(&GpuRequest) -> bool| {
            load.jobs.iter().any(|job| test(&job.workload.request.gpu))
        };
        assert!(asks(|ask| matches!(ask, GpuRequest::Mig { .. })));
        assert!(asks(|ask| matches!(ask, GpuRequest::Fraction(_))));
        assert!(asks(|ask| matches!(ask, GpuRequest::Memory(_))));
        assert!(asks(|ask| matches!(ask, GpuRequest::None)));
        assert!(load.jobs.iter().any(|job| job.workload.tasks > 1));
    }

    #[test]
    fn the_memory_of_a_gpu_is_read_from_its_name() {
        for (model, gib) in
            [("NVIDIA H100 80GB HBM3", 80), ("NVIDIA A100-SXM4-40GB", 40), ("Tesla T4", 16)]
        {
            assert_eq!(memory_of(model), MiB(gib << 10), "{model}");
        }
    }
}
