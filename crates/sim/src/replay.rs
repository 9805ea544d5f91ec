//! Replay in virtual time: sends arrivals and completions to the engine and executes its decisions at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_engine::{
    Decision, Event, Placement, Plan, Policy, QueueOrder, Rejected, Scheduler, Span, Strategy,
    Time, WaitReason, Workload, WorkloadId,
};

use crate::metrics::ReplayMetrics;
use crate::{CutOff, Dropped, Job, Load, Outcome, Progress, SimError};

#[derive(Clone, Debug)]
pub struct Options {
    pub strategy: Strategy,
    /// Overrides the order of the load's policy.
    pub order: Option<QueueOrder>,
    /// Check every invariant after every decision; slow.
    pub lint: bool,
    /// Preempted workloads resume instead of starting again.
    pub resume: bool,
    /// At every event, requeue all running workloads and schedule everything again in order; workloads keep
    /// their progress. With the order `least_service` this is the preemptive SRSF of the literature, with
    /// `shortest` its SRTF: ideals, because preemption is free.
    pub replan: bool,
    /// Cut off at this time. Pending workloads then count as dropped only if they never fit.
    pub until: Option<Time>,
}

impl Options {
    /// A replay to the end with default options.
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, order: None, lint: false, resume: false, replan: false, until: None }
    }
}

/// Replays a load; calls `progress` at intervals with the number of ended workloads.
///
/// Equal loads and options give equal outcomes, except for the real time in `seconds`.
pub fn replay(
    load: &Load,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, SimError> {
    let mut replay = Replay::new(load, options)?;
    let total = load.jobs.len() as u64;
    let mut steps = 0_u64;
    while let Some(at) = replay.next_time() {
        if steps.is_multiple_of(REPORT) {
            let done = replay.metrics.finished();
            progress(Progress { done, total });
        }
        steps += 1;
        replay.step(at)?;
    }
    progress(Progress { done: total, total });
    Ok(replay.outcome())
}

/// Steps between two progress reports.
const REPORT: u64 = 64;
/// Limit of passes at one moment; the engine settles in a few.
const MAX_ROUNDS: u32 = 1000;
/// Limit of wake-ups without running or arriving workloads.
const MAX_IDLE_WAKES: u32 = 100;

struct Replay<'a> {
    options: &'a Options,
    policy: Policy,
    scheduler: Scheduler,
    metrics: ReplayMetrics,
    runs: Vec<JobRun<'a>>,
    numbers: HashMap<WorkloadId, usize>,
    /// Jobs by arrival time, and the number of arrived ones.
    arrivals: Vec<usize>,
    arrived: usize,
    running: BTreeSet<usize>,
    /// Completions: time, job and number of its start.
    ends: BinaryHeap<Reverse<(Time, usize, u32)>>,
    wake: Option<Time>,
    idle_wakes: u32,
    deciding: Duration,
    decisions: u64,
    cut: bool,
}

/// A job and its progress.
struct JobRun<'a> {
    job: &'a Job,
    remaining: Span,
    since: Option<Time>,
    placed: u32,
    /// Number of starts; completions of earlier starts are stale.
    starts: u32,
    /// Last wait reason.
    why: Option<Arc<WaitReason>>,
}

impl<'a> Replay<'a> {
    fn new(load: &'a Load, options: &'a Options) -> Result<Self, SimError> {
        let policy = Policy {
            strategy: options.strategy,
            order: options.order.or(load.policy.order),
            ..load.policy.clone()
        };
        let mut arrivals: Vec<usize> = (0..load.jobs.len()).collect();
        arrivals.sort_by_key(|job| load.jobs[*job].at);
        Ok(Self {
            options,
            scheduler: scheduler(load, &policy)?,
            metrics: ReplayMetrics::new(load),
            runs: load.jobs.iter().map(JobRun::new).collect(),
            numbers: numbers(&load.jobs)?,
            arrivals,
            arrived: 0,
            running: BTreeSet::new(),
            ends: BinaryHeap::new(),
            wake: None,
            idle_wakes: 0,
            deciding: Duration::ZERO,
            decisions: 0,
            policy,
            cut: false,
        })
    }

    /// Time of the next event; `None` at the end.
    fn next_time(&mut self) -> Option<Time> {
        let arrival = self.next_arrival().map(|job| self.runs[job].job.at);
        let end = self.next_end().map(|(end, _)| end);
        let idle = arrival.is_none() && end.is_none();
        self.idle_wakes = if idle { self.idle_wakes + 1 } else { 0 };
        let wake = self.wake.filter(|_| self.idle_wakes <= MAX_IDLE_WAKES);
        let next = [arrival, end, wake].into_iter().flatten().min()?;
        self.cut = self.options.until.is_some_and(|until| next > until);
        if self.cut { None } else { Some(next) }
    }

