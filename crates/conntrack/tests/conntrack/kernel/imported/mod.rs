// SPDX-License-Identifier: Apache-2.0
//! Rule sets of real programs, loaded into the kernel, and imported into netvm: both compare the same packets, and have
//! to pass and translate the same ones.

mod netvm;
mod talk;

use std::collections::BTreeMap;
use std::path::PathBuf;

use netvm_policy::PortId;
use netvm_policy_import::{Effect, Imported, Interfaces, IpVersion, NoteReason, iptables, nft};
use netvm_wire::{Address, IpProto, TcpFlags};

use super::conversation::Random;
use super::router::{Router, Sides};
use netvm::Netvm;
use talk::{Saying, Talk, View, ends_of};

/// Packets of a rule set.
const PACKETS: u32 = 20_000;
/// Conversations that go on at a time.
const TALKS: usize = 64;
/// Ports of services.
const SERVICES: [u16; 8] = [80, 8080, 53, 5353, 22, 443, 500, 9];

fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../policy-import/tests/data")).join(name)
}

/// An office network behind a router, and hosts outside of it.
const fn sides(names: [&'static str; 2]) -> Sides {
    Sides {
        names,
        addresses: ["10.0.0.1/24", "203.0.113.1/24"],
        hosts: [["10.0.0.2", "10.0.0.3"], ["203.0.113.9", "203.0.113.10"]],
    }
}

/// A rule set, and what its import says.
struct RuleSet {
    sides: Sides,
    file: &'static str,
    effect: Effect,
    /// Notes of other kinds are unexpected.
    notes: &'static [NoteReason],
}

/// The kernel's router and netvm's, with the same rules.
struct Comparison {
    sides: Sides,
    kernel: Router,
    netvm: Netvm,
    identification: u16,
    /// Verdicts, and how many packets have each.
    passed: [u32; 2],
    different: BTreeMap<String, Vec<String>>,
}

impl Comparison {
    /// `None`: this machine has no router.
    fn new(set: RuleSet) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
            println!("SKIP: a router of the kernel needs root and TAP devices");
            return None;
        }
        let RuleSet { sides, file: name, .. } = set;
        let kernel = Router::between(&sides);
        let interfaces =
            Interfaces::new([(sides.names[0], PortId(0)), (sides.names[1], PortId(1))]).complete();
        let path = file(name);
        let imported = if name.ends_with(".nft") {
            kernel.exec(&format!("nft -f {}", path.display()));
            nft::parse(&kernel.exec("nft -j list ruleset"), &interfaces).unwrap()
        } else {
            kernel.exec(&format!("iptables-restore {}", path.display()));
            let text = std::fs::read_to_string(path).unwrap();
            iptables::parse(&text, Some(IpVersion::V4), &interfaces).unwrap()
        };
        check(&imported, set.effect, set.notes);
        let netvm = Netvm::new(&sides, &imported);
        let (passed, different) = ([0; 2], BTreeMap::new());
        Some(Self { sides, kernel, netvm, identification: 0, passed, different })
    }

    /// Both compare what an end says; `true`: both pass it.
    fn say(&mut self, talks: &mut [Talk; 2], end: usize, saying: Saying) -> bool {
        self.identification = self.identification % 60_000 + 1;
        let side = talks[0].side_of(end);
        let [to_kernel, to_netvm] = [0, 1].map(|of| talks[of].frame(end, saying, self.identification));
        let ours = self.netvm.forwarded(side, &to_netvm);
        let expected = usize::from(ours.is_some());
        let kernels = self.kernel.pass(side, &[to_kernel], self.identification, expected).pop();
        self.passed[expected] += 1;
        let what = match (&kernels, &ours) {
            (None, None) => return false,
            (Some(kernels), Some(ours)) => {
                let [(first, second), (third, fourth)] = [kernels, ours].map(|frame| {
                    let [source, destination] = ends_of(frame);
                    (source.0, destination)
                });
                let is_same = (first, second.0) == (third, fourth.0);
                let is_right = talks[0].gets(end, saying, kernels);
                if is_same && is_right && talks[1].gets(end, saying, ours) {
                    return true;
                }
                "translated otherwise"
            }
            (Some(_), None) => "netvm alone drops it",
            (None, Some(_)) => "the kernel alone drops it",
        };
        let case = format!("{what}: {saying:?} of end {end}, {} from side {side}", talks[0].protocol);
        self.different.entry(case).or_default().push(format!(
            "{:?} {:?}\n  kernel {:?}\n  netvm {:?}",
            talks[0].views[end],
            talks[1].views[end],
            kernels.as_deref().map(ends_of),
            ours.as_deref().map(ends_of)
        ));
        false
    }

    fn talk(&self, random: &mut Random, number: u16) -> Talk {
        let protocol = [IpProto::TCP, IpProto::UDP, IpProto::ICMP][random.below(3) as usize];
        let side = random.below(2) as usize;
        let routers = self.sides.addresses.map(|address| address.split('/').next().unwrap());
        let others = self.sides.hosts[1 - side];
        let to =
            [others[0], others[1], others[0], routers[0], routers[1], routers[1]][random.below(6) as usize];
        // Hosts of a side use the same ports.
        let own = (address(self.sides.hosts[side][usize::from(number % 2)]), 1024 + number / 2);
        let service = SERVICES[random.below(8) as usize];
        let peer = (address(to), if protocol == IpProto::ICMP { own.1 } else { service });
        Talk::new(protocol, side, View { own, peer })
    }

    fn compare(&mut self) {
        let mut random = Random(1);
        let mut talks: Vec<[Talk; 2]> = Vec::new();
        for number in 0..PACKETS {
            if talks.len() < TALKS && random.below(2) == 0 {
                let talk = self.talk(&mut random, number as u16);
                let mut talk = [talk.clone(), talk];
                let first = if random.below(8) == 0 { TcpFlags::ACK } else { TcpFlags::SYN };
                if self.say(&mut talk, 0, Saying::Next(first, 0)) {
                    talks.push(talk);
                }
                continue;
            }
            if talks.is_empty() {
                continue;
            }
            let at = random.below(talks.len() as u32) as usize;
            let mut talk = talks.swap_remove(at);
            let (end, saying) = saying(&mut random, &talk[0]);
            let before = self.different.len();
            let passes = self.say(&mut talk, end, saying);
            let is_over = matches!(saying, Saying::Next(flags, _) if flags.contains(TcpFlags::RST));
            if !is_over && self.different.len() == before && random.below(if passes { 8 } else { 4 }) > 0 {
                talks.push(talk);
            }
        }
    }

    fn report(&self) {
        for (case, all) in &self.different {
            println!("{case}: {} times, first\n  {}", all.len(), all[0]);
        }
        assert!(self.different.is_empty(), "{} kinds of differences", self.different.len());
        // A rule set that passes all, or drops all, shows nothing.
        assert!(self.passed.iter().all(|count| *count > 1000), "{:?}", self.passed);
    }
}

