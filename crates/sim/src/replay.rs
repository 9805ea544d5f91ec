//! Replay in virtual time: arrivals and ends go to the engine, its decisions come true at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_engine::{
    Decision, Event, Placement, Plan, Policy, QueueOrder, Rejected, Scheduler, Span, Strategy,
    Time, WaitReason, Workload, WorkloadId,
};

use crate::tally::Tally;
use crate::{CutOff, Dropped, Job, Load, Outcome, Progress, SimError};

/// How to replay a load.
#[derive(Clone, Debug)]
pub struct Options {
    /// How GPUs are chosen.
    pub strategy: Strategy,
    /// Who is served first, if not as the load's policy says.
    pub order: Option<QueueOrder>,
    /// Check every invariant after every decision; slow.
    pub lint: bool,
    /// Preempted work goes on where it was stopped instead of starting again.
    pub resume: bool,
    /// At every event all running work is taken back and everything is planned anew in order; work
    /// goes on where it was. With the order `least_service` this is the preemptive SRSF of the
    /// literature, with `shortest` its SRTF: ideals, because stopping costs nothing.
    pub replan: bool,
    /// Stop here. What waits then counts as dropped only if it could never have been placed.
    pub until: Option<Time>,
}

impl Options {
    /// A replay to the end with nothing special about it.
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, order: None, lint: false, resume: false, replan: false, until: None }
    }
}

/// Replays a load; `progress` hears now and then how many workloads have ended.
///
/// Equal loads and options give equal outcomes, but for the real time in `seconds`.
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
            let done = replay.tally.finished();
            progress(Progress { done, total });
        }
        steps += 1;
        replay.step(at)?;
    }
    progress(Progress { done: total, total });
    Ok(replay.outcome())
}

/// Steps between two reports of progress.
const REPORT: u64 = 64;
/// Decisions at one moment before time must move on: the engine settles in a few.
const MOST_ROUNDS: u32 = 1000;
/// Times that the engine may ask to be woken when nothing runs or comes any more.
const MOST_IDLE_WAKES: u32 = 100;

/// A replay on its way.
struct Replay<'a> {
    options: &'a Options,
    policy: Policy,
    scheduler: Scheduler,
    tally: Tally,
    runs: Vec<Run<'a>>,
    numbers: HashMap<WorkloadId, usize>,
    /// Jobs by time of arrival, and how many have arrived.
    arrivals: Vec<usize>,
    arrived: usize,
    running: BTreeSet<usize>,
    /// Ends of running work: when, which, and of which start.
    ends: BinaryHeap<Reverse<(Time, usize, u32)>>,
    wake: Option<Time>,
    idle_wakes: u32,
    deciding: Duration,
    decisions: u64,
    cut: bool,
}

