//! Executes the commands of a script.

use agentaflow_engine::{
    Event, GpuHealth, GpuId, NodeId, Percent, Scheduler, Snapshot, Time, WorkloadId,
};

use super::words::Words;
use super::{read, speak};

/// The scheduler of a script and its current time.
#[derive(Debug, Default)]
pub(crate) struct World {
    scheduler: Scheduler,
    now: Time,
}

impl World {
    /// Output of one command.
    pub(crate) fn run(&mut self, place: &str, line: &str) -> Vec<String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = Words::new(place, rest);
        let answer = self.answer(command, words);
        let broken = self.scheduler.lint();
        assert!(broken.is_empty(), "{place}: `{line}` breaks an invariant: {broken:?}");
        answer.unwrap_or_else(|refusal| vec![format!("refused: {refusal}")])
    }

    fn answer(&mut self, command: &str, words: Words) -> Result<Vec<String>, String> {
        match command {
            "at" => {
                self.now = Time(words.span(words.plain(0)).0);
                Ok(Vec::new())
            }
            "decide" => Ok(self.decide(&words)),
            "show" => Ok(self.show(&words)),
            "explain" => self.unchanged(&words.place, |world| {
                let id = WorkloadId::from(words.plain(0));
                let explained = world.scheduler.explain(world.now, &id);
                let missing = || vec![format!("no workload is called `{id}`")];
                Ok(explained.map_or_else(missing, |explained| speak::explanation(&explained)))
            }),
            "what-if" => {
                let place = words.place.clone();
                let workload = read::workload(words)?;
                self.unchanged(&place, |world| {
                    let answer = world.scheduler.what_if(world.now, workload.clone());
                    Ok(speak::what_if(&read::refusable(answer)?))
                })
            }
            "snapshot+restore" => {
                self.restart(&words);
                Ok(Vec::new())
            }
            _ => {
                for event in self.events(command, words)? {
                    read::refusable(self.scheduler.apply(self.now, event))?;
                }
                Ok(Vec::new())
            }
        }
    }

    /// Repeated passes at the plan's wake time must settle.
    fn decide(&mut self, words: &Words) -> Vec<String> {
        let plan = self.scheduler.decide(self.now);
        let mut copy = self.scheduler.clone();
        let mut wake = plan.wake_at;
        for _ in 0..3 {
            if wake.is_some_and(|wake| wake <= self.now) {
                wake = copy.decide(self.now).wake_at;
            }
        }
        assert!(wake.is_none_or(|wake| wake > self.now), "{}: asks again and again", words.place);
        speak::plan(&plan)
    }

    fn events(&self, command: &str, words: Words) -> Result<Vec<Event>, String> {
        let event = match command {
            "node" => Event::NodeUpdated(Box::new(read::node(words)?)),
            "queue" => Event::QueueUpdated(Box::new(read::queue(words))),
            "queue-removed" => Event::QueueRemoved(words.plain(0).into()),
            "policy" => Event::PolicyUpdated(Box::new(read::policy(
                words,
                self.scheduler.policy().clone(),
            )?)),
            "strategy" => Event::StrategyUpdated(read::refusable(words.plain(0).parse())?),
            "budget" => Event::BudgetUpdated {
                id: words.plain(0).into(),
                allowed: words.number(words.plain(1)) as u32,
            },
            "submit" => Event::Submitted(Box::new(read::workload(words)?)),
            "adopt" => Event::Adopted(Box::new(read::adopted(words)?)),
            "gate" => Event::GateChanged {
                workload: words.plain(0).into(),
                gate: Some(words.plain(1)).filter(|word| *word != "open").map(read::gate),
            },
            "cancel" => Event::Cancelled(words.plain(0).into()),
            "requeue" => Event::Requeued(words.plain(0).into()),
            "finish" if words.maybe(1).is_none() => Event::Finished(words.plain(0).into()),
            "devices" => Event::DevicesReported {
                workload: words.plain(0).into(),
                task: words.number(words.plain(1)) as u32,
                gpus: words.plain(2).split(',').map(GpuId::from).collect(),
            },
            "finish" | "confirm" | "refuse" | "terminating" | "gone" => {
                return Ok(self.task_events(command, &words));
            }
            _ => return node_event(command, words),
        };
        Ok(vec![event])
    }

    /// Events of one task, or of all placed tasks.
    fn task_events(&self, command: &str, words: &Words) -> Vec<Event> {
        let workload = WorkloadId::from(words.plain(0));
        let placed = || {
            let view = self.scheduler.workload(&workload);
            let tasks: Vec<u32> =
                view.iter().flat_map(|view| &view.tasks).map(|task| task.task).collect();
            if tasks.is_empty() { vec![0] } else { tasks }
        };
        let tasks = words.maybe(1).map_or_else(placed, |task| vec![words.number(task) as u32]);
        let event = |task: u32| {
            let workload = workload.clone();
            match command {
                "finish" => Event::TaskFinished { workload, task },
                "confirm" => Event::PlacementConfirmed { workload, task },
                "refuse" => Event::PlacementRefused { workload, task },
                "terminating" => Event::TaskTerminating { workload, task },
                _ => Event::TaskStopped { workload, task },
            }
        };
        tasks.into_iter().map(event).collect()
    }

    fn show(&self, words: &Words) -> Vec<String> {
        let scheduler = &self.scheduler;
        let lines: Vec<String> = match words.plain(0) {
            "nodes" => scheduler.nodes().iter().map(speak::node).collect(),
            "workloads" => scheduler.workloads().iter().map(speak::workload).collect(),
            "queues" => scheduler.queues().iter().map(speak::queue).collect(),
            "starts" => speak::started(scheduler.etas(self.now).into_iter()),
            other => words.mistake(&format!("`{other}` cannot be shown")),
        };
        if lines.is_empty() { vec!["none".to_owned()] } else { lines }
    }

    /// Replaces the scheduler by one restored from its snapshot.
    fn restart(&mut self, words: &Words) {
        let before = self.scheduler.snapshot();
        let text = serde_json::to_string(&before)
            .unwrap_or_else(|error| words.mistake(&error.to_string()));
        let read: Snapshot =
            serde_json::from_str(&text).unwrap_or_else(|error| words.mistake(&error.to_string()));
        let restored =
            Scheduler::restore(read).unwrap_or_else(|error| words.mistake(&error.to_string()));
        assert_eq!(restored.snapshot(), before, "{}: a restart changed something", words.place);
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

fn node_event(command: &str, words: Words) -> Result<Vec<Event>, String> {
    let node = NodeId::from(words.plain(0));
    let on = words.maybe(1) != Some("off");
    let event = match command {
        "lose" => Event::NodeLost(node),
        "remove" => Event::NodeRemoved(node),
        "cordon" => Event::Cordon { node, on },
        "drain" => Event::Drain { node, on },
        "spot" => Event::SpotReclaim { node, at: Time(words.span(words.plain(1)).0) },
        "gpu" => Event::GpuHealth {
            node,
            gpu: words.plain(1).into(),
            health: match words.plain(2) {
                "sick" => GpuHealth::Failed,
                "cordoned" => GpuHealth::Cordoned,
                "draining" => GpuHealth::Draining,
                "unfit" => GpuHealth::Degraded,
                _ => GpuHealth::Healthy,
            },
        },
        "busy" => return utilization(words),
        "foreign" => {
            let id = words.plain(1).into();
            Event::ForeignUseUpdated { node, id, usage: Box::new(read::foreign(words)?) }
        }
        "foreign-gone" => Event::ForeignUseRemoved { node, id: words.plain(1).into() },
        other => words.mistake(&format!("no command is called `{other}`")),
    };
    Ok(vec![event])
}

/// `busy a gpu.0=90 gpu.1=12.5`
fn utilization(mut words: Words) -> Result<Vec<Event>, String> {
    let mut readings = Vec::new();
    for (gpu, reading) in words.take_below("gpu") {
        let reading = reading.parse().unwrap_or_else(|_| words.mistake("a reading is a number"));
        readings.push((GpuId::from(gpu), read::refusable(Percent::new(reading))?));
    }
    Ok(vec![Event::Utilization { node: words.plain(0).into(), readings }])
}
