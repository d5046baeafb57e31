// SPDX-License-Identifier: Apache-2.0
//! Parses a rule of `iptables-save`: its options from left to right.

use std::collections::HashMap;

use super::tracking::tracking;
use super::words::Word;
use super::{IptablesError, syntax};
use crate::algebra::{Field, Ranges, product, with_transport_header};
use crate::chains::{End, Step};
use crate::limit::{Limit, seconds};
use crate::names::number;
use crate::{Interfaces, IpVersion, Note, NoteReason};
use netvm_model::NatAction;
use netvm_policy::Match;

/// Targets without equivalent after which packets go on to the next rule, with the fields that rules match as they are.
pub(super) const CONTINUING_TARGETS: [&str; 24] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "NOTRACK",
    "RATEEST",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TRACE",
    "TTL",
    "ULOG",
];

/// The parser of a rule stops.
pub(super) enum Stop {
    /// The rule has no equivalent: the words and the reason.
    Note(String, NoteReason),
    /// The rule is malformed.
    Error(IptablesError),
}

impl From<IptablesError> for Stop {
    fn from(error: IptablesError) -> Self {
        Self::Error(error)
    }
}

/// The options of a rule and the names in scope.
pub(super) struct RuleReader<'a> {
    pub(super) line: u32,
    pub(super) text: &'a str,
    pub(super) words: &'a [Word<'a>],
    /// The next word.
    pub(super) at: usize,
    pub(super) version: IpVersion,
    pub(super) interfaces: &'a Interfaces,
    pub(super) chains: &'a HashMap<String, usize>,
}

/// The parsed part of a rule.
#[derive(Clone)]
pub(super) struct Draft {
    /// One of these must fit.
    pub(super) fits: Vec<Match>,
    pub(super) name: String,
    /// Whether it matches the transport header.
    pub(super) transport: bool,
    /// Whether it matches ports.
    pub(super) ports: bool,
    pub(super) limit: Option<Limit>,
    /// Whether matches follow the limit.
    late: bool,
    end: End,
    /// The words of the target, and its difference.
    target: Option<(String, NoteReason)>,
    /// The words that say that its packets are addressed to the router.
    pub(super) local: Option<String>,
    nat: Option<NatAction>,
    /// Other differences.
    pub(super) notes: Vec<(String, NoteReason)>,
}

impl Draft {
    fn new() -> Self {
        Self {
            fits: vec![Match::default()],
            name: String::new(),
            transport: false,
            ports: false,
            limit: None,
            late: false,
            end: End::Next,
            target: None,
            local: None,
            nat: None,
            notes: vec![],
        }
    }

    /// Narrows to packets that also fit one of these.
    pub(super) fn narrow(&mut self, to: &[Match]) {
        self.fits = product(&self.fits, to);
        self.late |= self.limit.is_some();
    }

    /// Narrows a field to these values, or to all others if negated.
    pub(super) fn field(&mut self, field: Field, values: &Ranges, negated: bool) {
        let values = if negated { &values.complement(field.highest()) } else { values };
        self.narrow(field.among(values).as_slice());
    }
}

