//! Executes the commands of a script.

use agentaflow_engine::{
    Event, GpuHealth, GpuId, NodeId, Percent, Scheduler, Snapshot, Time, WorkloadId,
};

use super::arguments::Arguments;
use super::{parse, render};

/// The scheduler of a script and its current time.
#[derive(Debug, Default)]
pub(crate) struct ScriptRun {
    scheduler: Scheduler,
    now: Time,
}

impl ScriptRun {
    /// Output of one command.
    pub(crate) fn run(&mut self, place: &str, line: &str) -> Vec<String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let arguments = Arguments::new(place, rest);
        let answer = self.answer(command, arguments);
        let broken = self.scheduler.lint();
        assert!(broken.is_empty(), "{place}: `{line}` breaks an invariant: {broken:?}");
        answer.unwrap_or_else(|refusal| vec![format!("rejected: {refusal}")])
    }

    fn answer(&mut self, command: &str, arguments: Arguments) -> Result<Vec<String>, String> {
        match command {
            "at" => {
                self.now = Time(arguments.span(arguments.plain(0)).0);
                Ok(Vec::new())
            }
            "decide" => Ok(self.decide(&arguments)),
            "show" => Ok(self.show(&arguments)),
            "explain" => self.unchanged(&arguments.place, |run| {
                let id = WorkloadId::from(arguments.plain(0));
                let explained = run.scheduler.explain(run.now, &id);
                let missing = || vec![format!("workload `{id}` not found")];
                Ok(explained
                    .map_or_else(missing, |explained| render::explanation(&explained, run.now)))
            }),
            "what-if" => {
                let place = arguments.place.clone();
                let workload = parse::workload(arguments)?;
                self.unchanged(&place, |run| {
                    let answer = run.scheduler.what_if(run.now, workload.clone());
                    Ok(render::what_if(&parse::refusable(answer)?, run.now))
                })
            }
            "snapshot+restore" => {
                self.restart(&arguments);
                Ok(Vec::new())
            }
            _ => {
                for event in self.events(command, arguments)? {
                    parse::refusable(self.scheduler.apply(self.now, event))?;
                }
                Ok(Vec::new())
            }
        }
    }

    /// Repeated passes at the plan's wake time must settle.
    fn decide(&mut self, arguments: &Arguments) -> Vec<String> {
        let plan = self.scheduler.decide(self.now);
        let mut copy = self.scheduler.clone();
        let mut wake = plan.wake_at;
        for _ in 0..3 {
            if wake.is_some_and(|wake| wake <= self.now) {
                wake = copy.decide(self.now).wake_at;
            }
        }
        assert!(
            wake.is_none_or(|wake| wake > self.now),
            "{}: asks again and again",
            arguments.place
        );
        render::plan(&plan, self.now)
    }

    fn events(&self, command: &str, arguments: Arguments) -> Result<Vec<Event>, String> {
        let event = match command {
            "node" => Event::NodeUpdated(Box::new(parse::node(arguments)?)),
            "queue" => Event::QueueUpdated(Box::new(parse::queue(arguments))),
            "queue-removed" => Event::QueueRemoved(arguments.plain(0).into()),
            "policy" => Event::PolicyUpdated(Box::new(parse::policy(
                arguments,
                self.scheduler.policy().clone(),
            )?)),
            "strategy" => Event::StrategyUpdated(parse::refusable(arguments.plain(0).parse())?),
            "budget" => Event::BudgetUpdated {
                id: arguments.plain(0).into(),
                allowed: arguments.number(arguments.plain(1)) as u32,
            },
            "submit" => Event::Submitted(Box::new(parse::workload(arguments)?)),
            "adopt" => Event::Adopted(Box::new(parse::adopted(arguments)?)),
            "gate" => Event::GateChanged {
                workload: arguments.plain(0).into(),
                gate: Some(arguments.plain(1)).filter(|word| *word != "open").map(parse::gate),
            },
            "cancel" => Event::Cancelled(arguments.plain(0).into()),
            "requeue" => Event::Requeued(arguments.plain(0).into()),
            "finish" if arguments.maybe(1).is_none() => Event::Finished(arguments.plain(0).into()),
            "devices" => Event::DevicesReported {
                workload: arguments.plain(0).into(),
                task: arguments.number(arguments.plain(1)) as u32,
                gpus: arguments.plain(2).split(',').map(GpuId::from).collect(),
            },
            "finish" | "confirm" | "refuse" | "terminating" | "stopped" | "lost" | "replaced" => {
                return Ok(self.task_events(command, &arguments));
            }
            _ => return node_event(command, arguments),
        };
        Ok(vec![event])
    }

    /// Events of one task, or of all placed tasks.
    fn task_events(&self, command: &str, arguments: &Arguments) -> Vec<Event> {
        let workload = WorkloadId::from(arguments.plain(0));
        let placed = || {
            let view = self.scheduler.workload(&workload);
            let tasks: Vec<u32> =
                view.iter().flat_map(|view| &view.tasks).map(|task| task.task).collect();
            if tasks.is_empty() { vec![0] } else { tasks }
        };
        let tasks =
            arguments.maybe(1).map_or_else(placed, |task| vec![arguments.number(task) as u32]);
        let event = |task: u32| {
            let workload = workload.clone();
            match command {
                "finish" => Event::TaskFinished { workload, task },
                "confirm" => Event::PlacementConfirmed { workload, task },
                "refuse" => Event::PlacementRefused { workload, task },
                "terminating" => Event::TaskTerminating { workload, task },
                "lost" => Event::TaskLost { workload, task },
                "replaced" => Event::TaskReplaced { workload, task },
                _ => Event::TaskStopped { workload, task },
            }
        };
        tasks.into_iter().map(event).collect()
    }

    fn show(&self, arguments: &Arguments) -> Vec<String> {
        let scheduler = &self.scheduler;
        let lines: Vec<String> = match arguments.plain(0) {
            "nodes" => scheduler.nodes().iter().map(render::node).collect(),
            "workloads" => scheduler.workloads().iter().map(render::workload).collect(),
            "queues" => scheduler.queues().iter().map(render::queue).collect(),
            "starts" => render::expected_starts(scheduler.etas(self.now).into_iter()),
            other => arguments.mistake(&format!("`{other}` cannot be shown")),
        };
        if lines.is_empty() { vec!["none".to_owned()] } else { lines }
    }

    /// Replaces the scheduler by one restored from its snapshot.
    fn restart(&mut self, arguments: &Arguments) {
        let before = self.scheduler.snapshot();
        let text = serde_json::to_string(&before)
            .unwrap_or_else(|error| arguments.mistake(&error.to_string()));
        let read: Snapshot = serde_json::from_str(&text)
            .unwrap_or_else(|error| arguments.mistake(&error.to_string()));
        let restored =
            Scheduler::restore(read).unwrap_or_else(|error| arguments.mistake(&error.to_string()));
        assert_eq!(restored.snapshot(), before, "{}: a restart changed something", arguments.place);
        self.scheduler = restored;
    }

    /// A question must not change the state.
    fn unchanged(
        &self,
        place: &str,
        ask: impl Fn(&Self) -> Result<Vec<String>, String>,
    ) -> Result<Vec<String>, String> {
        let before = self.scheduler.snapshot();
        let answer = ask(self);
        assert_eq!(self.scheduler.snapshot(), before, "{place}: a question changed something");
        answer
    }
}

