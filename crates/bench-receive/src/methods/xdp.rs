// SPDX-License-Identifier: Apache-2.0
//! An XDP program counts in the kernel; no packet reaches the process.

use std::thread;

use aya::maps::PerCpuArray;
use aya::programs::{Xdp, XdpMode};
use aya::{EbpfLoader, Pod, include_bytes_aligned};

use super::IDLE;
use crate::counters::Counters;
use crate::error::MethodError;

static PROGRAM: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/count.o"));

/// `struct counters` of `bpf/count.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct KernelCounters {
    packets: u64,
    bytes: u64,
    flows: u64,
}

// SAFETY: three integers without padding.
unsafe impl Pod for KernelCounters {}

/// Counts until the process is killed.
///
/// # Errors
/// [`MethodError`] if the kernel refuses the program.
pub fn run(interface: &str, is_flow: bool, counters: &Counters) -> Result<(), MethodError> {
    let mut loaded =
        EbpfLoader::new().override_global("MONITOR_FLOW", &u32::from(is_flow), true).load(PROGRAM)?;
    attach(&mut loaded, interface)
        .map_err(|source| MethodError::Attach { interface: interface.to_owned(), source })?;
    let missing = || aya::maps::MapError::InvalidName { name: "COUNTERS".to_owned() };
    let map = loaded.map("COUNTERS").ok_or_else(missing)?;
    let map = PerCpuArray::<_, KernelCounters>::try_from(map)?;
    counters.ready.set(1);
    loop {
        let all = map.get(&0, 0)?;
        let sum = |of: fn(&KernelCounters) -> u64| all.iter().map(of).sum();
        counters.received.set(sum(|one| one.packets));
        counters.bytes.set(sum(|one| one.bytes));
        counters.flows.set(sum(|one| one.flows));
        thread::sleep(IDLE);
    }
}

/// In the driver, or in the kernel's generic hook where the driver refuses.
fn attach(loaded: &mut aya::Ebpf, interface: &str) -> Result<(), aya::programs::ProgramError> {
    let missing = || aya::programs::ProgramError::NotLoaded;
    let program: &mut Xdp = loaded.program_mut("count").ok_or_else(missing)?.try_into()?;
    program.load()?;
    if let Err(error) = program.attach(interface, XdpMode::Driver) {
        eprintln!("{interface}: no XDP in the driver ({error}): in the kernel's generic hook");
        program.attach(interface, XdpMode::Skb)?;
    }
    Ok(())
}
