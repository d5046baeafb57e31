// SPDX-License-Identifier: Apache-2.0
//! Columns of the tables that `netvm` prints. A test of `netvm` compares the list with its sources.

use std::slice;
use std::sync::LazyLock;

use netvm_counters::{TABLES, Table};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its head.
    pub name: &'static str,
    /// The commands whose tables have it.
    pub of: &'static [&'static str],
    /// What it shows.
    pub text: &'static str,
}

const STATUS: &str = "netvm status";
const PORT: &str = "netvm port";
const LIVE: &str = "netvm port live";
const NF: &str = "netvm nf";
const VM: &str = "netvm vm list";
const ROUTER: &str = "netvm router";
const ROUTES: &str = "netvm router show";
const NEIGH: &str = "netvm router neigh";
const CHAIN: &str = "netvm chain";
const TOP: &str = "netvm top";
const GROUP: &str = "netvm group";
const STATS: &str = "netvm stats";
const POLICY: &str = "netvm policy show";
const FLOW: &str = "netvm flow list";
const TOP_FLOWS: &str = "netvm flow top";
const CONN: &str = "netvm conn list";
const TARGETS: &str = "netvm conn targets";
const MAC: &str = "netvm mac";
const MDB: &str = "netvm mdb";
const HISTORY: &str = "netvm config history";
const FLEET: &str = "netvm fleet status";
const EXPLAIN: &str = "netvm explain";

macro_rules! columns {
    ($($name:literal of $($command:ident)+ $(: $text:literal)?;)*) => {
        &[$(Column { name: $name, of: &[$($command),+], text: concat!($($text)?) },)*]
    };
}

/// All columns, by table. Those of counters that are not listed come last.
pub static COLUMNS: LazyLock<Vec<Column>> = LazyLock::new(|| {
    let mut columns: Vec<Column> = LISTED.iter().map(|column| explained(*column)).collect();
    for table in TABLES {
        let is_new = |one: &Column| {
            columns.iter().all(|column| column.name != one.name || !column.of.contains(&table.of))
        };
        let new: Vec<Column> = of(table).filter(is_new).collect();
        columns.extend(new);
    }
    columns
});

/// A column, with the text of its counter if it has none.
fn explained(column: Column) -> Column {
    let mut counters = TABLES.into_iter().filter(|table| column.of.contains(&table.of)).flat_map(of);
    let text = match column.text {
        "" => counters.find(|one| one.name == column.name).map_or("", |one| one.text),
        text => text,
    };
    Column { text, ..column }
}

/// The columns of a table's counters.
fn of(table: &'static Table) -> impl Iterator<Item = Column> {
    let columns = table.counters.iter().filter_map(|counter| counter.column);
    columns.map(|column| Column { name: column.title, of: slice::from_ref(&table.of), text: column.text })
}

