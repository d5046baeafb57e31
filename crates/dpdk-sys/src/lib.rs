// SPDX-License-Identifier: Apache-2.0
//! Bindings to DPDK for netvm: a few functions of DPDK itself, and a C shim (`shim.h`, `acl.h` and others).
//!
//! The shim exists for two reasons. Most of DPDK's packet path is `static inline` and has no symbol to link to; the
//! shim wraps each such function for a whole burst, so that the call costs a fraction of a cycle per packet. And
//! structures such as `rte_eth_dev_info` change from release to release; the shim translates them into plain
//! structures of its own, so that the Rust side is the same for every DPDK from 22.11 to 25.11.
//!
//! `rte_mbuf` in particular is opaque here. The shim exports the byte offsets of the fields that netvm reads
//! (`NETVM_MBUF_OFF_*`), taken by the C compiler from the headers of the DPDK that is linked.
//!
//! All of it is unsafe to call; use the crate `dpdk`.
#![no_std]

use core::marker::{PhantomData, PhantomPinned};

/// Declares structures of DPDK that are only passed by pointer.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[allow(non_camel_case_types)]
        pub struct $name {
            _bytes: [u8; 0],
            // Neither Send, Sync nor Unpin: what lies behind the pointer is C's.
            _c: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

handles! {
    /// A packet's header; see `NETVM_MBUF_OFF_*` for what can be read of it.
    rte_mbuf
    /// A pool of mbufs.
    rte_mempool
    /// A ring of pointers.
    rte_ring
    /// How a receive queue is set up.
    rte_eth_rxconf
    /// How a transmit queue is set up.
    rte_eth_txconf
    /// Compiled rules.
    rte_acl_ctx
}

#[allow(missing_docs, non_camel_case_types)]
mod bindings;

pub use bindings::*;
