// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests: one EAL per test binary, pools over private memory, and private network namespaces.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::process::Command;
use std::sync::Arc;

use dpdk::{
    Batch, BufferLayout, Device, Eal, EalOptions, HeapMemory, HugePages, PacketMemory, Pool, PoolBuffers,
    PoolError, PoolOptions, PortBuilder, Started,
};

pub fn options() -> EalOptions {
    EalOptions { huge_pages: HugePages::Off, ..EalOptions::default() }
}

/// The EAL as the test has started it, or with ordinary options.
pub fn eal() -> Eal {
    Eal::get().unwrap_or_else(|| Eal::init(&options()).unwrap())
}

pub fn layout(buffers: u32) -> BufferLayout {
    BufferLayout { first: 0, stride: 2048, buffers, headroom: 128 }
}

pub fn memory(layout: BufferLayout) -> Arc<HeapMemory> {
    Arc::new(HeapMemory::new(layout.first + layout.stride as usize * layout.buffers as usize).unwrap())
}

pub fn pool_over(
    name: &str,
    memory: Arc<dyn PacketMemory>,
    layout: BufferLayout,
    options: PoolOptions,
) -> Result<Pool, PoolError> {
    Pool::over_region(eal(), name, PoolBuffers { memory, layout }, options)
}

pub fn pool(buffers: u32) -> Arc<Pool> {
    let options = PoolOptions { cache: 64.min(buffers * 2 / 3), ..PoolOptions::default() };
    Arc::new(pool_over("test", memory(layout(buffers)), layout(buffers), options).unwrap())
}

pub fn null(pool: &Arc<Pool>) -> Started {
    PortBuilder::new(Device::Null { packet_bytes: 64, copy: false, receive: true })
        .start(eal(), pool)
        .unwrap()
}

/// A device over one DPDK ring: it returns the packets that are sent to it, and holds 1,023.
pub fn ring_port(pool: &Arc<Pool>) -> Started {
    let device = Device::Vdev { driver: "net_ring".into(), arguments: String::new() };
    PortBuilder::new(device).start(eal(), pool).unwrap()
}

/// A packet of the pool with these bytes.
pub fn packet(pool: &Pool, bytes: &[u8]) -> dpdk::Mbuf {
    let mut batch = Batch::new();
    assert_eq!(pool.alloc_into(&mut batch, 1), 1);
    let mut packet = batch.pop().unwrap();
    packet.copy_from(bytes).unwrap();
    packet
}

pub fn bytes(packet: &dpdk::Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(packet.data_len())];
    assert_eq!(packet.copy_to(&mut bytes), bytes.len());
    bytes
}

/// Whether the tests run as root; if not, prints what is skipped.
pub fn root_or_skip(what: &str) -> bool {
    // SAFETY: no arguments, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIP: {what}: needs root");
    }
    root
}

/// Moves the calling thread, and programs that it starts, to a private network namespace, which ends with them.
pub fn private_namespace() {
    // SAFETY: affects the calling thread only.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    ip("link set lo up");
}

pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn veth(mtu: u16) {
    ip(&format!("link add va mtu {mtu} type veth peer name vb mtu {mtu}"));
    ip("link set va up");
    ip("link set vb up");
}
