// SPDX-License-Identifier: Apache-2.0
//! The configurations of a run: a steady chain that nothing touches, and everything else.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The role of the NF that gets no core now and then, and its chain.
pub const STARVED_NF: &str = "starved-nf";
pub const STARVED_CHAIN: &str = "starved";
/// The ports of the uplinks.
pub const UPLINK_PORTS: [&str; 2] = ["uplink-a", "uplink-b"];
/// Most packets a second that an uplink or a patch link floods.
const STORM_CONTROL: &str =
    "storm_control = { broadcast = 10000, multicast = 10000, unknown_unicast = 10000 }";

/// What a configuration has besides the steady chain and the disturbed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// A second chain that comes and goes.
    pub spare: bool,
    /// The interface and the namespace that come and go are ports.
    pub link: bool,
    /// A loop of two patch ports.
    pub patch_loop: bool,
    /// A second worker, on the last core.
    pub two_workers: bool,
    /// An NF that cannot start: the change must be undone.
    pub broken: bool,
    /// The steady chain gets no packets.
    pub quiet: bool,
}

/// The interface that comes and goes, and the namespace, of this process.
pub fn interface() -> String {
    format!("nvt{}", std::process::id())
}

/// Two interfaces that lead to one bridge outside.
pub fn uplinks() -> [String; 2] {
    ["u", "v"].map(|letter| interface() + letter)
}

/// The core on which an NF gets none: the last one, as netvmd's worker has the first one.
pub fn contended_core() -> usize {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).unwrap_or_default()
}

/// The core of netvmd's worker.
pub fn first_core() -> usize {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap_or_default()
}

/// Groups, NFs and chains without ports: no device holds a buffer.
pub fn without_ports(program: &Path) -> String {
    HEAD.to_owned() + &nfs(program)
}

/// A configuration. `folder` has the sockets of the guest and of the memif.
pub fn text(program: &Path, folder: &Path, variant: Variant) -> String {
    let mut text = HEAD.to_owned() + &nfs(program);
    if variant.two_workers {
        let cores = format!("[engine]\ncores = {:?}\n", [first_core(), contended_core()]);
        text = text.replacen("[engine]\n", &cores, 1);
    }
    // The steady source waits rather than lose a packet.
    text += &source_and_sink(
        "steady",
        "lossless = true\nrate = 20000",
        if variant.quiet { "drop = true" } else { "chain = \"steady\"" },
    );
    text += &source_and_sink("disturbed", "rate = 50000", "chain = \"disturbed\"");
    text += &source_and_sink("hostile", "rate = 20000", "chain = \"hostile\"");
    text += &source_and_sink(STARVED_CHAIN, "rate = 5000", &format!("chain = {STARVED_CHAIN:?}"));
    text += "\n[[chain]]\nname = \"steady\"\nhops = [\"steady-nf\"]\noutput = \"steady-out\"\n\
             \n[[chain]]\nname = \"disturbed\"\nhops = [\"disturbed-nf\"]\non_failure = \"bypass\"\noutput = \"disturbed-out\"\n\
             \n[[chain]]\nname = \"hostile\"\nhops = [\"hostile\"]\non_failure = \"bypass\"\noutput = \"hostile-out\"\n";
    text += &format!(
        "\n[[chain]]\nname = {STARVED_CHAIN:?}\nhops = [{STARVED_NF:?}]\noutput = \"{STARVED_CHAIN}-out\"\n"
    );
    // What the source sends is flooded, as nobody has its destination address.
    text += &switched("flooded", "kind = \"source\"\nrate = 100");
    for (port, interface) in UPLINK_PORTS.into_iter().zip(uplinks()) {
        text += &switched(port, &format!("kind = \"af_packet\"\ninterface = {interface:?}\n{STORM_CONTROL}"));
    }
    text += &format!(
        "\n[[port]]\nname = \"guest\"\nkind = \"vhost-user\"\npath = \"{}\"\n\
         \n[[rule]]\nname = \"guest\"\nfrom = \"guest\"\ndrop = true\n",
        folder.join("guest.sock").display()
    );
    text += &format!(
        "\n[[port]]\nname = \"memif\"\nkind = \"memif\"\npath = \"{}\"\n\
         \n[[rule]]\nname = \"memif\"\nfrom = \"memif\"\ndrop = true\n\
         \n[[port]]\nname = \"to-memif\"\nkind = \"source\"\nrate = 2000\n\
         \n[[rule]]\nname = \"to-memif\"\nfrom = \"to-memif\"\nout = \"memif\"\n",
        folder.join("memif.sock").display()
    );
    if variant.link {
        text += &format!(
            "\n[[port]]\nname = \"link\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n\
             \n[[port]]\nname = \"beat\"\nkind = \"source\"\nrate = 1000\n\
             \n[[rule]]\nname = \"beat\"\nfrom = \"beat\"\nout = \"link\"\n\
             \n[[rule]]\nname = \"link\"\nfrom = \"link\"\ndrop = true\n\
             \n[[port]]\nname = \"box\"\nkind = \"container\"\nnamespace = \"{}\"\naddresses = [\"10.94.0.1/24\"]\n\
             gateways = [\"10.94.0.2\"]\n\
             \n[[rule]]\nname = \"box\"\nfrom = \"box\"\ndrop = true\n",
            interface(),
            interface()
        );
    }
    if variant.spare {
        text += &source_and_sink("spare", "rate = 5000", "chain = \"spare\"");
        text += "\n[[nf]]\nrole = \"spare-nf\"\ngroup = \"disturbed\"\ncommand = [\"netvm-simple-forward\"]\n\
                 \n[[chain]]\nname = \"spare\"\nhops = [\"spare-nf\"]\noutput = \"spare-out\"\n";
    }
    if variant.patch_loop {
        let vlan = "vlan = { access = 2 }";
        text += &switched("looped", &format!("kind = \"source\"\nrate = 100\n{vlan}"));
        for (port, peer) in [("patch-a", "patch-b"), ("patch-b", "patch-a")] {
            text += &switched(port, &format!("kind = \"patch\"\npeer = {peer:?}\n{STORM_CONTROL}\n{vlan}"));
        }
    }
    if variant.broken {
        text += "\n[[nf]]\nrole = \"broken\"\ngroup = \"disturbed\"\ncommand = [\"/bin/false\"]\n";
    }
    text
}

