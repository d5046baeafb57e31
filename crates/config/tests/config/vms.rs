// SPDX-License-Identifier: Apache-2.0
//! Virtual machines: which errors there are, what plans say.

use netvm_config::plan;
use netvm_model::{Guest, VmAccel, VmBoot, assign_ids};

use crate::{cases, edited, findings, host, is, planned};

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

#[test]
fn vms_have_defaults_and_addresses_of_their_own() {
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

/// Edit, its replacement, code of the finding, part of its message, part of the remedy.
const CASES: &str = r#"
role = "monitor"⏎threads | role = "monitr"⏎threads | unknown_name | no role `monitr` | did you mean `monitor`?
"guest1", "guest2" | "guest1", "guest3" | unknown_name | no port `guest3` | did you mean
"guest1", "guest2" | "guest1", "wire" | conflict | port wire is sink | kind = "vhost-user"
"guest1", "guest2" | "guest1", "guest1" | duplicate | behind port guest1 | a port of its own
["guest1", "guest2"] | [] | bad_value | is an empty list | name a port of kind vhost-user or e1000
ports = ["guest1", "guest2"]⏎ |  | missing_key | no `ports` | or the `role`
role = "monitor"⏎threads | role = "firewall"⏎threads | conflict | as a process | remove `command` from [[nf]] firewall
threads = 4 | threads = 9 | too_many | have 9 threads | at most 8 threads
threads = 4 | ports = ["guest2"] | conflict | `ports` and `role` | keep one
threads = 4 | macs = [] | conflict | `macs` does not belong | remove it
append = "quiet" | threads = 2 | conflict | `threads` does not belong | remove it
append = "quiet" | macs = ["02:00:00:00:00:01"] | bad_value | 1 addresses for 2 ports | one for each port
append = "quiet" | macs = ["02:00:00:00:00:01", "02:00:00:00:00:01"] | duplicate | the address 02:00:00:00:00:01 | in `macs`
append = "quiet" | macs = ["02:00:00:00:00:01", "01:00:00:00:00:01"] | bad_value | cannot contain | must be a unicast, non-zero MAC address
append = "quiet" | image = "/disk" | conflict | `image` and `kernel` | keep one
image = "/var/lib/scan.qcow2"⏎ |  | missing_key | has no `image` | `kernel`
image = "/var/lib/scan.qcow2"⏎ | image = "scan.raw"⏎ | bad_value | `image` cannot be | absolute path
image = "/var/lib/scan.qcow2"⏎ | image = "/x"⏎append = ""⏎ | conflict | `append` does not | remove it
append = "quiet" | memory = 16 | bad_value | `memory` is 16 | from 32 to 1048576
append = "quiet" | cpus = 0 | bad_value | `cpus` is 0 | from 1 to 255
append = "quiet" | memroy = 64 | unknown_key | unknown key `memroy` | did you mean `memory`?
append = "quiet" | start = "by-hand" | bad_value | cannot be `by-hand` | `manual`
append = "quiet" | start = 1 | wrong_type | has the wrong type | 
append = "quiet" | boot_timeout = 0 | bad_value | is 0 | from 1 to 3600
append = "quiet" | restart = "sometimes" | bad_value | cannot be `sometimes` | `on-failure`
append = "quiet" | qemu = "" | bad_value | `qemu` cannot be `` | leave it out
append = "quiet" | user = "a b" | bad_value | `user` cannot be | a user of this machine
name = "scan" | name = "web1" | duplicate | two vms are called `web1` | a name of its own
cores = [1] | cores = [0] | shared_core | VM web1 shares core 0 | another core
path = "/run/guest1.sock" | path = "guest1.sock" | conflict | has a relative path | an absolute `path`
path = "/run/guest1.sock"⏎ |  | missing_key | has no `path` | name the socket
path = "/run/guest1.sock" | path = "/run/guest1.sock"⏎socket_owner = "qemu" | conflict | belongs to qemu | set `user` of the VM
path = "/run/guest1.sock" | path = "/run/guest1.sock"⏎socket_owner = "a:b:c" | bad_value | cannot be `a:b:c` | "user:group"
path = "/run/guest1.sock" | path = "/run/guest1.sock"⏎socket_mode = "0980" | bad_value | cannot be `0980` | octal digits
mode = "client" | mode = "client"⏎socket_mode = "0660" | conflict | `socket_mode` does not belong | remove it
path = "/run/guest1.sock" | path = "/run/guest2.sock" | duplicate | the socket `/run/guest2.sock` | only one port
"#;

#[test]
fn every_error_names_the_place_and_the_remedy() {
    for [from, to, code, message, remedy] in &cases(CASES) {
        let findings = findings(&edited(GOOD, from, to));
        let finding = findings.iter().find(|finding| is(finding, code, remedy));
        let finding = finding.unwrap_or_else(|| panic!("{to}: {findings:#?}"));
        assert!(finding.message().contains(message), "{to}: {}", finding.message());
        assert!(finding.position().0 > 5, "{to}: {:?}", finding.position());
    }
}

fn changed(from: &str, to: &str) -> String {
    planned(GOOD, &edited(GOOD, from, to))
}

#[test]
fn plans_say_which_vms_restart() {
    let port = "port guest1: path /run/guest1.sock → /run/g.sock";
    assert_eq!(
        changed("cores = [1]", "cores = [1]\nmemory = 1024"),
        "~ vm web1: memory 512 → 1024\n    restarts VM web1 (memory 512 → 1024)\n"
    );
    assert_eq!(
        changed("cores = [1]", "cores = [1]\nrestart = \"never\""),
        "~ vm web1: restart on-failure → never\nno traffic is disturbed\n"
    );
    let (waits, starts) =
        (host(&edited(GOOD, "cores = [1]", "start = false")), host(&edited(GOOD, "cores = [1]", "")));
    assert!(plan(&waits, &starts).to_string().contains("starts VM web1"));
    let moved = changed("path = \"/run/guest1.sock\"", "path = \"/run/g.sock\"");
    assert!(moved.contains(port) && moved.contains("restarts VM web1 (port guest1: path"), "{moved}");
    // A guest learns the MTU from its card.
    let path = "path = \"/run/guest1.sock\"";
    let longer = changed(path, &format!("{path}\nmtu = 1600"));
    assert!(longer.contains("restarts VM web1 (port guest1: mtu 1500 → 1600)"), "{longer}");
    assert_eq!(
        changed(path, &format!("{path}\nsocket_mode = \"0660\"")),
        "~ port guest1: socket_mode unset → 0660\nno traffic is disturbed\n"
    );
    let start = GOOD.find("[[vm]]").unwrap();
    let (with, mut without) = (host(GOOD), host(&GOOD[..start]));
    let gone = plan(&with, &without).to_string();
    assert!(gone.contains("- vm scan: role monitor, 512 MiB, 1 cpus\n    shuts VM scan down\n"), "{gone}");
    assign_ids(&mut without, Some(&with));
    let come = plan(&without, &with).to_string();
    assert!(come.contains("+ vm web1: ports guest1,guest2, 512 MiB, 1 cpus\n    starts VM web1\n"), "{come}");
}
