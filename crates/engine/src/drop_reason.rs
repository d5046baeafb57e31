//! Why a packet was dropped. Every drop has one of these, counted per port, chain and NF. What an NF had when it died is
//! counted as reclaimed buffers (`WorkerCounters::reclaimed`): which chains' packets they were is not known then.

/// The reasons. The numbers are places in counter arrays and mean nothing elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// A rule says so.
    Rule,
    /// A rule says so, and that the sender is to be told.
    Rejected,
    /// No rule decides, and the port denies such packets.
    Denied,
    /// No rule decides, and the port has no `forward`.
    NoRule,
    /// More than a rate allows.
    Policed,
    /// Sent with an address that is not the port's guest's.
    Spoofed,
    /// The headers cannot be parsed, and are needed; `PortCounters::malformed` says why.
    Malformed,
    /// A VLAN that the port is not in.
    WrongVlan,
    /// L2 switching sends it nowhere: it is where it belongs, or split horizon keeps it from there.
    Filtered,
    /// The packet spans several buffers, or is longer than a buffer: the port's MTU does not fit the group's buffers.
    TooLong,
    /// A hop of the chain has no NF, and the chain's policy is to drop.
    NfDown,
    /// The first ring of the chain, or one further down, is full: dropped at the entry.
    ChainFull,
    /// A ring in the middle of the chain is full.
    DownstreamFull,
    /// No buffer was free to copy the packet into another trust group, or for a port that needs its own memory.
    NoBuffer,
    /// The NF said drop.
    Verdict,
    /// An NF of the chain said to drop the rest of the flow: dropped at the entry.
    FlowVerdict,
    /// The NF named a port that there is not.
    UnknownPort,
    /// The NF named a port that its trust group may not send to.
    PortDenied,
    /// The NF named a role that there is not, or that has no NF now.
    UnknownRole,
    /// The NF named a role of another trust group that the packet's chain does not lead to.
    RoleDenied,
    /// The NF claims a place in a chain that is not its group's.
    BadChain,
    /// The NF's verdict is no verdict.
    BadAction,
    /// The NF's offset and length do not lie in the buffer, or leave less than an Ethernet header.
    BadSpan,
    /// The chain ends and has no output, and the last NF named no port.
    NoOutput,
    /// The transmit queue is full.
    TxFull,
    /// The port is gone or being taken away.
    PortDown,
    /// No guest is at the other end of the port.
    NoPeer,
    /// The virtual router has no interface with the port and VLAN that the packet came in by.
    NoRouterInterface,
    /// Sent to another MAC address than that of the virtual router's interface.
    NotForRouter,
    /// An IP header that no router passes on: too short, of another version, with wrong lengths or a wrong checksum, or with
    /// an address that no packet on a link can have (RFC 1812 sections 5.2.2 and 5.3.7, RFC 4291 section 2.5).
    BadIpHeader,
    /// The route says: nowhere.
    Blackhole,
    /// More packets than the kernel of a virtual router is to get.
    PuntQuota,
}

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 32] = [
        Self::Rule,
        Self::Rejected,
        Self::Denied,
        Self::NoRule,
        Self::Policed,
        Self::Spoofed,
        Self::Malformed,
        Self::WrongVlan,
        Self::Filtered,
        Self::TooLong,
        Self::NfDown,
        Self::ChainFull,
        Self::DownstreamFull,
        Self::NoBuffer,
        Self::Verdict,
        Self::FlowVerdict,
        Self::UnknownPort,
        Self::PortDenied,
        Self::UnknownRole,
        Self::RoleDenied,
        Self::BadChain,
        Self::BadAction,
        Self::BadSpan,
        Self::NoOutput,
        Self::TxFull,
        Self::PortDown,
        Self::NoPeer,
        Self::NoRouterInterface,
        Self::NotForRouter,
        Self::BadIpHeader,
        Self::Blackhole,
        Self::PuntQuota,
    ];

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name that people and programs see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Rejected => "rejected",
            Self::Denied => "denied",
            Self::NoRule => "no-rule",
            Self::Policed => "policed",
            Self::Spoofed => "spoofed",
            Self::Malformed => "malformed",
            Self::WrongVlan => "wrong-vlan",
            Self::Filtered => "filtered",
            Self::TooLong => "too-long",
            Self::NfDown => "nf-down",
            Self::ChainFull => "chain-full",
            Self::DownstreamFull => "downstream-full",
            Self::NoBuffer => "no-buffer",
            Self::Verdict => "verdict",
            Self::FlowVerdict => "flow-verdict",
            Self::UnknownPort => "unknown-port",
            Self::PortDenied => "port-denied",
            Self::UnknownRole => "unknown-role",
            Self::RoleDenied => "role-denied",
            Self::BadChain => "bad-chain",
            Self::BadAction => "bad-action",
            Self::BadSpan => "bad-span",
            Self::NoOutput => "no-output",
            Self::TxFull => "tx-full",
            Self::PortDown => "port-down",
            Self::NoPeer => "no-peer",
            Self::NoRouterInterface => "no-router-interface",
            Self::NotForRouter => "not-for-router",
            Self::BadIpHeader => "bad-ip-header",
            Self::Blackhole => "blackhole",
            Self::PuntQuota => "punt-quota",
        }
    }
}

/// What an NF did that no honest NF does. Nothing is dropped: the packet was not the NF's to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Violation {
    /// A buffer number that the region does not have.
    BufferOutOfRange,
    /// A buffer that is not out, or is out by another worker: made up, or returned twice.
    BufferNotOut,
    /// A ring index that cannot be.
    RingIndex,
    /// Waking it took so long as if thousands waited for its eventfd, which any NF of its group can have them do.
    CostlyWake,
    /// A control message that does not exist.
    UnknownMessage,
}

impl Violation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::BufferOutOfRange, Self::BufferNotOut, Self::RingIndex, Self::CostlyWake, Self::UnknownMessage];

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name that people and programs see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BufferOutOfRange => "buffer-out-of-range",
            Self::BufferNotOut => "buffer-not-out",
            Self::RingIndex => "ring-index",
            Self::CostlyWake => "costly-wake",
            Self::UnknownMessage => "unknown-message",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places() {
        for (n, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, n, "{}", reason.name());
        }
        for (n, violation) in Violation::ALL.iter().enumerate() {
            assert_eq!(*violation as usize, n, "{}", violation.name());
        }
    }
}
