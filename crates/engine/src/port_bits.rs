// SPDX-License-Identifier: Apache-2.0
//! Sets of ports, a bit for each. A port beyond [`MAX_PORTS`] is in none.

use netvm_region::MAX_PORTS;

use crate::ids::PortId;

/// A set of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortBits([u64; MAX_PORTS / 64]);

impl PortBits {
    #[inline(always)]
    pub(crate) fn has(&self, port: PortId) -> bool {
        self.0.get(port.index() / 64).is_some_and(|word| word >> (port.0 % 64) & 1 == 1)
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, port: PortId) {
        if let Some(word) = self.0.get_mut(port.index() / 64) {
            *word |= 1 << (port.0 % 64);
        }
    }

    /// Removes the port; returns whether it was in the set.
    pub(crate) fn take(&mut self, port: PortId) -> bool {
        let had = self.has(port);
        if let Some(word) = self.0.get_mut(port.index() / 64) {
            *word &= !(1 << (port.0 % 64));
        }
        had
    }

    /// Removes the ports that `of` has, too, and returns them.
    pub(crate) fn take_all_of(&mut self, of: &Self) -> impl Iterator<Item = PortId> {
        (0..).zip(self.0.iter_mut().zip(of.0)).flat_map(|(word, (own, of))| {
            let both = *own & of;
            *own &= !of;
            bits(both).map(move |bit| PortId(word * 64 + bit as u16))
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The numbers of the bits that are set.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    })
}