    /// Processes one moment: completions before arrivals, so that arrivals find the room.
    fn step(&mut self, at: Time) -> Result<(), SimError> {
        self.metrics.advance(at);
        while let Some(job) = self.next_end().filter(|(end, _)| *end <= at).map(|(_, job)| job) {
            self.finish(at, job)?;
        }
        let taken_back =
            if self.options.replan { self.requeue_running(at)? } else { BTreeSet::new() };
        while let Some(job) = self.next_arrival().filter(|job| self.runs[*job].job.at <= at) {
            self.arrived += 1;
            self.submit(at, self.runs[job].job.workload.clone())?;
            self.metrics.arrived();
        }
        self.settle(at)?;
        self.metrics.preempted(taken_back.difference(&self.running).count() as u64);
        Ok(())
    }

    fn next_arrival(&self) -> Option<usize> {
        self.arrivals.get(self.arrived).copied()
    }

    /// The next completion of a running job.
    fn next_end(&mut self) -> Option<(Time, usize)> {
        while let Some(Reverse((end, job, start))) = self.ends.peek().copied() {
            if self.runs[job].since.is_some() && self.runs[job].starts == start {
                return Some((end, job));
            }
            self.ends.pop();
        }
        None
    }

    /// Requeues all running workloads with their remaining run time.
    fn requeue_running(&mut self, at: Time) -> Result<BTreeSet<usize>, SimError> {
        let running = self.running.clone();
        for job in &running {
            self.stop_run(at, *job, true);
            self.resubmit(at, *job)?;
        }
        Ok(running)
    }

    /// Runs passes until the engine has no further decision at this moment.
    fn settle(&mut self, at: Time) -> Result<(), SimError> {
        for _ in 0..MAX_ROUNDS {
            let start = Instant::now();
            let plan = self.scheduler.decide(at);
            self.deciding += start.elapsed();
            self.wake = plan.wake_at;
            self.check(at)?;
            let preempted = self.execute(at, &plan)?;
            if !preempted && plan.wake_at.is_none_or(|wake| wake > at) {
                break;
            }
        }
        self.wake = self.wake.map(|wake| wake.max(at.after(Span(1))));
        self.metrics.sample();
        Ok(())
    }

    /// Executes a plan; returns true if it preempted a workload, which frees room at once.
    fn execute(&mut self, at: Time, plan: &Plan) -> Result<bool, SimError> {
        let mut preempted = false;
        for decision in &plan.decisions {
            // A wait reason is not a decision.
            self.decisions += u64::from(!matches!(decision, Decision::Wait { .. }));
            match decision {
                Decision::Place(placement) => self.place(at, placement)?,
                Decision::Preempt { victims, .. } => {
                    preempted = true;
                    for victim in victims {
                        self.stop(at, &victim.workload)?;
                    }
                }
                Decision::Wait { workload, reason } => {
                    if let Some(job) = self.numbers.get(workload) {
                        self.runs[*job].why = Some(Arc::clone(reason));
                    }
                }
                // Simulated nodes and tasks do not fail.
                Decision::Displace { .. } | Decision::AwaitReplacement { .. } => {}
            }
        }
        Ok(preempted)
    }

    fn place(&mut self, at: Time, placement: &Placement) -> Result<(), SimError> {
        let Some(job) = self.numbers.get(&placement.workload).copied() else { return Ok(()) };
        let (workload, task) = (placement.workload.clone(), placement.task);
        self.apply(at, Event::PlacementConfirmed { workload, task }).map_err(SimError::Engine)?;
        let run = &mut self.runs[job];
        self.metrics.place(placement, &run.job.workload.request);
        run.placed += 1;
        run.why = None;
        if run.placed == run.job.workload.tasks {
            run.since = Some(at);
            run.starts += 1;
            self.running.insert(job);
            self.ends.push(Reverse((at.after(run.remaining), job, run.starts)));
            self.metrics.started(run.job.at, run.starts == 1);
        }
        Ok(())
    }

    /// Preempts a workload; its progress is lost or kept.
    fn stop(&mut self, at: Time, victim: &WorkloadId) -> Result<(), SimError> {
        let Some(job) = self.numbers.get(victim).copied() else { return Ok(()) };
        let resume = self.options.resume;
        self.stop_run(at, job, resume);
        self.metrics.preempted(1);
        let workload = &self.runs[job].job.workload;
        for task in 0..workload.tasks {
            let gone = Event::TaskStopped { workload: victim.clone(), task };
            self.apply(at, gone).map_err(SimError::Engine)?;
        }
        if resume { self.resubmit(at, job) } else { Ok(()) }
    }

    /// Stops a run; its progress is lost or kept.
    fn stop_run(&mut self, at: Time, job: usize, keep: bool) {
        let run = &mut self.runs[job];
        let ran = run.since.take().map_or(Span(0), |since| at.since(since));
        if keep {
            run.remaining = Span(run.remaining.0.saturating_sub(ran.0));
        }
        run.placed = 0;
        self.running.remove(&job);
        self.metrics.stopped(&run.job.workload.id);
    }

