//! L2 switching with nothing of DPDK.

#![forbid(unsafe_code)]
