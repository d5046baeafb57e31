//! What is to be done with packets: the policy, asked through the flow cache or by a shorter way.

pub(crate) mod l2_fast_path;
pub(crate) mod lookup;
pub(crate) mod packet_set;
pub(crate) mod prefilter;
pub(crate) mod prefilter_path;
