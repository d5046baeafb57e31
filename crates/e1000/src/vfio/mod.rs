// SPDX-License-Identifier: Apache-2.0
//! The server's side of vfio-user, protocol 0.0 (libvfio-user's `docs/vfio-user.rst`, `linux/vfio.h`).

mod info;
pub(crate) mod message;
pub(crate) mod pci_config;
pub(crate) mod session;
pub(crate) mod stream;
