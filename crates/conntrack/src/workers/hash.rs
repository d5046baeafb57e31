// SPDX-License-Identifier: Apache-2.0
//! The symmetric RSS hash: that of Toeplitz (Krawczyk, CRYPTO 1994) with a key of one repeated word of 16 bits (Woo and
//! Park, "Scalable TCP Session Monitoring with Symmetric Receive-Side Scaling", 2012).
//!
//! With this key, the hash depends on the exclusive or of all words of addresses and ports alone, and so not on the
//! direction. It is not secret: a sender can choose the worker that has its connections, as with any NIC that has RSS.

use netvm_wire::Address;

use crate::packet::tuple::Tuple;

/// The key that NICs get with `symmetric_rss`.
const KEY: u16 = 0x6d5a;

/// What one byte of the exclusive or adds to the hash.
const fn table(shift: u32) -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let word = (byte as u16) << shift;
        let mut bit = 0;
        while bit < 16 {
            if word << bit & 0x8000 != 0 {
                table[byte] ^= KEY.rotate_left(bit);
            }
            bit += 1;
        }
        byte += 1;
    }
    table
}

const HIGH: [u16; 256] = table(8);
const LOW: [u16; 256] = table(0);

/// The exclusive or of words of addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(u16);

impl Hash {
    /// That of an end.
    pub(crate) const fn of_end(address: Address, port: u16) -> Self {
        let [high, low] = address.words();
        let both = high ^ low;
        let both = (both >> 32 ^ both) as u32;
        Self((both >> 16 ^ both) as u16 ^ port)
    }

    /// That of a direction of a connection. The identifier of a query counts once: for the end that asks.
    pub(crate) const fn of(tuple: &Tuple) -> Self {
        let destination_port = if tuple.query == 0 { tuple.destination_port } else { 0 };
        Self::of_end(tuple.source, tuple.source_port).with(Self::of_end(tuple.destination, destination_port))
    }

    /// Of both together.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    /// The hash, from the highest bit on: first the lowest bit of RSS, by which NICs choose a queue.
    pub(crate) const fn value(self) -> u64 {
        let [high, low] = self.0.to_be_bytes();
        ((HIGH[high as usize] ^ LOW[low as usize]) as u64).reverse_bits()
    }
}

#[cfg(test)]
mod tests {
    use netvm_wire::IpProto;

    use super::*;
    use crate::packet::tuple::Zone;

    /// As NICs define RSS: for each bit of the input that is set, 32 bits of the key from there on.
    fn toeplitz(input: &[u8]) -> u32 {
        let key: Vec<u8> = KEY.to_be_bytes().repeat(input.len() / 2 + 4);
        let window = |bit: usize| {
            let bytes: [u8; 8] = key[bit / 8..bit / 8 + 8].try_into().unwrap();
            (u64::from_be_bytes(bytes) << (bit % 8) >> 32) as u32
        };
        let is_set = |bit: usize| input[bit / 8] << (bit % 8) & 0x80 != 0;
        (0..input.len() * 8).filter(|bit| is_set(*bit)).fold(0, |hash, bit| hash ^ window(bit))
    }

    fn tuple(ends: [(&str, u16); 2]) -> Tuple {
        let address = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
        Tuple {
            source: address(ends[0].0),
            destination: address(ends[1].0),
            source_port: ends[0].1,
            destination_port: ends[1].1,
            protocol: IpProto::TCP,
            query: 0,
            zone: Zone(0),
        }
    }

    #[test]
    fn it_is_the_hash_of_nics_in_both_directions() {
        let v4: ([u8; 8], _) =
            ([66, 9, 149, 187, 161, 142, 100, 80], tuple([("66.9.149.187", 2794), ("161.142.100.80", 1766)]));
        let mut input = v4.0.to_vec();
        input.extend([2794u16.to_be_bytes(), 1766u16.to_be_bytes()].concat());
        let of_nic = toeplitz(&input);
        assert_eq!(of_nic >> 16, of_nic & 0xffff);
        assert_eq!(Hash::of(&v4.1).value().reverse_bits(), u64::from(of_nic & 0xffff));
        assert_eq!(Hash::of(&v4.1), Hash::of(&v4.1.reversed()));

        let v6 = tuple([("2001:db8:1::7", 40_000), ("fe80:1:2:3:4:5:6:7", 53)]);
        let octets = |address: Address| address.v6_bits().to_be_bytes();
        let mut input = [octets(v6.source), octets(v6.destination)].concat();
        input.extend([40_000u16.to_be_bytes(), 53u16.to_be_bytes()].concat());
        assert_eq!(Hash::of(&v6).value().reverse_bits(), u64::from(toeplitz(&input) & 0xffff));
    }

    #[test]
    fn an_end_with_the_same_hash_can_stand_for_another() {
        let inside = Hash::of_end("10.0.0.1".parse::<std::net::IpAddr>().unwrap().into(), 1000);
        let outside = |port| Hash::of_end("203.0.113.1".parse::<std::net::IpAddr>().unwrap().into(), port);
        let same = (0..=u16::MAX).filter(|port| outside(*port).value() == inside.value());
        assert_eq!(same.count(), 1, "the hash has all 16 bits");
    }
}
