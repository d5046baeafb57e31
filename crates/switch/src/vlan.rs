// SPDX-License-Identifier: Apache-2.0
//! VLAN modes of ports: which VLAN a received frame belongs to, and whether it is sent with a tag (IEEE 802.1Q-2018
//! clauses 6.9, 8.6.2 and 8.6.4).
//!
//! Only the outer tag counts; the rest of the frame is data, a second tag too. EtherTypes 0x8100 and 0x88a8 are
//! equivalent.

use netvm_wire::VlanId;
use thiserror::Error;

use crate::vlan_set::VlanSet;

/// The VLAN of VLAN-unaware ports.
pub const NO_VLAN: u16 = 0;

/// How a port treats VLANs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum VlanPort {
    /// The port ignores VLANs: all such ports share VLAN 0, and tags are data.
    #[default]
    Unaware,
    /// The port is in one VLAN and its frames are untagged. Tagged frames are refused, even of the same VLAN ("admit
    /// only untagged and priority-tagged frames").
    Access(VlanId),
    /// The port is in several VLANs and frames are tagged.
    Trunk {
        /// VLANs of the trunk, besides the native one.
        allowed: VlanSet,
        /// VLAN of untagged frames; `None`: the port refuses untagged frames.
        native: Option<VlanId>,
    },
}

/// Why a port refuses a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum VlanError {
    /// The tag has the reserved VLAN id 4095.
    #[error("its VLAN id, 4095, is reserved")]
    Reserved,
    /// An access port received a tagged frame.
    #[error("an access port received a tagged frame")]
    Tagged,
    /// A trunk without a native VLAN received an untagged frame.
    #[error("a trunk without a native VLAN received an untagged frame")]
    Untagged,
    /// The trunk does not carry the VLAN.
    #[error("the trunk does not carry the frame's VLAN")]
    NotAllowed,
}

/// How a port sends the frames of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tagging {
    /// As received.
    Unchanged,
    /// Without a tag.
    Untagged,
    /// With a tag of the VLAN.
    Tagged,
}

impl VlanPort {
    /// The VLAN of a received frame, from the VLAN id in its outer tag: `None` if untagged. 0 is a priority tag and
    /// counts as untagged.
    ///
    /// # Errors
    /// [`VlanError`] if the port does not admit the frame.
    #[inline]
    pub fn ingress(&self, tag: Option<u16>) -> Result<u16, VlanError> {
        match self {
            Self::Unaware => Ok(NO_VLAN),
            Self::Access(own) => match named(tag)? {
                None => Ok(own.get()),
                Some(_) => Err(VlanError::Tagged),
            },
            Self::Trunk { native, .. } => match named(tag)? {
                None => native.map(VlanId::get).ok_or(VlanError::Untagged),
                Some(vlan) if self.is_member(vlan) => Ok(vlan),
                Some(_) => Err(VlanError::NotAllowed),
            },
        }
    }

    /// How the port sends frames of a VLAN; `None` if it is not a member.
    #[inline]
    #[must_use]
    pub fn egress(&self, vlan: u16) -> Option<Tagging> {
        match self {
            Self::Unaware => (vlan == NO_VLAN).then_some(Tagging::Unchanged),
            Self::Access(own) => (own.get() == vlan).then_some(Tagging::Untagged),
            Self::Trunk { native, .. } if native.is_some_and(|native| native.get() == vlan) => {
                Some(Tagging::Untagged)
            }
            Self::Trunk { allowed, .. } => allowed.contains(vlan).then_some(Tagging::Tagged),
        }
    }

    /// Whether the port is a member of a VLAN.
    #[inline]
    #[must_use]
    pub fn is_member(&self, vlan: u16) -> bool {
        self.egress(vlan).is_some()
    }

    /// The VLANs that the port is a member of.
    pub(crate) fn vlans(&self) -> impl Iterator<Item = u16> + '_ {
        let (one, trunk) = match self {
            Self::Unaware => (Some(NO_VLAN), None),
            Self::Access(own) => (Some(own.get()), None),
            Self::Trunk { allowed, native } => (native.map(VlanId::get), Some(allowed)),
        };
        one.into_iter().chain(trunk.into_iter().flat_map(VlanSet::iter).map(VlanId::get))
    }
}

/// The VLAN that a tag names; a priority tag names none.
#[inline]
const fn named(tag: Option<u16>) -> Result<Option<u16>, VlanError> {
    match tag {
        None | Some(0) => Ok(None),
        Some(vlan @ 1..=VlanId::MAX) => Ok(Some(vlan)),
        Some(_) => Err(VlanError::Reserved),
    }
}

/// How the outer tag of a frame changes from ingress to egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TagChange {
    /// No change.
    Keep,
    /// Insert a tag.
    Push(VlanId),
    /// Remove the tag and its priority.
    Pop,
    /// Change the VLAN id; keep the priority.
    Set(VlanId),
}

