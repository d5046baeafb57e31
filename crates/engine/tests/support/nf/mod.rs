//! The NF of the tests: the test binary starts itself again, with a variable that says what kind of NF it is.

mod changing;
mod flow_verdicts;
mod hostile;
pub mod raw;

use std::time::Duration;

use netlib::{NetworkFunction, Options, Packet, PortId as NfPort, Verdict, Waiting};

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
}

impl NetworkFunction for TestNf {
    fn packet(&mut self, _packet: &mut Packet<'_>) -> Verdict {
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
