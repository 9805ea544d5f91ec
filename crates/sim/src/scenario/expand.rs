//! Expands a scenario into a load.

use std::fmt::Display;

use agentaflow_engine::{
    Ageing, Gpu, GpuRequest, MiB, MigMode, MilliCpu, MilliGpu, Node, Policy, Queue, Quota, Request,
    Span, Time, Workload,
};

use super::check::{self, ScenarioNames};
use super::{Amounts, DurationSpec, Jobs, Nodes, QueueSpec, Scenario, Settings};
use crate::random::Random;
use crate::{Job, Load, SimError};

/// Limit of workloads per entry; larger counts are typos.
const MAX: u32 = 1_000_000;
/// Limit of an arrival time, in milliseconds: a hundred years.
const LATEST: f64 = 100.0 * 365.25 * 86_400_000.0;

/// Error text of a part, without its name.
pub(super) type PartError = String;

impl Scenario {
    /// Expands counts, draws random values and checks every part; `origin` names the scenario in errors.
    pub fn load(&self, origin: &str) -> Result<Load, SimError> {
        let wrong = |kind: &str, name: &str, help: PartError| SimError::ScenarioPart {
            origin: origin.to_owned(),
            part: format!("{kind} `{name}`"),
            help,
        };
        let mut load = Load { policy: self.policy.policy(), ..Load::default() };
        let mut seen = ScenarioNames::default();
        for nodes in &self.nodes {
            let expanded =
                nodes.expand(&mut seen).map_err(|help| wrong("node", &nodes.name, help))?;
            load.nodes.extend(expanded);
        }
        for queue in &self.queues {
            seen.queue(queue).map_err(|help| wrong("queue", &queue.name, help))?;
            load.queues.push(queue.queue().map_err(|help| wrong("queue", &queue.name, help))?);
        }
        let mut random = Random::new(self.seed);
        for jobs in &self.jobs {
            // A random stream per entry: a change of one entry does not affect the other entries.
            let stream = Random::new(random.next());
            let expanded =
                jobs.expand(stream, &mut seen).map_err(|help| wrong("job", &jobs.name, help))?;
            load.jobs.extend(expanded);
        }
        check::check_not_empty(&load, origin)?;
        Ok(load)
    }
}

impl Settings {
    fn policy(&self) -> Policy {
        let usual = Policy::default();
        let span =
            |length: Option<super::Length>, usual: Span| length.map_or(usual, |length| length.0);
        Policy {
            strategy: self.strategy.unwrap_or(usual.strategy),
            order: self.order,
            ageing: self.ageing.map_or(usual.ageing, |length| Ageing::one_point_per(length.0)),
            half_life: span(self.half_life, usual.half_life),
            work_stays: self.work_stays.unwrap_or(usual.work_stays),
            backfill: self.backfill.unwrap_or(usual.backfill),
            patience: span(self.patience, usual.patience),
            preemption: self.preemption.unwrap_or(usual.preemption),
            min_runtime: span(self.min_runtime, usual.min_runtime),
            ..usual
        }
    }
}

impl Nodes {
    fn expand(&self, seen: &mut ScenarioNames) -> Result<Vec<Node>, PartError> {
        seen.size(self)?;
        if self.mig_gpus > self.gpus {
            return Err(format!(
                "`mig_gpus` is {}, more than its {} GPUs",
                self.mig_gpus, self.gpus
            ));
        }
        self.node(numbered(&self.name, self.count, 0))
            .validate()
            .map_err(|error| error.to_string())?;
        let node = |index| {
            let name = numbered(&self.name, self.count, index);
            seen.node(&name)?;
            Ok(self.node(name))
        };
        (0..self.count.unwrap_or(1)).map(node).collect()
    }

    fn node(&self, name: String) -> Node {
        let mut node = Node::new(name);
        let each = u64::from(self.gpus.max(1));
        node.cpu = self.cpu.map_or(MilliCpu(8000 * each), |cpu| cpu.0);
        node.memory = self.memory.map_or(MiB((64 << 10) * each), |memory| memory.0);
        node.labels = self
            .labels
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect();
        node.price.gpu_hour = self.gpu_hour.unwrap_or_default().0;
        let whole = self.gpus - self.mig_gpus;
        let gpu = |index: u32| Gpu {
            id: index.to_string().into(),
            model: self.model.as_deref().unwrap_or("GPU").into(),
            memory: self.gpu_memory.map_or(MiB(80 << 10), |memory| memory.0),
            nvlink: self.nvlink.then_some(0),
            mig: if index < whole { MigMode::Off } else { MigMode::Free },
        };
        node.gpus = (0..self.gpus).map(gpu).collect();
        node
    }
}

