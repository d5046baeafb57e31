// SPDX-License-Identifier: Apache-2.0
//! A misbehaving guest: a program for the tests, run in a VM with `ivshmem` devices.
//!
//! `netvm-probe search TEXT` searches all host memory that the VM can see for a text and prints the number of matches.
//! `netvm-probe scribble SEED` attaches as an NF and then writes random words everywhere, forever.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The memory of a device, as words.
struct Memory {
    base: NonNull<AtomicU64>,
    words: usize,
}

impl Memory {
    fn of(file: &File) -> std::io::Result<Self> {
        let bytes = file.metadata()?.len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other mapping.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::Other)?;
        Ok(Self { base, words: bytes / 8 })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as a whole and never unmapped; others may write to atomics at any time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

fn memories() -> std::io::Result<Vec<Memory>> {
    let mut memories = Vec::new();
    for entry in std::fs::read_dir("/sys/bus/pci/devices")? {
        let path: PathBuf = entry?.path();
        if std::fs::read_to_string(path.join("device"))?.trim() != "0x1110" {
            continue;
        }
        std::fs::write(path.join("enable"), "1")?;
        memories.push(Memory::of(&OpenOptions::new().read(true).write(true).open(path.join("resource2"))?)?);
    }
    Ok(memories)
}

fn search(marker: &[u8]) -> std::io::Result<usize> {
    let mut found = 0;
    for memory in memories()? {
        let mut bytes = Vec::with_capacity(memory.words * 8);
        for word in memory.words() {
            bytes.extend(word.load(Ordering::Relaxed).to_ne_bytes());
        }
        found += bytes.windows(marker.len()).filter(|window| *window == marker).count();
        println!("searched {} KiB", bytes.len() / 1024);
    }
    Ok(found)
}

fn scribble(mut state: u64) -> std::io::Result<()> {
    let memories = memories()?;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    loop {
        let memory = &memories[random() as usize % memories.len()];
        // Half of the writes go to the start, where headers, owner tables and rings are.
        let within = if random() % 2 == 0 { memory.words.min(1 << 17) } else { memory.words };
        let word = &memory.words()[random() as usize % within];
        match random() % 4 {
            0 => word.store(random(), Ordering::Relaxed),
            1 => word.store(random() % 4096, Ordering::Relaxed),
            2 => word.store(u64::MAX, Ordering::Relaxed),
            _ => {
                word.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["search", marker] => search(marker.as_bytes()).map(|found| println!("probe: found {found} times")),
        ["scribble", seed] => match netlib::attach(&netlib::Options::new("probe")) {
            // The attachment keeps the NF's memory mapped; the writes use other mappings.
            Ok(_attachment) => scribble(seed.parse().unwrap_or(1)),
            Err(error) => Err(std::io::Error::other(error)),
        },
        _ => Err(std::io::Error::other("usage: netvm-probe search TEXT | scribble SEED")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("probe: {error}");
            ExitCode::FAILURE
        }
    }
}
