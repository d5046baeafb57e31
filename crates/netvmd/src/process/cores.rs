// SPDX-License-Identifier: Apache-2.0
//! The CPU affinity of NFs.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A set of cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSet(Vec<u32>);

/// An NF's configuration names a core outside netvmd's affinity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`cores` names core {core}, but netvmd may use only {allowed:?}: correct `cores`, or the CPU affinity of netvmd"
)]
pub struct CoresError {
    /// The core.
    pub core: u32,
    /// The cores that netvmd may use.
    pub allowed: Vec<u32>,
}

/// The cores that this process may use.
///
/// # Errors
/// The kernel's error.
pub fn allowed() -> std::io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .map(|core| core as u32)
        .collect())
}

impl CoreSet {
    /// The configured cores; else the cores without a worker; else all.
    ///
    /// # Errors
    /// [`CoresError`] if a configured core is not in `allowed`.
    pub fn choose(configured: &[u32], workers: &[u32], allowed: &[u32]) -> Result<Self, CoresError> {
        if let Some(core) = configured.iter().find(|core| !allowed.contains(core)) {
            return Err(CoresError { core: *core, allowed: allowed.to_vec() });
        }
        if !configured.is_empty() {
            return Ok(Self(configured.to_vec()));
        }
        let free: Vec<u32> = allowed.iter().filter(|core| !workers.contains(core)).copied().collect();
        Ok(Self(if free.is_empty() { allowed.to_vec() } else { free }))
    }

    /// Lets the threads of a process that may use these cores use `other` ones from now on. Threads that chose their
    /// cores themselves keep them.
    ///
    /// # Errors
    /// The kernel's error; some threads may have changed.
    pub(crate) fn replace_by(&self, other: &Self, process: u32) -> io::Result<()> {
        for entry in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let thread =
                entry?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            let Some(thread) = thread else { continue };
            match sched_getaffinity(Some(thread)) {
                Ok(now) if self.is(&now) => sched_setaffinity(Some(thread), &other.to_set())?,
                // It has ended, or has other cores.
                Ok(_) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn to_set(&self) -> CpuSet {
        let mut set = CpuSet::new();
        self.0
            .iter()
            .map(|core| *core as usize)
            .filter(|core| *core < CpuSet::MAX_CPU)
            .for_each(|core| set.set(core));
        set
    }

    fn is(&self, set: &CpuSet) -> bool {
        (0..CpuSet::MAX_CPU).all(|core| set.is_set(core) == self.0.contains(&(core as u32)))
    }

    pub(crate) fn to_kernel(&self) -> libc::cpu_set_t {
        // SAFETY: an array of integers, for which zeros are valid and mean the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for core in &self.0 {
            let core = *core as usize;
            if core < libc::CPU_SETSIZE as usize {
                // SAFETY: the index is within the set.
                unsafe { libc::CPU_SET(core, &mut set) };
            }
        }
        set
    }
}

/// The NUMA node of a core: from `nodes`, else from the kernel.
pub(crate) fn node_of(core: u32, nodes: &[Vec<u32>]) -> u32 {
    let configured = nodes.iter().position(|cores| cores.contains(&core));
    let is_on =
        |node: &u32| std::path::Path::new(&format!("/sys/devices/system/cpu/cpu{core}/node{node}")).exists();
    let of_the_machine = || (0..netvm_model::MAX_NODES as u32).find(is_on);
    configured.map(|node| node as u32).or_else(of_the_machine).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_their_cores_unless_they_chose_others() {
        let own = allowed().unwrap();
        let [first, second, ..] = own[..] else { return println!("SKIP: needs two cores") };
        let sets = [vec![first], vec![second], vec![first, second]].map(CoreSet);
        let of = |thread: i32| {
            let set = sched_getaffinity(Pid::from_raw(thread)).unwrap();
            sets.iter().find(|one| one.is(&set)).cloned()
        };
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (sent, ids) = std::sync::mpsc::channel();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let threads = [&sets[0], &sets[1]].map(|set| {
            let (set, sent, wait) = (set.to_set(), sent.clone(), std::sync::Arc::clone(&wait));
            std::thread::spawn(move || {
                sched_setaffinity(None, &set).unwrap();
                sent.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let _ = wait.lock().unwrap().recv();
            })
        });
        let mut ids = [ids.recv().unwrap(), ids.recv().unwrap()];
        ids.sort_by_key(|id| of(*id) != Some(sets[0].clone()));
        sets[0].replace_by(&sets[2], std::process::id()).unwrap();
        assert_eq!(ids.map(of), [Some(sets[2].clone()), Some(sets[1].clone())]);
        drop(done);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn nfs_avoid_the_workers_cores_if_possible() {
        let choose =
            |configured: &[u32], workers: &[u32]| CoreSet::choose(configured, workers, &[0, 1, 2, 5]);
        assert_eq!(choose(&[], &[0]).unwrap(), CoreSet(vec![1, 2, 5]));
        assert_eq!(choose(&[], &[0, 1, 2, 5]).unwrap(), CoreSet(vec![0, 1, 2, 5]));
        assert_eq!(choose(&[0], &[0]).unwrap(), CoreSet(vec![0]));
        assert_eq!(choose(&[2, 3], &[0]).unwrap_err().core, 3);
    }
}
