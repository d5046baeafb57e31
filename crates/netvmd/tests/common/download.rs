// SPDX-License-Identifier: Apache-2.0
//! A download over TCP, of which every byte is verified.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::hosts::Host;

pub const PORT: u16 = 7000;

/// Serves `bytes` bytes without repetition on one connection, over IPv4 or IPv6.
pub fn serve(host: &Host, bytes: u64) {
    let (bound, is_bound) = std::sync::mpsc::channel();
    host.inside(move || {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
        bound.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        // The port is free for another download when this one is over.
        drop(listener);
        let mut chunk = Vec::new();
        for n in 0..bytes / 8 {
            chunk.extend_from_slice(&word(n).to_le_bytes());
            if chunk.len() >= 1 << 16 {
                stream.write_all(&chunk).unwrap();
                chunk.clear();
            }
        }
        stream.write_all(&chunk).unwrap();
    });
    is_bound.recv().unwrap();
}

/// The `n`th word (splitmix64).
pub const fn word(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Downloads and verifies the bytes of [`serve`]; returns the time taken.
pub fn download(host: &Host, from: impl Into<IpAddr>, bytes: u64) -> Duration {
    let from = from.into();
    let fetch = move || {
        let begin = Instant::now();
        let mut stream = TcpStream::connect((from, PORT)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut chunk = vec![0; 1 << 16];
        for n in 0..bytes / 8 {
            let at = (n % (1 << 13)) as usize * 8;
            if at == 0 {
                let left = ((bytes / 8 - n) * 8).min(1 << 16) as usize;
                stream.read_exact(&mut chunk[..left]).unwrap();
            }
            assert_eq!(chunk[at..at + 8], word(n).to_le_bytes(), "word {n}");
        }
        begin.elapsed()
    };
    host.inside(fetch).join().unwrap()
}
