// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn hierarchies_are_found_of_both_versions() {
    let mounts = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
                  31 24 0:27 / /proc rw - proc proc rw\n";
    let own = "0::/system.slice/netvmd.service\n";
    let mount = PathBuf::from("/sys/fs/cgroup");
    let folder = mount.join("system.slice/netvmd.service");
    let v2 = Hierarchy { mount, folder, controllers: Vec::new(), is_v2: true };
    assert_eq!(hierarchies(mounts, own), [v2]);
    let mounts = "1 2 0:1 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  1 2 0:2 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  1 2 0:3 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n";
    let found = hierarchies(mounts, "4:memory:/docker/x/y\n2:cpu,cpuacct:/\n3:devices:/\n");
    let folders: Vec<&str> =
        found.iter().map(|one| one.folder.to_str().unwrap().trim_end_matches('/')).collect();
    assert_eq!(folders, ["/sys/fs/cgroup/memory/y", "/sys/fs/cgroup/cpu,cpuacct"]);
    assert_eq!(hierarchies("garbage\n1 2 - cgroup\n", "garbage"), []);
}

#[test]
fn limits_have_the_files_of_their_version() {
    let limits = NfLimits { memory: 64, tasks: 20, cpu_weight: 50, ..NfLimits::default() };
    let base = |is_v2| {
        let lock = File::open("/").unwrap();
        Base { folder: PathBuf::new(), controllers: CONTROLLERS.to_vec(), is_v2, _lock: lock }
    };
    let text = |is_v2| format!("{:?}", base(is_v2).settings(&limits));
    assert!(
        text(true).contains(r#"("memory.max", "67108864")"#)
            && text(true).contains(r#"("cpu.weight", "50")"#)
    );
    assert!(
        text(false).contains(r#"("cpu.shares", "512")"#) && text(false).contains(r#"("pids.max", "20")"#)
    );
}

#[test]
fn a_cgroup_limits_its_process_and_is_removed() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can make cgroups");
        return;
    }
    let (cgroups, problems) = Cgroups::find();
    if !cgroups.limits("pids") {
        println!("SKIP: no cgroups here: {problems:?}");
        return;
    }
    let cgroup = cgroups.make("test", 0, &NfLimits { tasks: 17, ..NfLimits::default() }).unwrap();
    let folders = cgroup.folders.clone();
    let limit = folders.iter().find_map(|folder| fs::read_to_string(folder.join("pids.max")).ok());
    assert_eq!(limit.as_deref(), Some("17\n"));
    let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    for folder in &folders {
        fs::write(folder.join(PROCESSES), process.id().to_string()).unwrap();
    }
    // It cannot be removed yet; it is later.
    cgroups.remove(cgroup);
    assert!(folders.iter().all(|folder| folder.exists()));
    process.kill().unwrap();
    process.wait().unwrap();
    netvm_testing::until("the folders are gone", || {
        cgroups.sweep();
        folders.iter().all(|folder| !folder.exists())
    });
}

#[test]
fn only_folders_of_netvmds_that_ended_are_removed() {
    let above = tempfile::tempdir().unwrap();
    let (first, lock) = own_folder(above.path()).unwrap();
    fs::create_dir(first.join("firewall.0.1")).unwrap();
    let (second, _lock) = own_folder(above.path()).unwrap();
    assert!(first != second && first.join("firewall.0.1").exists());
    drop(lock);
    let (third, _lock) = own_folder(above.path()).unwrap();
    assert!(third == first && !first.join("firewall.0.1").exists() && second.exists());
}
