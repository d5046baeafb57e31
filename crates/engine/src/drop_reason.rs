//! Drop reasons and NF violations. The engine counts every drop under one reason, per port, chain and NF. Buffers that
//! an NF held when it died are counted as reclaimed (`WorkerCounters::reclaimed`) instead, because their chains are no
//! longer known.

use netvm_wire::Malformed;

/// Declares an enum whose numbers index counter arrays, with the name of each variant that users see.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$note])* $variant,)*
        }

        impl $name {
            /// All variants in the order of their numbers.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// Number of variants.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in statistics and the API.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

counted! {
/// Why a packet was dropped.
DropReason {
    /// A rule drops it.
    Rule = "rule",
    /// A rule rejects it: the sender gets an answer.
    Rejected = "rejected",
    /// No rule matches, and the port denies such packets.
    Denied = "denied",
    /// No rule matches, and the port has no `forward`.
    NoRule = "no-rule",
    /// A rate limit is exceeded.
    Policed = "policed",
    /// Storm control: the port's limit of flooded packets is exceeded.
    StormControl = "storm-control",
    /// The source address is not one of the port's guest.
    Spoofed = "spoofed",
    /// The headers are needed and cannot be parsed; `PortCounters::malformed` has the cause.
    Malformed = "malformed",
    /// The packet has more headers than netvm reads: a third VLAN tag or one of a type older than 802.1ad, a ninth IPv6 extension
    /// header, or more than 256 bytes of headers. Rules and the guard would not see what a receiver sees.
    TooManyHeaders = "too-many-headers",
    /// The port is not a member of the packet's VLAN.
    WrongVlan = "wrong-vlan",
    /// L2 switching has no port for it: the destination is on the ingress port, or split horizon forbids it; or the
    /// guest's e1000 card filters its address or VLAN.
    Filtered = "filtered",
    /// The device, the kernel or the guest's card dropped it before a worker received it, for lack of buffers or of time; of a
    /// source with a rate, it was not sent in time.
    RxMissed = "rx-missed",
    /// The packet spans several buffers or is longer than a buffer: the port's MTU exceeds the group's buffers.
    TooLong = "too-long",
    /// A hop of the chain has no NF, and the chain's policy is to drop.
    NfDown = "nf-down",
    /// A ring of the chain is full: dropped at the entry.
    ChainFull = "chain-full",
    /// A ring in the middle of the chain is full.
    DownstreamFull = "downstream-full",
    /// No free buffer to copy the packet into another trust group's memory, or into a port's own.
    NoBuffer = "no-buffer",
    /// The NF's verdict.
    Verdict = "verdict",
    /// An NF's verdict for the whole flow: dropped at the chain's entry.
    FlowVerdict = "flow-verdict",
    /// The NF named a port that does not exist.
    UnknownPort = "unknown-port",
    /// The NF named a port that its trust group may not use.
    PortDenied = "port-denied",
    /// The NF named a role that does not exist or has no NF now.
    UnknownRole = "unknown-role",
    /// The NF named a role of another trust group that is not in the packet's chain.
    RoleDenied = "role-denied",
    /// The NF claims a chain position that is not its group's.
    BadChain = "bad-chain",
    /// The NF's verdict is invalid.
    BadAction = "bad-action",
    /// The NF's offset and length exceed the buffer, or cut the packet to less than an Ethernet header.
    BadSpan = "bad-span",
    /// The chain ends without an output, and the last NF named no port.
    NoOutput = "no-output",
    /// The packet is longer than the MTU of the interface that it would leave by.
    ExceedsMtu = "exceeds-mtu",
    /// The kernel or the interface's driver dropped it after netvm had sent it: the other end of a veth pair has no room, a
    /// smaller MTU, or is down. netvm reads this from the interface's own counters, which include other senders.
    TxRefused = "tx-refused",
    /// The transmit queue is full.
    TxFull = "tx-full",
    /// The ring to the worker that has the port's tx queue is full: that worker has too much to do.
    HandoffFull = "handoff-full",
    /// The queue of the port's shaper is full.
    QueueFull = "queue-full",
    /// The packet has waited for too long in a standing queue of the port's shaper (CoDel, RFC 8289).
    Codel = "codel",
    /// The port is gone or being removed.
    PortDown = "port-down",
    /// No guest is connected to the port.
    NoPeer = "no-peer",
    /// The virtual router has no interface on the ingress port and VLAN.
    NoRouterInterface = "no-router-interface",
    /// The destination MAC address is not the router interface's.
    NotForRouter = "not-for-router",
    /// The virtual router's interface is administratively down in its namespace.
    InterfaceDown = "interface-down",
    /// The source is an address of the virtual router itself (RFC 1812 section 5.3.7).
    Martian = "martian-source",
    /// An invalid IP header: length, version, checksum, or an address that cannot occur on a link (RFC 1812 sections
    /// 5.2.2 and 5.3.7, RFC 4291 section 2.5).
    BadIpHeader = "bad-ip-header",
    /// The route to its source does not lead back to the interface that received it, or there is no route (RFC 3704).
    Urpf = "urpf",
    /// A blackhole route.
    Blackhole = "blackhole",
    /// The limit of packets to a virtual router's kernel is exceeded.
    PuntQuota = "punt-quota",
}
}

counted! {
/// A violation: an event that no correct NF causes. No packet is dropped: the NF did not own one.
Violation {
    /// A buffer number outside the region.
    BufferOutOfRange = "buffer-out-of-range",
    /// A buffer that this worker did not hand to this NF thread: invented, or returned twice.
    BufferNotOut = "buffer-not-out",
    /// An impossible ring index.
    RingIndex = "ring-index",
    /// A wake-up took as long as if thousands of threads waited on the eventfd; any NF of the group can cause this.
    CostlyWake = "costly-wake",
    /// A control message that does not exist.
    UnknownMessage = "unknown-message",
}
}

impl From<Malformed> for DropReason {
    fn from(why: Malformed) -> Self {
        if why.is_too_many_headers() { Self::TooManyHeaders } else { Self::Malformed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_index_the_list_of_all() {
        for (n, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, n, "{}", reason.name());
        }
        for (n, violation) in Violation::ALL.iter().enumerate() {
            assert_eq!(*violation as usize, n, "{}", violation.name());
        }
    }
}
