// SPDX-License-Identifier: Apache-2.0
//! How long packets take from the sender to an interface: the sender stamps one in
//! [`BURST`](crate::setup::sender::BURST), and the kernel says when it received it. A filter passes only these, so the
//! others cost no copy.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SocketType};
use rustix::thread::LinkNameSpaceType;
use serde::Serialize;

use crate::error::BenchError;
use crate::measure::probe::bind;
use crate::setup::sender::STAMP;

/// Room for what arrives between two readings, in bytes.
const RECEIVE_BUFFER: libc::c_int = 16 << 20;

/// Delays of a trial, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The mean.
    delay_mean: f64,
    /// The median.
    delay_p50: f64,
    /// The 99th percentile.
    delay_p99: f64,
}

/// A socket that receives the stamped packets.
#[derive(Debug)]
pub struct Delays {
    socket: OwnedFd,
    /// In microseconds.
    seen: Vec<f64>,
}

impl Delays {
    /// Receives on an interface of a named network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(namespace: &str, interface: &str) -> Result<Self, BenchError> {
        let path = format!("/run/netns/{namespace}");
        let file = File::open(&path).map_err(BenchError::system(path))?;
        let interface = interface.to_owned();
        let open = move || -> io::Result<OwnedFd> {
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            open(&interface)
        };
        // Only a thread of its own changes its namespace.
        let socket = std::thread::spawn(open).join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        let socket = socket.map_err(BenchError::system("cannot receive stamped packets"))?;
        // The first question makes the kernel stamp packets from now on.
        let _ = time_of_last(&socket);
        Ok(Self { socket, seen: Vec::new() })
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&mut self) -> Result<(), BenchError> {
        let failed = |error: io::Error| BenchError::system("cannot receive stamped packets")(error);
        let mut frame = [0; STAMP + 8];
        loop {
            match rustix::net::recv(&self.socket, &mut frame, RecvFlags::DONTWAIT) {
                Ok(_) => {
                    let Some(sent) = frame.last_chunk().map(|bytes| u64::from_be_bytes(*bytes)) else {
                        continue;
                    };
                    let received = time_of_last(&self.socket).map_err(failed)?;
                    self.seen.push(received.saturating_sub(Duration::from_nanos(sent)).as_secs_f64() * 1e6);
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// The delays since the last call; `None` if there were none.
    pub fn take(&mut self) -> Option<Summary> {
        Summary::of(std::mem::take(&mut self.seen))
    }
}

impl Summary {
    fn of(mut delays: Vec<f64>) -> Option<Self> {
        delays.sort_by(f64::total_cmp);
        let at = |share: f64| delays.get(((delays.len() - 1) as f64 * share) as usize).copied();
        if delays.is_empty() {
            return None;
        }
        let delay_mean = delays.iter().sum::<f64>() / delays.len() as f64;
        Some(Self { delay_mean, delay_p50: at(0.5)?, delay_p99: at(0.99)? })
    }
}

fn open(interface: &str) -> io::Result<OwnedFd> {
    // It receives nothing before it is bound.
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None)?;
    // Accepts a packet if the upper half of the stamp is not 0 (linux/filter.h).
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, STAMP as u32),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set(&socket, libc::SO_ATTACH_FILTER, &program)?;
    set(&socket, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER)?;
    let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
    bind(&socket, libc::ETH_P_ALL as u16, index)?;
    Ok(socket)
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has this size and, like what it refers to, outlives the call.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, std::ptr::from_ref(value).cast(), size)
    })
}

/// The time since 1970 at which the kernel received the packet that was read last.
fn time_of_last(socket: &OwnedFd) -> io::Result<Duration> {
    /// `SIOCGSTAMPNS` of `asm-generic/sockios.h`.
    const TIME_OF_LAST: libc::c_ulong = 0x8907;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a timespec.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), TIME_OF_LAST as _, &raw mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_summarised_in_any_order() {
        assert_eq!(Summary::of(Vec::new()), None);
        let delays = (1..=101).rev().map(f64::from).collect();
        let summary = Summary { delay_mean: 51.0, delay_p50: 51.0, delay_p99: 100.0 };
        assert_eq!(Summary::of(delays), Some(summary));
    }
}