const HEAD: &str = "[engine]\nidle = \"adaptive\"\n\
    \n[[group]]\nname = \"steady\"\nbuffers = 4096\n\
    \n[[group]]\nname = \"disturbed\"\nbuffers = 4096\n\
    \n[[group]]\nname = \"hostile\"\nbuffers = 4096\n\
    \n[[group]]\nname = \"starved\"\nbuffers = 4096\n";

fn nfs(program: &Path) -> String {
    format!(
        "\n[[nf]]\nrole = \"steady-nf\"\ngroup = \"steady\"\ncommand = [\"netvm-simple-forward\"]\n\
         \n[[nf]]\nrole = \"disturbed-nf\"\ngroup = \"disturbed\"\nreplicas = 2\ncommand = [\"netvm-simple-forward\"]\n\
         \n[[nf]]\nrole = \"hostile\"\ngroup = \"hostile\"\n\
         \n[[nf]]\nrole = \"hog\"\ngroup = \"disturbed\"\nmemory = 64\ntasks = 32\n\
         command = [{:?}, \"hostile\", \"hog\"]\n\
         \n[[nf]]\nrole = {STARVED_NF:?}\ngroup = \"starved\"\nhang_timeout = 1\ncores = [{}]\ncpu_weight = 1\n\
         command = [\"netvm-simple-forward\"]\n",
        program.display().to_string(),
        contended_core()
    )
}

/// A port of the switch.
fn switched(name: &str, keys: &str) -> String {
    format!("\n[[port]]\nname = {name:?}\nforward = {{ normal = true }}\n{keys}\n")
}

fn source_and_sink(name: &str, source: &str, rule: &str) -> String {
    format!(
        "\n[[port]]\nname = \"{name}-in\"\nkind = \"source\"\nflows = 64\n{source}\n\
         \n[[port]]\nname = \"{name}-out\"\nkind = \"sink\"\n\
         \n[[rule]]\nname = \"{name}\"\nfrom = \"{name}-in\"\n{rule}\n"
    )
}
