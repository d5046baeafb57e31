// SPDX-License-Identifier: Apache-2.0
//! Parses the port counters of `dpctl/show -s`.

use std::time::{Duration, Instant};

use super::Outcome;
use crate::measure::window::CpuTime;

/// Packet counters at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forwarded {
    /// The time.
    pub at: Instant,
    /// CPU time of the forwarding threads.
    pub cpu: CpuTime,
    /// Packets received.
    received: u64,
    /// Packets sent.
    sent: u64,
}

impl Forwarded {
    /// Parses the text, which has indented lines after each port's name. `ports`: where packets enter, and leave.
    ///
    /// ```text
    ///   port 2: p0 (dpdk: configured_rx_queues=1, ...)
    ///     RX packets:5 errors:0 dropped:0 overruns:0 frame:0
    ///     TX packets:0 errors:0 dropped:0 aborted:0 carrier:0
    /// ```
    pub fn parse(text: &str, at: Instant, cpu: CpuTime, ports: [&str; 2]) -> Option<Self> {
        let count = |port: &str, direction: &str| -> Option<u64> {
            let named = format!(": {port} ");
            let mut lines =
                text.lines().skip_while(|line| !(line.starts_with("  port ") && line.contains(&named)));
            lines.next()?;
            let mut own = lines.take_while(|line| line.starts_with("    ")).map(str::trim);
            let rest = own.find_map(|line| line.strip_prefix(direction))?;
            rest.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            at,
            cpu,
            received: count(ports[0], "RX packets:")?,
            sent: count(ports[1], "TX packets:")?,
        })
    }

    /// Counters from the packets that a guest received.
    pub const fn of_guest(sent: u64, at: Instant, cpu: CpuTime) -> Self {
        Self { at, cpu, received: sent, sent }
    }

    /// CPU time of the forwarding threads since `earlier`.
    pub fn cpu_time(&self, earlier: &Self) -> Duration {
        match self.cpu.since(earlier.cpu).running {
            // The kernel has no scheduler statistics.
            0 => self.at.duration_since(earlier.at),
            nanos => Duration::from_nanos(nanos),
        }
    }

    /// The result since `earlier`; `None` if no packet passed.
    pub fn since(&self, earlier: &Self) -> Option<Outcome> {
        let seconds = self.cpu_time(earlier).as_secs_f64();
        let sent = self.sent.saturating_sub(earlier.sent);
        let received = self.received.saturating_sub(earlier.received);
        let dropped = received.saturating_sub(sent) as f64 / received.max(1) as f64;
        (sent > 0).then(|| Outcome { mpps: sent as f64 / seconds / 1e6, dropped_percent: dropped * 100.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: [&str; 2] = ["p0", "p1"];

    fn shown(received: u64, sent: u64) -> String {
        format!(
            "netdev@ovs-netdev:\n  lookups: hit:1 missed:2 lost:3\n  flows: 1\n  port 0: ovs-netdev (tap)\n    \
             RX packets:9 errors:0\n    TX packets:8 errors:0\n  port 2: p0 (dpdk: n_rxq=1)\n    \
             RX packets:{received} errors:0\n    RX bytes:60 (60 B)\n    TX packets:7 errors:0\n  \
             port 3: p1 (dpdk: n_rxq=1)\n    RX packets:6 errors:0\n    TX packets:{sent} errors:0\n"
        )
    }

    #[test]
    fn counters_of_the_right_ports_are_parsed() {
        let at = Instant::now();
        let cpu = |running| CpuTime { running, waiting: 0 };
        let start = Forwarded::parse(&shown(1_000_000, 500_000), at, cpu(0), PORTS).unwrap();
        assert_eq!((start.received, start.sent), (1_000_000, 500_000));
        let later = at + Duration::from_secs(2);
        let end = Forwarded::parse(&shown(9_000_000, 6_500_000), later, cpu(0), PORTS).unwrap();
        assert_eq!(end.since(&start), Some(Outcome { mpps: 3.0, dropped_percent: 25.0 }));
        // With half of the CPU time, the rate doubles.
        let end = Forwarded::parse(&shown(9_000_000, 6_500_000), later, cpu(1_000_000_000), PORTS).unwrap();
        assert_eq!(end.since(&start), Some(Outcome { mpps: 6.0, dropped_percent: 25.0 }));
        assert_eq!(end.since(&end), None);
    }

    #[test]
    fn a_port_without_counters_is_none() {
        let (now, cpu) = (Instant::now(), CpuTime::default());
        assert_eq!(Forwarded::parse(&shown(1, 1), now, cpu, ["p0", "p9"]), None);
        assert_eq!(Forwarded::parse("", now, cpu, PORTS), None);
    }
}