impl TagChange {
    /// The change for a frame of `vlan` received with `tag` (as in [`VlanPort::ingress`]) and sent by `tagging`.
    #[inline]
    #[must_use]
    pub fn new(tag: Option<u16>, vlan: u16, tagging: Tagging) -> Self {
        match (tag, tagging, VlanId::new(vlan)) {
            (_, Tagging::Unchanged, _) | (None, Tagging::Untagged, _) | (_, Tagging::Tagged, Err(_)) => {
                Self::Keep
            }
            (Some(_), Tagging::Untagged, _) => Self::Pop,
            (None, Tagging::Tagged, Ok(vlan)) => Self::Push(vlan),
            (Some(tag), Tagging::Tagged, Ok(vlan)) if tag == vlan.get() => Self::Keep,
            (Some(_), Tagging::Tagged, Ok(vlan)) => Self::Set(vlan),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(vlan: u16) -> VlanId {
        VlanId::new(vlan).unwrap()
    }

    fn trunk(allowed: &[u16], native: Option<u16>) -> VlanPort {
        VlanPort::Trunk { allowed: allowed.iter().copied().map(id).collect(), native: native.map(id) }
    }

    #[test]
    fn an_unaware_port_treats_tags_as_data() {
        let port = VlanPort::default();
        for tag in [None, Some(0), Some(7), Some(4095)] {
            assert_eq!(port.ingress(tag), Ok(NO_VLAN));
            assert_eq!(TagChange::new(tag, NO_VLAN, Tagging::Unchanged), TagChange::Keep);
        }
        assert_eq!((port.egress(NO_VLAN), port.egress(7)), (Some(Tagging::Unchanged), None));
    }

    #[test]
    fn an_access_port_admits_untagged_frames_only() {
        let port = VlanPort::Access(id(7));
        assert_eq!((port.ingress(None), port.ingress(Some(0))), (Ok(7), Ok(7)));
        assert_eq!(port.ingress(Some(7)), Err(VlanError::Tagged));
        assert_eq!(port.ingress(Some(8)), Err(VlanError::Tagged));
        assert_eq!(port.ingress(Some(4095)), Err(VlanError::Reserved));
        assert_eq!((port.egress(7), port.egress(8), port.egress(0)), (Some(Tagging::Untagged), None, None));
    }

    #[test]
    fn a_trunk_tags_all_but_its_native_vlan() {
        let port = trunk(&[7, 8, 9, 4094], Some(5));
        assert_eq!((port.ingress(None), port.ingress(Some(0)), port.ingress(Some(5))), (Ok(5), Ok(5), Ok(5)));
        assert_eq!((port.ingress(Some(7)), port.ingress(Some(4094))), (Ok(7), Ok(4094)));
        assert_eq!(port.ingress(Some(10)), Err(VlanError::NotAllowed));
        assert_eq!(port.ingress(Some(4095)), Err(VlanError::Reserved));
        assert_eq!((port.egress(5), port.egress(8)), (Some(Tagging::Untagged), Some(Tagging::Tagged)));
        assert_eq!((port.egress(10), port.egress(0), port.egress(4095)), (None, None, None));
        assert_eq!(trunk(&[7], None).ingress(None), Err(VlanError::Untagged));
        assert_eq!(trunk(&[7], None).ingress(Some(0)), Err(VlanError::Untagged));
    }

    #[test]
    fn tags_change_only_where_needed() {
        use Tagging::{Tagged, Untagged};
        assert_eq!(TagChange::new(None, 7, Tagged), TagChange::Push(id(7)));
        assert_eq!(TagChange::new(None, 7, Untagged), TagChange::Keep);
        assert_eq!(TagChange::new(Some(7), 7, Tagged), TagChange::Keep);
        assert_eq!(TagChange::new(Some(0), 7, Tagged), TagChange::Set(id(7)));
        assert_eq!(TagChange::new(Some(7), 7, Untagged), TagChange::Pop);
        assert_eq!(TagChange::new(Some(0), 7, Untagged), TagChange::Pop);
    }

    fn ports() -> impl Strategy<Value = VlanPort> {
        let ids = (1..=4094u16).prop_map(id);
        prop_oneof![
            Just(VlanPort::Unaware),
            (1..8u16).prop_map(id).prop_map(VlanPort::Access),
            (prop::collection::vec((1..8u16).prop_map(id), 0..6), prop::option::of((1..8u16).prop_map(id)))
                .prop_map(|(allowed, native)| VlanPort::Trunk {
                    allowed: allowed.into_iter().collect(),
                    native
                }),
            ids.prop_map(VlanPort::Access),
        ]
    }

    /// The tag of a frame after the change.
    fn changed(tag: Option<u16>, change: TagChange) -> Option<u16> {
        match change {
            TagChange::Keep => tag,
            TagChange::Pop => None,
            TagChange::Push(vlan) | TagChange::Set(vlan) => Some(vlan.get()),
        }
    }

    proptest! {
        /// A frame sent from one port into another of the same kind keeps its VLAN.
        #[test]
        fn frames_keep_their_vlan(from in ports(), to in ports(), tag in prop::option::of(0..10u16)) {
            if let Ok(vlan) = from.ingress(tag) {
                prop_assert!(from.is_member(vlan), "a port is a member of every VLAN it admits");
                if let Some(tagging) = to.egress(vlan) {
                    let sent = changed(tag, TagChange::new(tag, vlan, tagging));
                    prop_assert_eq!(to.ingress(sent), Ok(vlan));
                    prop_assert!(matches!(to, VlanPort::Unaware) || sent != Some(0), "a priority tag is not sent on");
                }
            }
        }
    }
}
