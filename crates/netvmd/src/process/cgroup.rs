// SPDX-License-Identifier: Apache-2.0
//! A cgroup for each process of an NF, with limits on memory, tasks and its share of contended cores. Uses version 2
//! (cgroups(7), `Documentation/admin-guide/cgroup-v2.rst`), and version 1 for controllers that the machine mounts
//! there.
//!
//! ```text
//!  /sys/fs/cgroup/system.slice/netvmd.service       where the service manager put netvmd
//!   ├─ daemon                                       netvmd: a cgroup that has processes cannot limit its children
//!   └─ netvm-PID/firewall.0.1                       role, slot, number of the process
//! ```
//!
//! A netvmd locks its folder (flock(2)). The next netvmd removes folders without a lock, whose netvmd was killed. The
//! process id alone is not enough, because netvmds in different PID namespaces can have the same.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::RawFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use netvm_model::NfLimits;
use rustix::fs::FlockOperation;

/// The controllers that are used.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// The file of a cgroup's processes.
const PROCESSES: &str = "cgroup.procs";
/// The `cpu.shares` of version 1 that equals a `cpu.weight` of 100 in version 2.
const SHARES: u64 = 1024;
/// Prefix of the names of netvmds' folders.
const PREFIX: &str = "netvm-";
/// Most netvmds with the same process id in different PID namespaces.
const MAX_NETVMDS: usize = 64;

/// The folder of a hierarchy in which cgroups are made, and its controllers.
#[derive(Debug)]
struct Base {
    folder: PathBuf,
    controllers: Vec<&'static str>,
    is_v2: bool,
    /// Locked as long as this netvmd runs.
    _lock: File,
}

/// The folders in which cgroups of NFs are created.
#[derive(Debug)]
pub(crate) struct Cgroups {
    bases: Vec<Base>,
    made: AtomicU64,
    /// Cgroups that could not be removed yet because a process was still in them.
    left: Mutex<Vec<PathBuf>>,
}

/// The cgroup of one process, in each hierarchy. Remove it by [`Cgroups::remove`].
#[derive(Debug)]
pub(crate) struct Cgroup {
    folders: Vec<PathBuf>,
    processes: Vec<File>,
}

impl Cgroups {
    /// Finds the hierarchies, and makes a folder in each. Also returns why some limits cannot be set, if so.
    pub(crate) fn find() -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut bases = Vec::new();
        for found in hierarchies(&mounts, &own) {
            match found.prepare() {
                Ok(base) => bases.push(base),
                Err(error) => problems.push(format!("{}: {error}", found.folder.display())),
            }
        }
        let is_available =
            |controller: &&str| bases.iter().any(|base: &Base| base.controllers.contains(controller));
        let missing: Vec<&str> =
            CONTROLLERS.into_iter().filter(|controller| !is_available(controller)).collect();
        if missing.is_empty() {
            problems.clear();
        } else {
            problems.push(format!("no cgroup controller for {}", missing.join(", ")));
        }
        (Self { bases, made: AtomicU64::new(0), left: Mutex::default() }, problems)
    }

    /// Whether cgroups limit this resource.
    pub(crate) fn limits(&self, controller: &str) -> bool {
        self.bases.iter().any(|base| base.controllers.contains(&controller))
    }

    /// Makes a cgroup with limits.
    ///
    /// # Errors
    /// The kernel's error, and the file.
    pub(crate) fn make(&self, role: &str, slot: u16, limits: &NfLimits) -> io::Result<Cgroup> {
        self.sweep();
        let name = format!("{role}.{slot}.{}", self.made.fetch_add(1, Ordering::Relaxed));
        let mut cgroup = Cgroup { folders: Vec::new(), processes: Vec::new() };
        for base in &self.bases {
            let folder = base.folder.join(&name);
            fs::create_dir(&folder).map_err(|error| at(&folder, &error))?;
            cgroup.folders.push(folder.clone());
            for (file, value) in base.settings(limits) {
                write(&folder.join(file), &value)?;
            }
            let processes = folder.join(PROCESSES);
            let opened = OpenOptions::new().write(true).open(&processes);
            cgroup.processes.push(opened.map_err(|error| at(&processes, &error))?);
        }
        Ok(cgroup)
    }

    /// Removes a cgroup whose process has ended. If the kernel refuses, a later call tries again.
    pub(crate) fn remove(&self, cgroup: Cgroup) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(cgroup.folders);
        self.sweep();
    }

    fn sweep(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(
            |folder| matches!(fs::remove_dir(folder), Err(error) if error.kind() != io::ErrorKind::NotFound),
        );
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.sweep();
        for base in &self.bases {
            // The next netvmd removes it.
            let _ = fs::remove_dir(&base.folder);
        }
    }
}

