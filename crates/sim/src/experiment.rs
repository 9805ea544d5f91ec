//! The packing experiment of "Beware of Fragmentation" (Weng et al., USENIX ATC '23).
//!
//! Pods arrive one by one, each is tried once, and none leaves; a pod that does not fit is dropped. The
//! result is the allocated share of the cluster's GPUs after all arrivals.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_engine::{
    Decision, Demand, Event, Node, Placement, Plan, Policy, QueueOrder, Request, Scheduler,
    Strategy, Time, Workload,
};

use crate::curve::Curve;
use crate::formats::{TraceNode, TracePod};
use crate::meter::{Meter, percent};
use crate::random::Random;
use crate::{Outcome, Progress, SimError, Stats};

/// The experiment takes no virtual time.
const NOW: Time = Time(0);
/// Arrivals between two progress reports.
const REPORT: u64 = 64;

/// Order of arrivals.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// `UniqueNames` each, in file order.
    FileOrder,
    /// By name; repeats allowed.
    Named(Vec<String>),
    /// Shuffled, then drawn with replacement until the demand exceeds `inflate` times the capacity.
    Seeded {
        seed: u64,
        /// Multiple of the capacity.
        inflate: f64,
    },
}

/// A prepared packing experiment; can run several times with any strategy.
#[derive(Clone, Debug)]
pub struct Experiment {
    nodes: Vec<Node>,
    demand: Vec<Demand>,
    /// Pods in order of arrival, with unique names.
    arrivals: Vec<Workload>,
    /// GPU thousandths of each pod.
    milli: Vec<i64>,
}

impl Experiment {
    /// Prepares the experiment. `ranks` break ties between nodes; by default they are shuffled with the seed,
    /// or follow the file without a seed.
    pub fn new(
        nodes: &[TraceNode],
        pods: &[TracePod],
        arrivals: &Arrivals,
        ranks: Option<&BTreeMap<String, u32>>,
    ) -> Result<Self, SimError> {
        let (order, drawn_ranks) = draw(nodes, pods, arrivals)?;
        let ranks = match ranks {
            Some(ranks) => given_ranks(nodes, ranks)?,
            None => drawn_ranks,
        };
        let mut ranked: Vec<Node> = nodes.iter().map(TraceNode::node).collect();
        for (node, rank) in ranked.iter_mut().zip(ranks) {
            node.rank = rank;
        }
        // The engine numbers models in order of appearance. Registration by name makes the cut between
        // equally frequent shapes the published one.
        ranked.sort_by(|a, b| model(a).cmp(model(b)));
        Ok(Self {
            nodes: ranked,
            demand: demand(pods),
            arrivals: with_unique_names(pods, &order),
            milli: order.iter().map(|pod| pods[*pod].total_milli()).collect(),
        })
    }

    pub fn arrivals(&self) -> usize {
        self.arrivals.len()
    }

    /// Runs the experiment; calls `progress` at intervals.
    pub fn run(
        &self,
        strategy: Strategy,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, SimError> {
        let total = self.arrivals.len() as u64;
        let mut run = Run::new(self, strategy)?;
        for (done, workload) in (0..).zip(&self.arrivals) {
            if done % REPORT == 0 {
                progress(Progress { done, total });
            }
            run.arrive(workload, self.milli[done as usize])?;
        }
        progress(Progress { done: total, total });
        Ok(run.outcome(strategy))
    }
}

struct Run {
    scheduler: Scheduler,
    meter: Meter,
    curve: Curve,
    deciding: Duration,
    arrived_milli: i64,
    arrived: u64,
    dropped: u64,
}

impl Run {
    fn new(experiment: &Experiment, strategy: Strategy) -> Result<Self, SimError> {
        let policy = Policy {
            strategy,
            order: Some(QueueOrder::Fifo),
            // Pods never leave, so the final packing counts.
            work_stays: true,
            backfill: false,
            preemption: false,
            ..Policy::default()
        };
        let mut scheduler = Scheduler::new(policy);
        for node in &experiment.nodes {
            let rejected = |source| SimError::Node { node: node.id.to_string(), source };
            scheduler.apply(NOW, Event::NodeUpdated(Box::new(node.clone()))).map_err(rejected)?;
        }
        scheduler
            .apply(NOW, Event::DemandUpdated(Some(experiment.demand.clone())))
            .map_err(SimError::Engine)?;
        // Preparation before the first decision is not measured.
        scheduler.decide(NOW);
        let demand = experiment.arrivals.iter().map(|workload| (&*workload.request, 1));
        Ok(Self {
            scheduler,
            meter: Meter::new(&experiment.nodes, demand),
            curve: Curve::default(),
            deciding: Duration::ZERO,
            arrived_milli: 0,
            arrived: 0,
            dropped: 0,
        })
    }

