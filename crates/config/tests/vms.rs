//! Virtual machines: what can be wrong with them, and what plans say of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use netvm_config::model::{Guest, Host, VmAccel, VmBoot};
use netvm_config::{Kind, assign_ids, parse, plan};

const GOOD: &str = r#"
[engine]
cores = [0]
idle = "poll"

[[port]]
name = "guest1"
kind = "vhost-user"
path = "/run/guest1.sock"
forward = { normal = true }

[[port]]
name = "guest2"
kind = "vhost-user"
path = "/run/guest2.sock"
mode = "client"
forward = { normal = true }

[[port]]
name = "wire"
kind = "sink"

[[nf]]
role = "firewall"
command = ["netvm-firewall"]

[[nf]]
role = "monitor"

[[chain]]
name = "all"
hops = ["firewall", "monitor"]
output = "wire"

[[rule]]
from = "guest1"
chain = "all"

[[vm]]
name = "web1"
ports = ["guest1", "guest2"]
kernel = "/boot/vmlinuz"
initrd = "/boot/initrd"
append = "quiet"
cores = [1]

[[vm]]
name = "scan"
role = "monitor"
threads = 4
image = "/var/lib/scan.qcow2"
accel = "tcg"
"#;

fn host(text: &str) -> Host {
    parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

fn edited(from: &str, to: &str) -> String {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    GOOD.replace(from, to)
}

#[test]
fn machines_have_addresses_of_their_own_and_sensible_sizes() {
    let host = host(GOOD);
    let web = host.vm_named("web1").unwrap();
    let Guest::Ordinary { cards } = &web.guest else { panic!("{web:?}") };
    assert_ne!(cards[0].mac, cards[1].mac);
    assert_eq!(cards[0].mac.octets()[0], 2, "locally administered");
    assert_eq!((web.memory, web.cpus, web.user.as_str()), (512, 1, "nobody"));
    let scan = host.vm_named("scan").unwrap();
    assert_eq!((scan.accel, &scan.boot), (VmAccel::Tcg, &VmBoot::Image("/var/lib/scan.qcow2".into())));
    assert_eq!(host.vm_threads(host.nf_named("monitor").unwrap().id), 4);
}

/// Every way to spoil a VM: what becomes of the file, what is found, what is said of it and what would help.
#[test]
fn every_error_names_the_place_and_the_remedy() {
    let cases: &[(&str, &str, Kind, &str, &str)] = &[
        (
            "role = \"monitor\"\nthreads",
            "role = \"monitr\"\nthreads",
            Kind::UnknownName,
            "no role `monitr`",
            "did you mean `monitor`?",
        ),
        (
            "\"guest1\", \"guest2\"",
            "\"guest1\", \"guest3\"",
            Kind::UnknownName,
            "no port `guest3`",
            "did you mean",
        ),
        (
            "\"guest1\", \"guest2\"",
            "\"guest1\", \"wire\"",
            Kind::Conflict,
            "port wire is sink",
            "kind = \"vhost-user\"",
        ),
        (
            "\"guest1\", \"guest2\"",
            "\"guest1\", \"guest1\"",
            Kind::Duplicate,
            "behind port guest1",
            "a port of its own",
        ),
        ("[\"guest1\", \"guest2\"]", "[]", Kind::BadValue, "is an empty list", "name a vhost-user port"),
        ("ports = [\"guest1\", \"guest2\"]\n", "", Kind::MissingKey, "no `ports`", "or the `role`"),
        (
            "role = \"monitor\"\nthreads",
            "role = \"firewall\"\nthreads",
            Kind::Conflict,
            "as a process",
            "remove `command` from [[nf]] firewall",
        ),
        ("threads = 4", "threads = 9", Kind::TooMany, "have 9 threads", "at most 8 threads"),
        ("threads = 4", "ports = [\"guest2\"]", Kind::Conflict, "`ports` and `role`", "keep one"),
        ("threads = 4", "macs = []", Kind::Conflict, "`macs` does not belong", "remove it"),
        ("append = \"quiet\"", "threads = 2", Kind::Conflict, "`threads` does not belong", "remove it"),
        (
            "append = \"quiet\"",
            "macs = [\"02:00:00:00:00:01\"]",
            Kind::BadValue,
            "1 addresses for 2 ports",
            "one for each port",
        ),
        (
            "append = \"quiet\"",
            "macs = [\"02:00:00:00:00:01\", \"02:00:00:00:00:01\"]",
            Kind::Duplicate,
            "the address 02:00:00:00:00:01",
            "in `macs`",
        ),
        (
            "append = \"quiet\"",
            "macs = [\"02:00:00:00:00:01\", \"01:00:00:00:00:01\"]",
            Kind::BadValue,
            "cannot contain",
            "must be even",
        ),
        ("append = \"quiet\"", "image = \"/disk\"", Kind::Conflict, "`image` and `kernel`", "keep one"),
        ("image = \"/var/lib/scan.qcow2\"\n", "", Kind::MissingKey, "has no `image`", "`kernel`"),
        (
            "image = \"/var/lib/scan.qcow2\"\n",
            "image = \"scan.raw\"\n",
            Kind::BadValue,
            "`image` cannot be",
            "absolute path",
        ),
        (
            "image = \"/var/lib/scan.qcow2\"\n",
            "image = \"/x\"\nappend = \"\"\n",
            Kind::Conflict,
            "`append` does not",
            "remove it",
        ),
        ("append = \"quiet\"", "memory = 16", Kind::BadValue, "`memory` is 16", "from 32 to 1048576"),
        ("append = \"quiet\"", "cpus = 0", Kind::BadValue, "`cpus` is 0", "from 1 to 255"),
        (
            "append = \"quiet\"",
            "memroy = 64",
            Kind::UnknownKey,
            "unknown key `memroy`",
            "did you mean `memory`?",
        ),
        ("append = \"quiet\"", "start = \"by-hand\"", Kind::BadValue, "cannot be `by-hand`", "`manual`"),
        ("append = \"quiet\"", "start = 1", Kind::WrongType, "has the wrong type", ""),
        ("append = \"quiet\"", "boot_timeout = 0", Kind::BadValue, "is 0", "from 1 to 3600"),
        (
            "append = \"quiet\"",
            "restart = \"sometimes\"",
            Kind::BadValue,
            "cannot be `sometimes`",
            "`on-failure`",
        ),
        ("append = \"quiet\"", "qemu = \"\"", Kind::BadValue, "`qemu` cannot be ``", "leave it out"),
        (
            "append = \"quiet\"",
            "user = \"a b\"",
            Kind::BadValue,
            "`user` cannot be",
            "a user of this machine",
        ),
        (
            "name = \"scan\"",
            "name = \"web1\"",
            Kind::Duplicate,
            "two vms are called `web1`",
            "a name of its own",
        ),
        ("cores = [1]", "cores = [0]", Kind::SharedCore, "VM web1 shares core 0", "another core"),
        (
            "path = \"/run/guest1.sock\"",
            "path = \"guest1.sock\"",
            Kind::Conflict,
            "has a relative path",
            "an absolute `path`",
        ),
        ("path = \"/run/guest1.sock\"\n", "", Kind::MissingKey, "has no `path`", "name the socket"),
        (
            "path = \"/run/guest1.sock\"",
            "path = \"/run/guest2.sock\"",
            Kind::Duplicate,
            "the socket `/run/guest2.sock`",
            "only one port",
        ),
    ];
    for (from, to, kind, message, remedy) in cases {
        let findings = match parse("host.toml", &edited(from, to)) {
            Ok(loaded) => loaded.warnings,
            Err(error) => error.findings().to_vec(),
        };
        let finding = findings.iter().find(|finding| finding.kind() == *kind);
        let finding = finding.unwrap_or_else(|| panic!("{to}: {findings:#?}"));
        assert!(finding.message().contains(message), "{to}: {}", finding.message());
        assert!(finding.remedy().unwrap().contains(remedy), "{to}: {:?}", finding.remedy());
        assert!(finding.position().0 > 5, "{to}: {:?}", finding.position());
    }
}

/// The plan after an edit, or of what comes to a host without VMs.
fn planned(from: &str, to: &str) -> String {
    let (old, mut new) = (host(GOOD), host(&edited(from, to)));
    assign_ids(&mut new, Some(&old));
    plan(&old, &new).to_string()
}

#[test]
fn plans_say_which_machines_are_disturbed() {
    let port = "port guest1: path /run/guest1.sock → /run/g.sock";
    assert_eq!(
        planned("cores = [1]", "cores = [1]\nmemory = 1024"),
        "~ vm web1: memory 512 → 1024\n    restarts VM web1 (memory 512 → 1024)\n"
    );
    assert_eq!(
        planned("cores = [1]", "cores = [1]\nrestart = \"never\""),
        "~ vm web1: restart on-failure → never\nno traffic is disturbed\n"
    );
    let (waits, starts) = (host(&edited("cores = [1]", "start = false")), host(&edited("cores = [1]", "")));
    assert!(plan(&waits, &starts).to_string().contains("starts VM web1"));
    let moved = planned("path = \"/run/guest1.sock\"", "path = \"/run/g.sock\"");
    assert!(moved.contains(port) && moved.contains("restarts VM web1 (port guest1: path"), "{moved}");
    let start = GOOD.find("[[vm]]").unwrap();
    let (with, mut without) = (host(GOOD), host(&GOOD[..start]));
    let gone = plan(&with, &without).to_string();
    assert!(gone.contains("- vm scan: role monitor, 512 MiB, 1 cpus\n    shuts VM scan down\n"), "{gone}");
    assign_ids(&mut without, Some(&with));
    let come = plan(&without, &with).to_string();
    assert!(come.contains("+ vm web1: ports guest1,guest2, 512 MiB, 1 cpus\n    starts VM web1\n"), "{come}");
}
