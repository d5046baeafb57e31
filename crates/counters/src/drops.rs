// SPDX-License-Identifier: Apache-2.0
//! Why packets are dropped, and what NFs violate. The engine counts every drop under one reason, per port, chain and
//! NF. Buffers that an NF held when it died are counted as reclaimed instead, because their chains are no longer known.

/// A drop reason or violation as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Its name in statistics.
    pub name: &'static str,
    /// What happened.
    pub text: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// Declares an enum whose numbers index arrays of counters. Of each variant: its name in statistics, what happened, and
/// what to do.
macro_rules! explained {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$note:meta])* $variant:ident = $word:literal: $text:literal, $remedy:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = $text] $(#[$note])* $variant,)*
        }

        impl $name {
            /// All variants in the order of their numbers.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// Number of variants.
            pub const COUNT: usize = Self::ALL.len();

            /// All variants as users see them, in the order of their numbers.
            pub const EXPLAINED: &[Explained] =
                &[$(Explained { name: $word, text: $text, remedy: $remedy }),*];

            /// The name in statistics and the API.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

explained! {
/// Why a packet was dropped.
DropReason {
    Rule = "rule":
        "A rule with `drop = true` matched the packet.",
        "`netvm policy show` counts the packets of each rule; `netvm policy trace` shows which rule decides.";
    Rejected = "rejected":
        "A rule with `reject` matched the packet, and its sender got an answer (a TCP reset or an ICMP error).",
        "`netvm policy show` counts the packets of each rule.";
    Denied = "denied":
        "No rule matched the packet, and its port has `acl_in = \"deny\"`, or `acl_out = \"deny\"` for packets to \
         send.",
        "Add a rule with `allow = true`, or remove the port's `acl_in` or `acl_out`.";
    NoRule = "no-rule":
        "No rule matched the packet, and its port has no `forward` key, so it has no destination.",
        "Add a rule, or `forward = { normal = true }` to the port.";
    Policed = "policed":
        "The packet exceeds a rate limit: `police` of a rule, or a rate of its port.",
        "Raise the rate if the traffic is wanted.";
    StormControl = "storm-control":
        "The packet would have been flooded, but its ingress port has flooded as many packets of its class \
         (broadcast, multicast, unknown unicast) this second as `storm_control` permits.",
        "Look for a loop of links or a host that floods: `netvm events` and `netvm status` name the port. Raise the \
         port's `storm_control` if the traffic is wanted.";
    NoListener = "no-listener":
        "L2 switching snoops (`mcast_snooping`): the packet went to a multicast group that no other port has joined; or it \
         reported a membership, and no multicast router is behind another port.",
        "Nothing, if nobody is to get it: `netvm mdb` shows groups and routers. If a host misses packets, it sends no \
         reports; `mcast_groups` of its port, or `mcast_router = \"on\"` of a router's, helps.";
    McastRefused = "mcast-refused":
        "The packet reported memberships in groups, but its port has announced as many this second as one may; or it was a \
         query, and the port has `mcast_router = \"off\"`.",
        "`netvm mdb` shows the ports. Find the host that floods reports, or that queries without being a router.";
    Spoofed = "spoofed":
        "The source MAC or IP address is not one that the configuration gives the port.",
        "Correct `addresses` or `macs` of the port if the sender may use the address.";
    ConnTableFull = "conn-table-full":
        "The packet would begin a connection, but its worker has as many established connections as `limit` of \
         [engine.connections] allows.",
        "Raise `limit`, or shorten the time-outs of [engine.connections.timeouts].";
    ConnQuota = "conn-quota":
        "The packet would begin a connection, but its source, port or zone has as many as it may have.",
        "`netvm conn list` shows them. Raise `per_source`, `per_port` or `per_zone` of [engine.connections] if they are \
         wanted.";
    ConnHalfOpen = "conn-half-open":
        "The packet would begin a connection, but its source or port has as many as it may have that have had no \
         answer, or whose handshake is not complete.",
        "`netvm conn list --state syn-sent` or `--state unreplied` shows them. If it is no scan or flood, raise \
         `half_open_per_source` or `half_open_per_port` of [engine.connections].";
    SynAnswered = "syn-answered":
        "The packet is a SYN that the SYN proxy (`syn_proxy` of a rule) has answered with a cookie; the server gets one \
         when the client has acknowledged the cookie.",
        "Nothing: every connection begins so. Many more than connections that begin are a SYN flood, which the server \
         does not see.";
    WrongCookie = "wrong-cookie":
        "The packet of TCP belongs to no connection, its rule has a SYN proxy (`syn_proxy`), and it acknowledges no \
         cookie of the last minute: it is forged or late, or its connection has ended.",
        "Nothing, if connections of clients work: `netvm conn stats` compares cookies that were sent and accepted.";
    NatNoPort = "nat-no-port":
        "The packet would begin a connection that NAT translates, but no port of the addresses that stand for its \
         source is free, or its rule has no address of the packet's family, or the connection would be the same as \
         another one after translation.",
        "Give the rule more addresses or `ports`; `netvm conn list` shows who has them. An interface with \
         `snat = \"masquerade\"` needs an address.";
    NatUnsupported = "nat-unsupported":
        "The packet belongs to a connection that NAT translates, but cannot be translated: its protocol has a \
         checksum or a signature over the addresses (AH, DCCP, UDP-Lite), or its headers are too long, or it comes \
         back from an NF after its connection has ended.",
        "Exempt its traffic with a `[[nat]]` rule with `keep = true`.";
    /// `PortCounters::malformed` of the engine has the cause.
    Malformed = "malformed":
        "A required header cannot be parsed: it is truncated, or its lengths are inconsistent.",
        "`netvm policy trace --frame HEX` says what is wrong with a packet.";
    TooManyHeaders = "too-many-headers":
        "The packet has more headers than netvm reads, so rules and the guard would not see what a receiver sees: a \
         third VLAN tag, or one of type 0x9100, 0x9200 or 0x9300; a ninth IPv6 extension header; more than 256 bytes \
         of headers.",
        "`netvm policy trace --frame HEX` says which. Ports without rules and `guard` pass such packets.";
    WrongVlan = "wrong-vlan":
        "The port is not a member of the packet's VLAN.",
        "Compare the port's `vlan` and `trunk` keys with the tags that the sender uses.";
    /// Or the guest's e1000 card filters its address or VLAN.
    Filtered = "filtered":
        "L2 switching has no port for the packet: the destination is behind the ingress port, or in the same \
         split-horizon group.",
        "Nothing: this is normal for a switch. `netvm mac` shows where addresses were learned.";
    /// Or the guest's card dropped it.
    RxMissed = "rx-missed":
        "The device or the kernel dropped the packet before netvm received it: its queue was full, or no buffer was \
         free. A source with a rate did not send it in time.",
        "The worker is too slow for its ports, or buffers are few: see `netvm status` (BUSY) and `netvm group`; \
         spread ports over more `cores`. Such packets cannot be captured.";
    /// It may also span several buffers.
    TooLong = "too-long":
        "The packet is longer than a buffer of the memory that must hold it.",
        "Lower the port's `mtu`, or raise `buffer_size` of the trust group (or its `large_buffers`, for segments).";
    NfDown = "nf-down":
        "A hop of the chain has no running NF, and the chain's `on_failure` drops its packets.",
        "`netvm nf` shows why it does not run; `standby` replicas or `on_failure = \"bypass\"` keep a chain up.";
    StartQueueFull = "start-queue-full":
        "A program with ports (`attach` of `[[nf]]`) is starting, its `while_starting` is `\"hold\"`, and as many packets \
         wait for it as a worker holds: 512 for each role, 2048 for all.",
        "Nothing, if the program is soon ready: senders repeat what they need. Otherwise `while_starting = \"bypass\"` lets \
         packets pass meanwhile.";
    ChainFull = "chain-full":
        "A ring of the chain is full, so the packet was dropped at the entry, before any NF processed it: the NFs \
         are slower than the traffic.",
        "`netvm top` marks the slowest NF; give it more `threads`, `replicas` or a core of its own.";
    DownstreamFull = "downstream-full":
        "A ring in the middle of the chain was full when an NF passed the packet on, although there was room at the \
         entry.",
        "As for chain-full; bursts can be absorbed by a larger `ring_size` of [engine].";
    NoBuffer = "no-buffer":
        "No free buffer was left to copy the packet into another trust group's memory, or into a port's own.",
        "`netvm group` shows who holds the buffers; raise `buffers` of the group.";
    Verdict = "verdict":
        "An NF decided to drop the packet.",
        "`netvm nf ROLE` shows the NF's own counters, which may show the reason.";
    FlowVerdict = "flow-verdict":
        "An NF decided to drop the rest of the flow, and the engine drops it at the chain's entry.",
        "`netvm flow list` shows such verdicts, and when they expire.";
    UnknownPort = "unknown-port":
        "The NF named a port that does not exist.",
        "Correct the NF: `netvm port` shows port numbers, which may change when ports change.";
    PortDenied = "port-denied":
        "The NF named a port that its trust group may not use.",
        "Add the port to `may_send_to` of the group if the NF may use it.";
    UnknownRole = "unknown-role":
        "The NF named a role that does not exist, or that has no running NF now.",
        "`netvm nf` lists the roles.";
    RoleDenied = "role-denied":
        "The NF named a role of another trust group that is not in the packet's chain.",
        "Put both NFs into one group, or the role into the chain.";
    SteerDenied = "steer-denied":
        "The NF steered the rest of the packet's flow to a chain, role or port that its `steer` does not list, or it may \
         give no verdicts on whole flows.",
        "Add the destination to `steer` of the `[[nf]]` if the NF may use it, and set `flow_verdicts`.";
    BadChain = "bad-chain":
        "The NF claims a position in a chain that is not its group's.",
        "The NF is faulty or hostile: its log and `netvm nf ROLE` say more.";
    BadAction = "bad-action":
        "The NF returned a verdict that does not exist.",
        "The NF is faulty or hostile, or of another version of netlib.";
    BadSpan = "bad-span":
        "The NF returned an offset and length that exceed the buffer, or cut the packet to less than an Ethernet header.",
        "Correct the NF: it grew the packet beyond head- and tailroom, or cut it too short.";
    NotOfHop = "not-of-hop":
        "A program with ports (`attach` of `[[nf]]`) sent the packet by a port at which no chain goes on: the program is \
         not in a chain, or only one direction passes it; or it has one port, and nothing says to which side the packet \
         goes.",
        "Nothing, if the program sends packets of its own (ARP, spanning tree). If packets of the other direction are \
         missing, give their chain `reverse`.";
    LateFromHop = "late-from-hop":
        "A program with ports (`attach` of `[[nf]]`) returned the packet while netvm sent none through it: it had failed, \
         or another instance had taken over. Packets of the flow that went another way meanwhile have overtaken the packet.",
        "Nothing: the flow keeps its order. `netvm events` says why the program failed.";
    HoldQuota = "hold-quota":
        "An NF would hold the packet, but its thread keeps as many buffers as `allocate` and `hold` of its `[[nf]]` \
         allow.",
        "Raise `hold`. netlib does not exceed it: otherwise the NF is faulty or hostile.";
    NoIngress = "no-ingress":
        "An NF made the packet and sent it on in its chain, but the packet has no ingress port, or one that the NF's \
         trust group may not use.",
        "Let the NF make the packet for one that it has received (`alloc_for`), or name a port; `may_send_to` of the \
         group lists the ports that it may use.";
    NoOutput = "no-output":
        "The chain ended without an output, and its last NF named no port.",
        "Give the chain an `output`, or let the NF choose a port.";
    ExceedsMtu = "exceeds-mtu":
        "The packet is longer than the MTU of its egress interface.",
        "Lower the sender's MTU, or raise the interface's; a router reports the MTU to senders of such packets (path \
         MTU discovery).";
    /// netvm reads this from the interface's own counters, which include other senders.
    TxRefused = "tx-refused":
        "The kernel or the interface's driver dropped the packet after netvm had sent it: the other end of a veth \
         pair has no room, a smaller MTU, or is down.",
        "Check the other end with `ip -s link`; other senders on the interface share its counter.";
    TxFull = "tx-full":
        "The transmit queue of the port was full: the receiver, or the link, is slower than the traffic.",
        "Limit the rate (`police`), or find out why the receiver does not keep up.";
    HandoffFull = "handoff-full":
        "The ring to the worker that has the port's transmit queue was full: that worker has too much to do.",
        "`netvm status` shows which worker is busy, `netvm port` which ports it has: give one of them another \
         `worker`.";
    QueueFull = "queue-full":
        "The packet's queue of the port's shaper (`qos`) was full.",
        "`netvm port` names the queue; raise its `packets`, its `weight` or the shaper's `bits`.";
    Codel = "codel":
        "The packet waited in a queue of the port's shaper (`qos`) whose delay had been too long for 100 ms (RFC \
         8289).",
        "Nothing, for TCP: its senders slow down. For others raise `weight` or `bits`, or `codel_ms`.";
    PortDown = "port-down":
        "The port does not exist any more, or was closed while the packet waited in it.",
        "`netvm status` lists ports without link or interface.";
    /// netvm reads this from the kernel's flow table.
    PeerGone = "peer-gone":
        "The packet was for a container with `fast_path` whose interface had gone, which netvm did not know yet; TX PACKETS \
         of its port counts it, too.",
        "Nothing, if the container has ended or has removed the interface, and netvm makes another one: `netvm events` says \
         when.";
    ForwardingLoop = "forwarding-loop":
        "The packet passed nine ports without a device (`patch`, `bridge`, `vlan`, `vxlan`, `bond`) one after the other, or was one of \
         too many that did so at once: such ports form a loop.",
        "Remove the loop, or the port from L2 switching; `netvm events` and `netvm status` name ports that storm \
         control limits.";
    NoPeer = "no-peer":
        "No guest is connected to the vhost-user port.",
        "Start the guest; `netvm vm` lists those that netvmd starts.";
    NoMember = "no-member":
        "No member of the bond carries packets: their links are down, the other end does not speak LACP, or there are \
         fewer than `min_links`.",
        "`netvm port NAME` shows the members; check the links, and that the switch aggregates them (or set \
         `lacp_fallback`).";
    InactiveMember = "inactive-member":
        "The packet came by a member of a bond that carries no packets now: a backup, or LACP has not agreed on it.",
        "Nothing, if few: switches flood to backups. `netvm port NAME` of the bond shows why a member carries nothing.";
    NoRouterInterface = "no-router-interface":
        "The virtual router has no interface on the packet's port and VLAN.",
        "Add an `[[router.interface]]` for the port and VLAN.";
    NoVtepRoute = "no-vtep-route":
        "The router of a `vxlan` port has no route to the remote VTEP, or does not know the MAC address of the next hop \
         yet; or the port has no remote VTEP.",
        "`netvm router show NAME --address VTEP` shows the route. netvmd has the router's kernel resolve the next hop.";
    BadTunnelHeader = "bad-tunnel-header":
        "The packet is for a VTEP of a `vxlan` port, but its VXLAN header or a length is invalid, it is a fragment, or it \
         was marked on the way as having met congestion, which its sender does not understand (RFC 6040).",
        "Find the sender: a capture at the port that received it. VTEPs must not send fragments: raise the MTU on the \
         way.";
    UnknownVni = "unknown-vni":
        "The packet is for a VTEP of a `vxlan` port, but no port has its VNI.",
        "Add a `vxlan` port with this `vni`, or correct the sender.";
    UnknownVtep = "unknown-vtep":
        "The packet is for a `vxlan` port, but comes from a server that is none of its VTEPs.",
        "Add its address to `remote` of the port if it is one.";
    NotForRouter = "not-for-router":
        "The destination MAC address is not the router interface's.",
        "Nothing, if the link also carries other hosts' packets.";
    InterfaceDown = "interface-down":
        "The virtual router's interface is down in its namespace (`ip link set … down`).",
        "`ip -n netvm-NAME link set INTERFACE up`.";
    Martian = "martian-source":
        "The source is an IPv4 address of the virtual router itself, and the packet came from outside (RFC 1812 \
         section 5.3.7).",
        "Find the sender; set `accept_local` in the router's namespace if it is a test that sends to itself.";
    /// RFC 1812 sections 5.2.2 and 5.3.7, RFC 4291 section 2.5.
    BadIpHeader = "bad-ip-header":
        "The IP header is invalid: length, version, checksum, or an address that cannot occur on a link (RFC 1812, \
         RFC 4291).",
        "Find the sender: `netvm flow list`, or a capture.";
    Urpf = "urpf":
        "The check `urpf` of the virtual router's interface, or `rp_filter` in its namespace, failed: there is no \
         route to the packet's source address, or (`strict`) it leads out of another interface (RFC 3704). The \
         source is forged, or routing is asymmetric.",
        "`netvm router show NAME --address SOURCE` shows the route. Set `urpf = \"loose\"` if routing is asymmetric.";
    Blackhole = "blackhole":
        "The virtual router has a blackhole route for the destination.",
        "`netvm router show NAME` lists the routes.";
    PuntQuota = "punt-quota":
        "Packets for the virtual router's kernel exceeded `punt_rate`.",
        "Raise `punt_rate` if the traffic is wanted; the limit protects the kernel from a flood.";
}
}

impl DropReason {
    /// Why a port could not send a packet.
    pub const UNSENT: &[Self] = &[
        Self::TxFull,
        Self::HandoffFull,
        Self::TxRefused,
        Self::ExceedsMtu,
        Self::QueueFull,
        Self::Codel,
        Self::PortDown,
        Self::PeerGone,
        Self::NoPeer,
        Self::NoVtepRoute,
        Self::NoMember,
    ];
}

explained! {
/// A violation: an event that no correct NF causes. No packet is dropped: the NF did not own one.
Violation {
    BufferOutOfRange = "buffer-out-of-range":
        "The NF returned a buffer number outside its region.",
        "The NF is faulty or hostile. Other trust groups lose nothing; stop the NF if it continues.";
    BufferNotOut = "buffer-not-out":
        "The NF returned a buffer that it does not have: invented, or returned twice.",
        "The NF is faulty or hostile. Other trust groups lose nothing; stop the NF if it continues.";
    RingIndex = "ring-index":
        "The NF wrote an invalid index into a ring.",
        "The NF is faulty or hostile. Only packets of its own rings are lost.";
    CostlyWake = "costly-wake":
        "Waking the NF took as long as if thousands of threads waited for its eventfd; any NF of its group can cause \
         this.",
        "Find out which NF of the group shares its eventfd.";
    UnknownMessage = "unknown-message":
        "The NF sent a control message that does not exist.",
        "The NF is faulty, or of another version of netlib.";
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
