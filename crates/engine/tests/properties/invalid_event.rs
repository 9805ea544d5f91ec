//! Events that no driver should send.

use agentaflow_engine::{
    Ageing, Demand, Event, ForeignUse, GpuRequest, MiB, MilliCpu, Node, Policy, Priority, Queue,
    Request, Span, Time, Workload, WorkloadId,
};

pub fn invalid_event(kind: u8, pick: u8, known: WorkloadId) -> Event {
    let huge = Request { cpu: MilliCpu(u64::MAX), ..Request::default() };
    let vast = Request { cpu: MilliCpu(1 << 46), memory: MiB(1 << 46), ..Request::default() };
    let ages = Span(u64::MAX);
    let most = Demand {
        cpu: MilliCpu(u64::MAX),
        gpu: GpuRequest::Whole(u32::MAX),
        models: vec![],
        count: u64::MAX,
    };
    match kind % 16 {
        0 => Event::PlacementConfirmed { workload: known, task: 77 },
        1 => Event::Submitted(Box::new(Workload::new(known.as_str(), Request::default()))),
        2 => Event::Submitted(Box::new(Workload::new("huge", huge))),
        3 => Event::Submitted(Box::new(Workload {
            tasks: 0,
            ..Workload::new("none", Request::default())
        })),
        4 => Event::Submitted(Box::new(Workload {
            priority: if pick.is_multiple_of(2) { Priority::MIN } else { Priority::MAX },
            precedence: u8::MAX,
            ..Workload::new("vain", Request::default())
        })),
        5 => Event::Submitted(Box::new(Workload {
            tasks: 100_000,
            ..Workload::new(format!("vast{pick}"), vast)
        })),
        6 => {
            Event::QueueUpdated(Box::new(Queue { parent: "nobody".into(), ..Queue::new("orphan") }))
        }
        7 => Event::NodeUpdated(Box::new(Node::new(""))),
        8 => Event::DevicesReported {
            workload: known,
            task: 0,
            gpus: vec!["g0".into(), "g0".into(), "g9".into()],
        },
        9 => Event::QueueUpdated(Box::new(Queue { weight: 0, ..Queue::new("weightless") })),
        10 => Event::TaskStopped { workload: known, task: u32::MAX },
        11 => Event::DemandUpdated(Some(vec![most.clone(), most])),
        12 => Event::PolicyUpdated(Box::new(Policy {
            ageing: Ageing { points: if pick.is_multiple_of(2) { 1 } else { u32::MAX }, per: ages },
            half_life: ages,
            patience: ages,
            min_runtime: ages,
            hold: ages,
            backoff: ages,
            max_backoff: ages,
            ..Policy::default()
        })),
        13 => Event::Submitted(Box::new(Workload {
            estimate: Some(ages),
            min_runtime: Some(ages),
            grace: ages,
            submitted: Some(Time(u64::MAX)),
            ..Workload::new(format!("late{pick}"), Request::default())
        })),
        14 => Event::NodeUpdated(Box::new(Node {
            cpu: MilliCpu(1 << 46),
            memory: MiB(1 << 46),
            max_tasks: Some(u32::MAX),
            rank: u32::MAX,
            ..Node::new(format!("vast{pick}"))
        })),
        _ => Event::ForeignUseUpdated {
            node: "nowhere".into(),
            id: "f".into(),
            usage: Box::new(ForeignUse::default()),
        },
    }
}
