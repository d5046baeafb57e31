// SPDX-License-Identifier: Apache-2.0
//! The wake line: the VM's second serial port, by which the host wakes the VM's NF threads. In: bytes, each the number
//! of a thread that has packets. Out: signals to eventfds like those of a process, by a thread of netlib.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::thread::Builder;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, speed, tcgetattr, tcsetattr};

const PORT: &str = "ttyS1";

/// Starts the thread that reads the wake line; returns the eventfd of each of these NF threads.
pub(crate) fn listen(nf_threads: &[u8]) -> io::Result<BTreeMap<u8, OwnedFd>> {
    let line = open()?;
    let (mut own, mut eventfds) = (BTreeMap::new(), Vec::new());
    for nf_thread in nf_threads {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        eventfds.push(event.try_clone()?);
        own.insert(*nf_thread, event);
    }
    Builder::new().name("netlib-wake".to_owned()).spawn(move || relay(line, &eventfds))?;
    Ok(own)
}

fn open() -> io::Result<File> {
    let settings = format!("/sys/class/tty/{PORT}");
    // Type 0 is a port without hardware (linux/serial.h, PORT_UNKNOWN).
    if fs::read_to_string(format!("{settings}/type"))?.trim() == "0" {
        return Err(io::ErrorKind::NotFound.into());
    }
    let flags = (OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
    let line = OpenOptions::new().read(true).write(true).custom_flags(flags).open(format!("/dev/{PORT}"))?;
    let mut modes = tcgetattr(&line)?;
    // Raw mode: no translation and no echo.
    modes.make_raw();
    modes.set_speed(speed::B115200)?;
    tcsetattr(&line, OptionalActions::Now, &modes)?;
    // Best effort: an interrupt for each byte, instead of one after a pause.
    let _ = fs::write(format!("{settings}/rx_trig_bytes"), "1");
    Ok(line)
}

fn relay(mut line: File, eventfds: &[OwnedFd]) {
    let mut bytes = [0; 64];
    // The line ends with the VM. After an error the threads poll by timeout.
    while let Ok(count @ 1..) = line.read(&mut bytes) {
        for eventfd in bytes[..count].iter().filter_map(|thread| eventfds.get(usize::from(*thread))) {
            // A full count (EAGAIN) is harmless, since the eventfd is readable.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }
}
