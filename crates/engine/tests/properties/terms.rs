//! Terms between tasks, checked against the ledger.

use std::collections::BTreeMap;

use agentaflow_engine::labels::{Labels, first_untolerated, node_matches};
use agentaflow_engine::{
    AffinityKind, NodeId, TaskAffinity, TokenAccess, TokenName, TopologySpread, Workload,
};

use crate::ledger::Ledger;

/// Panics when the terms exclude one more task of this workload from the node.
pub fn check(ledger: &Ledger, workload: &Workload, node: &NodeId) {
    let tasks = tasks(ledger);
    for term in workload.request.affinity.iter().filter(|term| term.weight.is_none()) {
        check_affinity(ledger, workload, node, term, &tasks);
    }
    for spread in workload.request.spread.iter().filter(|spread| spread.required) {
        check_spread(ledger, workload, node, spread, &tasks);
    }
    for task in &tasks {
        for term in task
            .terms
            .iter()
            .filter(|term| term.weight.is_none() && term.kind == AffinityKind::AntiAffinity)
        {
            let meant = term.selector.matches(&workload.request.labels);
            let there = meant && near(ledger, task.node, node, &term.key);
            assert!(!there, "a task near {node} has anti-affinity to {}", workload.id);
        }
    }
    for (token, usage) in &workload.request.tokens {
        check_token(&tasks, node, token, *usage, workload);
    }
}

/// A task, foreign or not.
struct Task<'a> {
    node: &'a NodeId,
    labels: &'a Labels,
    terms: &'a [TaskAffinity],
    tokens: &'a BTreeMap<TokenName, TokenAccess>,
    going: bool,
}

fn tasks(ledger: &Ledger) -> Vec<Task<'_>> {
    let ours = ledger.allocations.iter().map(|((id, _), allocation)| {
        let request = &allocation.of.request;
        Task {
            node: &allocation.node,
            labels: &request.labels,
            terms: &request.affinity,
            tokens: &request.tokens,
            going: allocation.going || ledger.stopping.contains(id),
        }
    });
    let foreign = ledger.nodes.iter().flat_map(|(node, host)| {
        host.foreign.values().map(move |uses| Task {
            node,
            labels: &uses.labels,
            terms: &uses.anti_affinity,
            tokens: &uses.tokens,
            going: uses.terminating,
        })
    });
    ours.chain(foreign).collect()
}

fn near(ledger: &Ledger, one: &NodeId, other: &NodeId, key: &str) -> bool {
    let domain = ledger.domain(one, key);
    domain.is_some() && domain == ledger.domain(other, key)
}

fn check_affinity(
    ledger: &Ledger,
    workload: &Workload,
    node: &NodeId,
    term: &TaskAffinity,
    tasks: &[Task<'_>],
) {
    let meant = || tasks.iter().filter(|task| term.selector.matches(task.labels));
    let here = meant().any(|task| near(ledger, task.node, node, &term.key));
    match term.kind {
        AffinityKind::AntiAffinity => {
            assert!(!here, "{} is near what it wants to be away from", workload.id);
        }
        AffinityKind::Affinity => {
            let alike = |other: &&TaskAffinity| {
                other.kind == AffinityKind::Affinity
                    && other.weight.is_none()
                    && other.selector == term.selector
            };
            let anywhere =
                workload.request.affinity.iter().filter(alike).any(|other| {
                    meant().any(|task| ledger.domain(task.node, &other.key).is_some())
                });
            let first = term.selector.matches(&workload.request.labels) && !anywhere;
            let has_domain = ledger.domain(node, &term.key).is_some();
            assert!(
                here || (first && has_domain),
                "{} is not near what it wants to be near",
                workload.id
            );
        }
    }
}

fn check_spread(
    ledger: &Ledger,
    workload: &Workload,
    node: &NodeId,
    spread: &TopologySpread,
    tasks: &[Task<'_>],
) {
    let request = &workload.request;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (id, host) in &ledger.nodes {
        let named = request.node.as_ref().is_none_or(|wanted| wanted == id);
        let selected =
            named && node_matches(&request.required_nodes, id.as_str(), &host.spec.labels);
        let tolerated = first_untolerated(&host.spec.taints, &request.tolerations).is_none();
        let mut others = request.spread.iter().filter(|other| other.required == spread.required);
        let eligible = (selected || spread.ignore_node_affinity)
            && (tolerated || !spread.honor_taints)
            && others.all(|other| ledger.domain(id, &other.key).is_some());
        if let Some(domain) = ledger.domain(id, &spread.key).filter(|_| eligible) {
            let matching = |task: &&Task<'_>| {
                task.node == id && spread.selector.matches(task.labels) && !task.going
            };
            *counts.entry(domain).or_default() += tasks.iter().filter(matching).count() as u32;
        }
    }
    let enough = counts.len() as u32 >= spread.min_domains;
    let emptiest = if enough { counts.values().min().copied().unwrap_or(0) } else { 0 };
    let domain =
        ledger.domain(node, &spread.key).expect("a node outside all domains cannot be spread over");
    let here = counts.get(&domain).copied().unwrap_or(0)
        + u32::from(spread.selector.matches(&request.labels));
    assert!(here.saturating_sub(emptiest) <= spread.max_skew, "{} is spread unevenly", workload.id);
}

fn check_token(
    tasks: &[Task<'_>],
    node: &NodeId,
    token: &TokenName,
    usage: TokenAccess,
    workload: &Workload,
) {
    for task in tasks {
        let Some(other) = task.tokens.get(token) else { continue };
        let wide = matches!(other, TokenAccess::OneNode | TokenAccess::OneTask);
        let here = task.node == node;
        let clash = match usage {
            TokenAccess::Exclusive => here && !wide,
            TokenAccess::Shared => here && *other == TokenAccess::Exclusive,
            TokenAccess::OneNode => wide && !here,
            TokenAccess::OneTask => wide,
        };
        assert!(!clash, "{} takes a token that is held", workload.id);
    }
}
