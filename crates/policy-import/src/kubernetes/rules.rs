// SPDX-License-Identifier: Apache-2.0
//! Makes rules of policies. A packet from one pod to another must be allowed by the policies of both, and one rule
//! decides, so the rules for such packets are made of a rule of each:
//!
//! | rules, in this order | from | to |
//! |---|---|---|
//! | allow neighbour discovery, and packets of connections that were allowed | isolated pods, or all | all, or isolated pods |
//! | allow what a rule of egress and one of ingress allow | isolated for egress | isolated for ingress |
//! | drop | isolated for egress | isolated for ingress |
//! | allow what a rule of egress allows | isolated for egress | all |
//! | drop | isolated for egress | all |
//! | allow what a rule of ingress allows | all | isolated for ingress |
//! | drop | all | isolated for ingress |

use netvm_policy::{Action, Actions, Ends, Label, Match, Selection, Span};
use netvm_wire::{ConnState, IpProto};

use super::super::algebra::intersect;
use super::super::{ImportedRule, MAX_RULES, MAX_VALUES};
use super::KubernetesError;
use super::policy::{Allowed, Policy, any_ip, every_port};
use super::selector::both;

/// ICMPv6 types of neighbour discovery (RFC 4861): router solicitation to neighbour advertisement.
const NEIGHBOUR_DISCOVERY: Span<u8> = Span { first: 133, last: 136 };

/// One allowed thing, with the policy that allows it.
#[derive(Clone, Copy)]
struct Part<'a> {
    policy: &'a Policy,
    allowed: &'a Allowed,
}

/// Pods at both ends of a rule; `None`: it is for any port, of the switch or beyond.
struct Between {
    from: Option<Vec<Label>>,
    to: Option<Vec<Label>>,
}

/// The rules that are made, and how many values they have.
#[derive(Default)]
struct Rules {
    made: Vec<ImportedRule>,
    values: usize,
}

/// The rules.
///
/// # Errors
/// There are too many.
pub(super) fn of(policies: &[Policy]) -> Result<Vec<ImportedRule>, KubernetesError> {
    let (egress, senders) = parts(policies, |policy| policy.egress.as_deref());
    let (ingress, receivers) = parts(policies, |policy| policy.ingress.as_deref());
    let line = policies.iter().map(|policy| policy.line).min().unwrap_or(1);
    let mut rules = Rules::default();
    let isolated = [
        Between { from: Some(senders.clone()), to: None },
        Between { from: None, to: Some(receivers.clone()) },
        Between { from: Some(senders.clone()), to: Some(receivers.clone()) },
    ];
    let [sent, received, within] = &isolated;
    for between in [sent, received] {
        let (protocol, icmp_type) = (vec![IpProto::ICMPV6], vec![NEIGHBOUR_DISCOVERY]);
        let discovery = Match { protocol, icmp_type, ..Match::default() };
        let state = vec![ConnState::Established, ConnState::Related];
        let replies = Match { state, ..any_ip() };
        for (name, matches) in [("neighbours", discovery), ("replies", replies)] {
            rules.push(between, ImportedRule { line, ..allow(name, matches) })?;
        }
    }
    for (sender, receiver) in egress.iter().flat_map(|sender| ingress.iter().map(move |one| (sender, one))) {
        let Some(matches) = intersect(&sender.allowed.matches, &receiver.allowed.matches) else { continue };
        let narrow = |pods: &[Label], peers: &Option<Vec<Label>>| match peers {
            Some(peers) => both(pods, peers),
            None => pods.to_vec(),
        };
        let between = Between {
            from: Some(narrow(&sender.policy.pods, &receiver.allowed.peers)),
            to: Some(narrow(&receiver.policy.pods, &sender.allowed.peers)),
        };
        let name = format!("{}.{}", sender.policy.name, receiver.policy.name);
        rules.push(&between, ImportedRule { line: sender.allowed.line, ..allow(&name, matches) })?;
    }
    rules.push(within, ImportedRule { line, ..drop_all("both") })?;
    for Part { policy, allowed } in egress {
        let between = Between { from: Some(policy.pods.clone()), to: allowed.peers.clone() };
        rules.push(
            &between,
            ImportedRule { line: allowed.line, ..allow(&policy.name, allowed.matches.clone()) },
        )?;
    }
    rules.push(sent, ImportedRule { line, ..drop_all("egress") })?;
    for Part { policy, allowed } in ingress {
        let between = Between { from: allowed.peers.clone(), to: Some(policy.pods.clone()) };
        rules.push(
            &between,
            ImportedRule { line: allowed.line, ..allow(&policy.name, allowed.matches.clone()) },
        )?;
    }
    rules.push(received, ImportedRule { line, ..drop_all("ingress") })?;
    Ok(rules.made)
}

/// What policies allow in a direction, and the pods that they isolate in it.
fn parts<'a>(
    policies: &'a [Policy],
    direction: impl Fn(&'a Policy) -> Option<&'a [Allowed]>,
) -> (Vec<Part<'a>>, Vec<Label>) {
    let (mut parts, mut isolated) = (Vec::new(), Vec::new());
    for policy in policies {
        let Some(all) = direction(policy) else { continue };
        parts.extend(all.iter().map(|allowed| Part { policy, allowed }));
        for label in &policy.pods {
            if !isolated.contains(label) {
                isolated.push(label.clone());
            }
        }
    }
    (parts, isolated)
}

fn allow(name: &str, matches: Match) -> ImportedRule {
    let actions = Actions { terminal: Some(Action::Allow), ..Actions::default() };
    ImportedRule { name: name.to_owned(), matches, actions, ..ImportedRule::default() }
}

fn drop_all(name: &str) -> ImportedRule {
    let actions = Actions { terminal: Some(Action::Drop), ..Actions::default() };
    ImportedRule { name: format!("isolated.{name}"), matches: any_ip(), actions, ..ImportedRule::default() }
}

impl Rules {
    /// Adds a rule, unless there can be no pod at one of its ends.
    fn push(&mut self, between: &Between, rule: ImportedRule) -> Result<(), KubernetesError> {
        let Between { from, to } = between;
        if [from, to].into_iter().flatten().any(Vec::is_empty) {
            return Ok(());
        }
        let ends = |labels: Vec<Label>| Ends { ports: Vec::new(), labels };
        let from = ends(from.clone().unwrap_or_default());
        let to = ends(to.clone().unwrap_or_else(every_port));
        self.values +=
            from.labels.len() + to.labels.len() + rule.matches.source.len() + rule.matches.destination.len();
        if self.made.len() >= MAX_RULES || self.values > MAX_VALUES {
            return Err(KubernetesError::TooLarge { line: rule.line });
        }
        self.made.push(ImportedRule { selection: Some(Selection { from, to }), ..rule });
        Ok(())
    }
}
