// SPDX-License-Identifier: Apache-2.0
//! The shim's functions and structures, and DPDK's functions. By bindgen, all but the constants:
//! `NETVM_UPDATE_BINDINGS=1 cargo test -p dpdk-sys` writes this file, and without the variable that test compares.

use super::{rte_acl_ctx, rte_eth_rxconf, rte_eth_txconf, rte_mbuf, rte_mempool, rte_ring};

include!(concat!(env!("OUT_DIR"), "/constants.rs"));

// Made from here on.
unsafe extern "C" {
    pub fn rte_version() -> *const ::core::ffi::c_char;
}
pub type phys_addr_t = u64;
pub type rte_iova_t = u64;
unsafe extern "C" {
    pub fn rte_get_tsc_hz() -> u64;
}
unsafe extern "C" {
    pub fn rte_dev_probe(devargs: *const ::core::ffi::c_char) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eal_has_hugepages() -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eal_get_runtime_dir() -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    pub fn rte_thread_unregister();
}
unsafe extern "C" {
    pub fn rte_mem_virt2phy(virt: *const ::core::ffi::c_void) -> phys_addr_t;
}
unsafe extern "C" {
    pub fn rte_extmem_unregister(va_addr: *mut ::core::ffi::c_void, len: usize) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_ring_create(
        name: *const ::core::ffi::c_char,
        count: ::core::ffi::c_uint,
        socket_id: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
    ) -> *mut rte_ring;
}
unsafe extern "C" {
    pub fn rte_ring_free(r: *mut rte_ring);
}
unsafe extern "C" {
    pub fn rte_mempool_free(mp: *mut rte_mempool);
}
unsafe extern "C" {
    pub fn rte_mempool_avail_count(mp: *const rte_mempool) -> ::core::ffi::c_uint;
}
unsafe extern "C" {
    pub fn rte_eth_dev_is_removed(port_id: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_rx_queue_setup(
        port_id: u16,
        rx_queue_id: u16,
        nb_rx_desc: u16,
        socket_id: ::core::ffi::c_uint,
        rx_conf: *const rte_eth_rxconf,
        mb_pool: *mut rte_mempool,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_tx_queue_setup(
        port_id: u16,
        tx_queue_id: u16,
        nb_tx_desc: u16,
        socket_id: ::core::ffi::c_uint,
        tx_conf: *const rte_eth_txconf,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_dev_start(port_id: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_promiscuous_enable(port_id: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_promiscuous_disable(port_id: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_dev_get_port_by_name(
        name: *const ::core::ffi::c_char,
        port_id: *mut u16,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn rte_eth_dev_adjust_nb_rx_tx_desc(
        port_id: u16,
        nb_rx_desc: *mut u16,
        nb_tx_desc: *mut u16,
    ) -> ::core::ffi::c_int;
}
pub type netvm_constant = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn netvm_eal_init(
        argc: ::core::ffi::c_int,
        argv: *mut *mut ::core::ffi::c_char,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_log_print_up_to(level: u32);
}
unsafe extern "C" {
    pub fn netvm_log_begin() -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_log_end(text: *mut ::core::ffi::c_char, capacity: usize) -> usize;
}
unsafe extern "C" {
    pub fn netvm_thread_register() -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_iova_is_va() -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_cycles() -> u64;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_pool_spec {
    pub name: *const ::core::ffi::c_char,
    pub handler: *const ::core::ffi::c_char,
    pub buffers: *mut ::core::ffi::c_void,
    pub count: u32,
    pub stride: u32,
    pub size: u32,
    pub cache: u32,
    pub node: i32,
}
unsafe extern "C" {
    pub fn netvm_pool_has_handler(name: *const ::core::ffi::c_char) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_pool_create(spec: *const netvm_pool_spec, pool: *mut *mut rte_mempool)
    -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_pool_table(pool: *mut rte_mempool, table: *mut *mut rte_mbuf, capacity: u32) -> u32;
}
unsafe extern "C" {
    pub fn netvm_memory_register(
        address: *mut ::core::ffi::c_void,
        iovas: *mut u64,
        pages: u32,
        page_bytes: usize,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_mbuf_set_iova(mbuf: *mut rte_mbuf, iova: u64);
}
unsafe extern "C" {
    pub fn netvm_pool_alloc(
        pool: *mut rte_mempool,
        mbufs: *mut *mut rte_mbuf,
        count: u32,
        offset: u16,
        length: u16,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_mbuf_free(mbufs: *mut *mut rte_mbuf, count: u32);
}
unsafe extern "C" {
    pub fn netvm_pool_flush(pool: *mut rte_mempool);
}
unsafe extern "C" {
    pub fn netvm_pool_is_whole(pool: *mut rte_mempool) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_port_info {
    pub driver: [::core::ffi::c_char; 64usize],
    pub rss_offloads: u64,
    pub max_packet_bytes: u32,
    pub node: i32,
    pub max_rx_queues: u16,
    pub max_tx_queues: u16,
    pub min_mtu: u16,
    pub max_mtu: u16,
    pub mac: [u8; 6usize],
    pub rss_key_bytes: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_port_config {
    pub rx_queues: u16,
    pub tx_queues: u16,
    pub mtu: u16,
    pub rss: u8,
    pub rss_symmetric: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_link {
    pub megabits: u32,
    pub up: u8,
    pub full_duplex: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_port_stats {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_missed: u64,
    pub rx_errors: u64,
    pub rx_no_mbuf: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
}
unsafe extern "C" {
    pub fn netvm_port_info(port: u16, info: *mut netvm_port_info) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_configure(port: u16, config: *const netvm_port_config) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_link(port: u16, link: *mut netvm_link) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_stats(port: u16, stats: *mut netvm_port_stats) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_scatters(port: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_dma_map(
        port: u16,
        address: *mut ::core::ffi::c_void,
        iova: u64,
        bytes: usize,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_dma_unmap(
        port: u16,
        address: *mut ::core::ffi::c_void,
        iova: u64,
        bytes: usize,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_stop(port: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_port_close(port: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_rx_burst(port: u16, queue: u16, mbufs: *mut *mut rte_mbuf, count: u16) -> u16;
}
unsafe extern "C" {
    pub fn netvm_tx_burst(port: u16, queue: u16, mbufs: *mut *mut rte_mbuf, count: u16) -> u16;
}
pub type netvm_ring_flags = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn netvm_ring_enqueue(ring: *mut rte_ring, mbufs: *mut *mut rte_mbuf, count: u32) -> u32;
}
unsafe extern "C" {
    pub fn netvm_ring_dequeue(ring: *mut rte_ring, mbufs: *mut *mut rte_mbuf, count: u32) -> u32;
}
unsafe extern "C" {
    pub fn rte_acl_free(ctx: *mut rte_acl_ctx);
}
pub type netvm_acl_constant = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_acl_field {
    pub type_: u8,
    pub size: u8,
    pub input: u8,
    pub offset: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_acl_value {
    pub value: u64,
    pub mask_range: u64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_acl_rule {
    pub priority: i32,
    pub result: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_acl_spec {
    pub name: *const ::core::ffi::c_char,
    pub fields: *const netvm_acl_field,
    pub rules: *const netvm_acl_rule,
    pub values: *const netvm_acl_value,
    pub field_count: u32,
    pub rule_count: u32,
    pub node: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_heap {
    pub used: usize,
    pub longest_free: usize,
}
unsafe extern "C" {
    pub fn netvm_heap(heap: *mut netvm_heap);
}
unsafe extern "C" {
    pub fn netvm_acl_quiet();
}
unsafe extern "C" {
    pub fn netvm_acl_create(
        spec: *const netvm_acl_spec,
        context: *mut *mut rte_acl_ctx,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_acl_algorithm(context: *const rte_acl_ctx, key_bytes: usize, bits: u32) -> u32;
}
unsafe extern "C" {
    pub fn netvm_acl_classify(
        context: *const rte_acl_ctx,
        keys: *const u8,
        stride: usize,
        results: *mut u32,
        count: u32,
        algorithm: u32,
    ) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_part {
    pub bytes: *mut ::core::ffi::c_void,
    pub length: usize,
}
pub type netvm_offload_constant = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn netvm_offload_checksum(mbuf: *mut rte_mbuf) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_checksum_at(mbuf: *mut rte_mbuf, from: u32, at: u32) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_mbuf_read(
        mbuf: *const rte_mbuf,
        offset: u32,
        length: u32,
        to: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_mbuf_link(mbufs: *const *mut rte_mbuf, count: u32, length: u32);
}
unsafe extern "C" {
    pub fn netvm_mbuf_parts(mbuf: *const rte_mbuf, parts: *mut netvm_part, most: u32) -> u32;
}
unsafe extern "C" {
    pub fn netvm_raw_checksum(bytes: *const ::core::ffi::c_void, length: usize) -> u16;
}
unsafe extern "C" {
    pub fn netvm_mbuf_copy(mbuf: *const rte_mbuf, pool: *mut rte_mempool) -> *mut rte_mbuf;
}
pub type netvm_vhost_constant = ::core::ffi::c_uint;
pub type netvm_vhost_accepts = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_vhost_region {
    pub guest: u64,
    pub bytes: u64,
    pub start: usize,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_vhost_ring_addresses {
    pub descriptors: *mut ::core::ffi::c_void,
    pub driver: *mut ::core::ffi::c_void,
    pub device: *mut ::core::ffi::c_void,
}
unsafe extern "C" {
    pub fn netvm_vhost_create(device: ::core::ffi::c_int) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_vhost_remove(device: ::core::ffi::c_int);
}
unsafe extern "C" {
    pub fn netvm_vhost_set_features(device: ::core::ffi::c_int, features: u64);
}
unsafe extern "C" {
    pub fn netvm_vhost_set_memory(device: ::core::ffi::c_int, regions: *const netvm_vhost_region, count: u32);
}
unsafe extern "C" {
    pub fn netvm_vhost_set_log(device: ::core::ffi::c_int, bits: *mut ::core::ffi::c_void, bytes: u64);
}
unsafe extern "C" {
    pub fn netvm_vhost_log_used(device: ::core::ffi::c_int, vring: u16, logs: ::core::ffi::c_int, guest: u64);
}
unsafe extern "C" {
    pub fn netvm_vhost_start(
        device: ::core::ffi::c_int,
        vring: u16,
        addresses: *const netvm_vhost_ring_addresses,
        size: u16,
        position: u16,
        inflight: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_vhost_stop(device: ::core::ffi::c_int, vring: u16) -> u16;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_vhost_received {
    pub malformed: u64,
    pub requests: u64,
}
unsafe extern "C" {
    pub fn netvm_vhost_receive(
        device: ::core::ffi::c_int,
        vring: u16,
        pool: *mut rte_mempool,
        mbufs: *mut *mut rte_mbuf,
        count: u16,
        received: *mut netvm_vhost_received,
    ) -> u16;
}
unsafe extern "C" {
    pub fn netvm_vhost_send(
        device: ::core::ffi::c_int,
        vring: u16,
        mbufs: *mut *mut rte_mbuf,
        count: u16,
        bytes: *mut u64,
    ) -> u16;
}
unsafe extern "C" {
    pub fn netvm_vhost_take_call() -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_vhost_notify(device: ::core::ffi::c_int, vring: u16, enable: ::core::ffi::c_int);
}
pub type netvm_dma_constant = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct netvm_dma_stats {
    pub submitted: u64,
    pub completed: u64,
    pub errors: u64,
}
unsafe extern "C" {
    pub fn netvm_dma_open(name: *mut ::core::ffi::c_char, descriptors: u16) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_dma_stop(dma: ::core::ffi::c_int);
}
unsafe extern "C" {
    pub fn netvm_dma_close(dma: ::core::ffi::c_int);
}
unsafe extern "C" {
    pub fn netvm_dma_stats(dma: ::core::ffi::c_int, stats: *mut netvm_dma_stats);
}
unsafe extern "C" {
    pub fn netvm_dma_count() -> u32;
}
unsafe extern "C" {
    pub fn netvm_dma_begin(device: ::core::ffi::c_int) -> u64;
}
unsafe extern "C" {
    pub fn netvm_dma_end(
        device: ::core::ffi::c_int,
        dma: ::core::ffi::c_int,
        calls: *mut u64,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn netvm_dma_send(
        device: ::core::ffi::c_int,
        vring: u16,
        dma: ::core::ffi::c_int,
        mbufs: *mut *mut rte_mbuf,
        count: u16,
        bytes: *mut u64,
    ) -> u16;
}
unsafe extern "C" {
    pub fn netvm_dma_reap(
        device: ::core::ffi::c_int,
        vring: u16,
        dma: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
}
