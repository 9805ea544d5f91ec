//! Node rankings: candidate nodes of a placement and their scores.
//!
//! Disabled by default, because the scores of all nodes cost more than the decision. Rankings change no
//! decision.

use std::cmp::Reverse;

use crate::model::name::{NodeId, WorkloadId};
use crate::pass::find::Search;
use crate::state::cluster::NodeIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;
use crate::strategy::Strategy;

/// Candidate nodes of one placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRanking {
    pub workload: WorkloadId,
    pub task: u32,
    pub strategy: Strategy,
    pub fitting: usize,
    /// The chosen node first, then the best alternatives, with scores.
    pub nodes: Vec<(NodeId, i64)>,
}

/// Rankings not yet taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rankings {
    /// Nodes per ranking; 0 disables rankings.
    most: usize,
    pub(crate) recorded: Vec<NodeRanking>,
}

impl Scheduler {
    /// Records the best `most` nodes of every placement from now on; 0 disables recording.
    pub fn record_rankings(&mut self, most: usize) {
        self.rankings = Rankings { most, recorded: Vec::new() };
    }

    /// Rankings since the last call.
    pub fn take_rankings(&mut self) -> Vec<NodeRanking> {
        std::mem::take(&mut self.rankings.recorded)
    }

    /// Records the candidate nodes of a task before it is booked.
    pub(crate) fn record_ranking(
        &mut self,
        workload: WorkloadIdx,
        task: u32,
        search: &Search,
        chosen: NodeIdx,
    ) {
        if self.rankings.most == 0 {
            return;
        }
        let request = &search.request;
        let judgement = (!self.terms.are_irrelevant_to(request))
            .then(|| self.judge(request, search.shape, search.strategy, &[]));
        let mut standing = self.allowed(search, judgement.as_ref(), None);
        standing.sort_unstable_by_key(|(crowd, score, place)| {
            (self.cluster.order[*place] != chosen, Reverse((*crowd, *score)), *place)
        });
        let nodes = standing.iter().take(self.rankings.most).map(|(_, score, place)| {
            (self.cluster.node_state(self.cluster.order[*place]).spec.id.clone(), *score)
        });
        let ranking = NodeRanking {
            workload: self.workloads.get(workload).spec.id.clone(),
            task,
            strategy: search.strategy,
            fitting: standing.len(),
            nodes: nodes.collect(),
        };
        self.rankings.recorded.push(ranking);
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Decision, Event, Gpu, GpuRequest, MiB, Node, Request, Scheduler, Strategy, Time, Workload,
    };

    fn node(name: &str, memory: u32) -> Event {
        let mut node = Node::new(name);
        node.gpus.push(Gpu {
            id: "0".into(),
            model: "A100".into(),
            memory: MiB(memory.into()),
            nvlink: None,
            mig: crate::MigMode::default(),
        });
        Event::NodeUpdated(Box::new(node))
    }

    fn gang(tasks: u32) -> Event {
        let request = Request { gpu: GpuRequest::Whole(1), ..Request::default() };
        let mut workload = Workload::new(format!("gang-{tasks}"), request);
        workload.tasks = tasks;
        workload.strategy = Some(Strategy::BestFit);
        Event::Submitted(Box::new(workload))
    }

    #[test]
    fn a_ranking_begins_with_the_chosen_node_and_is_recorded_on_request() {
        let mut quiet = Scheduler::default();
        for (name, memory) in [("large", 80_000), ("small", 20_000), ("medium", 40_000)] {
            quiet.apply(Time(0), node(name, memory)).unwrap();
        }
        let mut asked = quiet.clone();
        asked.record_rankings(2);
        for scheduler in [&mut quiet, &mut asked] {
            scheduler.apply(Time(1), gang(4)).unwrap();
            scheduler.apply(Time(1), gang(1)).unwrap();
        }
        let plan = asked.decide(Time(1));
        assert_eq!(plan, quiet.decide(Time(1)));
        assert_eq!(quiet.take_rankings(), []);
        let placed = plan.decisions.iter().find_map(|decision| match decision {
            Decision::Place(placement) => Some(placement.node.clone()),
            _ => None,
        });
        let recorded = asked.take_rankings();
        let [ranking] = &recorded[..] else { panic!("{recorded:?}") };
        assert_eq!((ranking.workload.as_str(), ranking.fitting), ("gang-1", 3));
        assert_eq!(Some(&ranking.nodes[0].0), placed.as_ref());
        assert_eq!(ranking.nodes.len(), 2);
        assert!(ranking.nodes[0].1 >= ranking.nodes[1].1, "{ranking:?}");
        assert_eq!(asked.take_rankings(), []);
    }
}
