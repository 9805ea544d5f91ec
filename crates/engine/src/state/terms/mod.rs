//! Terms between tasks: affinity, anti-affinity, spread, and tokens of one node or one task.
//!
//! Terms depend on the nodes of other tasks, foreign ones included, and on placements of the same pass. They
//! are evaluated for every placement, from counts by node that follow each booking.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::labels::{Labels, Selector};
use crate::model::name::TokenName;
use crate::model::request::{AffinityKind, Request, TaskAffinity, TokenAccess, TopologySpread};
use crate::state::cluster::{Cluster, NodeIdx};

mod verdict;

pub(crate) use verdict::{TermVerdict, TermVerdicts};

/// Counts by node; absent nodes have zero.
type Counts = FxHashMap<NodeIdx, u32>;

/// Nodes of the tasks that terms refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// Matching tasks of each selector in use.
    selectors: BTreeMap<Selector, SelectorMatches>,
    /// Tasks that own each term, by node.
    owners: BTreeMap<TaskAffinity, Counts>,
    /// Holders of cluster-wide tokens, by node.
    tokens: FxHashMap<TokenName, Counts>,
    /// Label keys of all selectors, with their number of uses.
    keys: BTreeMap<Arc<str>, u32>,
    /// Keys that selectors began or ceased to use.
    changed_keys: Vec<Arc<str>>,
}

/// Tasks that match a selector.
#[derive(Clone, Debug, Default)]
struct SelectorMatches {
    terms: u32,
    tasks: Counts,
    /// The terminating part of `tasks`.
    terminating: Counts,
}

impl SelectorMatches {
    fn count(&mut self, node: NodeIdx, terminating: bool, sign: i32) {
        count(&mut self.tasks, node, sign);
        if terminating {
            count(&mut self.terminating, node, sign);
        }
    }
}

/// The properties of a task that terms refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskTerms<'a> {
    pub(crate) labels: &'a Labels,
    pub(crate) affinity: &'a [TaskAffinity],
    pub(crate) tokens: &'a BTreeMap<TokenName, TokenAccess>,
    pub(crate) terminating: bool,
}

impl<'a> TaskTerms<'a> {
    pub(crate) fn of(request: &'a Request, terminating: bool) -> Self {
        let Request { labels, affinity, tokens, .. } = request;
        Self { labels, affinity, tokens, terminating }
    }
}

impl Terms {
    /// No term of any task concerns this request.
    pub(crate) fn are_irrelevant_to(&self, request: &Request) -> bool {
        request.affinity.is_empty()
            && request.spread.is_empty()
            && !request
                .tokens
                .iter()
                .any(|(token, usage)| is_cluster_wide(*usage) && self.is_held(token))
            && (self.owners.is_empty()
                || !self.owners.keys().any(|term| term.selector.matches(&request.labels)))
    }

    /// A task holds this cluster-wide token.
    pub(crate) fn is_held(&self, token: &TokenName) -> bool {
        self.tokens.contains_key(token)
    }

    /// A selector in use matches these labels.
    pub(crate) fn is_selected(&self, labels: &Labels) -> bool {
        self.selectors.keys().any(|selector| selector.matches(labels))
    }

    /// The labels whose keys selectors use. Tasks with equal results are equal to all terms.
    pub(crate) fn selected_labels(&self, labels: &Labels) -> Option<Arc<Labels>> {
        if self.keys.is_empty() || labels.is_empty() {
            return None;
        }
        let asked = labels.iter().filter(|(key, _)| self.keys.contains_key(*key));
        let term_labels: Labels = asked.map(|(key, value)| (key.clone(), value.clone())).collect();
        (!term_labels.is_empty()).then(|| Arc::new(term_labels))
    }