/// What an end says next.
fn saying(random: &mut Random, talk: &Talk) -> (usize, Saying) {
    let is_tcp = talk.protocol == IpProto::TCP;
    let end = random.below(2) as usize;
    let end = if talk.views[end].is_some() { end } else { 0 };
    let saying = match random.below(16) {
        0 if talk.has_got(end) => Saying::Error,
        1 if is_tcp => {
            Saying::Impossible([TcpFlags::empty(), TcpFlags::SYN | TcpFlags::FIN][random.below(2) as usize])
        }
        2 if is_tcp && talk.has_got(0) => Saying::Next(TcpFlags::RST | TcpFlags::ACK, 0),
        // The second end answers a SYN.
        _ if is_tcp && end == 1 && !talk.has_got(0) => Saying::Next(TcpFlags::SYN | TcpFlags::ACK, 0),
        _ if is_tcp && !talk.has_got(0) => Saying::Next(TcpFlags::SYN, 0),
        _ => Saying::Next(TcpFlags::ACK, [0, 1, 100][random.below(3) as usize]),
    };
    (end, saying)
}

/// Checks that an import has this effect, and says nothing unexpected.
fn check(imported: &Imported, effect: Effect, expected: &[NoteReason]) {
    let notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(imported.effect(), effect, "{notes:#?}");
    use NoteReason::{Egress, Hook, NeverFits, OtherHook, Unreached};
    let always = [Hook, OtherHook, Unreached, Egress, NeverFits];
    let is_known = |why| always.contains(&why) || expected.contains(&why);
    let unknown: Vec<_> = imported.notes.iter().filter(|note| !is_known(note.why)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(imported.tracks() && !imported.nat.is_empty());
}

fn compare(set: RuleSet) {
    if let Some(mut comparison) = Comparison::new(set) {
        comparison.compare();
        comparison.report();
    }
}

#[test]
fn rules_of_docker_are_judged_as_the_kernel_judges() {
    let sides = sides(["docker0", "eth0"]);
    compare(RuleSet { sides, file: "docker.rules", effect: Effect::Same, notes: &[] });
}

#[test]
fn rules_of_ufw_are_judged_as_the_kernel_judges() {
    let sides = sides(["eth0", "eth1"]);
    compare(RuleSet { sides, file: "ufw.rules", effect: Effect::Same, notes: &[NoteReason::Log] });
}

#[test]
fn rules_of_firewalld_are_judged_as_the_kernel_judges() {
    let sides = sides(["eth0", "eth1"]);
    let notes = &[NoteReason::Answer, NoteReason::Interface];
    compare(RuleSet { sides, file: "firewalld.nft", effect: Effect::Same, notes });
}

/// The rule that accepts port forwards has no equivalent, so the file has one for the new destination, too.
#[test]
fn rules_of_openwrt_are_judged_as_the_kernel_judges() {
    let sides = sides(["br-lan", "wan"]);
    let notes = &[NoteReason::Answer, NoteReason::Undone, NoteReason::TranslatedStatus];
    compare(RuleSet { sides, file: "openwrt.nft", effect: Effect::Stricter, notes });
}
