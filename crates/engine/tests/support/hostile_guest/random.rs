// SPDX-License-Identifier: Apache-2.0
//! Random messages and writes of a hostile guest.

use std::io::Read;
use std::os::fd::AsFd;

use netvm_vhost_user::request::SET_VRING_ENABLE;

use super::{AVAILABLE, ENTRIES, HostileGuest, MEMORY, RING, USED, descriptor};

/// A stream of numbers (splitmix64).
pub struct Generator(pub u64);

impl Generator {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }
}

impl HostileGuest {
    /// What no guest would say.
    pub fn send_random(&mut self, generator: &mut Generator) {
        let words: Vec<u64> =
            (0..generator.below(40)).map(|_| generator.roll() >> generator.below(64)).collect();
        let fd = (generator.below(2) == 0).then(|| self.kick.as_fd());
        self.send(generator.below(45) as u32, &words, fd);
        self.socket.set_nonblocking(true).unwrap();
        let _ = self.socket.read(&mut [0; 512]);
    }

    /// What guests say, in an order in which none does, or nearly right: most of it right, as that gets furthest.
    pub fn move_rings(&mut self, generator: &mut Generator, features: u64) {
        let ring = generator.below(3);
        let entries = [32, 64, 256, 256, 256, 1024, 1 << 15][generator.below(7) as usize];
        let at = (ring & 1) * RING;
        let mut place = [at, at + AVAILABLE, at + USED];
        match generator.below(6) {
            0 => {
                let part = generator.below(3) as usize;
                place[part] = MEMORY as u64 - [4, 32, 2052, 4096, 4096][generator.below(5) as usize];
            }
            1 => place[generator.below(3) as usize] = generator.below(2 * MEMORY as u64) & !15,
            _ => {}
        }
        let [descriptors, available, used] = place;
        let base = if generator.below(6) == 0 {
            generator.roll() as u32
        } else {
            generator.below(64) as u32 | 1 << 15
        };
        let again = |hostile: &Self| {
            hostile.stop(ring);
            hostile.size(ring, entries);
            hostile.base(ring, base);
            hostile.place(ring, descriptors, available, used);
            hostile.call(ring);
            hostile.run(ring);
            hostile.enable(ring);
        };
        match generator.below(24) {
            0 => self.size(ring, generator.below(300) as u32),
            1 => self.size(ring, entries),
            2 => self.base(ring, base),
            3 => self.place(ring, descriptors, available, used),
            4 => self.run(ring),
            5 => self.stop(ring),
            6 => {
                self.memory(
                    [MEMORY as u64, MEMORY as u64 / 2, generator.roll()][generator.below(3) as usize],
                );
            }
            7 => self.features(features ^ 1 << [15, 22, 28, 29, 34][generator.below(5) as usize]),
            8 => {
                let words = [ring | generator.below(1 << 16) << 32, generator.roll(), 0, 0, 0];
                self.ask(generator.below(24) as u32, &words[..1 + generator.below(5) as usize], None);
            }
            9 => {
                // Another driver takes over.
                (0..3).for_each(|ring| self.stop(ring));
                self.features(features ^ 1 << [15, 22, 29, 34][generator.below(4) as usize]);
                again(self);
            }
            10..12 => self.call(ring),
            12..14 => self.send(SET_VRING_ENABLE, &[ring | generator.below(2) << 32], None),
            _ => again(self),
        }
        self.socket.set_nonblocking(true).unwrap();
        let _ = self.socket.read(&mut [0; 512]);
    }

    /// Some hundred writes to its rings: some of them nonsense, most nearly right, as these get furthest.
    pub fn write_random(&self, generator: &mut Generator) {
        for _ in 0..300 {
            let ring = generator.below(2) * RING;
            match generator.below(8) {
                0..4 => {
                    let address = match generator.below(8) {
                        0 => generator.roll(),
                        1 => MEMORY as u64 - generator.below(64),
                        2 => generator.below(2 * RING),
                        _ => generator.below(MEMORY as u64),
                    };
                    let length = if generator.below(6) == 0 {
                        generator.roll() as u32
                    } else {
                        generator.below(4096) as u32
                    };
                    let flags = if generator.below(6) == 0 {
                        generator.roll() as u16
                    } else {
                        generator.below(8) as u16
                    };
                    let next = if generator.below(6) == 0 {
                        generator.roll() as u16
                    } else {
                        generator.below(256) as u16
                    };
                    let descriptor = descriptor(address, length, flags, next);
                    self.write(ring + generator.below(u64::from(ENTRIES)) * 16, descriptor);
                }
                4 => {
                    let head =
                        if generator.below(6) == 0 { generator.roll() } else { generator.below(256) } as u16;
                    self.write(
                        ring + AVAILABLE + 4 + generator.below(u64::from(ENTRIES)) * 2,
                        head.to_ne_bytes(),
                    );
                }
                5 => self.write(ring + AVAILABLE + 2, (generator.roll() as u16).to_ne_bytes()),
                6 => {
                    self.write(
                        ring + generator.below(3) * AVAILABLE,
                        (generator.roll() as u32).to_ne_bytes(),
                    );
                }
                // virtio-net headers, wherever they may be.
                _ => self.write(generator.below(MEMORY as u64), generator.roll().to_ne_bytes()),
            }
        }
        if generator.below(4) == 0 {
            let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        }
    }
}
