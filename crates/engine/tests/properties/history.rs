//! Random histories of valid and invalid steps.

use agentaflow_engine::{
    ForeignDemand, ForeignUse, Node, Policy, Queue, Strategy as Choice, Workload,
};
use proptest::prelude::*;

use crate::cluster;
use crate::request;

/// One step. Numbers select among the current objects.
#[derive(Clone, Debug)]
pub enum Step {
    Decide,
    Pass(u32),
    Submit(Box<Workload>),
    Adopt(Box<Workload>, [u8; 3]),
    Confirm(u8),
    ConfirmAll,
    Refuse(u8),
    Finish(u8),
    FinishTask(u8),
    Cancel(u8),
    Requeue(u8),
    Terminate(u8),
    Gone(u8),
    LoseTask(u8),
    ReplaceTask(u8),
    AllGone,
    Devices(u8, u8),
    Gate(u8, Option<u8>),
    Node(Box<Node>),
    Relabel(u8, u8),
    Shrink(u8, u8),
    Lose(u8),
    Remove(u8),
    Return(u8),
    Cordon(u8, bool),
    Drain(u8, bool),
    Spot(u8),
    Health(u8, u8, u8),
    Busy(u8, u8, u8),
    Foreign(u8, u8, Box<ForeignUse>),
    ForeignGone(u8, u8),
    ForeignPending(u8, Option<Box<ForeignDemand>>),
    Queue(Box<Queue>),
    RemoveQueue(u8),
    Policy(Box<Policy>),
    Choice(Choice),
    Budget(u8, Option<u32>),
    Demand(u8),
    InvalidEvent(u8, u8),
    PastTime(u32),
    Restore,
    Look(u8),
}

/// A cluster, its queues and policy, and the steps.
#[derive(Clone, Debug)]
pub struct History {
    pub policy: Policy,
    pub nodes: Vec<Node>,
    pub queues: Vec<Queue>,
    pub steps: Vec<Step>,
}

/// Histories with this number of steps.
pub fn history(steps: std::ops::Range<usize>) -> impl Strategy<Value = History> {
    let queues = prop::collection::vec(cluster::queue(), 0..5);
    (cluster::policy(), cluster::nodes(5), queues, prop::collection::vec(step(), steps))
        .prop_map(|(policy, nodes, queues, steps)| History { policy, nodes, queues, steps })
}

fn step() -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    let usual = prop_oneof![
        10 => Just(Step::Decide),
        5 => (0..900_u32).prop_map(Step::Pass),
        12 => request::workload().prop_map(|workload| Step::Submit(Box::new(workload))),
        3 => (request::workload(), any::<[u8; 3]>())
            .prop_map(|(workload, picks)| Step::Adopt(Box::new(workload), picks)),
        4 => Just(Step::ConfirmAll),
        3 => n().prop_map(Step::Confirm),
        2 => n().prop_map(Step::Refuse),
        6 => n().prop_map(Step::Finish),
        2 => n().prop_map(Step::FinishTask),
        2 => n().prop_map(Step::Cancel),
        1 => n().prop_map(Step::Requeue),
        1 => n().prop_map(Step::Terminate),
        3 => n().prop_map(Step::Gone),
        4 => Just(Step::AllGone),
        2 => n().prop_map(Step::LoseTask),
        2 => n().prop_map(Step::ReplaceTask),
        2 => (n(), n()).prop_map(|(task, gpu)| Step::Devices(task, gpu)),
        2 => (n(), prop::option::of(0..3_u8)).prop_map(|(workload, gate)| Step::Gate(workload, gate)),
    ];
    let node = prop_oneof![
        1 => (4..8_u8).prop_flat_map(cluster::node).prop_map(|node| Step::Node(Box::new(node))),
        1 => (0..8_u8).prop_flat_map(cluster::node).prop_map(|node| Step::Node(Box::new(node))),
        1 => (n(), n()).prop_map(|(node, pick)| Step::Relabel(node, pick)),
        1 => (n(), n()).prop_map(|(node, pick)| Step::Shrink(node, pick)),
        1 => n().prop_map(Step::Lose),
        1 => n().prop_map(Step::Remove),
        1 => n().prop_map(Step::Return),
        1 => (n(), any::<bool>()).prop_map(|(node, on)| Step::Cordon(node, on)),
        1 => (n(), any::<bool>()).prop_map(|(node, on)| Step::Drain(node, on)),
        1 => n().prop_map(Step::Spot),
        2 => (n(), n(), 0..5_u8).prop_map(|(node, gpu, health)| Step::Health(node, gpu, health)),
        1 => (n(), n(), 0..101_u8).prop_map(|(node, gpu, busy)| Step::Busy(node, gpu, busy)),
        3 => (n(), 0..4_u8, cluster::foreign()).prop_map(|(node, id, uses)| Step::Foreign(node, id, Box::new(uses))),
        2 => (n(), 0..4_u8).prop_map(|(node, id)| Step::ForeignGone(node, id)),
        2 => (0..4_u8, prop::option::of(cluster::foreign_demand()))
            .prop_map(|(id, demand)| Step::ForeignPending(id, demand.map(Box::new))),
    ];
    let rule = prop_oneof![
        2 => cluster::queue().prop_map(|queue| Step::Queue(Box::new(queue))),
        1 => n().prop_map(Step::RemoveQueue),
        1 => cluster::policy().prop_map(|policy| Step::Policy(Box::new(policy))),
        1 => cluster::choice().prop_map(Step::Choice),
        2 => (0..2_u8, prop::option::weighted(0.8, 0..4_u32)).prop_map(|(id, allowed)| Step::Budget(id, allowed)),
        1 => n().prop_map(Step::Demand),
        2 => (n(), n()).prop_map(|(kind, pick)| Step::InvalidEvent(kind, pick)),
        1 => (0..900_u32).prop_map(Step::PastTime),
        1 => Just(Step::Restore),
        2 => n().prop_map(Step::Look),
    ];
    prop_oneof![14 => usual, 4 => node, 3 => rule]
}
