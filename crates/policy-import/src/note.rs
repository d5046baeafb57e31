//! What an import says about lines that are not the same in netvm.

use std::fmt;

use thiserror::Error;

/// A line that has no equivalent, or one that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Line of the file, from 1.
    pub line: u32,
    /// The words of the file in question, or the thing that they are about.
    pub what: String,
    /// What is different.
    pub why: Why,
}

impl Note {
    pub(super) fn new(line: u32, what: impl Into<String>, why: Why) -> Self {
        Self { line, what: what.into(), why }
    }
}

impl fmt::Display for Note {
    /// `line 3: -m owner --uid-owner 0: netvm has no such match; the rule is left out`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.what, self.why)
    }
}

/// What is in the place of what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// This word.
    Word(String),
    /// The end of the line.
    EndOfLine,
}

impl Found {
    pub(super) fn of(word: Option<&str>) -> Self {
        word.map_or(Self::EndOfLine, |word| Self::Word(word.to_owned()))
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "`{word}`"),
            Self::EndOfLine => f.write_str("the end of the line"),
        }
    }
}

/// Why a line is not the same in netvm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Why {
    /// ClassBench: the flags column.
    #[error("flags are ignored; rules match addresses, ports and protocol")]
    FlagsIgnored,
    /// ClassBench: flags of a protocol whose flags have no field here.
    #[error("netvm has no field for these flags of this protocol; they are ignored")]
    FlagsUnknown,
    /// ClassBench: columns behind the flags.
    #[error("columns behind the flags have no field in netvm and are ignored")]
    ExtraFields,
    /// Connection tracking.
    #[error(
        "netvm keeps no state of connections; the rule is left out, so say what the answers are by other fields"
    )]
    ConnectionState,
    /// A match on something that is not in the flow key.
    #[error("netvm has no such match; the rule is left out")]
    Match,
    /// A target or statement that netvm does not have.
    #[error("netvm has no such action; the rule is left out")]
    Action,
    /// Logging.
    #[error("netvm does not log packets; its counters per rule, or a mirror, take its place")]
    Log,
    /// An interface that is no port.
    #[error("no port of netvm goes by this name; the rule is left out")]
    Interface,
    /// An ingress chain of which nft does not print the device.
    #[error("nft does not say for which device this chain is; it is left out")]
    Device,
    /// A chain of a device that is no port.
    #[error("no port of netvm goes by this name; the chain is left out")]
    NoDevice,
    /// Some of several interfaces are no ports.
    #[error("no port of netvm goes by this name; the rule is for the others that it names")]
    SomeInterfaces,
    /// A mask that is no prefix.
    #[error("the mask is not a prefix; the rule is left out")]
    Mask,
    /// The lowest two bits of the TOS byte.
    #[error("netvm matches the code point, not the ECN bits of this byte; the rule is left out")]
    EcnBits,
    /// Ports of DCCP, UDP-Lite and so on.
    #[error("netvm reads the ports of TCP, UDP and SCTP only; the rule is left out")]
    NoPorts,
    /// `th dport` without a protocol.
    #[error("netvm reads the ports of TCP, UDP and SCTP only; the rule is for these")]
    SomePorts,
    /// A negation that the rule language cannot write.
    #[error("netvm cannot match the opposite of this; the rule is left out")]
    Opposite,
    /// A rule that no packet can fit.
    #[error("no packet gets here and fits; there is no rule for it")]
    NeverFits,
    /// The table is not one that filters forwarded packets.
    #[error("netvm has no equivalent of this table; it is left out")]
    Table,
    /// The table is switched off.
    #[error("the table is dormant; it is left out")]
    Dormant,
    /// A match or target that nft cannot tell.
    #[error(
        "this is of iptables-nft and nft does not tell it: import what iptables-save prints; the rule is left out"
    )]
    Xtables,
    /// A kind of object.
    #[error("netvm does not know this kind of object; it is left out")]
    Object,
    /// The chain is for other than forwarded packets.
    #[error("only rules for forwarded packets have an equivalent; the chain is left out")]
    Hook,
    /// The chain is not used.
    #[error("no rule for forwarded packets jumps to this chain; it is left out")]
    Unreached,
    /// The answer of a reject rule; said once for each.
    #[error("netvm answers with a TCP reset, to other packets with ICMP administratively prohibited")]
    Answer,
    /// A limit below one a second.
    #[error("the slowest rate of netvm is one a second; the rule is left out")]
    SlowRate,
    /// A limit that is no whole number a second.
    #[error("netvm counts whole units a second; the rate is {0} a second here")]
    RoundedRate(u64),
    /// A limit for each address and so on.
    #[error("netvm limits a rule as a whole, not by address or port; the rule is left out")]
    LimitPerKey,
    /// A limit with an action for which there is none.
    #[error(
        "netvm can limit what a rule accepts, or drop what exceeds a limit, and nothing else; the rule is left out"
    )]
    LimitUse,
    /// What exceeds a limit.
    #[error(
        "what exceeds the limit is dropped here; in the file it goes on to the rules behind, which may accept it"
    )]
    LimitDrops,
    /// One limit for several rules.
    #[error("this needs {0} rules here, and each has the whole limit to itself")]
    LimitSplit(usize),
    /// A limit that counts packets before the other matches.
    #[error(
        "the limit counts packets that fit the whole rule; in the file it stands before other matches and counts more"
    )]
    LimitOrder,
    /// A limit in bytes.
    #[error(
        "the limit counts bytes of the whole frame; in the file they are of the packet from the IP header on"
    )]
    LimitBytes,
    /// The rules look at the outgoing interface.
    #[error("rules of this file look at the outgoing port, so all of them are for packets on their way out")]
    Egress,
    /// `ip6 nexthdr`.
    #[error("netvm matches the protocol behind all extension headers, not the first header")]
    FirstHeader,
    /// A set that packets change, or whose elements expire.
    #[error("the elements of this set change by themselves; the rule is left out")]
    DynamicSet,
    /// The set is not in the file.
    #[error("the file does not have this set, map or limit; the rule is left out")]
    Missing,
    /// Both bridged and routed packets are filtered.
    #[error(
        "netvm has one path for bridged and routed packets: both pass the chains of bridge and of IP tables"
    )]
    BridgeAndIp,
}
