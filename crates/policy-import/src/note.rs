// SPDX-License-Identifier: Apache-2.0
//! Notes of an import about lines without an exact equivalent.

use std::fmt;

use thiserror::Error;

/// A note about a line without an exact equivalent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Line of the file, from 1.
    pub line: u32,
    /// The words in the file, or the object that they concern.
    pub what: String,
    /// The difference.
    pub why: NoteReason,
    /// What it means for the decisions of the imported rules.
    pub effect: Effect,
}

/// What a note means for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Effect {
    /// The imported rules pass and drop the same packets as the file.
    #[default]
    Same,
    /// They may drop packets that the file passes, and pass none that it drops.
    Stricter,
    /// They may pass packets that the file drops, or translate others than it does.
    Wider,
}

impl Note {
    pub(super) fn new(line: u32, what: impl Into<String>, why: NoteReason) -> Self {
        Self { line, what: what.into(), why, effect: Effect::Same }
    }

    pub(super) fn with(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }
}

impl fmt::Display for Note {
    /// `line 3: -m owner --uid-owner 0: netvm has no such match; the rule is skipped`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.what, self.why)
    }
}

/// The unexpected token of a syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// This word.
    Word(String),
    /// The end of the line.
    EndOfLine,
}

impl Token {
    pub(super) fn of(word: Option<&str>) -> Self {
        word.map_or(Self::EndOfLine, |word| Self::Word(word.to_owned()))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "`{word}`"),
            Self::EndOfLine => f.write_str("the end of the line"),
        }
    }
}

