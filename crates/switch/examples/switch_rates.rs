// SPDX-License-Identifier: Apache-2.0
//! Measures the forwarding database in cycles per packet, in bursts: learning a known source, looking up a destination,
//! learning a new source, and refusing one.
//!
//! `cargo run --release -p netvm-switch --example switch_rates`

use std::hint::black_box;

use netvm_clock::{cycles, cycles_per_second};
use netvm_switch::{Fdb, FdbKey, FdbOptions, Learned};
use netvm_wire::MacAddr;

const BURST: usize = 32;
const BURSTS: usize = 100_000;
const PORTS: u64 = 8;
/// The port that floods.
const FLOODING: u16 = 9;

fn mac(number: u64) -> MacAddr {
    let [_, _, _, a, b, c, d, e] = number.to_be_bytes();
    MacAddr([2, a, b, c, d, e])
}

fn port(number: u64) -> u16 {
    (number % PORTS) as u16
}

/// Pairs of addresses in an order that defeats the prefetcher.
fn traffic(addresses: u64) -> Vec<(u64, u64)> {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % addresses
    };
    (0..BURST * BURSTS).map(|_| (random(), random())).collect()
}

type Packet = (MacAddr, u16, MacAddr);

/// Cycles per packet: the median of the bursts, each timed after its addresses were read.
fn measure(packets: &[Packet], mut burst: impl FnMut(&[Packet; BURST])) -> f64 {
    let mut taken: Vec<_> = packets
        .as_chunks()
        .0
        .iter()
        .map(|packets| {
            let packets = black_box(*packets);
            let start = cycles();
            burst(&packets);
            cycles() - start
        })
        .collect();
    taken.sort_unstable();
    taken[taken.len() / 2] as f64 / BURST as f64
}

fn main() -> Result<(), netvm_switch::FdbError> {
    println!("median cycles per packet at {:.2} GHz, in bursts of {BURST}", cycles_per_second() as f64 / 1e9);
    println!(
        "{:>10} {:>9} {:>9} {:>9} {:>18} {:>9} {:>9}",
        "addresses", "baseline", "learn", "lookup", "learn and lookup", "new", "refused"
    );
    for addresses in [1_000, 10_000, 100_000, 1_000_000] {
        let capacity = (addresses as u32).max(32_768);
        let options =
            FdbOptions { limit: capacity, new_per_second: capacity, ..FdbOptions::with_capacity(capacity) };
        let fdb = Fdb::new(options)?;
        let new: Vec<Packet> = (0..addresses).map(|number| (mac(number), port(number), mac(0))).collect();
        let unknown = |burst: &[Packet; BURST]| {
            for (source, port, _) in burst {
                black_box(fdb.learn(1, *source, *port, 0));
            }
        };
        let new = measure(&new, unknown);
        for number in 0..addresses {
            fdb.learn(1, mac(number), port(number), 0);
        }
        assert_eq!(u64::from(fdb.len()), addresses);
        fdb.set_limit(FLOODING, 0);
        let flood: Vec<Packet> =
            (addresses..).take(BURST * 1000).map(|n| (mac(n), FLOODING, mac(0))).collect();
        let refused = measure(&flood, unknown);
        let packet = |(source, destination)| (mac(source), port(source), mac(destination));
        let packets: Vec<Packet> = traffic(addresses).into_iter().map(packet).collect();
        let sources = |burst: &[Packet; BURST]| burst.map(|(source, _, _)| fdb.key(1, source));
        let destinations = |burst: &[Packet; BURST]| burst.map(|(_, _, destination)| fdb.key(1, destination));
        let learn = |burst: &[Packet; BURST], keys: [FdbKey; BURST]| {
            for ((_, port, _), key) in burst.iter().zip(keys) {
                let learned = fdb.learn_at(key, *port, 1);
                assert_eq!(learned, Learned::Known);
            }
        };
        let lookup = |keys: [FdbKey; BURST]| _ = black_box(keys.map(|key| fdb.lookup_at(key, 1)));
        let touched = |keys: [FdbKey; BURST]| {
            fdb.prefetch(&keys);
            keys
        };
        let baseline = measure(&packets, |burst| _ = black_box(burst));
        let learned = measure(&packets, |burst| learn(burst, touched(sources(burst))));
        let found = measure(&packets, |burst| lookup(touched(destinations(burst))));
        let both = measure(&packets, |burst| {
            let (from, to) = (touched(sources(burst)), touched(destinations(burst)));
            learn(burst, from);
            lookup(to);
        });
        println!(
            "{addresses:>10} {baseline:>9.1} {learned:>9.1} {found:>9.1} {both:>18.1} {new:>9.1} {refused:>9.1}"
        );
    }
    Ok(())
}
