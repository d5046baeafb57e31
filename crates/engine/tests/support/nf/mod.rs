// SPDX-License-Identifier: Apache-2.0
//! The NF of the tests: the test binary starts itself again, with a variable that says what kind of NF it is.

mod changing;
mod flow_verdicts;
mod hostile;
pub mod packets;
pub mod raw;
mod steer;

use std::time::Duration;

use netlib::{NetworkFunction, Options, Packet, PortId as NfPort, Verdict, Waiting};
use netvm_wire::{checksum, parse};

/// Variable that makes the test binary an NF of that kind.
pub const KIND: &str = "NETVM_TEST_NF";

/// The NF program: [`Rig::attach`] starts the test binary again with this test alone. It does nothing in an ordinary
/// run.
#[test]
fn nf_process() {
    let Ok(kind) = std::env::var(KIND) else { return };
    match kind.as_str() {
        "hostile" => hostile::be_hostile(),
        "liar" => hostile::be_a_liar(),
        _ => {}
    }
    if let Some(first) = kind.strip_prefix("backpressure=") {
        hostile::set_backpressure(first.parse().unwrap());
    }
    if kind == "punch" {
        hostile::punch_holes();
    }
    flow_verdicts::run_if_named(&kind);
    packets::run_if_named(&kind);
    steer::run_if_named(&kind);
    if let Some(change) = changing::change_of(&kind) {
        changing::return_changed(change);
    }
    let mut options = Options::new("test-nf");
    if kind.contains("poll") {
        options.waiting = Waiting::Poll;
    }
    let number = kind.rsplit('=').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let (spin, sleep) = if kind.starts_with("sleep=") { (0, number) } else { (number, 0) };
    let sleep = Duration::from_micros(sleep);
    let reverse = kind.starts_with("reverse");
    let result = netlib::run(&options, |context| TestNf {
        spin,
        sleep,
        drop_one_of: if kind.starts_with("third") { 3 } else { 0 },
        panic_at: if kind.starts_with("panic=") { number } else { 0 },
        hang_at: if kind.starts_with("hang=") { number } else { 0 },
        seen: 0,
        out: reverse.then(|| context.port("out")).flatten(),
        rewrites: kind == "rewrite",
    });
    std::process::exit(i32::from(result.is_err()));
}

struct TestNf {
    spin: u64,
    /// Time that it sleeps for each packet, so that it leaves the core to others.
    sleep: Duration,
    /// It drops one packet of so many; 0: none.
    drop_one_of: u64,
    /// It panics at this packet, from 1; 0: never.
    panic_at: u64,
    /// It loops for ever at this packet, from 1; 0: never.
    hang_at: u64,
    seen: u64,
    out: Option<NfPort>,
    rewrites: bool,
}

/// What the NF "rewrite" does to a packet, by its last byte: as NAT does, it changes the destination's address or port.
pub fn rewrite(frame: &mut [u8]) {
    let (Ok(headers), Some(last)) = (parse(frame), frame.last().copied()) else { return };
    let Some(l4) = headers.l4_offset() else { return };
    let l3 = headers.l3_offset();
    match last % 3 {
        1 if headers.key().destination.is_v4() => {
            frame[l3 + 16..l3 + 20].copy_from_slice(&[198, 51, 100, 1]);
        }
        2 => frame[l4 + 2..l4 + 4].copy_from_slice(&25u16.to_be_bytes()),
        _ => return,
    }
    let headers = parse(frame).unwrap();
    checksum::fill(frame, &headers).unwrap();
}

impl NetworkFunction for TestNf {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if self.rewrites {
            rewrite(packet.data_mut());
        }
        let until = netvm_clock::cycles() + self.spin;
        while netvm_clock::cycles() < until {
            std::hint::spin_loop();
        }
        if !self.sleep.is_zero() {
            std::thread::sleep(self.sleep);
        }
        self.seen += 1;
        assert_ne!(self.seen, self.panic_at, "as the test asked");
        if self.seen == self.hang_at {
            loop {
                std::thread::park();
            }
        }
        if self.drop_one_of != 0 && self.seen % self.drop_one_of == 1 {
            return Verdict::Drop;
        }
        self.out.map_or(Verdict::Next, Verdict::Port)
    }
}
