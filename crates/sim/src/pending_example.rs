//! Finds one pending workload of a load, to show an explanation of the engine.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_engine::{
    Decision, Eta, Event, Explanation, Policy, QueueOrder, Rejected, Scheduler, Strategy, Time,
    WaitReason, WorkloadId,
};

use crate::{Job, Load};

/// Newly pending workloads with their number of shortfalls.
type NewlyPending = Vec<(WorkloadId, usize)>;

/// Limits the search time.
const MAX_STEPS: usize = 5000;

/// A pending workload with its explanation.
#[derive(Debug)]
pub struct PendingExample<'a> {
    pub at: Time,
    pub job: &'a Job,
    pub explanation: Explanation,
}

/// The most instructive pending workload: most shortfalls, a known start, and an alternative
/// request. `None` if no workload lacks room.
pub fn pending_example(
    load: &Load,
    strategy: Strategy,
    order: Option<QueueOrder>,
) -> Option<PendingExample<'_>> {
    let mut replay = Replay::new(load, strategy, order).ok()?;
    let mut best: Option<(usize, PendingExample<'_>)> = None;
    for _ in 0..MAX_STEPS {
        let Ok(Some((at, newly_pending))) = replay.step() else { break };
        for (id, shortfalls) in newly_pending {
            let most = best.as_ref().map_or(0, |(most, _)| *most);
            // An explanation is expensive: skip workloads that cannot win.
            if shortfalls == 0 || 2 * shortfalls + EXTRAS <= most {
                continue;
            }
            let (Some(explanation), Some(job)) =
                (replay.scheduler.explain(at, &id), replay.jobs.get(&id))
            else {
                continue;
            };
            let merit = 2 * shortfalls + extras(&explanation);
            if merit > most {
                best = Some((merit, PendingExample { at, job, explanation }));
            }
        }
    }
    best.map(|(_, example)| example)
}

/// Maximum of [`extras`].
const EXTRAS: usize = 2;

fn extras(explanation: &Explanation) -> usize {
    usize::from(matches!(explanation.eta, Eta::At(_)))
        + usize::from(!explanation.alternatives.is_empty())
}

/// Number of different shortfalls of a workload that lacks room.
fn shortfalls(reason: &WaitReason) -> usize {
    match reason {
        WaitReason::NoRoom(tally) => tally.shortfalls.len(),
        _ => 0,
    }
}

/// A simplified replay: placed workloads start at once, end on time, and preempted ones stop at once.
struct Replay<'a> {
    scheduler: Scheduler,
    jobs: BTreeMap<WorkloadId, &'a Job>,
    arrivals: Vec<&'a Job>,
    ends: BTreeSet<(Time, WorkloadId)>,
}

impl<'a> Replay<'a> {
    fn new(
        load: &'a Load,
        strategy: Strategy,
        order: Option<QueueOrder>,
    ) -> Result<Self, Rejected> {
        let mut scheduler = Scheduler::default();
        let policy = Policy { strategy, order, ..load.policy.clone() };
        scheduler.apply(Time(0), Event::PolicyUpdated(Box::new(policy)))?;
        for queue in &load.queues {
            scheduler.apply(Time(0), Event::QueueUpdated(Box::new(queue.clone())))?;
        }
        for node in &load.nodes {
            scheduler.apply(Time(0), Event::NodeUpdated(Box::new(node.clone())))?;
        }
        let mut arrivals: Vec<_> = load.jobs.iter().collect();
        arrivals.sort_by_key(|job| std::cmp::Reverse(job.at));
        let jobs = load.jobs.iter().map(|job| (job.workload.id.clone(), job)).collect();
        Ok(Self { scheduler, jobs, arrivals, ends: BTreeSet::new() })
    }

    /// Processes the next event; returns its time and the newly pending workloads.
    fn step(&mut self) -> Result<Option<(Time, NewlyPending)>, Rejected> {
        let end = self.ends.first().map(|(at, _)| *at);
        let arrival = self.arrivals.last().map(|job| job.at);
        let Some(now) = end.into_iter().chain(arrival).min() else { return Ok(None) };
        while let Some((at, id)) = self.ends.first().cloned().filter(|(at, _)| *at <= now) {
            self.ends.remove(&(at, id.clone()));
            self.scheduler.apply(now, Event::Finished(id))?;
        }
        while let Some(job) = self.arrivals.pop_if(|job| job.at <= now) {
            self.scheduler.apply(now, Event::Submitted(Box::new(job.workload.clone())))?;
        }
        let mut newly_pending = Vec::new();
        for decision in self.scheduler.decide(now).decisions {
            newly_pending.extend(self.execute(now, decision)?);
        }
        Ok(Some((now, newly_pending)))
    }

    fn execute(
        &mut self,
        now: Time,
        decision: Decision,
    ) -> Result<Option<(WorkloadId, usize)>, Rejected> {
        match decision {
            Decision::Place(placed) => {
                let end =
                    self.jobs.get(&placed.workload).map_or(now, |job| now.after(job.duration));
                self.ends.insert((end, placed.workload.clone()));
                let confirmed =
                    Event::PlacementConfirmed { workload: placed.workload, task: placed.task };
                self.scheduler.apply(now, confirmed)?;
            }
            Decision::Preempt { victims, .. } => {
                for victim in victims {
                    self.stop(now, &victim.workload)?;
                }
            }
            Decision::Wait { workload, reason } => {
                return Ok(Some((workload, shortfalls(&reason))));
            }
            Decision::Displace { .. } | Decision::AwaitReplacement { .. } => {}
        }
        Ok(None)
    }

    fn stop(&mut self, now: Time, victim: &WorkloadId) -> Result<(), Rejected> {
        self.ends.retain(|(_, id)| id != victim);
        let tasks = self.jobs.get(victim).map_or(0, |job| job.workload.tasks);
        for task in 0..tasks {
            self.scheduler.apply(now, Event::TaskStopped { workload: victim.clone(), task })?;
        }
        Ok(())
    }
}