fn node_event(command: &str, arguments: Arguments) -> Result<Vec<Event>, String> {
    let node = NodeId::from(arguments.plain(0));
    let on = arguments.maybe(1) != Some("off");
    let event = match command {
        "lose" => Event::NodeLost(node),
        "remove" => Event::NodeRemoved(node),
        "cordon" => Event::Cordon { node, on },
        "drain" => Event::Drain { node, on },
        "spot" => Event::SpotReclaim { node, at: Time(arguments.span(arguments.plain(1)).0) },
        "gpu" => Event::GpuHealth {
            node,
            gpu: arguments.plain(1).into(),
            health: match arguments.plain(2) {
                "failed" => GpuHealth::Failed,
                "cordoned" => GpuHealth::Cordoned,
                "draining" => GpuHealth::Draining,
                "degraded" => GpuHealth::Degraded,
                _ => GpuHealth::Healthy,
            },
        },
        "busy" => return utilization(arguments),
        "foreign" => {
            let id = arguments.plain(1).into();
            Event::ForeignUseUpdated { node, id, usage: Box::new(parse::foreign(arguments)?) }
        }
        "foreign-pending" => {
            let id = arguments.plain(0).into();
            let demand = Box::new(parse::foreign_demand(arguments)?);
            Event::ForeignDemandUpdated { id, demand: Some(demand) }
        }
        "foreign-pending-removed" => {
            Event::ForeignDemandUpdated { id: arguments.plain(0).into(), demand: None }
        }
        "foreign-removed" => Event::ForeignUseRemoved { node, id: arguments.plain(1).into() },
        other => arguments.mistake(&format!("no command is called `{other}`")),
    };
    Ok(vec![event])
}

/// `busy a gpu.0=90 gpu.1=12.5`
fn utilization(mut arguments: Arguments) -> Result<Vec<Event>, String> {
    let mut readings = Vec::new();
    for (gpu, reading) in arguments.take_below("gpu") {
        let reading =
            reading.parse().unwrap_or_else(|_| arguments.mistake("a reading is a number"));
        readings.push((GpuId::from(gpu), parse::refusable(Percent::new(reading))?));
    }
    Ok(vec![Event::Utilization { node: arguments.plain(0).into(), readings }])
}
