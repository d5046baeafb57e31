// SPDX-License-Identifier: Apache-2.0
//! The names in a file. They are read before the items, so that an item that refers to another one gets its
//! number at once. Duplicate names and too many items become findings here, bad names when their item is
//! read.

use std::collections::{BTreeMap, BTreeSet};

use netvm_model::words::{Words, did_you_mean};
use netvm_model::{
    Attach, Group, Host, MAX_CHAINS, MAX_GROUPS, MAX_PORTS, MAX_QUEUE_NAMES, MAX_REPLICAS, MAX_ROLES,
    MAX_ROUTERS, MAX_RULES, MAX_VMS, NAME_BYTES, PairEnd, PairSide, RouterInterface,
};
use netvm_policy::QueueId;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

/// The word for the ingress port in a chain's `output`.
pub(crate) const INGRESS: &str = "ingress";
/// Longest name of a network interface (`IFNAMSIZ` - 1).
pub(crate) const INTERFACE_BYTES: usize = 15;
/// Longest name of a router: a punt port is called `ROUTER.INTERFACE`.
const ROUTER_BYTES: usize = NAME_BYTES - 1 - INTERFACE_BYTES;
/// Names that a network namespace already has, or that have another meaning in its settings
/// (`/proc/sys/net/ipv4/conf`) or in paths.
const TAKEN: [&str; 5] = ["lo", "all", "default", ".", ".."];

/// Why a text cannot be a name.
pub(crate) struct BadName {
    /// What is wrong.
    pub(crate) label: String,
    /// What would help.
    pub(crate) help: String,
}

/// Checks whether a text can be a name.
pub(crate) type Check = fn(&str) -> Result<(), BadName>;

/// Any name.
pub(crate) fn any(text: &str) -> Result<(), BadName> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let label = if text.is_empty() {
        "a name has at least one character".to_owned()
    } else if text.len() > NAME_BYTES {
        format!("{} characters long", text.len())
    } else if let Some(c) = text.chars().find(|c| !allowed(*c)) {
        format!("a name cannot contain {c:?}")
    } else if text.starts_with('.') {
        "a name cannot begin with a dot".to_owned()
    } else {
        return Ok(());
    };
    Err(BadName {
        label,
        help: format!(
            "names have 1 to {NAME_BYTES} of the characters A-Z a-z 0-9 _ - . and begin with no dot"
        ),
    })
}

pub(crate) fn port(text: &str) -> Result<(), BadName> {
    if text == INGRESS {
        return Err(taken("stands for the port that a packet came in by"));
    }
    any(text)
}

pub(crate) fn router(text: &str) -> Result<(), BadName> {
    any(text).and_then(|()| short(text, ROUTER_BYTES))
}

/// Checks the name of a router's interface.
pub(crate) fn interface(text: &str) -> Result<(), BadName> {
    if TAKEN.contains(&text) {
        return Err(taken("means something else in a network namespace"));
    }
    any(text).and_then(|()| short(text, INTERFACE_BYTES))
}

/// Checks the name of a kernel interface.
pub(crate) fn kernel_interface(text: &str) -> Result<(), BadName> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || !netvm_text::is_visible(c);
    let label = if text.is_empty() || text == "." || text == ".." {
        "no interface can have this name".to_owned()
    } else if text.len() > INTERFACE_BYTES {
        format!("{} characters long", text.len())
    } else if let Some(c) = text.chars().find(|c| bad(*c)) {
        format!("the name of an interface cannot contain {c:?}")
    } else {
        return Ok(());
    };
    let help = format!(
        "Linux interface names have at most {INTERFACE_BYTES} characters; one with characters that cannot be seen needs another name: \
         `ip link set NAME name NEW`"
    );
    Err(BadName { label, help })
}

fn taken(label: &str) -> BadName {
    BadName { label: label.to_owned(), help: "choose another name".to_owned() }
}

fn short(text: &str, most: usize) -> Result<(), BadName> {
    let help = || format!("must have at most {most} characters");
    let bad = || BadName { label: format!("{} characters long", text.len()), help: help() };
    if text.len() > most { Err(bad()) } else { Ok(()) }
}

/// The names of one kind of item, with their numbers.
pub(crate) struct Known {
    /// What an item is called, such as `port`.
    what: &'static str,
    /// The number of each, and its place if it is in the file.
    numbers: BTreeMap<String, (u16, Option<Span>)>,
    /// The name of an item could not be read, and an unknown name may refer to that item.
    is_incomplete: bool,
}

/// An item's name, if it can be read, and the place for errors about it.
type Named = (Option<String>, Span);

