//! Looks for one workload that waits, to show how the scheduler explains itself.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_engine::{
    Decision, Eta, Event, Explanation, Policy, QueueOrder, Rejected, Scheduler, Strategy, Time,
    WaitReason, WorkloadId,
};
use agentaflow_sim::{Job, Load};

/// Who began to wait, and for how many reasons.
type Waits = Vec<(WorkloadId, usize)>;

/// Looking further than this adds time and little to tell.
const MOST_STEPS: usize = 5000;

/// A workload that waits, and what the scheduler says about it.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    pub(super) at: Time,
    pub(super) job: &'a Job,
    pub(super) explanation: Explanation,
}

/// The wait with the most to say for itself: the most different obstacles, a known start and a
/// smaller request that would do. None when nobody waits for room.
pub(super) fn example(
    load: &Load,
    strategy: Strategy,
    order: Option<QueueOrder>,
) -> Option<Waiting<'_>> {
    let mut world = World::new(load, strategy, order).ok()?;
    let mut best: Option<(usize, Waiting<'_>)> = None;
    for _ in 0..MOST_STEPS {
        let Ok(Some((at, waits))) = world.step() else { break };
        for (id, obstacles) in waits {
            let most = best.as_ref().map_or(0, |(most, _)| *most);
            // An explanation looks into the future; only those are asked for that could win.
            if obstacles == 0 || 2 * obstacles + EXTRAS <= most {
                continue;
            }
            let (Some(explanation), Some(job)) =
                (world.scheduler.explain(at, &id), world.jobs.get(&id))
            else {
                continue;
            };
            let merit = 2 * obstacles + extras(&explanation);
            if merit > most {
                best = Some((merit, Waiting { at, job, explanation }));
            }
        }
    }
    best.map(|(_, waiting)| waiting)
}

/// The most that [`extras`] can be.
const EXTRAS: usize = 2;

fn extras(explanation: &Explanation) -> usize {
    usize::from(matches!(explanation.eta, Eta::At(_)))
        + usize::from(!explanation.alternatives.is_empty())
}

/// How many different things stand in the way of a workload that waits for room.
fn obstacles(reason: &WaitReason) -> usize {
    match reason {
        WaitReason::NoRoom(tally) => tally.shortfalls.len(),
        _ => 0,
    }
}

/// The load, played just far enough to see who waits: everything placed starts at once, ends when
/// it should, and whatever is stopped is gone at once.
struct World<'a> {
    scheduler: Scheduler,
    jobs: BTreeMap<WorkloadId, &'a Job>,
    arrivals: Vec<&'a Job>,
    ends: BTreeSet<(Time, WorkloadId)>,
}

impl<'a> World<'a> {
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

    /// Lets the next thing happen; says when it was, and who began to wait for how many reasons.
    fn step(&mut self) -> Result<Option<(Time, Waits)>, Rejected> {
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
        let mut waits = Vec::new();
        for decision in self.scheduler.decide(now).decisions {
            waits.extend(self.carry_out(now, decision)?);
        }
        Ok(Some((now, waits)))
    }

    fn carry_out(
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
            Decision::Wait { workload, reason } => return Ok(Some((workload, obstacles(&reason)))),
            Decision::Displace { .. } => {}
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
