// SPDX-License-Identifier: Apache-2.0
//! Ports of routers: of several at once, and without a device.

mod shared;
mod without_device;