/// How many items of a kind a host can have.
#[derive(Clone, Copy)]
struct Limited<'a> {
    /// What an item is called.
    what: &'static str,
    limit: usize,
    /// What else counts against the limit.
    counted: &'a str,
}

impl Known {
    /// The names of items in the file.
    fn read(findings: &Findings, limited: Limited<'_>, items: Vec<Named>) -> Self {
        let Limited { what, limit, counted } = limited;
        let mut known = Self { what, numbers: BTreeMap::new(), is_incomplete: false };
        if let Some((_, place)) = items.get(limit) {
            findings
                .note(Kind::TooMany, format!("more than {limit} {what}s"))
                .at(place.clone(), "exceeds the limit")
                .help(format!("a host can have {limit} {what}s{counted}"))
                .keep();
        }
        for ((name, place), number) in items.into_iter().zip((0..u16::MAX).chain(std::iter::repeat(u16::MAX)))
        {
            let Some(name) = name else {
                known.is_incomplete = true;
                continue;
            };
            if let Some((_, Some(first))) = known.numbers.get(&name) {
                findings
                    .note(Kind::Duplicate, format!("two {what}s are called `{name}`"))
                    .at(place, "again")
                    .at(first.clone(), "first here")
                    .help(format!("give every {what} a name of its own"))
                    .keep();
                continue;
            }
            known.numbers.insert(name, (number, Some(place)));
        }
        known
    }

    /// The names of a host's items.
    fn of<'a>(what: &'static str, names: impl IntoIterator<Item = (&'a str, u16)>) -> Self {
        let numbers = names.into_iter().map(|(name, number)| (name.to_owned(), (number, None))).collect();
        Self { what, numbers, is_incomplete: false }
    }

    /// The number of a name.
    fn number(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).map(|(number, _)| *number)
    }

    /// The names, unless some could not be read.
    pub(crate) fn all(&self) -> Option<impl Iterator<Item = &str> + Clone> {
        (!self.is_incomplete).then(|| self.numbers.keys().map(String::as_str))
    }

    /// The number of items.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The number of a name; an unknown name becomes a finding.
    pub(crate) fn find(&self, findings: &Findings, name: &str, place: Span) -> Option<u16> {
        let what = self.what;
        let number = self.number(name);
        if number.is_none() && !self.is_incomplete {
            let help = did_you_mean(name, self.numbers.keys().map(String::as_str), &format!("the {what}s"));
            // Roles are declared by NFs.
            let table = if what == "role" { "nf" } else { what };
            findings
                .note(Kind::UnknownName, format!("there is no {what} `{name}`"))
                .at(place, format!("no such {what}"))
                .help(help.unwrap_or_else(|| format!("there are no {what}s: add a [[{table}]]")))
                .keep();
        }
        number
    }
}

/// All names that an item can refer to.
pub(crate) struct Names {
    pub(crate) groups: Known,
    pub(crate) ports: Known,
    pub(crate) roles: Known,
    pub(crate) chains: Known,
    pub(crate) routers: Known,
    /// Queues of all ports; those with one name have one number.
    pub(crate) queues: Known,
}

impl Names {
    /// The names in a file.
    pub(crate) fn read(findings: &Findings, file: &FileTable<'_>) -> Self {
        let named = |table: &str, key: &str, check: Check| -> Vec<Named> {
            file.items(table).iter().map(|item| name(item, key, check)).collect()
        };
        let mut ports = named("port", "name", port);
        let punts: Vec<Named> = file.items("router").iter().flat_map(punt_names).collect();
        let pairs: Vec<Named> = file.items("nf").iter().flat_map(pair_names).collect();
        let counted = match (punts.is_empty(), pairs.is_empty()) {
            (true, true) => "",
            (false, true) => ", and each interface of a router takes one more",
            (true, false) => ", and each instance of a program with `attach` takes two more",
            (false, false) => {
                ", and each interface of a router takes one more, each instance of a program with `attach` two"
            }
        };
        ports.extend(punts.into_iter().chain(pairs));
        let ports = Known::read(findings, Limited { what: "port", limit: MAX_PORTS, counted }, ports);
        let read = |what, limit, items| Known::read(findings, Limited { what, limit, counted: "" }, items);
        read("vm", MAX_VMS, named("vm", "name", any));
        read_rules(findings, file);
        read("NAT rule", MAX_RULES, named("nat", "name", any));
        let queues = file.items("port").iter().flat_map(queue_names).collect();
        let queues = different(queues);
        let distinct = Limited { what: "queue", limit: MAX_QUEUE_NAMES, counted: " with different names" };
        let groups = read("group", MAX_GROUPS, named("group", "name", any));
        let default = Group::default();
        let has_groups = !file.items("group").is_empty();
        Self {
            groups: if has_groups { groups } else { Known::of("group", [(default.name.as_str(), 0)]) },
            ports,
            roles: read("role", MAX_ROLES, named("nf", "role", any)),
            chains: read("chain", MAX_CHAINS, named("chain", "name", any)),
            routers: read("router", MAX_ROUTERS, named("router", "name", router)),
            queues: Known::read(findings, distinct, queues),
        }
    }