    /// Submits a workload again with its remaining run time, for orders by duration. It keeps its submission
    /// time.
    fn resubmit(&mut self, at: Time, job: usize) -> Result<(), SimError> {
        let run = &self.runs[job];
        let workload = run.job.workload.clone();
        let estimate = workload.estimate.map(|_| run.remaining);
        let again = Workload { estimate, submitted: Some(run.job.at), ..workload };
        self.apply(at, Event::Cancelled(again.id.clone())).map_err(SimError::Engine)?;
        self.submit(at, again)
    }

    fn finish(&mut self, at: Time, job: usize) -> Result<(), SimError> {
        let run = &mut self.runs[job];
        run.since = None;
        self.running.remove(&job);
        let id = run.job.workload.id.clone();
        self.metrics.finished_one(&id, run.job.at);
        self.apply(at, Event::Finished(id)).map_err(SimError::Engine)
    }

    fn submit(&mut self, at: Time, workload: Workload) -> Result<(), SimError> {
        let id = workload.id.clone();
        let rejected = |source| SimError::Workload { workload: id.to_string(), source };
        self.apply(at, Event::Submitted(Box::new(workload))).map_err(rejected)
    }

    fn apply(&mut self, at: Time, event: Event) -> Result<(), Rejected> {
        let start = Instant::now();
        let result = self.scheduler.apply(at, event);
        self.deciding += start.elapsed();
        result
    }

    fn check(&self, at: Time) -> Result<(), SimError> {
        let found = if self.options.lint { self.scheduler.lint() } else { Vec::new() };
        match found.into_iter().next() {
            None => Ok(()),
            Some(violation) => Err(SimError::Invariant {
                at_seconds: at.0 as f64 / 1000.0,
                strategy: self.options.strategy.to_string(),
                violation,
            }),
        }
    }

    fn outcome(self) -> Outcome {
        let order = self.policy.order();
        let name =
            QueueOrder::ALL.iter().find(|(_, known)| *known == order).map_or("", |(name, _)| name);
        let never = |run: &JobRun<'_>| run.why.as_deref().is_some_and(can_never_start);
        let unplaced = |run: &&JobRun<'_>| run.starts == 0 && (!self.cut || never(run));
        let unplaced: Vec<&JobRun<'_>> = self.runs.iter().filter(unplaced).collect();
        let dropped = unplaced.len() as u64;
        let reasons = unplaced
            .iter()
            .filter_map(|run| Some((run.job.workload.id.as_str(), run.why.as_deref()?)));
        let (arrived, running) = (self.arrived as u64, self.running.len() as u64);
        let left = CutOff {
            running,
            waiting: arrived.saturating_sub(self.metrics.finished() + running + dropped),
            to_come: self.runs.len() as u64 - arrived,
        };
        Outcome {
            strategy: self.options.strategy.to_string(),
            order: name.to_owned(),
            dropped,
            dropped_because: Dropped::summary(reasons),
            cut_off: self.cut.then_some(left),
            decisions: self.decisions,
            seconds: self.deciding.as_secs_f64(),
            jobs: self.runs.len() as u64,
            ..self.metrics.outcome()
        }
    }
}

impl<'a> JobRun<'a> {
    fn new(job: &'a Job) -> Self {
        Self { job, remaining: job.duration, since: None, placed: 0, starts: 0, why: None }
    }
}

/// The cluster before the first submission.
fn scheduler(load: &Load, policy: &Policy) -> Result<Scheduler, SimError> {
    let start = Time(0);
    let mut scheduler = Scheduler::new(policy.clone());
    for queue in &load.queues {
        let rejected = |source| SimError::Queue { queue: queue.id.to_string(), source };
        scheduler.apply(start, Event::QueueUpdated(Box::new(queue.clone()))).map_err(rejected)?;
    }
    for node in &load.nodes {
        let rejected = |source| SimError::Node { node: node.id.to_string(), source };
        scheduler.apply(start, Event::NodeUpdated(Box::new(node.clone()))).map_err(rejected)?;
    }
    Ok(scheduler)
}

/// Jobs by name. The engine accepts a name again after its first owner ended; the accounting of a run does
/// not.
fn numbers(jobs: &[Job]) -> Result<HashMap<WorkloadId, usize>, SimError> {
    let mut numbers = HashMap::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        let id = job.workload.id.clone();
        if numbers.insert(id.clone(), number).is_some() {
            let workload = id.to_string();
            return Err(SimError::Workload { workload, source: Rejected::DuplicateWorkload(id) });
        }
    }
    Ok(numbers)
}

fn can_never_start(reason: &WaitReason) -> bool {
    match reason {
        WaitReason::NoNodes | WaitReason::NeverFits(_) => true,
        WaitReason::Gang { fits_when_empty, .. } => !fits_when_empty,
        WaitReason::Quota { limit, requested, .. } => requested > limit,
        WaitReason::NoRoom(_)
        | WaitReason::Reserved { .. }
        | WaitReason::Preempting { .. }
        | WaitReason::BackingOff { .. }
        | WaitReason::Gated(_) => false,
    }
}