/// Columns in the order of the reference page. Those without a text have that of their counter.
const LISTED: &[Column] = columns! {
    "WORKER" of STATUS PORT FLOW CONN:
        "The engine thread, by number; each runs on one core. For a port: the workers that have its queues, in \
         brackets how many if a worker has several. `kernel flow table`: the kernel forwards the flow.";
    "CORE" of STATUS: "The processor core that the worker runs on.";
    "NODE" of STATUS GROUP: "The NUMA node of the worker's core, or of a group's memory.";
    "IDLE" of STATUS FLOW:
        "How a worker without packets waits: `poll` spins, `adaptive` sleeps for short times. For a flow: time since \
         its last packet.";
    "BUSY" of STATUS:
        "Share of the last second in which the worker handled packets. From about 90 % on, ports begin to lose \
         packets.";
    "LOAD" of PORT:
        "Share of the last second that the port's workers spent on packets that they received from the port, in the \
         order of WORKER. The loads of a worker's ports add up to its BUSY.";
    "SLEEPS" of STATUS NF: "How often the thread slept because it had nothing to do.";
    "COPIES" of STATUS;
    "COPIED" of STATUS;
    "LONGEST TURN" of STATUS;

    "ID" of PORT CHAIN GROUP CONN:
        "The number, as NFs use it. It stays the same while the item exists, and may be reused later. Of a \
         connection: its number for `netvm conn show`, as long as its worker has it.";
    "PORT" of PORT LIVE NF STATS FLOW CONN MAC MDB ROUTES TOP:
        "The name of the port. In the table of an NF's threads: packets that the thread sent out of a port. For a \
         flow or MAC address: the ingress port. For a connection: the ingress port of its first packet.";
    "KIND" of PORT EXPLAIN:
        "The port's kind, as in the configuration; or the kind of a name: drop reason, violation, column.";
    "DRIVER" of PORT:
        "The driver and its mode; in brackets, the reason why the first choice was not possible, or why the port \
         failed.";
    "LINK" of PORT TOP: "Whether the port's link is up.";
    "QUEUES" of PORT STATUS:
        "Pairs of receive and transmit queues; each pair belongs to one worker. For a worker: its receive queues, \
         without those of sinks and of virtual routers' interfaces.";
    "MTU" of PORT: "Longest packet in bytes, without Ethernet header and FCS.";
    "GROUP" of PORT NF GROUP:
        "The trust group. For a port: the group whose memory receives its packets, `-` for the engine's own.";
    "RX PACKETS" of PORT STATS ROUTES:
        "Packets that the engine received from the port, or by the router's interface, including those dropped \
         later.";
    "RX BYTES" of PORT ROUTES:
        "Bytes of the packets that the engine received, without FCS; of a router's interface, without its tag.";
    "POLICED" of PORT;
    "SPOOFED" of PORT;
    "RX COALESCED" of PORT;
    "TX PACKETS" of PORT STATS ROUTES:
        "Packets that the engine sent out of the port, or by the router's interface: forwarded, or from its kernel.";
    "TX BYTES" of PORT ROUTES:
        "Bytes of the packets that the engine sent, without FCS; of a router's interface, without its tag.";
    "RX DROPPED" of PORT STATS ROUTES:
        "For a router's interface: packets that the router dropped, except those that exceeded the kernel's share. \
         For a port: packets that the device or the kernel dropped and counted before the engine received them, \
         because the worker was too slow. For a source with a rate: packets that were due but not sent.";
    "TX DROPPED" of PORT STATS;
    "BOND" of PORT: "The bond that has the member. The table is shown if there is a bond.";
    "OWNER" of PORT LIVE:
        "Who has added the port beside the configuration file; `-`: it is in the file. `netvm port` shows the table if \
         a port has an owner or labels.";
    "OWNER ID" of LIVE: "What its owner knows the port by.";
    "LABELS" of PORT LIVE TOP:
        "The labels of the port, by which rules may name it: `from = { label = \"app=web\" }`.";
    "PORT LABELS" of FLOW CONN: "The labels of the port. The column is shown if a port in the table has labels.";
    "MEMBER" of PORT: "The port that is a member of the bond.";
    "CARRIES" of PORT: "Whether the bond sends and receives packets by the member, or only receives them.";
    "LACP PARTNER" of PORT: "The MAC address of the system at the member's other end, if LACP has found one.";
    "VNI" of PORT: "The number of a `vxlan` port's network. The table is shown if there is such a port.";
    "BY ROUTER" of PORT: "The virtual router that reaches the other servers of the network.";
    "LOCAL" of PORT: "The address of this server's tunnel end point (VTEP).";
    "REMOTE" of PORT: "The addresses of the other servers' tunnel end points.";
    "OF ROUTER" of PORT:
        "The router whose share of the worker includes the port, with the `weight` and `reserve` of the router; \
         shown if a router has a share. `-`: the port has its own share.";
    "WEIGHT" of PORT:
        "The port's `weight`: its share, relative to the weights of other ports, of the worker's unreserved time. \
         The table is shown if a port or router has `weight` or `reserve`.";
    "RESERVE" of PORT: "The share of the worker that is reserved for this port.";
    "WORKER S" of PORT;
    "US/PACKET" of PORT: "Microseconds that the worker spent on a packet from the port, on average.";
    "WAITED" of PORT;
    "QUEUE" of PORT: "A queue of the port's shaper (`qos`). Its counters start when `qos` is configured.";
    "WAITING" of PORT;
    "WAITING BYTES" of PORT;
    "QUEUE FULL" of PORT;
    "CODEL" of PORT;
    "RX/S" of STATS TOP: "Packets received per second, over the last interval.";
    "RX BIT/S" of STATS TOP: "Bits received per second, without FCS, over the last interval.";
    "TX/S" of STATS TOP: "Packets sent per second, over the last interval.";
    "TX BIT/S" of STATS TOP: "Bits sent per second, without FCS, over the last interval.";

    "ROLE" of NF STATS:
        "The name by which chains know the NF. In the statistics of an NF or its threads: packets that it sent to \
         another role.";
    "#" of NF STATS:
        "The instance's number within its role; a restarted process keeps it. `all`: the role since netvmd started, \
         including instances that have ended.";
    "PID" of NF VM: "The process id of the NF or of the VM's QEMU; `-` if no process runs.";
    "STATE" of LIVE NF VM CHAIN NEIGH CONN TARGETS TOP FLEET:
        "NF: starting, running, standby (ready to replace another), hung (no progress although packets wait), \
         starved (packets wait, and it gets no core), backoff (ended; netvmd restarts it after a pause), stopped, \
         external (not started by netvmd, not attached). Chain: up, bypassed (packets skip a hop without NF), down \
         (packets are dropped at the entry). VM: as an NF, or paused, stopping, awaited (to be started by hand). \
         Neighbour: heard, or stale (the kernel has not heard from it for a while). Connection: of TCP, such as \
         syn-sent, established or time-wait; else unreplied, or replied. Target of NAT: up, or down (new connections \
         avoid it). Host of a fleet: running (what etcd has for it), applying, held (until its wave), unconfigured, \
         refused, rolled back (it was not healthy), restart needed, absent (it does not report).";
    "THREADS" of NF: "Threads of the NF that receive packets.";
    "UP" of NF VM: "Time since the NF attached, or the VM started.";
    "RECEIVED" of NF STATS;
    "RECEIVED/S" of STATS TOP: "Packets that the NF received per second, over the last interval.";
    "DROPPED" of NF STATS ROUTES:
        "Packets that the NF decided to drop. For a router: packets for its kernel that exceeded the share of their \
         class, or the limit of their destination.";
    "CYCLES/PACKET" of NF STATS TOP:
        "Cycles per packet. For an NF: its own code and netlib, without waiting. For a stage: the worker.";
    "RESTARTS" of NF VM: "How often netvmd started the NF or VM again after it had ended.";
    "LAST EXIT" of NF VM: "How the NF or VM last ended, such as `killed by signal 9` or `exit status 1`.";
    "THREAD" of NF: "The thread's number in its trust group.";
    "NEXT" of NF STATS;
    "DETOURED" of NF STATS;
    "FLOWS DECIDED" of NF STATS;
    "REFUSED" of NF STATS;
    "OWN" of NF;
    "BURSTS" of NF;
    "COUNTER" of NF: "A counter that the NF itself keeps.";
    "VIOLATION" of NF: "An action that a correct NF does not take; `netvm explain NAME` describes it.";
    "VALUE" of NF: "The value of an NF's own counter, or how often a violation occurred.";

    "CHAIN" of CHAIN STATS TOP: "The name of the chain; in `netvm top`, its colour is its state.";
    "HOPS" of CHAIN: "The roles that packets of the chain pass, in order.";
    "OUTPUT" of CHAIN:
        "Where packets go after the last hop: a port, `ingress` (their ingress port), `normal` (L2 switching), a \
         router, or nowhere (the last NF names a port).";
    "ENTERED" of CHAIN STATS;
    "ENTERED/S" of STATS TOP: "Packets passed to the first hop of the chain per second, over the last interval.";
    "LEFT" of CHAIN STATS;
    "LEFT/S" of STATS TOP: "Packets that left the chain per second, over the last interval.";
    "HOPS: HOW FULL THEIR RINGS ARE" of TOP:
        "The roles of the chain's hops, each with how full its fullest ring is, and where packets go afterwards. The \
         bottleneck stands between `▶` and `◀`: the hop with the fullest ring, from 25 % on, else the busiest, from \
         a LOAD of 80 % on.";
    "RING" of TOP:
        "How full the fullest receive ring of the NF was at most in about the last second, in percent of its slots.";
    "LOAD" of TOP: "Share of the time that the NF's threads spent on packets, in percent.";
    "DROPPED/S" of TOP:
        "Packets dropped per second at the port, in the chain, because of the NF's verdicts, or for the reason.";
    "DROPPED AT ENTRY" of CHAIN STATS;
    "DROPPED INSIDE" of CHAIN STATS;

    "NFS" of GROUP: "Attached NF instances of the group.";
    "PAGES" of GROUP: "The page size of the group's memory.";
    "SIZE" of GROUP: "Bytes of the group's memory on this NUMA node.";
    "BUFFERS" of GROUP TOP:
        "Buffers of the group's memory on this NUMA node; in `netvm top`: buffers that the NF holds.";
    "BUFFER SIZE" of GROUP: "Bytes of a buffer, headroom and tailroom included.";
    "FREE" of GROUP: "Buffers that are free. Near 0, ports cannot receive into the group's memory.";
    "IN ENGINE" of GROUP: "Buffers in the engine's queues, caches and devices. Receive queues always hold some.";
    "IN NFS" of GROUP: "Buffers of the group that NFs hold.";
    "RECLAIMED" of GROUP;
    "LONGEST RECLAIM" of GROUP;

    "STAGE" of STATS: "A step of the packet path through a worker (NetVM paper, Table 1).";
    "PACKETS TIMED" of STATS: "Packets in timed turns, which are one in 16.";
    "NS/PACKET" of STATS: "Nanoseconds that the worker spends on a packet in this stage.";
    "AT" of STATS TOP: "Where packets were dropped: a port, a chain, or an NF.";
    "NAME" of STATS POLICY EXPLAIN TOP_FLOWS TOP:
        "The name of the port, chain, NF or rule, or a name for `netvm explain`; for top talkers, the host name.";
    "REASON" of STATS TOP: "The drop reason; `netvm explain REASON` explains it, with a remedy.";
    "PACKETS" of STATS POLICY FLOW CONN TOP:
        "Packets: dropped for this reason, matched by this rule, of this flow, or from the source of a connection.";
    "PACKETS/S" of STATS: "Packets dropped for this reason per second, over the last interval.";
    "NF" of STATS TOP:
        "The role of the NF; in `netvm top` with the instance's number, and `▶` before a chain's bottleneck.";
    "OF" of STATS:
        "The measured path: `port`, from reception until another port's device has the packet; `chain`, from its \
         first NF until it leaves the chain; `hop`, from an NF's ring until the NF returned it.";
    "SAMPLES" of STATS: "Packets whose time between the two places was measured.";
    "MEAN US" of STATS: "The mean time of the measured packets in microseconds.";
    "P50 US" of STATS: "Half of the packets took at most this many microseconds.";
    "P99 US" of STATS: "99 % of the packets took at most this many microseconds.";
    "P99.9 US" of STATS: "99.9 % of the packets took at most this many microseconds.";
    "MAX US" of STATS: "The longest time of the measured packets in microseconds.";

    "RULE" of POLICY FLOW:
        "The rule's number, which never changes, or its name. For a flow: the rule that decides, `-` for the port's \
         `forward`.";
    "MATCH AND ACTION" of POLICY: "The rule's match and its actions, in one line.";
    "BYTES" of POLICY FLOW CONN TOP_FLOWS:
        "Bytes of the packets, without FCS, that matched the rule, belong to the flow, or came from the source of the \
         connection; of an address or a name: bytes of its flows, or more.";
    "AT MOST TOO HIGH BY" of TOP_FLOWS:
        "The bound of the error of BYTES, which are counted in bounded memory (Space-Saving).";
    "SEEN IN" of TOP_FLOWS:
        "Where the flow monitor read the name: `dns`, the question of a DNS message, or `tls`, the server name of a \
         TLS handshake.";
    "FLOW" of FLOW: "Addresses, ports and protocol of the flow, or its MAC addresses and EtherType.";
    "AGE" of FLOW CONN HISTORY:
        "Time since the flow entered the cache, since the first packet of the connection, or since netvmd applied the \
         configuration.";
    "NF VERDICTS" of FLOW:
        "Verdicts of NFs on the rest of the flow, and the time until they expire without another packet.";
    "PROTOCOL" of CONN MDB: "The protocol of the connection; `igmp` or `mld`.";
    "DESTINATION" of CONN: "The address and port to which the first packet of the connection went.";
    "TRANSLATED" of CONN:
        "The address and port that stand for the source of the connection at the other end, and those to which \
         packets to its destination go, if NAT translates them.";
    "ZONE" of CONN: "The zone of the port that received the first packet of the connection.";
    "REPLY PACKETS" of CONN: "Packets from the destination of the connection.";
    "REPLY BYTES" of CONN: "Bytes of the packets from the destination of the connection, without FCS.";
    "EXPIRES IN" of CONN MDB:
        "Time until the connection expires if no packet comes, or the membership if no report does; `never`: the \
         configuration says so.";
    "TARGET" of TARGETS: "Address and port of the target.";
    "NAT" of TARGETS: "The rules that lead to the target: their names, or places in the file.";
    "PROBLEM" of TARGETS FLEET:
        "Why the last attempt to connect failed, or why a host does not run what etcd has for it, or is not healthy.";
    "MULTICAST GROUP" of MDB: "A group beyond the link that hosts have joined, or that `mcast_groups` names.";
    "QUERIER" of MDB:
        "Who asks hosts for their groups in the VLAN: its address and the port that it is behind, or netvm \
         (`mcast_querier`).";
    "ROUTERS AT" of MDB: "Ports behind which there are multicast routers; they get the packets of all groups.";
    "MULTICAST GOES" of MDB:
        "To members: packets to a group go to its members and to routers. Everywhere: nobody asks, or hosts have not had \
         the time to answer yet.";
    "GROUPS" of MDB: "Groups that the hosts behind the port have joined; at most `mcast_max_groups`.";
    "REPORTS AND QUERIES" of MDB: "Messages of IGMP and MLD that the port has received.";
    "REFUSED" of MDB:
        "Messages that were dropped: more than a port may announce in a second, or queries at a port with \
         `mcast_router = \"off\"`.";
    "OVER LIMIT" of MDB: "Reports that changed nothing, as the hosts had joined `mcast_max_groups` groups.";
    "MAC" of MAC ROUTES NEIGH:
        "The MAC address: learned by L2 switching, the router interface's, or the neighbour's.";
    "VLAN" of MAC MDB ROUTES:
        "The VLAN of the address, group or interface; 0 if ports ignore VLANs, `-` for an untagged interface.";

    "ROUTER" of ROUTER TARGETS:
        "The name of the virtual router; of a target, the router from whose namespace netvmd connects to it.";
    "NAMESPACE" of ROUTER: "The network namespace of the router, for `ip netns exec`.";
    "INTERFACES" of ROUTER: "The names of the router's interfaces.";
    "IPV4 ROUTES" of ROUTER: "IPv4 routes of the router's kernel (table `main`).";
    "IPV6 ROUTES" of ROUTER: "IPv6 routes of the router's kernel.";
    "NEIGHBOURS" of ROUTER: "Neighbours of the router whose MAC address is known.";
    "FORWARDED" of ROUTER;
    "PUNTED" of ROUTER ROUTES:
        "Packets passed to the router's kernel: for itself, without a resolved next hop, or with options.";
    "FROM KERNEL" of ROUTER ROUTES: "Packets that the router's kernel sent.";
    "FOR THE KERNEL" of ROUTES:
        "The class of packets for the router's kernel: routing, neighbour, local, kernel, miss or relearn; each has \
         a share of `punt_rate`.";
    "WHY PUNTED" of ROUTES:
        "Why packets of the class go to the router's kernel: `routing-protocol`, `neighbour-discovery`, \
         `own-address`, `unresolved-neighbour`, `ttl-expired`, `ip-options`, `link-local` (an address that is valid \
         on the link only), `group-address` (multicast or broadcast), `ether-type` (neither ARP nor IP), \
         `exceeds-mtu` (of the egress interface), `no-route`, `kernel-route` (only the kernel understands the route, \
         or the one back to the source), `unresolved-gateway`, `redirect` (out of the interface that received it), \
         `forwarding-off` (the namespace does not forward what the interface receives, or has made it part of \
         another), `martian` (an impossible address, which the kernel logs or accepts), or `lost-neighbour` (not \
         resolved, but known a while ago).";
    "ADDRESS" of NEIGH TOP_FLOWS: "The neighbour's IP address, or a sender's or receiver's.";
    "INTERFACE" of ROUTES NEIGH: "The name of the interface in the router's namespace.";
    "ADDRESSES" of ROUTES: "Addresses of the router's interface, those that the configuration gives and others.";
    "PUNT PORT" of ROUTES: "The port between engine and the router's kernel.";
    "OVER QUOTA" of ROUTES: "Packets for the kernel that were dropped because they exceeded `punt_rate`.";
    "PREFIX" of ROUTES: "The destination of the route.";
    "ACTION" of ROUTES:
        "What the router does with packets for the prefix: forward; resolving (the kernel forwards until the next \
         hop's MAC address is known); kernel (punt); blackhole.";
    "TO" of ROUTES: "The next hops of the route; if there are several, with their share of the flows.";

    "VM" of VM: "The name of the virtual machine.";
    "AS" of VM: "The ports of its network cards, or its role as an NF.";
    "CPUS" of VM: "The number of the VM's virtual processors.";
    "MIB" of VM: "The VM's memory in MiB.";
    "RESETS" of VM:
        "How often its guest has reset since netvmd started or adopted it; resets within a second count as one.";

    "NUMBER" of HISTORY: "The number of the configuration, for `netvm config rollback`.";
    "HOW" of HISTORY:
        "Why netvmd applied the configuration: start, apply, reload, etcd, or `not confirmed` (netvmd restored it).";
    "SOURCE" of HISTORY CONN:
        "The file that the configuration was read from, or the address and port of the first packet of the \
         connection; for ICMP the identifier stands for the port.";

    "HOST" of FLEET: "The name of the host in etcd.";
    "WANTED" of FLEET: "The revision of etcd with the newest part of the host's configuration.";
    "RUNNING" of FLEET: "The revision of etcd of the last configuration with which the host was healthy.";
    "SINCE" of FLEET: "Since when the host has been in this state, by etcd's clock.";
    "VERSION" of FLEET: "The version of the host's netvmd.";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_with_a_column_is_among_them() {
        for table in TABLES {
            for one in of(table) {
                let known = |column: &&Column| column.name == one.name && column.of.contains(&table.of);
                let texts: Vec<&str> = COLUMNS.iter().filter(known).map(|column| column.text).collect();
                assert!(texts.len() == 1 && !texts[0].is_empty(), "{one:?}: {texts:?}");
            }
        }
    }
}