/// A job and how far it has come.
struct Run<'a> {
    job: &'a Job,
    remaining: Span,
    since: Option<Time>,
    placed: u32,
    /// Counts starts: the end of an earlier one means nothing.
    starts: u32,
    /// Why it waits, as said last.
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
            tally: Tally::new(load),
            runs: load.jobs.iter().map(Run::new).collect(),
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

    /// When something happens next; none at the end.
    fn next_time(&mut self) -> Option<Time> {
        let arrival = self.next_arrival().map(|job| self.runs[job].job.at);
        let end = self.next_end().map(|(end, _)| end);
        let idle = arrival.is_none() && end.is_none();
        self.idle_wakes = if idle { self.idle_wakes + 1 } else { 0 };
        let wake = self.wake.filter(|_| self.idle_wakes <= MOST_IDLE_WAKES);
        let next = [arrival, end, wake].into_iter().flatten().min()?;
        self.cut = self.options.until.is_some_and(|until| next > until);
        if self.cut { None } else { Some(next) }
    }

    /// Everything that happens at one moment: ends first, so that arrivals find the room.
    fn step(&mut self, at: Time) -> Result<(), SimError> {
        self.tally.advance(at);
        while let Some(job) = self.next_end().filter(|(end, _)| *end <= at).map(|(_, job)| job) {
            self.finish(at, job)?;
        }
        let taken_back = if self.options.replan { self.take_back(at)? } else { BTreeSet::new() };
        while let Some(job) = self.next_arrival().filter(|job| self.runs[*job].job.at <= at) {
            self.arrived += 1;
            self.submit(at, self.runs[job].job.workload.clone())?;
            self.tally.arrived();
        }
        self.settle(at)?;
        self.tally.preempted(taken_back.difference(&self.running).count() as u64);
        Ok(())
    }

    fn next_arrival(&self) -> Option<usize> {
        self.arrivals.get(self.arrived).copied()
    }

    /// The next end of something that still runs.
    fn next_end(&mut self) -> Option<(Time, usize)> {
        while let Some(Reverse((end, job, start))) = self.ends.peek().copied() {
            if self.runs[job].since.is_some() && self.runs[job].starts == start {
                return Some((end, job));
            }
            self.ends.pop();
        }
        None
    }

    /// Takes all running work back, to be planned again with what is left of it.
    fn take_back(&mut self, at: Time) -> Result<BTreeSet<usize>, SimError> {
        let running = self.running.clone();
        for job in &running {
            self.halt(at, *job, true);
            self.submit_again(at, *job)?;
        }
        Ok(running)
    }

    /// Asks the engine until it has nothing more to say about this moment.
    fn settle(&mut self, at: Time) -> Result<(), SimError> {
        for _ in 0..MOST_ROUNDS {
            let start = Instant::now();
            let plan = self.scheduler.decide(at);
            self.deciding += start.elapsed();
            self.wake = plan.wake_at;
            self.check(at)?;
            let preempted = self.carry_out(at, &plan)?;
            if !preempted && plan.wake_at.is_none_or(|wake| wake > at) {
                break;
            }
        }
        self.wake = self.wake.map(|wake| wake.max(at.after(Span(1))));
        self.tally.sample();
        Ok(())
    }

    /// Makes a plan come true; says whether somebody was stopped, which makes room at once.
    fn carry_out(&mut self, at: Time, plan: &Plan) -> Result<bool, SimError> {
        let mut preempted = false;
        for decision in &plan.decisions {
            // Saying why somebody waits is no decision: it changes nothing.
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
                // Nothing breaks in a simulation.
                Decision::Displace { .. } => {}
            }
        }
        Ok(preempted)
    }

    fn place(&mut self, at: Time, placement: &Placement) -> Result<(), SimError> {
        let Some(job) = self.numbers.get(&placement.workload).copied() else { return Ok(()) };
        let (workload, task) = (placement.workload.clone(), placement.task);
        self.tell(at, Event::PlacementConfirmed { workload, task }).map_err(SimError::Engine)?;
        let run = &mut self.runs[job];
        self.tally.place(placement, &run.job.workload.request);
        run.placed += 1;
        run.why = None;
        if run.placed == run.job.workload.tasks {
            run.since = Some(at);
            run.starts += 1;
            self.running.insert(job);
            self.ends.push(Reverse((at.after(run.remaining), job, run.starts)));
            self.tally.started(run.job.at, run.starts == 1);
        }
        Ok(())
    }

    /// Stops a workload for another; it waits again, and what it has done is lost or kept.
    fn stop(&mut self, at: Time, victim: &WorkloadId) -> Result<(), SimError> {
        let Some(job) = self.numbers.get(victim).copied() else { return Ok(()) };
        let resume = self.options.resume;
        self.halt(at, job, resume);
        self.tally.preempted(1);
        let workload = &self.runs[job].job.workload;
        for task in 0..workload.tasks {
            let gone = Event::TaskStopped { workload: victim.clone(), task };
            self.tell(at, gone).map_err(SimError::Engine)?;
        }
        if resume { self.submit_again(at, job) } else { Ok(()) }
    }

    /// A workload runs no more; what it has done is kept or lost.
    fn halt(&mut self, at: Time, job: usize, keep: bool) {
        let run = &mut self.runs[job];
        let ran = run.since.take().map_or(Span(0), |since| at.since(since));
        if keep {
            run.remaining = Span(run.remaining.0.saturating_sub(ran.0));
        }
        run.placed = 0;
        self.running.remove(&job);
        self.tally.stopped(&run.job.workload.id);
    }

    /// Hands a workload in again with what is left of it: that is what counts when the shortest go
    /// first. It keeps its age.
    fn submit_again(&mut self, at: Time, job: usize) -> Result<(), SimError> {
        let run = &self.runs[job];
        let workload = run.job.workload.clone();
        let estimate = workload.estimate.map(|_| run.remaining);
        let again = Workload { estimate, submitted: Some(run.job.at), ..workload };
        self.tell(at, Event::Cancelled(again.id.clone())).map_err(SimError::Engine)?;
        self.submit(at, again)
    }

    fn finish(&mut self, at: Time, job: usize) -> Result<(), SimError> {
        let run = &mut self.runs[job];
        run.since = None;
        self.running.remove(&job);
        let id = run.job.workload.id.clone();
        self.tally.finished_one(&id, run.job.at);
        self.tell(at, Event::Finished(id)).map_err(SimError::Engine)
    }

    fn submit(&mut self, at: Time, workload: Workload) -> Result<(), SimError> {
        let id = workload.id.clone();
        let rejected = |source| SimError::Workload { workload: id.to_string(), source };
        self.tell(at, Event::Submitted(Box::new(workload))).map_err(rejected)
    }

    fn tell(&mut self, at: Time, event: Event) -> Result<(), Rejected> {
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
        let never = |run: &Run<'_>| run.why.as_deref().is_some_and(can_never_start);
        let unplaced = |run: &&Run<'_>| run.starts == 0 && (!self.cut || never(run));
        let unplaced: Vec<&Run<'_>> = self.runs.iter().filter(unplaced).collect();
        let dropped = unplaced.len() as u64;
        let reasons = unplaced
            .iter()
            .filter_map(|run| Some((run.job.workload.id.as_str(), run.why.as_deref()?)));
        let (arrived, running) = (self.arrived as u64, self.running.len() as u64);
        let left = CutOff {
            running,
            waiting: arrived.saturating_sub(self.tally.finished() + running + dropped),
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
            ..self.tally.outcome()
        }
    }
}

impl<'a> Run<'a> {
    fn new(job: &'a Job) -> Self {
        Self { job, remaining: job.duration, since: None, placed: 0, starts: 0, why: None }
    }
}

/// The cluster before anything is handed in.
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

/// Jobs by name; the engine would take a name again once its first owner has left, the books of a
/// run would not.
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
        _ => false,
    }
}