impl QueueSpec {
    fn queue(&self) -> Result<Queue, PartError> {
        let mut queue = Queue::new(self.name.as_str());
        if let Some(parent) = &self.parent {
            queue.parent = parent.as_str().into();
        }
        queue.weight = self.weight.unwrap_or(queue.weight);
        queue.borrow = self.borrow.unwrap_or(queue.borrow);
        queue.guaranteed = self.guaranteed.as_ref().map_or_else(Quota::default, Amounts::quota);
        queue.limit = self.limit.as_ref().map_or_else(Quota::default, Amounts::quota);
        queue.validate().map_err(|error| error.to_string())?;
        Ok(queue)
    }
}

impl Amounts {
    fn quota(&self) -> Quota {
        Quota {
            gpu: self.gpus.map(|gpus| gpus.0),
            cpu: self.cpu.map(|cpu| cpu.0.0),
            memory: self.memory.map(|memory| memory.0.0),
            ..Quota::default()
        }
    }
}

impl Jobs {
    fn expand(&self, mut random: Random, seen: &mut ScenarioNames) -> Result<Vec<Job>, PartError> {
        seen.queue_of(self)?;
        let workload = self.workload()?;
        let mut at = self.at.unwrap_or_default().0.0 as f64;
        let every = self.every.unwrap_or_default().0.0 as f64;
        let mut jobs = Vec::new();
        for index in 0..checked_count(self.count)? {
            if self.random {
                at += random.exponential(every);
            }
            if at > LATEST {
                return Err(format!(
                    "number {} would arrive after more than 100 years; check `at`, `every` and \
                     `count`",
                    u64::from(index) + 1
                ));
            }
            let duration = self.duration.draw(&mut random)?;
            let mut workload = workload.clone();
            let name = numbered(&self.name, self.count, index);
            seen.job(&name)?;
            workload.id = name.into();
            workload.estimate = match self.estimate {
                None => Some(duration),
                Some(estimate) => Some(estimate.0).filter(|estimate| estimate.0 > 0),
            };
            jobs.push(Job { at: Time(at.round() as u64), workload, duration });
            if !self.random {
                at += every;
            }
        }
        Ok(jobs)
    }

    fn workload(&self) -> Result<Workload, PartError> {
        let request = Request {
            gpu: self.gpu_request()?,
            models: self.models.iter().map(|model| model.as_str().into()).collect(),
            nvlink: self.nvlink,
            cpu: self.cpu.unwrap_or_default().0,
            memory: self.memory.unwrap_or_default().0,
            ..Request::default()
        };
        let mut workload = Workload::new(self.name.as_str(), request);
        if let Some(queue) = &self.queue {
            workload.queue = queue.as_str().into();
        }
        workload.tasks = self.tasks.unwrap_or(1);
        workload.topology.clone_from(&self.topology);
        workload.priority = self.priority.unwrap_or(workload.priority);
        workload.preemptible = self.preemptible;
        workload.validate().map_err(|error| error.to_string())?;
        Ok(workload)
    }

    fn gpu_request(&self) -> Result<GpuRequest, PartError> {
        match (self.gpus, self.gpu_memory, self.mig) {
            (None, None, None) => Ok(GpuRequest::None),
            (Some(gpus), None, None) => match gpus.0 {
                0 => Ok(GpuRequest::None),
                whole if whole % 1000 == 0 => {
                    Ok(GpuRequest::Whole(u32::try_from(whole / 1000).unwrap_or(u32::MAX)))
                }
                part => match u32::try_from(part).map(MilliGpu::new) {
                    Ok(Ok(share)) => Ok(GpuRequest::Fraction(share)),
                    _ => Err(format!(
                        "`gpus` is {}; use whole GPUs or a fraction of one",
                        part as f64 / 1000.0
                    )),
                },
            },
            (None, Some(memory), None) => Ok(GpuRequest::Memory(memory.0)),
            (None, None, Some(profile)) => Ok(GpuRequest::Mig { profile, count: 1 }),
            _ => Err("set only one of `gpus`, `gpu_memory` and `mig`".to_owned()),
        }
    }
}

impl DurationSpec {
    fn draw(&self, random: &mut Random) -> Result<Span, PartError> {
        match self {
            Self::Fixed(length) => Ok(length.0),
            Self::Range(range) => {
                let (least, most) = (range.from.0.0 as f64, range.to.0.0 as f64);
                if least > most {
                    return Err(format!(
                        "the duration's `from` of {} is above its `to` of {}; swap them",
                        range.from, range.to
                    ));
                }
                if least < 1.0 {
                    return Err("the duration's `from` is zero; use a value above zero".to_owned());
                }
                Ok(Span(random.log_uniform(least, most).round() as u64))
            }
        }
    }
}

fn checked_count(count: Option<u32>) -> Result<u32, PartError> {
    match count.unwrap_or(1) {
        count if count <= MAX => Ok(count),
        count => Err(format!("`count` is {count}; at most {MAX} are allowed")),
    }
}

/// A single one has the plain name; several are numbered.
fn numbered(name: &str, count: Option<u32>, index: impl Display) -> String {
    if count.is_some() { format!("{name}-{index}") } else { name.to_owned() }
}
