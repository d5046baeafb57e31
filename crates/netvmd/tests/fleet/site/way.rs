// SPDX-License-Identifier: Apache-2.0
//! A way to etcd that can be cut, or slow, or with another time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::Etcd;

/// What a way does with bytes.
const PASS: u8 = 0;
const HOLD: u8 = 1;
const DELAY: u8 = 2;
const OTHER_TIME: u8 = 3;

/// A way to etcd, for one host, that can be cut: then nothing arrives any more, and nobody is told.
pub struct Way {
    pub address: SocketAddr,
    mode: Arc<AtomicU8>,
}

impl Way {
    pub fn to(etcd: &Etcd) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, to, mode) =
            (listener.local_addr().unwrap(), etcd.address, Arc::new(AtomicU8::new(PASS)));
        let shared = Arc::clone(&mode);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mode = Arc::clone(&shared);
                std::thread::spawn(move || connect(near, to, &mode));
            }
        });
        Self { address, mode }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn cut(&self) {
        self.mode.store(HOLD, Ordering::SeqCst);
    }

    pub fn slow(&self) {
        self.mode.store(DELAY, Ordering::SeqCst);
    }

    /// From now on, etcd's clock seems to be half an hour away.
    pub fn shift_time(&self) {
        self.mode.store(OTHER_TIME, Ordering::SeqCst);
    }

    pub fn mend(&self) {
        self.mode.store(PASS, Ordering::SeqCst);
    }
}

/// Carries one connection, both ways.
fn connect(near: TcpStream, to: SocketAddr, mode: &Arc<AtomicU8>) {
    let Ok(far) = TcpStream::connect(to) else { return };
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        let mode = Arc::clone(mode);
        std::thread::spawn(move || {
            let mut bytes = [0; 65_536];
            while let Ok(length @ 1..) = from.read(&mut bytes) {
                while mode.load(Ordering::SeqCst) == HOLD {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if mode.load(Ordering::SeqCst) == DELAY {
                    std::thread::sleep(Duration::from_millis(500));
                }
                if mode.load(Ordering::SeqCst) == OTHER_TIME {
                    shift_minutes(&mut bytes[..length]);
                }
                if to.write_all(&bytes[..length]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        })
    };
    copy(near.try_clone().unwrap(), far.try_clone().unwrap());
    copy(far, near);
}

/// Changes the minutes of the times in HTTP's headers, such as `Date: Mon, 30 Nov 2026 22:12:27 GMT`.
fn shift_minutes(bytes: &mut [u8]) {
    let (head, minutes) = (b"\r\nDate: ", 29);
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(head)).collect();
    for at in places.into_iter().map(|at| at + minutes - 1) {
        let Some(tens) = bytes.get_mut(at) else { continue };
        *tens = b'0' + (*tens - b'0' + 3) % 6;
    }
}
