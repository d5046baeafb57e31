// SPDX-License-Identifier: Apache-2.0
//! Random virtual machines.

use netvm_model::{
    Guest, Host, MAX_REPLICAS, NfStart, PortKind, Restart, VmAccel, VmBoot, VmCard, VmConfig, VmNotify,
    VmStart,
};
use netvm_wire::MacAddr;
use proptest::collection::btree_set;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{SUFFIX, TEXT};

/// A machine without what it is to netvm.
pub fn machine() -> impl Strategy<Value = VmConfig> {
    let path = || "/[a-z/.]{1,9}".prop_map(std::path::PathBuf::from);
    let boot = prop_oneof![
        path().prop_map(VmBoot::Image),
        (path(), option::of(path()), TEXT).prop_map(|(kernel, initrd, append)| VmBoot::Kernel {
            kernel,
            initrd,
            append
        }),
    ];
    let accel = select(vec![VmAccel::KvmOrTcg, VmAccel::Kvm, VmAccel::Tcg]);
    let start = (select(vec![VmStart::WithNetvmd, VmStart::OnCommand, VmStart::Manual]), 1u32..=3600);
    let restart = select(vec![Restart::OnFailure, Restart::Always, Restart::Never]);
    let size = (32u32..=1 << 20, 1u16..=255, btree_set(0u32..64, 0..4), option::of(0u32..4));
    (SUFFIX, size, accel, boot, "[a-z0-9/-]{1,9}", "[a-z0-9_.-]{1,32}", start, restart).prop_map(
        |(name, (memory, cpus, cores, node), accel, boot, qemu, user, (start, boot_timeout), restart)| {
            VmConfig {
                name,
                guest: Guest::Ordinary { cards: Vec::new() },
                memory,
                cpus,
                cores: cores.into_iter().collect(),
                node,
                accel,
                boot,
                qemu,
                user,
                start,
                restart,
                boot_timeout,
            }
        },
    )
}

/// Gives every port of a guest one, and some NFs.
pub fn fill(host: &mut Host, machines: Vec<VmConfig>) {
    let ports = host.ports.iter().filter(|port| matches!(port.kind, PortKind::VhostUser { .. }));
    let cards = ports.map(|port| {
        let mac = MacAddr([2, 0, 0, 0, 0, port.id.0 as u8]);
        Guest::Ordinary { cards: vec![VmCard { port: port.id, mac }] }
    });
    let nfs = host.nfs.iter().filter(|nf| matches!(nf.start, NfStart::External { .. }));
    let instances = nfs.flat_map(|nf| {
        let threads = nf.id.0 % 4 + 1;
        let guest = Guest::Nf {
            role: nf.id,
            threads,
            notify: if threads > 2 { VmNotify::Doorbell } else { VmNotify::Poll },
        };
        std::iter::repeat_n(guest, MAX_REPLICAS / usize::from(threads))
    });
    let guests: Vec<Guest> = cards.chain(instances).collect();
    host.vms = machines
        .into_iter()
        .zip(guests)
        .enumerate()
        .map(|(n, (vm, guest))| VmConfig { name: format!("v{n}{}", vm.name), guest, ..vm })
        .collect();
}