    /// The id of a queue's name.
    pub(crate) fn queue(&self, name: &str) -> Option<QueueId> {
        self.queues.number(name).and_then(|number| u8::try_from(number).ok()).map(QueueId)
    }

    /// The names of a host.
    pub(crate) fn of(host: &Host) -> Self {
        Self {
            groups: Known::of("group", host.groups.iter().map(|item| (item.name.as_str(), item.id.0))),
            ports: Known::of("port", host.ports.iter().map(|item| (item.name.as_str(), item.id.0))),
            roles: Known::of("role", host.nfs.iter().map(|item| (item.role.as_str(), item.id.0))),
            chains: Known::of("chain", host.chains.iter().map(|item| (item.name.as_str(), item.id.0))),
            routers: Known::of("router", host.routers.iter().map(|item| (item.name.as_str(), item.id.0))),
            queues: Known::of("queue", host.queues().map(|item| (item.name.as_str(), item.id.0.into()))),
        }
    }
}

/// Checks that no two rules have the same name; rules need no name.
pub(crate) fn read_rules(findings: &Findings, file: &FileTable<'_>) {
    let rules = file.items("rule").iter().map(|item| name(item, "name", any)).collect();
    Known::read(findings, Limited { what: "rule", limit: MAX_RULES, counted: "" }, rules);
}

fn name(item: &FileTable<'_>, key: &str, check: Check) -> Named {
    let text = item.value(key).and_then(|value| value.get_ref().as_str());
    (text.filter(|text| check(text).is_ok()).map(str::to_owned), item.of(key))
}

/// The names of a port's queues.
fn queue_names(port: &FileTable<'_>) -> Vec<Named> {
    let queues = port.table("qos").map(|qos| qos.items("queues")).unwrap_or_default();
    queues.iter().map(|queue| name(queue, "name", any)).collect()
}

/// Each name once.
fn different(mut items: Vec<Named>) -> Vec<Named> {
    let mut seen = BTreeSet::new();
    items.retain(|(name, _)| name.as_ref().is_none_or(|name| seen.insert(name.clone())));
    items
}

/// The names of a router's punt ports, in the order of their numbers. A name that occurs twice in a router is left out:
/// the router has a finding about it.
fn punt_names(item: &FileTable<'_>) -> Vec<Named> {
    let (of, _) = name(item, "name", router);
    let mut seen = Vec::new();
    let mut punt = |item: &FileTable<'_>| {
        let (name, place) = name(item, "name", interface);
        let name = name.filter(|name| !seen.contains(name));
        seen.extend(name.clone());
        let punt = of.as_ref().zip(name).map(|(of, name)| RouterInterface::punt_name(of, &name));
        (punt, place)
    };
    item.items("interface").iter().map(&mut punt).collect()
}

/// The names of the ports of a program, in the order of their numbers.
fn pair_names(item: &FileTable<'_>) -> Vec<Named> {
    let word = |key: &str| item.value(key).and_then(|value| value.get_ref().as_str());
    let is_pair = word("attach").is_some_and(|attach| Attach::WORDS.iter().any(|(word, _)| *word == attach));
    let (Some(role), place) = name(item, "role", any) else { return Vec::new() };
    if !is_pair {
        return Vec::new();
    }
    let count = |key: &str, default: u16| {
        let value = item.value(key).and_then(|value| value.get_ref().as_integer());
        let number = value.and_then(|value| u16::from_str_radix(value.as_str(), value.radix()).ok());
        number.unwrap_or(default).min(MAX_REPLICAS as u16)
    };
    let sides = PairSide::of_count(count("ports", 2));
    let instances = 0..count("replicas", 1).saturating_add(count("standby", 0));
    let names = instances
        .flat_map(|instance| sides.iter().map(move |side| (instance, *side)))
        .map(|(instance, side)| PairEnd { role: &role, instance, side }.port_name());
    names.map(|name| (Some(name), place.clone())).collect()
}