impl Cgroup {
    /// Closes the files of the cgroup once the process has entered it.
    pub(crate) fn entered(&mut self) {
        self.processes.clear();
    }

    /// The descriptors of `cgroup.procs`: a process that writes 0 enters the cgroup.
    pub(crate) fn entries(&self) -> Vec<RawFd> {
        self.processes.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Whether the kernel's OOM killer has killed a process of the cgroup.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let killed = |text: &str| {
            text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
        };
        self.folders.iter().any(|folder| {
            let events =
                ["memory.events", "memory.oom_control"].map(|file| fs::read_to_string(folder.join(file)));
            events.iter().flatten().any(|text| killed(text))
        })
    }
}

impl Base {
    /// The files to write for limits.
    fn settings(&self, limits: &NfLimits) -> Vec<(&'static str, String)> {
        let memory = (u64::from(limits.memory) << 20).to_string();
        let has = |controller: &&str| self.controllers.contains(controller);
        let of = |controller: &str| match (controller, self.is_v2) {
            ("memory", true) => vec![("memory.max", memory.clone()), ("memory.oom.group", "1".to_owned())],
            ("memory", false) => vec![("memory.limit_in_bytes", memory.clone())],
            ("cpu", true) => vec![("cpu.weight", limits.cpu_weight.to_string())],
            ("cpu", false) => {
                let shares = (u64::from(limits.cpu_weight) * SHARES / 100).max(2);
                vec![("cpu.shares", shares.to_string())]
            }
            _ => vec![("pids.max", limits.tasks.to_string())],
        };
        CONTROLLERS
            .iter()
            .filter(|controller| has(controller))
            .flat_map(|controller| of(controller))
            .collect()
    }
}

/// A hierarchy, and this process's cgroup in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    folder: PathBuf,
    /// The controllers of a hierarchy of version 1.
    controllers: Vec<&'static str>,
    is_v2: bool,
}

impl Hierarchy {
    /// Creates the folder of this netvmd and enables the controllers for its children.
    fn prepare(&self) -> io::Result<Base> {
        if !self.is_v2 {
            let (folder, lock) = own_folder(&self.folder)?;
            return Ok(Base { folder, controllers: self.controllers.clone(), is_v2: false, _lock: lock });
        }
        let offered = words(&self.folder.join("cgroup.controllers"));
        let controllers: Vec<&str> =
            CONTROLLERS.into_iter().filter(|name| offered.iter().any(|offered| offered == name)).collect();
        if controllers.is_empty() {
            return Err(io::Error::other("none of its controllers is free"));
        }
        let above = match enable(&self.folder, &controllers) {
            Ok(()) => &self.folder,
            // netvmd is the only process in this cgroup, and moves into a child. A systemd service needs Delegate=yes
            // for this.
            Err(_) if words(&self.folder.join(PROCESSES)) == [std::process::id().to_string()] => {
                let own = self.folder.join("daemon");
                fs::create_dir(&own).or_else(|error| exists(error, &own))?;
                write(&own.join(PROCESSES), "0")?;
                enable(&self.folder, &controllers)?;
                &self.folder
            }
            // The cgroup has other processes, such as the shell that started netvmd.
            Err(_) => {
                enable(&self.mount, &controllers)?;
                &self.mount
            }
        };
        let (folder, lock) = own_folder(above)?;
        enable(&folder, &controllers)?;
        Ok(Base { folder, controllers, is_v2: true, _lock: lock })
    }
}

