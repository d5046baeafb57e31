// SPDX-License-Identifier: Apache-2.0
//! What a program with two ports keeps: its network namespace, and the rights that programs of networking need there.
//! The rights are root's, so only root has them; but in a namespace of its own there is nothing of the machine that it
//! could configure by them.

use std::io;
use std::os::fd::RawFd;

use super::raw;

/// Capabilities (capabilities(7)) that a program keeps: the network of its namespace, and what programs need that
/// change to another user: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, NET_BIND_SERVICE, NET_ADMIN, NET_RAW,
/// IPC_LOCK, SYS_NICE, BPF.
const KEPT: [u32; 12] = [0, 1, 3, 5, 6, 7, 10, 12, 13, 14, 23, 39];

/// The namespace that a program enters, and whether it has rights there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    /// The network namespace.
    pub(crate) namespace: RawFd,
    /// Whether it keeps capabilities.
    pub(crate) keeps: bool,
}

impl Rights {
    /// Enters the namespace.
    pub(super) fn enter(self) -> io::Result<()> {
        // SAFETY: the call takes integers only.
        raw(libc::c_long::from(unsafe { libc::setns(self.namespace, libc::CLONE_NEWNET) }))
    }

    /// Whether it keeps this capability.
    pub(super) fn keeps(self, capability: libc::c_ulong) -> bool {
        self.keeps && KEPT.iter().any(|kept| libc::c_ulong::from(*kept) == capability)
    }

    /// The capabilities that it keeps, as the two words of a set.
    pub(super) fn set(self) -> [u32; 2] {
        let mut set = [0; 2];
        for kept in KEPT.iter().filter(|_| self.keeps) {
            set[(*kept / 32) as usize] |= 1 << (kept % 32);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_keeps_its_network_and_not_the_machine() {
        let root = Rights { namespace: -1, keeps: true };
        for (capability, is_kept) in
            [(12, true), (13, true), (39, true), (21, false), (19, false), (16, false)]
        {
            assert_eq!(root.keeps(capability), is_kept, "{capability}");
            let word = root.set()[capability as usize / 32];
            assert_eq!(word >> (capability % 32) & 1 == 1, is_kept, "{capability}");
        }
        assert_eq!(Rights { keeps: false, ..root }.set(), [0, 0]);
    }
}
