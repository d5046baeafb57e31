// SPDX-License-Identifier: Apache-2.0
//! What ends send, at random.

use netvm_wire::TcpFlags;
use proptest::prelude::*;

/// What one end sends.
#[derive(Clone, Debug)]
pub enum What {
    /// Sequence number, relative to what the model expects next; the same for the acknowledgment.
    Tcp {
        flags: TcpFlags,
        sequence: i64,
        acknowledgment: i64,
        window: u16,
        scale: Option<u8>,
        data: u16,
    },
    Udp,
    UdpFirst {
        identifier: u16,
    },
    UdpLater {
        identifier: u16,
    },
    Echo {
        is_reply: bool,
    },
    /// About what the other end has sent, or could have: TCP with this sequence number, relative; UDP; an echo.
    ErrorAboutTcp {
        sequence: i64,
    },
    ErrorAboutUdp,
    ErrorAboutEcho {
        is_reply: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Event {
    pub is_server: bool,
    pub zone: u16,
    /// Ticks before it.
    pub wait: u32,
    pub is_accepted: bool,
    pub what: What,
}

fn flags() -> impl Strategy<Value = TcpFlags> {
    let (syn, ack, fin, rst) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST);
    prop_oneof![
        3 => Just(syn), 4 => Just(syn | ack), 10 => Just(ack), 3 => Just(fin | ack), 1 => Just(rst),
        1 => Just(rst | ack), 1 => Just(syn | fin), 1 => Just(TcpFlags::empty()), 1 => Just(ack | TcpFlags::PSH),
    ]
}

fn near() -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => Just(0i64), 1 => Just(1i64), 1 => Just(-1i64), 1 => -600i64..600, 1 => -70_000i64..70_000,
        1 => Just(1_000_000_000i64),
    ]
}

fn tcp() -> impl Strategy<Value = What> {
    let window = prop_oneof![Just(0u16), Just(1), Just(1000), Just(u16::MAX)];
    let scale = prop_oneof![3 => Just(None), 1 => Just(Some(0u8)), 2 => Just(Some(7)), 1 => Just(Some(15))];
    let data = prop_oneof![3 => Just(0u16), 1 => Just(1), 1 => Just(500)];
    (flags(), near(), near(), window, scale, data).prop_map(
        |(flags, sequence, acknowledgment, window, scale, data)| What::Tcp {
            flags,
            sequence,
            acknowledgment,
            window,
            scale: scale.filter(|_| flags.contains(TcpFlags::SYN)),
            data,
        },
    )
}

fn what() -> impl Strategy<Value = What> {
    let identifier = 0u16..2;
    prop_oneof![
        16 => tcp(),
        2 => Just(What::Udp),
        1 => identifier.clone().prop_map(|identifier| What::UdpFirst { identifier }),
        1 => identifier.prop_map(|identifier| What::UdpLater { identifier }),
        2 => any::<bool>().prop_map(|is_reply| What::Echo { is_reply }),
        2 => near().prop_map(|sequence| What::ErrorAboutTcp { sequence }),
        1 => Just(What::ErrorAboutUdp),
        1 => any::<bool>().prop_map(|is_reply| What::ErrorAboutEcho { is_reply }),
    ]
}

pub fn event() -> impl Strategy<Value = Event> {
    let wait = prop_oneof![8 => 0u32..3, 2 => 0u32..400, 1 => 0u32..2000];
    let zone = prop_oneof![5 => Just(0u16), 1 => Just(1u16)];
    (any::<bool>(), zone, wait, prop::bool::weighted(0.9), what()).prop_map(
        |(is_server, zone, wait, is_accepted, what)| Event { is_server, zone, wait, is_accepted, what },
    )
}
