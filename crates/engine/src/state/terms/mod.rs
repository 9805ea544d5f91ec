//! Terms between tasks: near, away, spread, and tokens that belong to one node or one task.
//!
//! They depend on where other tasks are, foreign ones included, and on placements made in the same
//! pass; so they are answered anew for every placement, from counts by node that follow each booking.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::labels::{Labels, Selector};
use crate::model::name::TokenName;
use crate::model::request::{AffinityKind, Request, TaskAffinity, TokenAccess, TopologySpread};
use crate::state::cluster::{Cluster, NodeIdx};

mod verdict;

pub(crate) use verdict::{TermVerdict, TermVerdicts};

/// Counts by node; nodes without any are absent.
type Counts = FxHashMap<NodeIdx, u32>;

/// Where tasks are that somebody's terms ask about, and whose terms ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// For each selector in use: how many terms use it, and whom it means.
    selectors: BTreeMap<Selector, SelectorMatches>,
    /// For each term of a running task: by node, how many tasks have it.
    owners: BTreeMap<TaskAffinity, Counts>,
    /// Holders of tokens that the whole cluster must agree on.
    tokens: FxHashMap<TokenName, Counts>,
    /// Labels that any of these ask about, and how often.
    keys: BTreeMap<Arc<str>, u32>,
    /// Labels that somebody began or ceased to ask about.
    changed_keys: Vec<Arc<str>>,
}

/// Whom a selector means.
#[derive(Clone, Debug, Default)]
struct SelectorMatches {
    terms: u32,
    /// All such tasks.
    tasks: Counts,
    /// Those of them that are being stopped.
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

/// A task as terms see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskTerms<'a> {
    pub(crate) labels: &'a Labels,
    pub(crate) affinity: &'a [TaskAffinity],
    pub(crate) tokens: &'a BTreeMap<TokenName, TokenAccess>,
    /// It is being stopped.
    pub(crate) terminating: bool,
}

impl<'a> TaskTerms<'a> {
    pub(crate) fn of(request: &'a Request, terminating: bool) -> Self {
        let Request { labels, affinity, tokens, .. } = request;
        Self { labels, affinity, tokens, terminating }
    }
}

impl Terms {
    /// Whether nothing that this request asks for, or is, can matter to any other task.
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

    /// Whether somebody holds a token that the whole cluster must agree on.
    pub(crate) fn is_held(&self, token: &TokenName) -> bool {
        self.tokens.contains_key(token)
    }

    /// Whether the terms of anybody ask where tasks with these labels are.
    pub(crate) fn is_selected(&self, labels: &Labels) -> bool {
        self.selectors.keys().any(|selector| selector.matches(labels))
    }

    /// The part of a task's labels that anybody's terms ask about: two tasks for which it is the same
    /// are the same to all terms.
    pub(crate) fn selected_labels(&self, labels: &Labels) -> Option<Arc<Labels>> {
        if self.keys.is_empty() || labels.is_empty() {
            return None;
        }
        let asked = labels.iter().filter(|(key, _)| self.keys.contains_key(*key));
        let term_labels: Labels = asked.map(|(key, value)| (key.clone(), value.clone())).collect();
        (!term_labels.is_empty()).then(|| Arc::new(term_labels))
    }

    /// The labels that somebody began or ceased to ask about since this was last asked.
    pub(crate) fn take_changed_keys(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.changed_keys)
    }

    /// Somebody begins (`sign` 1) or ceases (`sign` -1) to ask about labels.
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

    /// Begins to count for the terms of a request; `existing` are all tasks there are.
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

    /// Stops counting for the terms of a request.
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

    /// A task came to (`sign` 1) or left (`sign` -1) a node.
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
                let hold_owners = self.tokens.entry(token.clone()).or_default();
                count(hold_owners, node, sign);
                if hold_owners.is_empty() {
                    self.tokens.remove(token);
                }
            }
        }
    }

    /// A task that was there begins to be stopped.
    pub(crate) fn mark_terminating(&mut self, node: NodeIdx, labels: &Labels) {
        for (selector, matches) in &mut self.selectors {
            if selector.matches(labels) {
                count(&mut matches.terminating, node, 1);
            }
        }
    }

    /// What the terms say about each node for one more task of this request. `counts` says whether a
    /// node counts for a spread, `without` are tasks to be thought away (victims of a preemption).
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
            if let Some(hold_owners) = self.tokens.get(token).filter(|_| is_cluster_wide(*usage)) {
                judgement.token(*usage, &token_left(token, hold_owners, without));
            }
        }
        judgement
    }

    /// The tasks that a selector means.
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

    /// The same without those that are being stopped.
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

/// Whether a task that wants to be near others may start anywhere, because it is itself one of those and
/// there are none yet where any of its terms looks for them.
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

/// By node number, whether a value of some key is missing that the task is to be spread over, by force
/// or by preference as this spread is.
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

fn token_left(token: &TokenName, hold_owners: &Counts, without: &[(NodeIdx, &Request)]) -> Counts {
    let mut hold_owners = hold_owners.clone();
    for (node, request) in without {
        if request.tokens.contains_key(token) {
            count(&mut hold_owners, *node, -1);
        }
    }
    hold_owners
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