/// The reason of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum NoteReason {
    /// ClassBench: the flags column.
    #[error("flags are ignored; rules match addresses, ports and protocol")]
    FlagsIgnored,
    /// ClassBench: flags of another protocol than TCP and ICMP.
    #[error("netvm cannot match these flags of this protocol; they are ignored")]
    FlagsUnknown,
    /// ClassBench: columns after the flags.
    #[error("columns after the flags are ignored")]
    ExtraFields,
    /// Another field of a connection than its state.
    #[error("netvm matches the state of a connection, and nothing else of it; the rule is skipped")]
    ConnectionState,
    /// Whether the destination of a connection is translated.
    #[error(
        "netvm has no match for connections whose destination is translated; the rule is skipped: write rules for the new \
         destinations, which rules match"
    )]
    TranslatedStatus,
    /// A port that depends on the packet, or of a protocol without ports.
    #[error(
        "netvm changes ports of TCP and UDP only, to one port, or to none; the rule is skipped: write `[[nat]]` rules for \
         each port"
    )]
    TranslatedPorts,
    /// A network of another size than its packets' addresses.
    #[error("netvm translates a network to one of its size: match addresses of such a network")]
    Network,
    /// Too many targets.
    #[error("netvm chooses among 256 destinations at most; the rule is skipped")]
    Targets,
    /// A translation that netvm does not have.
    #[error("netvm has no such translation; the rule is skipped: write `[[nat]]` rules for it")]
    Translation,
    /// How ports or targets are chosen.
    #[error(
        "netvm keeps the source's port if it is free, and leads all connections of a source to the same target"
    )]
    Choice,
    /// A chain that translates drops packets.
    #[error(
        "NAT rules of netvm drop nothing; import a copy of the file that drops in a chain for forwarded packets"
    )]
    TranslationDrops,
    /// A helper of connection tracking.
    #[error(
        "netvm has no helpers: what this one makes `related`, such as data connections of FTP, is `new`; import a copy of \
         the file without it, and with rules for these connections"
    )]
    Helper,
    /// Some packets are excluded from connection tracking, but netvm does not know which.
    #[error(
        "netvm does not know which packets this is for, and rules match the state of connections: import a copy of the \
         file with `notrack` in rules of the base chain, before others that decide"
    )]
    Untracked,
    /// A zone of other packets than those of whole ports.
    #[error(
        "netvm has a zone for all packets of a port: import a copy of the file whose zones depend on nothing else"
    )]
    Zone,
    /// A match on a field outside the flow key.
    #[error("netvm has no such match; the rule is skipped")]
    Match,
    /// A target or statement that netvm does not have.
    #[error("netvm has no such action; the rule is skipped")]
    Action,
    /// A statement that neither matches nor decides.
    #[error("netvm does not do this; the rule is imported without it")]
    Undone,
    /// Logging.
    #[error("netvm does not log packets: use the counters of rules, or a mirror")]
    Log,
    /// An interface that is not a port.
    #[error(
        "no --interface gives the port of this name; the rule is skipped: add `--interface NAME=PORT`, or \
         `--ignore-other-interfaces` if it is not a port of netvm"
    )]
    Interface,
    /// An ingress chain whose device nft does not print.
    #[error("nft does not print the device of this chain; it is skipped")]
    Device,
    /// A chain of a device that is not a port.
    #[error(
        "no --interface gives the port of this name; the chain does not apply to it: add `--interface NAME=PORT`, or \
         `--ignore-other-interfaces` if it is not a port of netvm"
    )]
    NoDevice,
    /// Some of several interfaces are not ports.
    #[error(
        "no --interface gives the port of this name; the rule applies to the other interfaces that it names: add \
         `--interface NAME=PORT`, or `--ignore-other-interfaces` if it is not a port of netvm"
    )]
    SomeInterfaces,
    /// A mask that is not a prefix.
    #[error("the mask is not a prefix; the rule is skipped")]
    Mask,
    /// The lowest two bits of the TOS byte.
    #[error("netvm matches the code point, not the ECN bits of this byte; the rule is skipped")]
    EcnBits,
    /// Ports of DCCP, UDP-Lite and so on.
    #[error("netvm matches only the ports of TCP, UDP and SCTP; the rule is skipped")]
    NoPorts,
    /// `th dport` without a protocol.
    #[error(
        "netvm matches only the ports of TCP, UDP and SCTP; the rule is skipped: match their protocols before, as in \
         `meta l4proto {{ tcp, udp }}`"
    )]
    SomePorts,
    /// A negation that the rule language cannot express.
    #[error("netvm cannot negate this match; the rule is skipped")]
    Opposite,
    /// A rule that no packet can match.
    #[error("no packet reaches this rule and matches it; the rule is skipped")]
    NeverFits,
    /// The table does not filter forwarded packets.
    #[error("netvm has no equivalent of this table; it is skipped")]
    Table,
    /// A rule or policy of another table, for forwarded packets.
    #[error(
        "netvm has no equivalent of this table, and here it drops packets, changes them, or does what netvm does not \
         know: import only table filter (`iptables-save -t filter`) if packets need not pass the others"
    )]
    TableRule,
    /// The table is dormant.
    #[error("the table is dormant; it is skipped")]
    Dormant,
    /// A match or target that nft cannot print.
    #[error(
        "this rule is from iptables-nft and nft does not print it: import the output of iptables-save; the rule is skipped"
    )]
    Xtables,
    /// Kubernetes: a port by name.
    #[error("netvm does not know the names of containers' ports; the port is left out: write its number")]
    NamedPort,
    /// Kubernetes: labels of namespaces.
    #[error(
        "the file has no Namespace, and this selects them by labels; the peer is left out: add `kubectl get namespaces -o \
         yaml` to the file, or select by `kubernetes.io/metadata.name`"
    )]
    NamespaceLabels,
    /// Kubernetes: labels that `netvm-cni` gives.
    #[error(
        "`namespace`, `network` and `pod` are labels that netvm-cni gives to all ports, and not those of pods; what selects \
         by them is left out: use another label"
    )]
    OwnLabel,
    /// An unknown kind of object.
    #[error("netvm does not know this kind of object; it is skipped")]
    Object,
    /// The chain does not filter forwarded packets.
    #[error("only rules for forwarded packets have an equivalent; the chain is skipped")]
    Hook,
    /// Forwarded packets pass the chain, too, but before or after the rules for them.
    #[error(
        "only rules with hook forward have an equivalent, but forwarded packets pass this chain, too; it is skipped: move \
         its rules to a chain with hook forward"
    )]
    OtherHook,
    /// The chain is not used.
    #[error("no rule for forwarded packets jumps to this chain; it is skipped")]
    Unreached,
    /// The answer of a reject rule differs.
    #[error("netvm rejects TCP with a reset, and other packets with ICMP administratively prohibited")]
    Answer,
    /// A limit below one per second.
    #[error("the lowest rate of netvm is one per second; the rule is skipped")]
    SlowRate,
    /// A fractional rate.
    #[error("netvm rates are whole numbers per second; the rate becomes {0} per second")]
    RoundedRate(u64),
    /// A limit by address or port.
    #[error("netvm limits a rule as a whole, not by address or port; the rule is skipped")]
    LimitPerKey,
    /// A limit with an unsupported action.
    #[error("netvm can only limit accepted packets or drop packets beyond a limit; the rule is skipped")]
    LimitUse,
    /// Packets beyond a limit.
    #[error(
        "netvm drops packets beyond the limit; in the file they continue to later rules, which may accept them"
    )]
    LimitDrops,
    /// A limit over several rules.
    #[error("this becomes {0} rules, each with the whole limit")]
    LimitSplit(usize),
    /// A limit that counts packets before the other matches.
    #[error(
        "the limit counts packets that match the whole rule; in the file it precedes other matches and counts more"
    )]
    LimitOrder,
    /// A limit in bytes.
    #[error("the limit counts bytes of the whole frame; in the file it counts from the IP header on")]
    LimitBytes,
    /// Rules match the outgoing interface.
    #[error("some rules of this file match the outgoing interface, so all rules are for transmitted packets")]
    Egress,
    /// `ip6 nexthdr`.
    #[error(
        "netvm matches the protocol after all extension headers, not the first header; the rule is skipped: match \
         `meta l4proto`"
    )]
    FirstHeader,
    /// A dynamic set.
    #[error("the elements of this set are dynamic; the rule is skipped")]
    DynamicSet,
    /// The set is not in the file.
    #[error("the file does not define this set, map or limit; the rule is skipped")]
    Missing,
    /// Both bridged and routed packets are filtered.
    #[error(
        "netvm has one path for bridged and routed packets: both pass the chains of bridge and IP tables"
    )]
    BridgeAndIp,
}
