// SPDX-License-Identifier: Apache-2.0
//! SYN cookies: sequence numbers that prove that the client which acknowledges them has received them (RFC 4987
//! section 3.6).
//!
//! ```text
//!  cookie = H(tuple) + count << 24 + (H(tuple, client's sequence number, count) + MSS index) mod 2^24
//! ```
//!
//! nearly as in Linux, which adds the sequence number, so that a cookie is also good for the next one. `H` is SipHash
//! with a random key of 128 bits; `count` counts [`PERIOD`]s. A cookie is good in its own period and in the next one,
//! so a guess is right once in 2^28.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use crate::TICKS_PER_SECOND;
use crate::packet::tuple::Tuple;

/// Ticks of a period.
const PERIOD: u32 = 64 * TICKS_PER_SECOND;

/// Periods in which a cookie is good.
const PERIODS: u32 = 2;

/// The values that stand for a client's maximum segment size, the largest that is not above it.
const MSS: [u16; 8] = [536, 1220, 1300, 1340, 1380, 1400, 1440, 1460];

const COUNT_SHIFT: u32 = 24;
const HASH: u32 = (1 << COUNT_SHIFT) - 1;

/// What is hashed besides the tuple.
#[derive(Hash)]
enum Of {
    Tuple,
    Syn { sequence: u32, count: u32 },
}

/// One key for all tables of this process: when connections change their workers, the client's acknowledgment may
/// reach another one than its SYN.
fn hash(tuple: &Tuple, of: Of) -> u32 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    let ([a, b], [c, d]) = (tuple.source.words(), tuple.destination.words());
    let ports = u32::from(tuple.source_port) | u32::from(tuple.destination_port) << 16;
    KEY.get_or_init(RandomState::new).hash_one((a, b, c, d, ports, tuple.zone.0, of)) as u32
}

/// The cookie for a client's SYN with this sequence number and maximum segment size, at this tick.
pub(super) fn make(tuple: &Tuple, sequence: u32, mss: u16, now: u32) -> u32 {
    let (count, index) = (now / PERIOD, MSS.partition_point(|it| *it <= mss).saturating_sub(1));
    let low = hash(tuple, Of::Syn { sequence, count }).wrapping_add(index as u32) & HASH;
    hash(tuple, Of::Tuple).wrapping_add(count << COUNT_SHIFT).wrapping_add(low)
}

/// The maximum segment size of the client that got this cookie for a SYN with this sequence number; `None`: it got
/// another one, or too long ago.
pub(super) fn check(tuple: &Tuple, sequence: u32, cookie: u32, now: u32) -> Option<u16> {
    let rest = cookie.wrapping_sub(hash(tuple, Of::Tuple));
    let count = now / PERIOD;
    let age = count.wrapping_sub(rest >> COUNT_SHIFT) & (u32::MAX >> COUNT_SHIFT);
    if age >= PERIODS {
        return None;
    }
    let index = rest.wrapping_sub(hash(tuple, Of::Syn { sequence, count: count.wrapping_sub(age) })) & HASH;
    MSS.get(index as usize).copied()
}

#[cfg(test)]
mod tests {
    use netvm_wire::IpProto;
    use proptest::prelude::*;

    use super::*;
    use crate::packet::tuple::Zone;

    fn tuple(port: u16, zone: u16) -> Tuple {
        let (source, destination) =
            ("2001:db8::1".parse::<std::net::IpAddr>(), "2001:db8::2".parse::<std::net::IpAddr>());
        let [source, destination] = [source, destination].map(|it| it.unwrap().into());
        let protocol = IpProto::TCP;
        Tuple {
            source,
            destination,
            source_port: port,
            destination_port: 80,
            protocol,
            query: 0,
            zone: Zone(zone),
        }
    }

    proptest! {
        #[test]
        fn a_cookie_is_good_for_its_syn_for_a_minute(
            port: u16, sequence: u32, mss: u16, now in 0..u32::MAX - 2 * PERIOD, later in 0..4 * PERIOD,
        ) {
            let cookie = make(&tuple(port, 0), sequence, mss, now);
            let checked = check(&tuple(port, 0), sequence, cookie, now.saturating_add(later));
            match checked {
                Some(got) => {
                    prop_assert!(later < 2 * PERIOD);
                    prop_assert!(got <= mss || got == MSS[0]);
                    prop_assert!(MSS.iter().all(|it| *it <= got || *it > mss));
                }
                None => prop_assert!(later >= PERIOD),
            }
        }

        #[test]
        fn it_is_of_no_other_connection(port: u16, other: u16, sequence: u32, other_sequence: u32, now: u32) {
            prop_assume!(port != other && sequence != other_sequence);
            let cookie = make(&tuple(port, 0), sequence, 1460, now);
            // Each is right once in 2^28.
            let wrong = [
                check(&tuple(other, 0), sequence, cookie, now),
                check(&tuple(port, 1), sequence, cookie, now),
                check(&tuple(port, 0), other_sequence, cookie, now),
            ];
            prop_assert_eq!(wrong, [None; 3]);
        }
    }
}
