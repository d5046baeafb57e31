//! Wakes a VM's NF threads: each byte on the second serial port is the number of a thread that has packets. A thread of netlib reads them and signals
//! eventfds like those of a process.

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

/// Listens for wake-ups of threads with these NF threads, in their order; returns what wakes each.
pub(crate) fn listen(nf_threads: &[u8]) -> io::Result<BTreeMap<u8, OwnedFd>> {
    let line = open()?;
    let (mut own, mut eventfds) = (BTreeMap::new(), Vec::new());
    for nf_thread in nf_threads {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        eventfds.push(event.try_clone()?);
        own.insert(*nf_thread, event);
    }
    Builder::new().name("netlib-wake".to_owned()).spawn(move || pass_on(line, &eventfds))?;
    Ok(own)
}

fn open() -> io::Result<File> {
    let settings = format!("/sys/class/tty/{PORT}");
    // Type 0 is a port that there could be, and is not (linux/serial.h, PORT_UNKNOWN).
    if fs::read_to_string(format!("{settings}/type"))?.trim() == "0" {
        return Err(io::ErrorKind::NotFound.into());
    }
    let flags = (OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
    let line = OpenOptions::new().read(true).write(true).custom_flags(flags).open(format!("/dev/{PORT}"))?;
    let mut modes = tcgetattr(&line)?;
    // Every byte as it comes, and none sent back.
    modes.make_raw();
    modes.set_speed(speed::B115200)?;
    tcsetattr(&line, OptionalActions::Now, &modes)?;
    // Best effort: an interrupt for each byte, in place of one when no more has come for some time.
    let _ = fs::write(format!("{settings}/rx_trig_bytes"), "1");
    Ok(line)
}

fn pass_on(mut line: File, eventfds: &[OwnedFd]) {
    let mut bytes = [0; 64];
    // An end of the line is the end of the VM; an error leaves the threads to their own clocks.
    while let Ok(count @ 1..) = line.read(&mut bytes) {
        for eventfd in bytes[..count].iter().filter_map(|thread| eventfds.get(usize::from(*thread))) {
            // A count that is full (EAGAIN) wakes as well.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }
}
