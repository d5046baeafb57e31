//! When packets do not come back as expected, and before the account is read: see [`Expected`](crate::expected::Expected).

use crate::expected::Expected;
use crate::ids::{LinkId, MemoryId};
use crate::link::Link;
use crate::worker::state::Path;

/// How often in a tick an NF thread may begin to return what another one was handed: more of it costs more than the account.
const MOST_CHANGES: u8 = 16;
/// Of an NF thread for which order was given up in this tick: nothing is expected in its memory until the next.
const GIVEN_UP: u8 = u8::MAX;

impl Path {
    pub(crate) fn add_link(&mut self, link: Box<Link>, expected: Box<Expected>) {
        let id = link.id;
        self.expected[id.index()] = Some(expected);
        self.links[id.index()] = Some(link);
        self.active.push(id);
    }

    /// What it is expected to return is left to the account.
    pub(crate) fn remove_link(&mut self, id: LinkId) -> Option<(Box<Link>, Option<Box<Expected>>)> {
        self.note_of(id, Expected::note);
        self.active.retain(|active| *active != id);
        self.each_link(|link| link.forget_source(id));
        Some((self.links[id.index()].take()?, self.expected[id.index()].take()))
    }

    /// The account has everything: before it is read, and ten times a second, so that it is seen who has what.
    pub(crate) fn note_expected(&mut self) {
        for n in 0..self.active.len() {
            self.note_of(self.active[n], Expected::note);
        }
    }

    /// What was refused is tried again.
    pub(crate) fn trust_order(&mut self) {
        for id in &self.active {
            if let Some(expected) = self.expected[id.index()].as_deref_mut() {
                expected.trust();
            }
        }
        self.each_link(|link| link.changes = 0);
    }

    /// The next descriptor of an NF thread is not what is expected from it, nor has the account the packet: sees who was handed it.
    /// Returns whether anything is different now.
    #[cold]
    pub(crate) fn look_around(&mut self, id: LinkId) -> bool {
        let Some((next, memory_id)) = self.next_of(id) else { return false };
        let Some(memory) = self.memory(memory_id) else { return false };
        let is_buffer = next < memory.region().geometry().buffers;
        if !is_buffer || memory.taking_back(self.id).has(next) {
            return false;
        }
        let expects = |other: &LinkId| self.expects_first(*other, memory_id, next);
        let source = self.active.iter().copied().find(expects);
        let Some(link) = self.links[id.index()].as_deref_mut() else { return false };
        match source {
            Some(source) if source != link.source && link.changes < MOST_CHANGES => {
                link.source = source;
                link.changes += 1;
                true
            }
            _ => {
                link.changes = GIVEN_UP;
                self.refuse_order(memory_id)
            }
        }
    }

    /// The buffer that an NF thread returns next, as far as is known, and in which memory; `None` where order was given up, too.
    fn next_of(&self, id: LinkId) -> Option<(u32, MemoryId)> {
        let link = self.links[id.index()].as_deref().filter(|link| link.changes != GIVEN_UP)?;
        Some((link.from_nf.peek_known()?.buffer(), link.memory))
    }

    fn expects_first(&self, id: LinkId, memory: MemoryId, buffer: u32) -> bool {
        let is_of = self.links[id.index()].as_deref().is_some_and(|link| link.memory == memory);
        let expected = self.expected[id.index()].as_deref().filter(|_| is_of);
        expected
            .is_some_and(|expected| expected.front().0.first().is_some_and(|span| span.buffer() == buffer))
    }

    /// Leaves the packets of a memory to the account, also those to come; returns whether any were expected.
    fn refuse_order(&mut self, memory: MemoryId) -> bool {
        let mut any = false;
        for n in 0..self.active.len() {
            let id = self.active[n];
            if self.links[id.index()].as_deref().is_some_and(|link| link.memory == memory) {
                any |= self.expected[id.index()].as_deref().is_some_and(|expected| expected.len() > 0);
                self.note_of(id, Expected::refuse);
            }
        }
        any
    }

    fn note_of(&mut self, id: LinkId, note: impl FnOnce(&mut Expected, &crate::memory::Memory)) {
        let Self { links, expected, memories, counters, .. } = self;
        let (Some(link), Some(expected)) =
            (links[id.index()].as_deref(), expected[id.index()].as_deref_mut())
        else {
            return;
        };
        if let Some(memory) = memories[link.memory.index()].as_deref() {
            note(expected, memory);
            counters.links[id.index()].expected.set(expected.len() as u64);
        }
    }
}
