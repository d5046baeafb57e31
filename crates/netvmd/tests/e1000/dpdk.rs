// SPDX-License-Identifier: Apache-2.0
//! DPDK's e1000 driver in a guest: testpmd answers ARP and pings in place of the kernel.

use std::path::{Path, PathBuf};

use super::common::guest::Shell;

const PROGRAM: &str = "/usr/bin/dpdk-testpmd";
/// Its plug-ins: the driver, and memory pools.
const PLUG_INS: [&str; 2] = ["librte_net_e1000.so", "librte_mempool_ring.so"];

/// The folder of DPDK's plug-ins.
fn plug_ins() -> Option<PathBuf> {
    let libraries = Path::new("/usr/lib").join(format!("{}-linux-gnu/dpdk", std::env::consts::ARCH));
    let folders = std::fs::read_dir(libraries).ok()?.map_while(Result::ok).map(|entry| entry.path());
    folders.filter(|path| Path::new(PROGRAM).exists() && path.join(PLUG_INS[0]).exists()).max()
}

/// Arguments of the script that makes the guest's image. Without dpdk-testpmd: none, and a line that says so.
pub fn files() -> Vec<String> {
    let Some(folder) = plug_ins() else {
        println!("SKIP: DPDK in a guest: dpdk-testpmd is not installed (./dev setup installs it)");
        return Vec::new();
    };
    let mut words = vec!["--module".to_owned(), "uio_pci_generic".to_owned()];
    words.extend(["--file".to_owned(), format!("{PROGRAM}:bin/dpdk-testpmd")]);
    for name in PLUG_INS {
        words.extend(["--file".to_owned(), format!("{}:dpdk/{name}", folder.join(name).display())]);
    }
    words
}

/// Starts it on the guest's interface; returns whether the image has it. Two lcores share a processor.
pub fn start(shell: &mut Shell, interface: &str) -> bool {
    if shell.run("[ -e /bin/dpdk-testpmd ]").1 != 0 {
        return false;
    }
    // Plug-ins of a folder that others can write are refused.
    shell.must("chmod 755 / /dpdk; mkdir -p /var/run /huge; mount -t hugetlbfs none /huge");
    shell.must("echo 32 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    shell.must(&format!(
        "card=$(basename $(readlink /sys/class/net/{interface}/device)); ip link set {interface} down"
    ));
    shell.must("echo $card >/sys/bus/pci/devices/$card/driver/unbind");
    shell.must("echo uio_pci_generic >/sys/bus/pci/devices/$card/driver_override");
    shell.must("echo $card >/sys/bus/pci/drivers_probe; [ -e /dev/uio0 ]");
    let options =
        "--lcores 0@0,1@0 --huge-dir /huge -d /dpdk/librte_net_e1000.so -d /dpdk/librte_mempool_ring.so";
    shell.must(&format!(
        "sleep 10000 | dpdk-testpmd {options} -- --forward-mode=icmpecho --total-num-mbufs=2048 >/tmp/testpmd 2>&1 & true"
    ));
    true
}

/// Ends it, and prints its output.
pub fn stop(shell: &mut Shell) -> String {
    shell.run("killall sleep; killall -9 dpdk-testpmd; cat /tmp/testpmd").0
}
