// SPDX-License-Identifier: Apache-2.0
//! Finds the actions for the packets of a burst. In: packets that one port has received, or is about to send. Out: the
//! action of each packet ([`Classified`]).
//!
//! | path | when | reads |
//! |---|---|---|
//! | [`L2FastPath`] | the port switches every packet | Ethernet headers |
//! | [`PrefilterPath`] | most packets match no rule, and no client watches flows | 48 bytes; all headers of packets that a rule may match |
//! | [`PerConnection`] | the port tracks connections | all headers |
//! | [`PerFlow`] | otherwise; the reference for the other two | all headers |

pub(crate) mod classifier;
pub(crate) mod flow_verdicts;
pub(crate) mod l2_fast_path;
pub(crate) mod l2_lookup;
pub(crate) mod per_connection;
pub(crate) mod per_flow;
pub(crate) mod prefilter;
pub(crate) mod prefilter_path;
pub(crate) mod scope;

use super::state::burst::Burst;
use classifier::{Classified, Classifier, Classify};
use l2_fast_path::L2FastPath;
use per_connection::PerConnection;
use per_flow::PerFlow;
use prefilter_path::PrefilterPath;
use scope::Scope;

/// Finds the action of every packet of a burst, by the cheapest path that its port allows.
#[inline]
pub(crate) fn classify(cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) -> Classified {
    let switching = scope.switching();
    if let (Some(decision), Some(switching)) = (scope.switched, switching) {
        return L2FastPath { decision, switching }.classify(cl, scope, burst);
    }
    if let Some(unmatched) = scope.shortcut
        && !scope.may_have_flow_verdicts()
        && !cl.flows.are_watched(cl.tick)
    {
        let switching = switching.filter(|_| unmatched.is_switched);
        return PrefilterPath { unmatched, switching }.classify(cl, scope, burst);
    }
    if let Some(tracking) = scope.tracking {
        return PerConnection { tracking }.classify(cl, scope, burst);
    }
    PerFlow.classify(cl, scope, burst)
}
