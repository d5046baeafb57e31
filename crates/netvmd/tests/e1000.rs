//! A guest with its distribution's kernel and two cards, an e1000 and an e1000e: QEMU is the client of ports of kind `e1000`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::guest::{Image, Reaper, Shell};
use common::hosts::{Host, are_possible};
use common::{Daemon, Folder};
use netvm_api::{PortInfo, path};
use rustix::process::Signal;

/// Bytes of a file that goes each way.
const FILE_KIB: u32 = 8 << 10;

/// A guest; killed as hard as can be on drop.
struct Guest {
    child: Child,
    console: PathBuf,
}

impl Guest {
    fn start(qemu: &Path, image: &Path, cards: &[PathBuf; 2]) -> Self {
        let console = image.join("console.sock");
        let _ = std::fs::remove_file(&console);
        let mut command = Command::new(qemu);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-cpu", "max", "-m", "192"]);
        command.args(["-machine", "q35,accel=tcg,memory-backend=ram", "-smp", "1,maxcpus=2"]);
        command.args(["-object", "memory-backend-memfd,id=ram,size=192M,share=on"]);
        for card in cards {
            let device = serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": card },
                "rombar": 0,
            });
            command.args(["-device", &device.to_string()]);
        }
        command.arg("-serial").arg(format!("unix:{},server=on,wait=off", console.display()));
        command.arg("-kernel").arg(image.join("kernel")).arg("-initrd").arg(image.join("initrd"));
        command.args(["-append", "console=ttyS0 no_timer_check quiet panic=-1"]).stdin(Stdio::null());
        Self { child: command.spawn().unwrap(), console }
    }

    /// Waits until it has booted.
    fn shell(&mut self, daemon: &Daemon) -> Shell {
        daemon.until_slowly("QEMU listens for its console", |_| {
            assert!(self.child.try_wait().unwrap().is_none(), "QEMU ended");
            std::os::unix::net::UnixStream::connect(&self.console).is_ok()
        });
        let mut shell = Shell::attach(&self.console);
        shell.address(2);
        shell
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn link(daemon: &Daemon) -> bool {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    ports.into_iter().find(|port| port.name == "guest").unwrap().link
}

/// The sum that `md5sum` prints.
fn sum(output: &str) -> String {
    output.split_whitespace().find(|word| word.len() == 32).unwrap_or_default().to_owned()
}

/// A file to the guest and one from it, with checksums and segments left to the card.
fn files_go_both_ways(host: &Host, shell: &mut Shell, folder: &Folder) {
    let there = folder.0.join("file");
    let make = format!("dd if=/dev/urandom of=/tmp/file bs=1024 count={FILE_KIB}");
    shell.must(&make);
    shell.must("httpd -p 80 -h /tmp");
    let fetched = host.output(&format!("busybox wget -q -O {} http://10.9.0.2/file", there.display()));
    assert!(fetched.status.success(), "{fetched:?}");
    let ours = host.output(&format!("busybox md5sum {}", there.display()));
    let ours = sum(&String::from_utf8(ours.stdout).unwrap());
    assert_eq!(sum(&shell.must("md5sum /tmp/file")), ours);
    let server = format!("busybox timeout 300 busybox httpd -f -p 80 -h {}", folder.0.display());
    let mut words = vec!["netns", "exec", host.namespace()];
    words.extend(server.split(' '));
    let mut server = Command::new("ip").args(words).spawn().unwrap();
    shell.until("wget -q -O /tmp/back http://10.9.0.1/file");
    let back = shell.must("md5sum /tmp/back");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(sum(&back), ours);
}

#[test]
fn a_guest_with_its_own_driver_is_on_the_switch() {
    if !are_possible() {
        return;
    }
    let Some(qemu) = netvm_vm::find_vfio_user_client(Path::new(netvm_vm::QEMU)) else {
        println!("SKIP: no QEMU with a vfio-user client (10.1 or later): ./dev setup --guests unpacks one");
        return;
    };
    let Some(image) = Image::with_e1000() else { return };
    let host = Host::bare("e");
    let cards = ["card.sock", "new.sock"].map(|name| image.folder.0.join(name));
    let daemon = Daemon::start(&format!(
        r#"
        [engine]
        idle = "adaptive"
        huge_pages = false

        [[port]]
        name = "guest"
        kind = "e1000"
        path = "{}"
        forward = {{ normal = true }}

        [[port]]
        name = "new"
        kind = "e1000"
        model = "e1000e"
        path = "{}"
        forward = {{ normal = true }}

        [[port]]
        name = "host"
        kind = "container"
        namespace = "{}"
        addresses = ["10.9.0.1/24", "fd00:9::1/64"]
        forward = {{ normal = true }}
        "#,
        cards[0].display(),
        cards[1].display(),
        host.namespace()
    ));
    assert!(!link(&daemon));
    let mut guest = Guest::start(&qemu, &image.folder.0, &cards);
    let mut shell = guest.shell(&daemon);
    assert!(link(&daemon));
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ping -c 3 -s 1400 10.9.0.1");
    shell.until("ping -6 -c 1 -W 2 fd00:9::1");
    assert!(host.pings("10.9.0.2") && host.pings("fd00:9::2"));
    files_go_both_ways(&host, &mut shell, &image.folder);

    // The driver goes, and comes again.
    shell.must("rmmod e1000");
    shell.must("insmod /modules/e1000.ko");
    shell.address(2);
    shell.until("ping -c 1 -W 2 10.9.0.1");

    // The machine is reset while it sends.
    shell.must("ping -q -A 10.9.0.1 >/dev/null & (sleep 1; reboot -f) & true");
    // QEMU serves one connection to the console.
    drop(shell);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let mut shell = guest.shell(&daemon);
    shell.until("ping -c 1 -W 2 10.9.0.1");

    // QEMU is killed, and another one takes its place.
    drop((shell, guest));
    daemon.until("the guest is gone", |daemon| !link(daemon));
    let mut guest = Guest::start(&qemu, &image.folder.0, &cards);
    let mut shell = guest.shell(&daemon);
    shell.until("ping -c 1 -W 2 10.9.0.1");
    assert!(host.pings("10.9.0.2"));

    // The same with the other card.
    shell.must("ip link set eth0 down; ip addr flush dev eth0");
    shell.must("[ $(basename $(readlink /sys/class/net/eth1/device/driver)) = e1000e ]");
    shell.must("ip link set eth1 up; ip addr add 10.9.0.2/24 dev eth1");
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ping -c 3 -s 1400 10.9.0.1");
    files_go_both_ways(&host, &mut shell, &image.folder);
    shell.must("grep -q eth1-rx-0 /proc/interrupts");
    shell.must("rmmod e1000e; insmod /modules/e1000e.ko");
    shell.must("ip link set eth1 up; ip addr add 10.9.0.2/24 dev eth1");
    shell.until("ping -c 1 -W 2 10.9.0.1");
}

#[test]
fn netvmd_starts_a_guest_with_both_cards_and_says_when_they_are_lost() {
    if !are_possible() {
        return;
    }
    if netvm_vm::find_vfio_user_client(Path::new(netvm_vm::QEMU)).is_none() {
        println!("SKIP: no QEMU with a vfio-user client (10.1 or later): ./dev setup --guests unpacks one");
        return;
    }
    let Some(image) = Image::with_e1000() else { return };
    let _reaper = Reaper(Arc::clone(&image.folder));
    let host = Host::bare("v");
    let folder = image.folder.0.display();
    let port = |name: &str, model: &str| {
        format!(
            r#"
            [[port]]
            name = "{name}"
            kind = "e1000"
            model = "{model}"
            path = "{folder}/sockets/{name}.sock"
            forward = {{ normal = true }}
            "#
        )
    };
    let text = format!(
        r#"
        [engine]
        idle = "adaptive"
        huge_pages = false
        {}
        {}
        [[port]]
        name = "host"
        kind = "container"
        namespace = "{}"
        addresses = ["10.9.0.1/24", "fd00:9::1/64"]
        forward = {{ normal = true }}

        [[vm]]
        name = "vm"
        ports = ["old", "new"]
        kernel = "{folder}/kernel"
        initrd = "{folder}/initrd"
        append = "quiet panic=-1"
        memory = 192
        accel = "tcg"
        user = "root"
        "#,
        port("old", "e1000"),
        port("new", "e1000e"),
        host.namespace()
    );
    let mut daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    let mut shell = daemon.shell("vm");
    shell.address(2);
    shell.until("ping -c 1 -W 2 10.9.0.1");
    shell.must("ip link set eth1 up; ip addr add 10.9.1.2/24 dev eth1");
    shell.must("[ $(basename $(readlink /sys/class/net/eth1/device/driver)) = e1000e ]");
    daemon.until_slowly("the guest has booted", |daemon| daemon.vm("vm").trouble.is_none());
    let pid = daemon.vm("vm").pid;

    // QEMU does not connect to a new netvmd; the new one says so, and serves the others at once.
    daemon.signal(Signal::KILL);
    daemon.wait();
    daemon = Daemon::start_in(Arc::clone(&image.folder), &text);
    daemon.until_slowly("the guest is taken over", |daemon| {
        let vm = daemon.vm("vm");
        assert!(vm.last_exit.is_none(), "it ended: {:?}\n{}", vm.last_exit, daemon.log());
        vm.adopted && vm.trouble.is_some()
    });
    assert_eq!(daemon.vm("vm").pid, pid);
    let trouble = daemon.vm("vm").trouble.unwrap_or_default();
    assert!(
        trouble.contains("card at port old is lost") && trouble.contains("netvm vm stop vm"),
        "{trouble}"
    );
}
