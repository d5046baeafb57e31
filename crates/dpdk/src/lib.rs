//! dpdk