    pub(crate) fn take_changed_keys(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.changed_keys)
    }

    /// Adds (`sign` 1) or removes (`sign` -1) a use of the selector's keys.
    fn count_selector_keys(&mut self, selector: &Selector, sign: i32) {
        for key in selector.keys() {
            let asked = self.keys.entry(key.clone()).or_default();
            let before = *asked;
            *asked = asked.wrapping_add_signed(sign);
            let vanished = *asked == 0;
            if vanished {
                self.keys.remove(key);
            }
            if vanished || before == 0 {
                self.changed_keys.push(key.clone());
            }
        }
    }

    /// Starts counting for the terms of a request; `existing` lists all current tasks.
    pub(crate) fn watch<'a>(
        &mut self,
        request: &Request,
        existing: impl Fn() -> Box<dyn Iterator<Item = (NodeIdx, &'a Labels, bool)> + 'a>,
    ) {
        for selector in selectors(request) {
            if let Some(matches) = self.selectors.get_mut(selector) {
                matches.terms += 1;
                continue;
            }
            let mut matches = SelectorMatches { terms: 1, ..SelectorMatches::default() };
            for (node, labels, terminating) in existing() {
                if selector.matches(labels) {
                    matches.count(node, terminating, 1);
                }
            }
            self.selectors.insert(selector.clone(), matches);
            self.count_selector_keys(selector, 1);
        }
    }

    pub(crate) fn unwatch(&mut self, request: &Request) {
        for selector in selectors(request) {
            if let Some(matches) = self.selectors.get_mut(selector) {
                matches.terms -= 1;
                if matches.terms == 0 {
                    self.selectors.remove(selector);
                    self.count_selector_keys(selector, -1);
                }
            }
        }
    }

    /// Adds (`sign` 1) or removes (`sign` -1) a task on a node.
    pub(crate) fn count_task(&mut self, node: NodeIdx, task: TaskTerms<'_>, sign: i32) {
        for (selector, matches) in &mut self.selectors {
            if selector.matches(task.labels) {
                matches.count(node, task.terminating, sign);
            }
        }
        for term in task.affinity {
            if !self.owners.contains_key(term) {
                self.owners.insert(term.clone(), Counts::default());
                self.count_selector_keys(&term.selector, 1);
            }
            let Some(owners) = self.owners.get_mut(term) else { continue };
            count(owners, node, sign);
            if owners.is_empty() {
                self.owners.remove(term);
                self.count_selector_keys(&term.selector, -1);
            }
        }
        for (token, usage) in task.tokens {
            if is_cluster_wide(*usage) {
                let holders = self.tokens.entry(token.clone()).or_default();
                count(holders, node, sign);
                if holders.is_empty() {
                    self.tokens.remove(token);
                }
            }
        }
    }

    pub(crate) fn mark_terminating(&mut self, node: NodeIdx, labels: &Labels) {
        for (selector, matches) in &mut self.selectors {
            if selector.matches(labels) {
                count(&mut matches.terminating, node, 1);
            }
        }
    }

    /// Verdict on each node for one more task of this request. `counts` decides which nodes count for a
    /// spread; `without` lists tasks to ignore, such as preemption victims.
    pub(crate) fn judge(
        &self,
        cluster: &mut Cluster,
        request: &Request,
        counts: impl Fn(NodeIdx, &TopologySpread) -> bool,
        without: &[(NodeIdx, &Request)],
    ) -> TermVerdicts {
        let mut judgement =
            TermVerdicts { verdicts: vec![TermVerdict::default(); cluster.node_states.len()] };
        for term in &request.affinity {
            let tasks = self.tasks(&term.selector, without);
            let first = is_first(cluster, request, term, &tasks);
            judgement.affinity(term, cluster.domains(&term.key), &tasks, first);
        }
        for spread in &request.spread {
            let tasks = self.tasks_not_terminating(&spread.selector, without);
            let outside = outside(cluster, request, spread);
            let counts = |node: NodeIdx| !outside[node as usize] && counts(node, spread);
            let domains = cluster.domains(&spread.key);
            judgement.spread(spread, domains, &tasks, &counts, &request.labels);
        }
        for (term, owners) in &self.owners {
            if term.selector.matches(&request.labels) {
                let owners = owners_left(term, owners, without);
                let domains = cluster.domains(&term.key);
                judgement.symmetric(term, domains, &owners);
            }
        }
        for (token, usage) in &request.tokens {
            if let Some(holders) = self.tokens.get(token).filter(|_| is_cluster_wide(*usage)) {
                judgement.token(*usage, &token_left(token, holders, without));
            }
        }
        judgement
    }

    fn tasks(&self, selector: &Selector, without: &[(NodeIdx, &Request)]) -> Counts {
        let mut counts =
            self.selectors.get(selector).map(|matches| matches.tasks.clone()).unwrap_or_default();
        for (node, request) in without {
            if selector.matches(&request.labels) {
                count(&mut counts, *node, -1);
            }
        }
        counts
    }

    fn tasks_not_terminating(
        &self,
        selector: &Selector,
        without: &[(NodeIdx, &Request)],
    ) -> Counts {
        let mut counts = self.tasks(selector, without);
        for (node, terminating) in
            self.selectors.get(selector).iter().flat_map(|matches| &matches.terminating)
        {
            for _ in 0..*terminating {
                count(&mut counts, *node, -1);
            }
        }
        counts
    }
}

/// The task matches its own affinity selector, and no domain of its terms has a matching task yet.
fn is_first(cluster: &mut Cluster, request: &Request, term: &TaskAffinity, tasks: &Counts) -> bool {
    let alike = |other: &&TaskAffinity| {
        other.kind == AffinityKind::Affinity
            && other.weight.is_none()
            && other.selector == term.selector
    };
    term.selector.matches(&request.labels)
        && request.affinity.iter().filter(alike).all(|other| {
            let domains = cluster.domains(&other.key);
            tasks.keys().all(|node| domains.of[*node as usize].is_none())
        })
}

/// By node index: the node lacks a label of the request's spread constraints of the same strictness.
fn outside(cluster: &mut Cluster, request: &Request, spread: &TopologySpread) -> Vec<bool> {
    let mut outside = vec![false; cluster.node_states.len()];
    for other in request.spread.iter().filter(|other| other.required == spread.required) {
        for (outside, domain) in outside.iter_mut().zip(&cluster.domains(&other.key).of) {
            *outside |= domain.is_none();
        }
    }
    outside
}

fn owners_left(term: &TaskAffinity, owners: &Counts, without: &[(NodeIdx, &Request)]) -> Counts {
    let mut owners = owners.clone();
    for (node, request) in without {
        for _ in request.affinity.iter().filter(|own| *own == term) {
            count(&mut owners, *node, -1);
        }
    }
    owners
}

fn token_left(token: &TokenName, holders: &Counts, without: &[(NodeIdx, &Request)]) -> Counts {
    let mut holders = holders.clone();
    for (node, request) in without {
        if request.tokens.contains_key(token) {
            count(&mut holders, *node, -1);
        }
    }
    holders
}

fn selectors(request: &Request) -> impl Iterator<Item = &Selector> {
    let affinity = request.affinity.iter().map(|term| &term.selector);
    affinity.chain(request.spread.iter().map(|term| &term.selector))
}

fn is_cluster_wide(usage: TokenAccess) -> bool {
    matches!(usage, TokenAccess::OneNode | TokenAccess::OneTask)
}

fn count(counts: &mut Counts, node: NodeIdx, sign: i32) {
    let entry = counts.entry(node).or_default();
    *entry = entry.saturating_add_signed(sign);
    if *entry == 0 {
        counts.remove(&node);
    }
}
