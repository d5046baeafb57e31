//! Finds the actions for the packets of a burst. In: packets of one port. Out: the action of each packet ([`Classified`]).
//!
//! | way | when | reads |
//! |---|---|---|
//! | [`L2FastPath`] | the port switches every packet | Ethernet headers |
//! | [`PrefilterPath`] | most packets match no rule, and no client watches flows | 48 bytes; all headers of packets that a rule may match |
//! | [`PerFlow`] | otherwise; the reference for the other two | all headers |

pub(crate) mod classifier;
pub(crate) mod flow_verdicts;
pub(crate) mod l2_fast_path;
pub(crate) mod l2_lookup;
pub(crate) mod per_flow;
pub(crate) mod prefilter;
pub(crate) mod prefilter_path;

use super::state::burst::{Burst, Ingress};
use classifier::{Classified, Classifier, Classify};
use l2_fast_path::L2FastPath;
use per_flow::PerFlow;
use prefilter_path::PrefilterPath;

/// Finds the action of every packet of a burst, by the cheapest way that its port allows.
#[inline]
pub(crate) fn classify(cl: &mut Classifier<'_>, ingress: &Ingress<'_>, burst: &mut Burst) -> Classified {
    let (policy, switching) = (ingress.policy, &ingress.origin.cx.snapshot.policy.switching);
    if let (Some(decision), Some(switching)) = (policy.switched, switching) {
        return L2FastPath { decision, switching }.classify(cl, ingress, burst);
    }
    if let Some(shortcut) = &policy.shortcut
        && !ingress.may_have_flow_verdicts()
        && !cl.flows.are_watched(cl.tick)
    {
        let switching = switching.as_ref().filter(|_| shortcut.is_switched);
        return PrefilterPath { shortcut, switching }.classify(cl, ingress, burst);
    }
    PerFlow.classify(cl, ingress, burst)
}
