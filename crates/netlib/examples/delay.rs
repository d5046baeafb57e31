// SPDX-License-Identifier: Apache-2.0
//! The NF of `docs/how-to/nf-packets.md`, which delays packets. It needs `hold` in its `[[nf]]`. A test compares the
//! page with this file.

use std::collections::VecDeque;
use std::time::Duration;

use netlib::{Burst, NetworkFunction, Options, Outbox, OwnedPacket, Verdict};

/// Sends each packet on after 200 ms.
#[derive(Default)]
struct Delay(VecDeque<(Duration, OwnedPacket)>);

impl NetworkFunction for Delay {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each_with(|packet, outbox| match outbox.hold(packet) {
            // The verdict on a packet that is held does not matter.
            Ok(held) => {
                self.0.push_back((outbox.now() + Duration::from_millis(200), held));
                Verdict::Drop
            }
            // It holds as many as it may.
            Err(_) => Verdict::Drop,
        });
    }

    // About ten times a second.
    fn send_due(&mut self, outbox: &mut Outbox<'_>) {
        while self.0.front().is_some_and(|(due, _)| *due <= outbox.now()) {
            self.0.pop_front().into_iter().for_each(|(_, held)| outbox.send(held, Verdict::Next));
        }
    }

    // Before the NF ends.
    fn finish(&mut self, outbox: &mut Outbox<'_>) {
        self.0.drain(..).for_each(|(_, held)| outbox.send(held, Verdict::Next));
    }
}

fn main() -> Result<(), netlib::Error> {
    netlib::run(&Options::new("delay"), |_thread| Delay::default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use netlib::PortId;
    use netlib::sim::Simulator;

    use super::*;

    /// The page that this file is an example of.
    const PAGE: &str = include_str!("../../../docs/how-to/nf-packets.md");

    /// The code of the page, without indentation: the NF, and its test.
    fn blocks() -> Vec<String> {
        let (mut blocks, mut is_inside) = (Vec::new(), false);
        for line in PAGE.lines() {
            match line {
                "```rust" => blocks.push(String::new()),
                "```" => {}
                _ if is_inside => blocks.iter_mut().next_back().unwrap().extend([line.trim(), "\n"]),
                _ => {}
            }
            is_inside = line == "```rust" || is_inside && line != "```";
        }
        blocks
    }

    #[test]
    fn the_page_has_this_nf_and_this_test() {
        let file: String = include_str!("delay.rs").lines().flat_map(|line| [line.trim(), "\n"]).collect();
        let [nf, test] = <[String; 2]>::try_from(blocks()).unwrap();
        assert!(file.contains(&format!("\n{nf}\n#[cfg(test)]\n")), "{nf}");
        assert!(file.contains(&test), "{test}");
    }

    #[test]
    fn a_packet_goes_on_after_its_delay() -> Result<(), netlib::Error> {
        let mut simulator = Simulator::new(&["lan", "wan"], &[])?;
        let mut nf = Delay::default();
        assert!(simulator.exchange(&mut nf, &[(PortId(0), &[0; 60])]).is_empty());
        assert!(simulator.advance(&mut nf, Duration::from_millis(100)).is_empty());
        assert_eq!(simulator.advance(&mut nf, Duration::from_millis(200)).len(), 1);
        Ok(())
    }
}
