//! The CPU affinity of NFs.

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

#[cfg(test)]
mod tests {
    use super::*;

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
