//! Actions of rules besides forwarding: rate limits, VLAN tags, queues, mirroring, rejects.

use dpdk::Batch;

pub(crate) mod mirror;
pub(crate) mod police;
pub(crate) mod reject;
pub(crate) mod vlan;

use super::state::Datapath;
use super::state::burst::Origin;
use crate::policy::Extras;
use police::police;

/// Applies the actions of a decision besides forwarding: rate limits, then the tag, then mirroring, so that copies have the
/// new tag.
#[cold]
pub(crate) fn do_extras(dp: &mut Datapath, extras: &Extras, origin: Origin<'_>, batch: &mut Batch) {
    for meter in &extras.meters {
        police(dp, meter, origin.port, batch);
    }
    for change in &extras.set_vlan {
        vlan::set_vlan(dp, *change, origin.port, batch);
    }
    for mirror in &extras.mirrors {
        mirror::mirror(dp, *mirror, origin.cx.memory, batch);
    }
}