impl<'a> RuleReader<'a> {
    /// Parses the rule; returns its step, unless it applies to no packet, and the notes.
    pub(super) fn read(mut self, chain: &str) -> Result<(Option<Step>, Vec<Note>), IptablesError> {
        let line = self.line;
        let mut draft = Draft::new();
        match self.options(&mut draft).and_then(|()| self.step(&draft, chain)) {
            Ok((step, notes)) => Ok((Some(step), notes)),
            Err(Stop::Note(what, NoteReason::Interface)) if self.interfaces.is_complete() => {
                Ok((None, vec![Note::new(line, what, NoteReason::Interface)]))
            }
            Err(Stop::Note(what, why)) => Ok((Some(self.unsure(draft, chain, what, why)), vec![])),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    /// The step of a rule without equivalent: the packets that may match it, and what it does to them.
    fn unsure(&self, draft: Draft, chain: &str, option: String, why: NoteReason) -> Step {
        let Draft { fits, name, local, .. } = draft;
        let step = Step::new(self.line, format!("rule of chain {chain}"), fits);
        let (end, tracking, unsure) = (self.end(), tracking(self.words), Some((option, why)));
        Step { name, end, unsure, tracking, local, ..step }
    }

    /// What the rule does to packets that match, by its target alone.
    fn end(&self) -> End {
        let target = self.words.windows(2).find(|pair| {
            let negated = ["-j", "--jump", "-g", "--goto"];
            negated.contains(&&*pair[0].text)
        });
        let Some([option, target]) = target else { return End::Next };
        match (self.chains.get(&*target.text), &*target.text) {
            (Some(&chain), _) if option.text.starts_with("-g") || option.text.starts_with("--g") => {
                End::Goto(chain)
            }
            (Some(&chain), _) => End::Jump(chain),
            (None, "ACCEPT") => End::Accept,
            (None, "DROP") => End::Drop,
            (None, "REJECT") => End::Reject,
            (None, "RETURN") => End::Return,
            (None, name) if CONTINUING_TARGETS.contains(&name) => End::Next,
            (None, _) => End::Unknown,
        }
    }

    fn options(&mut self, draft: &mut Draft) -> Result<(), Stop> {
        while self.at < self.words.len() {
            let start = self.at;
            let negated = self.skip("!");
            let option = self.value("an option")?;
            match &*option.text {
                "-j" | "--jump" | "-g" | "--goto" if !negated => self.target(draft, start)?,
                "-m" | "--match" if !negated => self.module(draft, start)?,
                "--comment" if !negated => draft.name = self.value("a comment")?.text.clone().into_owned(),
                "--limit" | "--limit-burst" => self.limit(draft, &option.text, negated)?,
                name if name.starts_with("--hashlimit") => self.hash_limit(draft, start, negated)?,
                name if name.starts_with('-') => self.matches(draft, start, negated)?,
                _ => return Err(self.expected("an option that starts with `-`", option).into()),
            }
        }
        Ok(())
    }

    fn step(&self, draft: &Draft, chain: &str) -> Result<(Step, Vec<Note>), Stop> {
        let (mut fits, mut end) = (draft.fits.clone(), draft.end);
        if draft.ports {
            self.check_ports(&fits)?;
        }
        if draft.transport {
            fits = fits.into_iter().filter_map(with_transport_header).collect();
        }
        let mut notes = vec![];
        let mut note = |what: String, why| notes.push(Note::new(self.line, what, why));
        draft.notes.iter().for_each(|(what, why)| note(what.clone(), *why));
        match &draft.target {
            Some((what, NoteReason::Answer)) if !is_same_answer(what, &fits) => {
                note(what.clone(), NoteReason::Answer);
            }
            Some((what, why)) if *why != NoteReason::Answer => return Err(Stop::Note(what.clone(), *why)),
            _ => {}
        }
        let mut police = None;
        if let Some(limit) = draft.limit {
            let (act, bucket, differs) =
                limit.applied(end, draft.late).map_err(|why| Stop::Note("limit".into(), why))?;
            (end, police) = (act, Some(bucket));
            for why in differs {
                note("limit".into(), why);
            }
        }
        let Draft { name, local, nat, .. } = draft.clone();
        let step = Step::new(self.line, format!("rule of chain {chain}"), fits);
        Ok((Step { name, police, end, tracking: tracking(self.words), local, nat, ..step }, notes))
    }

    /// iptables requires `-p` before ports; netvm has the ports of some protocols only.
    fn check_ports(&self, fits: &[Match]) -> Result<(), Stop> {
        if fits.iter().any(|fits| fits.protocol.is_empty()) {
            return Err(syntax(self.line, self.text, "-p tcp, udp or sctp with ports", None).into());
        }
        if fits.iter().flat_map(|fits| &fits.protocol).all(|protocol| protocol.has_ports()) {
            return Ok(());
        }
        Err(Stop::Note("ports".into(), NoteReason::NoPorts))
    }

    fn target(&mut self, draft: &mut Draft, start: usize) -> Result<(), Stop> {
        let goto = matches!(&*self.words[self.at - 1].text, "-g" | "--goto");
        let target = self.value("a target or chain")?;
        if let Some(&chain) = self.chains.get(&*target.text) {
            draft.end = if goto { End::Goto(chain) } else { End::Jump(chain) };
            return Ok(());
        }
        if goto {
            return Err(self.expected("a chain of this table", target).into());
        }
        draft.end = match &*target.text {
            "ACCEPT" => End::Accept,
            "DROP" => End::Drop,
            "RETURN" => End::Return,
            "REJECT" => {
                if self.skip("--reject-with") {
                    self.value("what to answer")?;
                }
                draft.target = Some((self.since(start), NoteReason::Answer));
                End::Reject
            }
            "CT" | "NOTRACK" => {
                self.at = self.words.len();
                End::Next
            }
            "MASQUERADE" | "SNAT" | "DNAT" | "REDIRECT" | "NETMAP" => {
                draft.nat = Some(self.translation(draft, start)?);
                End::Accept
            }
            name => {
                let log = matches!(name, "LOG" | "NFLOG" | "ULOG");
                self.at = self.words.len();
                draft.target =
                    Some((self.since(start), if log { NoteReason::Log } else { NoteReason::Action }));
                End::Next
            }
        };
        Ok(())
    }

    fn module(&mut self, draft: &mut Draft, start: usize) -> Result<(), Stop> {
        let module = self.value("a match")?;
        match &*module.text {
            "tcp" | "udp" | "sctp" | "icmp" | "icmp6" | "icmpv6" => draft.transport = true,
            "limit" | "hashlimit" => {
                draft.limit = Some(Limit { rate: 3, seconds: 3600, burst: 5, bytes: false, above: false });
                draft.late = false;
            }
            "multiport" | "iprange" | "mac" | "dscp" | "tos" | "physdev" | "comment" | "conntrack"
            | "state" => {}
            "addrtype" if self.words.get(self.at).is_some_and(|word| word.text == "--dst-type") => {
                self.at += 1;
                if self.value("a type of addresses")?.text != "LOCAL" {
                    return Err(self.without(start, NoteReason::Match));
                }
                draft.local = Some(self.since(start));
            }
            _ => return Err(self.without(start, NoteReason::Match)),
        }
        Ok(())
    }

    /// `--limit 5/min`, `--limit-burst 5`.
    fn limit(&mut self, draft: &mut Draft, option: &str, negated: bool) -> Result<(), Stop> {
        let value = self.value("a rate, as in 5/min, or a number")?;
        let wrong = |expected| Err(self.expected(expected, value).into());
        let Some(limit) = draft.limit.as_mut().filter(|_| !negated) else {
            return wrong("-m limit before the limit, and no `!`");
        };
        if option == "--limit-burst" {
            let Some(burst) = number(&value.text) else { return wrong("a number of packets") };
            limit.burst = burst;
            return Ok(());
        }
        let Some((rate, per)) = rate(&value.text) else { return wrong("a rate, as in 5/min") };
        (limit.rate, limit.seconds) = (rate, per);
        Ok(())
    }

    fn hash_limit(&mut self, draft: &mut Draft, start: usize, negated: bool) -> Result<(), Stop> {
        let option = self.words[self.at - 1].text.clone();
        let value = self.value("a value")?;
        let (expected, rate) =
            (self.expected("-m hashlimit and a rate, as in 5/min", value), rate(&value.text));
        let Some(limit) = draft.limit.as_mut() else { return Err(expected.into()) };
        match &*option {
            "--hashlimit" | "--hashlimit-upto" | "--hashlimit-above" => {
                // Byte rates look like 512kb/s.
                let bytes = value.text.contains("b/");
                let Some((rate, per)) = rate else {
                    return Err(if bytes { self.without(start, NoteReason::Match) } else { expected.into() });
                };
                (limit.rate, limit.seconds) = (rate, per);
                limit.above = negated != (&*option == "--hashlimit-above");
            }
            "--hashlimit-burst" => match number(&value.text) {
                Some(burst) => limit.burst = burst,
                None => return Err(self.without(start, NoteReason::Match)),
            },
            "--hashlimit-name" => {}
            name if name.starts_with("--hashlimit-htable") => {}
            "--hashlimit-mode" => return Err(self.without(start, NoteReason::LimitPerKey)),
            _ => return Err(self.without(start, NoteReason::Match)),
        }
        Ok(())
    }

    /// The next word, which must exist.
    pub(super) fn value(&mut self, expected: &'static str) -> Result<&'a Word<'a>, IptablesError> {
        let word = self.words.get(self.at);
        self.at += 1;
        word.ok_or_else(|| syntax(self.line, self.text, expected, None))
    }

    pub(super) fn skip(&mut self, text: &str) -> bool {
        let found = self.words.get(self.at).is_some_and(|word| word.text == text);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expected(&self, expected: &'static str, word: &Word<'_>) -> IptablesError {
        syntax(self.line, self.text, expected, Some(word))
    }

    /// The words from `start` to the current one.
    pub(super) fn since(&self, start: usize) -> String {
        let words: Vec<_> = self.words[start..self.at].iter().map(|word| &*word.text).collect();
        words.join(" ")
    }

    /// Stops because an option, or a match with its options, has no equivalent.
    pub(super) fn without(&mut self, start: usize, why: NoteReason) -> Stop {
        let module = matches!(&*self.words[start].text, "-m" | "--match");
        let ends = |word: &str| match module {
            true => ["-m", "-j", "-g", "--match", "--jump", "--goto"].contains(&word),
            false => word == "!" || word.starts_with('-'),
        };
        while self.words.get(self.at).is_some_and(|word| !ends(&word.text)) {
            self.at += 1;
        }
        Stop::Note(self.since(start), why)
    }
}

/// `5/min`, or `5` (per second): units and seconds.
fn rate(text: &str) -> Option<(u64, u64)> {
    let (rate, unit) = text.split_once('/').unwrap_or((text, "second"));
    Some((number(rate)?, seconds(unit)?))
}

/// Whether a reject rule answers as netvm does: TCP reset, else administratively prohibited.
fn is_same_answer(target: &str, fits: &[Match]) -> bool {
    let tcp = |fits: &Match| fits.protocol.is_empty() || fits.protocol.contains(&netvm_wire::IpProto::TCP);
    let prohibited = ["icmp-admin-prohibited", "icmp6-adm-prohibited", "adm-prohibited"];
    match target.rsplit(' ').next() {
        Some("tcp-reset") => true,
        Some(answer) => prohibited.contains(&answer) && !fits.iter().any(tcp),
        None => false,
    }
}
