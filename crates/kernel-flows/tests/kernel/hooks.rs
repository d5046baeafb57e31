// SPDX-License-Identifier: Apache-2.0
//! How programs are attached, beside programs of others.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_bpf::{Assembler, Attach, Link, Program, ProgramKind, Register, WordMap, function};
use netvm_kernel_flows::Hook;
use netvm_netlink::IngressFilter;

use crate::rig::{Rig, Seen, host, mac, now};
use crate::sockets::{packet_socket, receives};
use crate::{LONG, TCP, UDP, datagram};

/// `TCX_NEXT`, and `TC_ACT_UNSPEC`: the next program decides.
const NEXT: i32 = -1;

/// A program of somebody else that counts packets.
struct Other {
    seen: WordMap,
    _attached: Attached,
}

enum Attached {
    Tcx { _link: Link },
    Clsact { _filter: IngressFilter },
}

impl Other {
    fn attach(interface: u32, hook: Hook) -> Self {
        let seen = WordMap::new(8).unwrap();
        let mut program = Assembler::default();
        program.load_map_value(Register::R1, seen.as_fd(), 0).set(Register::R2, 1);
        program.atomic_add(Register::R1.at(0), Register::R2).set(Register::R0, NEXT).exit();
        let program = Program::load(ProgramKind::Tc, &program.finish().unwrap()).unwrap();
        let attached = match hook {
            Hook::Tcx => {
                Attached::Tcx { _link: Link::attach(&program, interface, Attach::TcxIngress).unwrap() }
            }
            Hook::Clsact => {
                Attached::Clsact { _filter: IngressFilter::add(interface, program.as_fd()).unwrap() }
            }
        };
        Self { seen, _attached: attached }
    }

    fn seen(&self) -> u64 {
        self.seen.double(0).unwrap().load(Ordering::Relaxed)
    }
}

#[test]
fn clsact_does_what_tcx_does_and_leaves_nothing() {
    let Some(mut rig) = Rig::new("cl", 64) else { return };
    let has_qdisc = |rig: &Rig| {
        ["va", "ta"].map(|name| rig.output(&format!("tc -n {{f}} qdisc show dev {name}")).contains("clsact"))
    };
    assert_eq!(has_qdisc(&rig), [false; 2]);
    rig.detach();
    rig.attach(Hook::Clsact);
    assert_eq!(has_qdisc(&rig), [true; 2]);
    rig.table.renew(now() + LONG);
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Slow);
    rig.table.insert(&rig.key(UDP, [1000, 2000]), rig.flow()).unwrap();
    assert_eq!(datagram(&rig, [1000, 2000], 100), Seen::Fast);
    rig.table.insert(&rig.key(TCP, [1000, 2000]), rig.flow()).unwrap();
    rig.table.insert(&rig.back(TCP, [2000, 1000]), rig.flow_back()).unwrap();
    let seen = rig.arrives(|| {
        rig.transfer([1000, 2000], 5_000_000);
    });
    assert_eq!(seen, Seen::Fast);
    rig.detach();
    assert_eq!(has_qdisc(&rig), [false; 2]);
}

#[test]
fn programs_of_others_stay_and_see_what_comes_before_ours() {
    let Some(mut rig) = Rig::new("ot", 64) else { return };
    rig.table.insert(&rig.key(UDP, [1000, 2000]), rig.flow()).unwrap();
    let sender = rig.inside(0, || std::net::UdpSocket::bind((host(0), 1001)).unwrap());
    for (others, ours) in [Hook::Tcx, Hook::Clsact]
        .into_iter()
        .flat_map(|one| [Hook::Tcx, Hook::Clsact].map(|ours| (one, ours)))
    {
        rig.detach();
        let other = rig.between(|[end, _]| Other::attach(end, others));
        rig.attach(ours);
        for (until, expected) in [(Duration::ZERO, Seen::Slow), (now() + LONG, Seen::Fast)] {
            rig.table.renew(until);
            let before = other.seen();
            assert_eq!(datagram(&rig, [1000, 2000], 100), expected, "{others:?} {ours:?}");
            // tcx comes before clsact, and its programs in the order in which they were attached.
            let is_first = (others, ours) != (Hook::Clsact, Hook::Tcx);
            assert_eq!(other.seen() > before, is_first, "{others:?} {ours:?} {expected:?}");
        }
        // Ours go, and the other one goes on.
        rig.detach();
        let before = other.seen();
        sender.send_to(b"to nobody", (host(1), 2000)).unwrap();
        assert!(other.seen() > before, "{others:?} {ours:?}");
    }
}

/// The trap: a program at egress that gives packets to the other end of a pair loses all of them.
#[test]
fn packets_reach_the_other_end_of_a_pair_from_ingress_only() {
    let Some(rig) = Rig::new("eg", 64) else { return };
    let receiver = rig.inside(1, || packet_socket("eth0"));
    let sender = rig.between(|_| packet_socket("vb"));
    let send = |payload: &[u8]| {
        let frame = [&mac(1).0[..], &mac(0).0, &[0x88, 0xb5], payload].concat();
        rustix::net::send(&sender, &frame, rustix::net::SendFlags::empty()).unwrap();
        frame
    };
    assert!(receives(&receiver, &send(&[1; 50])));
    let link = rig.between(|[_, end]| {
        let mut program = Assembler::default();
        program.set(Register::R1, end.cast_signed()).set(Register::R2, 0);
        program.call(function::REDIRECT_PEER).exit();
        let program = Program::load(ProgramKind::Tc, &program.finish().unwrap()).unwrap();
        Link::attach(&program, end, Attach::TcxEgress).unwrap()
    });
    let lost = send(&[2; 50]);
    drop(link);
    // A pair keeps the order: what comes next arrives, so the lost one would have come before it.
    let next = send(&[3; 50]);
    let mut bytes = [0; 2048];
    let arrived = std::iter::repeat_with(|| {
        let length = rustix::net::recv(&receiver, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap().0;
        bytes[..length].to_vec()
    });
    let before: Vec<_> = arrived.take_while(|frame| *frame != next).collect();
    assert!(!before.contains(&lost));
}
