// SPDX-License-Identifier: Apache-2.0
//! DMA engines that copy packets to guests (DPDK's dmadev: Intel DSA and IOAT, and others).
//!
//! A [`DmaChannel`] is one device for one [`crate::VhostPort`], so a guest that makes its device fail affects no other
//! guest. The device must accept the process's virtual addresses (shared virtual addressing, as with Linux's `idxd`
//! driver).

use std::ffi::{CStr, c_char};
use std::fmt;

use dpdk_sys as sys;

use crate::Eal;
use crate::log::{Control, quoted, reason};

const NAME: usize = sys::NETVM_DMA_NAME as usize;

/// A DMA device could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaChannelError {
    /// No device has this name.
    #[error("there is no DMA device {name}{}; `dpdk-devbind.py --status-dev dma` lists those of this machine", quoted(.log))]
    Unknown {
        /// The name requested.
        name: String,
        /// What DPDK logged.
        log: String,
    },
    /// Another port uses it.
    #[error("DMA device {name} copies for another port: give each port a device of its own")]
    Busy {
        /// The name requested.
        name: String,
    },
    /// The device cannot use the process's virtual addresses.
    #[error(
        "DMA device {name} cannot use virtual addresses: use one that Linux's idxd driver serves with shared virtual \
         addressing"
    )]
    Addresses {
        /// The name requested.
        name: String,
    },
    /// DPDK cannot start the device.
    #[error("cannot start DMA device {name}: {}{}", reason(*.errno), quoted(.log))]
    Refused {
        /// The name requested.
        name: String,
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
    },
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaChannelStats {
    /// Copies submitted to the device.
    pub submitted: u64,
    /// Of these, completed copies.
    pub completed: u64,
    /// Of these, failed copies.
    pub errors: u64,
}

/// A started device; dropping it stops the device.
pub struct DmaChannel {
    number: i32,
    name: String,
}

impl fmt::Debug for DmaChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaChannel").field("name", &self.name).finish_non_exhaustive()
    }
}

impl DmaChannel {
    /// Starts the device with this name in DPDK: `wq0.1` (a queue of a DSA device), `dma_skeleton0` (a thread that
    /// copies, for tests). `descriptors`: copies in flight at most, a power of two; `None`: 1024, or as many as the
    /// device supports.
    ///
    /// # Errors
    /// [`DmaChannelError`] names the device and the problem.
    pub fn open(_eal: Eal, name: &str, descriptors: Option<u16>) -> Result<Self, DmaChannelError> {
        let mut buffer = [0 as c_char; NAME];
        let known = !name.is_empty() && name.len() < NAME && !name.contains('\0');
        if !known {
            return Err(DmaChannelError::Unknown { name: name.to_owned(), log: String::new() });
        }
        for (place, byte) in buffer.iter_mut().zip(name.bytes()) {
            *place = byte as c_char;
        }
        start(&mut buffer, descriptors.unwrap_or(0)).map_err(|(errno, log)| {
            let name = name.to_owned();
            match errno {
                libc::ENODEV => DmaChannelError::Unknown { name, log },
                libc::EBUSY => DmaChannelError::Busy { name },
                libc::ENOTSUP => DmaChannelError::Addresses { name },
                _ => DmaChannelError::Refused { name, errno, log },
            }
        })
    }

    /// Starts any suitable free hardware device; `None` if there is none.
    ///
    /// # Errors
    /// [`DmaChannelError::Refused`] if one exists but does not start.
    pub fn any(_eal: Eal) -> Result<Option<Self>, DmaChannelError> {
        match start(&mut [0; NAME], 0) {
            Ok(dma) => Ok(Some(dma)),
            Err((libc::ENODEV, _)) => Ok(None),
            Err((errno, log)) => Err(DmaChannelError::Refused { name: "(any)".to_owned(), errno, log }),
        }
    }

    /// How many devices [`DmaChannel::any`] could start.
    #[must_use]
    pub fn free(_eal: Eal) -> u32 {
        let _control = Control::enter();
        // SAFETY: reads the EAL's list of devices, exclusively.
        unsafe { sys::netvm_dma_count() }
    }

    /// DPDK's name for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its counters since it was started.
    #[must_use]
    pub fn stats(&self) -> DmaChannelStats {
        let mut found = sys::netvm_dma_stats { submitted: 0, completed: 0, errors: 0 };
        // SAFETY: a device that is started, and a place for the figures.
        unsafe { sys::netvm_dma_stats(self.number, &raw mut found) };
        DmaChannelStats { submitted: found.submitted, completed: found.completed, errors: found.errors }
    }

    pub(crate) const fn number(&self) -> i32 {
        self.number
    }
}

fn start(name: &mut [c_char; NAME], descriptors: u16) -> Result<DmaChannel, (i32, String)> {
    let control = Control::enter();
    // SAFETY: `name` has the length that the function expects and is NUL-terminated; `control` excludes other callers.
    let number = unsafe { sys::netvm_dma_open(name.as_mut_ptr(), descriptors) };
    if number < 0 {
        return Err((-number, control.log()));
    }
    // SAFETY: the function has left it NUL-terminated; the array lives for longer than the reference.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(DmaChannel { number, name })
}

impl Drop for DmaChannel {
    fn drop(&mut self) {
        let _control = Control::enter();
        // SAFETY: started by `start`; no vring uses it any more, as a port's guests are gone before its DMA channel is.
        unsafe { sys::netvm_dma_close(self.number) };
    }
}