/// Creates the folder of this netvmd and locks it. Removes folders of netvmds that were killed.
fn own_folder(above: &Path) -> io::Result<(PathBuf, File)> {
    remove_unlocked(above)?;
    let pid = std::process::id();
    // Another netvmd may have the same process id in its own PID namespace.
    for n in 0..MAX_NETVMDS {
        let folder = above.join(if n == 0 { format!("{PREFIX}{pid}") } else { format!("{PREFIX}{pid}.{n}") });
        // Others may look up files in it, but not open it: else they could lock it.
        if let Err(error) = DirBuilder::new().mode(0o711).create(&folder) {
            exists(error, &folder)?;
        }
        if let Some(lock) = lock(&folder) {
            return Ok((folder, lock));
        }
    }
    Err(io::Error::other(format!("{MAX_NETVMDS} folders of other netvmds with the same process id exist")))
}

fn remove_unlocked(above: &Path) -> io::Result<()> {
    for entry in fs::read_dir(above)?.flatten() {
        let path = entry.path();
        let is_netvmds =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        if let Some(_lock) = is_netvmds.then(|| lock(&path)).flatten() {
            let folders = fs::read_dir(&path).into_iter().flatten().flatten();
            // The kernel removes a cgroup's files with it.
            folders.for_each(|folder| drop(fs::remove_dir(folder.path())));
            let _ = fs::remove_dir(&path);
        }
    }
    Ok(())
}

/// Locks a folder. `None` if another process has locked it, or has just removed it.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let (locked, current) = (file.metadata().ok()?, fs::metadata(folder).ok()?);
    (locked.ino() == current.ino()).then_some(file)
}

fn exists(error: io::Error, folder: &Path) -> io::Result<()> {
    if folder.is_dir() { Ok(()) } else { Err(error) }
}

fn words(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

fn enable(folder: &Path, controllers: &[&str]) -> io::Result<()> {
    let enabled: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    write(&folder.join("cgroup.subtree_control"), &enabled.join(" "))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|error| at(path, &error))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The hierarchies with the controllers, by `/proc/self/mountinfo` and `/proc/self/cgroup` (proc(5)).
fn hierarchies(mounts: &str, own: &str) -> Vec<Hierarchy> {
    // "4:memory:/path"; version 2 has no controllers.
    let places: BTreeMap<&str, &str> = own
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            Some(controllers.split(',').map(move |controller| (controller, path)))
        })
        .flatten()
        .collect();
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        // "36 35 0:30 / /sys/fs/cgroup rw … - cgroup2 cgroup2 rw"
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let ([_, _, _, root, mount, ..], [kind, _, options]) = (&left[..], &right[..]) else { continue };
        let is_v2 = match *kind {
            "cgroup2" => true,
            "cgroup" => false,
            _ => continue,
        };
        let has = |controller: &&'static str| options.split(',').any(|option| option == *controller);
        let controllers: Vec<&str> = CONTROLLERS.into_iter().filter(|name| !is_v2 && has(name)).collect();
        let place = places.get(controllers.first().copied().unwrap_or_default());
        let (Some(place), true) = (place, is_v2 || !controllers.is_empty()) else { continue };
        // In a container, the mount may show only a part of the hierarchy.
        let below = place.strip_prefix(root.trim_end_matches('/')).unwrap_or(place).trim_start_matches('/');
        let mount = PathBuf::from(mount);
        let hierarchy = Hierarchy { folder: mount.join(below), mount, controllers, is_v2 };
        if !found.iter().any(|other| other.is_v2 == is_v2 && other.controllers == hierarchy.controllers) {
            found.push(hierarchy);
        }
    }
    found
}

#[cfg(test)]
mod tests;
