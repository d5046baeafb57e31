// SPDX-License-Identifier: Apache-2.0
//! [`Rings`]: the rings of all producers, of which new ones come at any time.

use std::sync::mpsc::{Receiver, TryRecvError};

use rtrb::Consumer;

pub(super) struct Rings<T> {
    /// `None` when no more come.
    incoming: Option<Receiver<Consumer<T>>>,
    rings: Vec<Consumer<T>>,
    /// The ring that is asked next.
    next: usize,
}

impl<T> Default for Rings<T> {
    fn default() -> Self {
        Self { incoming: None, rings: Vec::new(), next: 0 }
    }
}

impl<T> Rings<T> {
    pub(super) fn new(incoming: Receiver<Consumer<T>>) -> Self {
        Self { incoming: Some(incoming), ..Self::default() }
    }

    /// Takes rings that have come.
    pub(super) fn take_new(&mut self) {
        while let Some(incoming) = &self.incoming {
            match incoming.try_recv() {
                Ok(ring) => self.rings.push(ring),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.incoming = None,
            }
        }
    }

    /// The oldest item of a ring. Forgets rings that are empty and whose producers have ended.
    pub(super) fn pop(&mut self) -> Option<T> {
        let mut empty = 0;
        while empty < self.rings.len() {
            if self.next >= self.rings.len() {
                self.next = 0;
            }
            let ring = &mut self.rings[self.next];
            // Asked first: what a producer that has ended had pushed is here then.
            let ended = ring.is_abandoned();
            match ring.pop() {
                Ok(item) => return Some(item),
                Err(_) if ended => drop(self.rings.swap_remove(self.next)),
                Err(_) => (self.next, empty) = (self.next + 1, empty + 1),
            }
        }
        None
    }

    /// Whether nothing will come any more.
    pub(super) const fn have_ended(&self) -> bool {
        self.incoming.is_none() && self.rings.is_empty()
    }
}