    fn arrive(&mut self, workload: &Workload, milli: i64) -> Result<(), SimError> {
        let rejected = |source| SimError::Workload { workload: workload.id.to_string(), source };
        let (submit, cancel) =
            (Event::Submitted(Box::new(workload.clone())), Event::Cancelled(workload.id.clone()));
        let start = Instant::now();
        self.scheduler.apply(NOW, submit).map_err(rejected)?;
        let plan = self.scheduler.decide(NOW);
        let placed = placement(&plan);
        if placed.is_none() {
            self.scheduler.apply(NOW, cancel).map_err(rejected)?;
        }
        self.deciding += start.elapsed();
        match placed {
            Some(placement) => self.meter.place(placement, &workload.request),
            None => self.dropped += 1,
        }
        self.arrived += 1;
        self.arrived_milli += milli;
        self.curve.note(self.arrived_percent(), &self.meter, self.running(), 0);
        Ok(())
    }

    fn arrived_percent(&self) -> f64 {
        percent(self.arrived_milli as f64, self.meter.capacity as f64)
    }

    fn running(&self) -> u32 {
        (self.arrived - self.dropped) as u32
    }

    fn outcome(self, strategy: Strategy) -> Outcome {
        let (at, running) = (self.arrived_percent(), self.running());
        Outcome {
            strategy: strategy.to_string(),
            order: "fifo".to_owned(),
            allocated_milli: self.meter.allocated,
            capacity_milli: self.meter.capacity,
            dropped: self.dropped,
            decisions: self.arrived,
            seconds: self.deciding.as_secs_f64(),
            jobs: self.arrived,
            finished: 0,
            preemptions: 0,
            allocation_percent: self.meter.allocated_percent(),
            fragmentation_percent: self.meter.fragmentation_percent(),
            wait_seconds: Stats::default(),
            completion_seconds: Stats::default(),
            makespan_seconds: 0.0,
            dropped_because: Vec::new(),
            cut_off: None,
            curve: self.curve.finish(at, &self.meter, running, 0),
        }
    }
}

/// The placement of the only pending pod.
fn placement(plan: &Plan) -> Option<&Placement> {
    plan.decisions.iter().find_map(|decision| match decision {
        Decision::Place(placement) => Some(placement),
        _ => None,
    })
}

/// Positions of the arriving pods, and ranks of the nodes.
///
/// A seeded order is the shuffled list followed by pods drawn with replacement. It ends before the first pod
/// that would exceed `inflate` times the capacity.
fn draw(
    nodes: &[TraceNode],
    pods: &[TracePod],
    arrivals: &Arrivals,
) -> Result<(Vec<usize>, Vec<u32>), SimError> {
    let mut ranks: Vec<u32> = (0..nodes.len() as u32).collect();
    let order = match arrivals {
        Arrivals::FileOrder => (0..pods.len()).collect(),
        Arrivals::Named(names) => positions(pods, names)?,
        Arrivals::Seeded { seed, inflate } => {
            let capacity: f64 = nodes.iter().map(|node| f64::from(node.gpus) * 1000.0).sum();
            check_inflate(*inflate, pods)?;
            let mut random = Random::new(*seed);
            let mut shuffled: Vec<usize> = (0..pods.len()).collect();
            random.shuffle(&mut shuffled);
            let order = fill(pods, shuffled, capacity * inflate, &mut random);
            random.shuffle(&mut ranks);
            order
        }
    };
    Ok((order, ranks))
}

fn fill(pods: &[TracePod], shuffled: Vec<usize>, limit: f64, random: &mut Random) -> Vec<usize> {
    let mut arrived = 0;
    let mut order = Vec::with_capacity(shuffled.len());
    let mut shuffled = shuffled.into_iter();
    loop {
        let pod = shuffled.next().unwrap_or_else(|| random.below(pods.len()));
        arrived += pods[pod].total_milli();
        if arrived as f64 > limit {
            return order;
        }
        order.push(pod);
    }
}

fn check_inflate(inflate: f64, pods: &[TracePod]) -> Result<(), SimError> {
    let wrong = |help| SimError::Parameter { name: "inflate", value: inflate.to_string(), help };
    if !(inflate > 0.0 && inflate <= 100.0) {
        return Err(wrong(
            "give a multiple of the cluster's GPUs above 0 and at most 100, such as 1.3",
        ));
    }
    if pods.iter().all(|pod| pod.total_milli() == 0) {
        return Err(wrong(
            "no pod of the list asks for a GPU, so no number of them fills the cluster",
        ));
    }
    Ok(())
}

fn positions(pods: &[TracePod], names: &[String]) -> Result<Vec<usize>, SimError> {
    let known: BTreeMap<&str, usize> =
        (0..).zip(pods).map(|(at, pod)| (pod.name.as_str(), at)).collect();
    let position = |name: &String| {
        let unknown =
            || SimError::UnknownName { what: "pod", name: name.clone(), list: "pod list" };
        known.get(name.as_str()).copied().ok_or_else(unknown)
    };
    names.iter().map(position).collect()
}

fn given_ranks(nodes: &[TraceNode], ranks: &BTreeMap<String, u32>) -> Result<Vec<u32>, SimError> {
    let rank = |node: &TraceNode| {
        let name = || node.name.clone();
        let unknown =
            || SimError::UnknownName { what: "node", name: name(), list: "list of ranks" };
        ranks.get(&node.name).copied().ok_or_else(unknown)
    };
    nodes.iter().map(rank).collect()
}

fn model(node: &Node) -> &str {
    node.gpus.first().map_or("", |gpu| gpu.model.as_str())
}

/// Distinct shapes of the pod list, largest first among equally frequent ones.
fn demand(pods: &[TracePod]) -> Vec<Demand> {
    let mut counts: BTreeMap<(u64, u32, u32, &str), (&TracePod, u64)> = BTreeMap::new();
    for pod in pods {
        let key = (pod.cpu.0, pod.milli, pod.gpus, pod.spec.as_str());
        counts.entry(key).or_insert((pod, 0)).1 += 1;
    }
    let demand = |(pod, count): (&TracePod, u64)| Demand {
        cpu: pod.cpu,
        gpu: pod.gpu_request(),
        models: pod.models(),
        count,
    };
    counts.into_values().rev().map(demand).collect()
}

/// Workloads in order of arrival. A repeated pod gets a name that no other pod has.
fn with_unique_names(pods: &[TracePod], order: &[usize]) -> Vec<Workload> {
    // Equal requests share one object, as for submissions from a template.
    let mut known: HashMap<Request, Arc<Request>> = HashMap::new();
    let share = |pod: &TracePod| {
        let request = pod.request();
        known.entry(request.clone()).or_insert_with(|| Arc::new(request)).clone()
    };
    let requests: Vec<Arc<Request>> = pods.iter().map(share).collect();
    let mut times = vec![0_u32; pods.len()];
    let mut taken: HashSet<String> = pods.iter().map(|pod| pod.name.clone()).collect();
    let arrival = |pod: &usize| {
        times[*pod] += 1;
        let mut name = pods[*pod].name.clone();
        if times[*pod] > 1 {
            name = format!("{}#{}", pods[*pod].name, times[*pod]);
            while !taken.insert(name.clone()) {
                times[*pod] += 1;
                name = format!("{}#{}", pods[*pod].name, times[*pod]);
            }
        }
        Workload::new(name, requests[*pod].clone())
    };
    order.iter().map(arrival).collect()
}
