// SPDX-License-Identifier: Apache-2.0
//! The message by which an NF in a VM reports that it is ready, or why it is not. A process sends it on its socket; a
//! VM has no socket and writes it to control memory.
//!
//! ```text
//!  2560   state: 0 none yet, 1 ready, 2 failed; written last, with release
//!  2564   length of the text in bytes
//!  2568   text: if ready, the names of the program and of its counters, a line each; if failed, the reason
//!  4096   end
//! ```
//!
//! The offset is the same in every layout, so that an NF built for another layout can report that.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::{MAX_COUNTERS, Mapping};

const OFFSET: u64 = 2560;
const TEXT_BYTES: usize = 4096 - 2560 - 8;
const READY: u32 = 1;
const FAILED: u32 = 2;

#[repr(C)]
struct Block {
    state: AtomicU32,
    length: AtomicU32,
    text: [AtomicU8; TEXT_BYTES],
}

const _: () = assert!(OFFSET as usize + size_of::<Block>() == 4096);

/// The ready message of an NF in a VM; written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyMessage {
    /// The NF has mapped all memories and accepts packets.
    Ready {
        /// The program's name.
        name: String,
        /// Names of its counters, at most [`MAX_COUNTERS`].
        counters: Vec<String>,
    },
    /// The NF cannot attach.
    Failed {
        /// The reason, for people.
        reason: String,
    },
}

impl ReadyMessage {
    /// Whether there is a message already: an NF of this VM has started before.
    #[must_use]
    pub fn is_present(control: &Mapping) -> bool {
        block(control).state.load(Ordering::Acquire) != 0
    }

    /// Writes the message to the control memory. Truncates the text to 1,528 bytes.
    pub fn write(&self, control: &Mapping) {
        let (state, text) = match self {
            Self::Ready { name, counters } => {
                let lines = std::iter::once(name).chain(counters).map(|line| line.replace('\n', " "));
                (READY, lines.collect::<Vec<_>>().join("\n"))
            }
            Self::Failed { reason } => (FAILED, reason.clone()),
        };
        let block = block(control);
        for (to, byte) in block.text.iter().zip(text.bytes()) {
            to.store(byte, Ordering::Relaxed);
        }
        block.length.store(text.len().min(TEXT_BYTES) as u32, Ordering::Relaxed);
        block.state.store(state, Ordering::Release);
    }
}

/// The message, copied once and without control characters, since the writer may be hostile.
pub(crate) fn read(control: &Mapping) -> Option<ReadyMessage> {
    let block = block(control);
    let state = block.state.load(Ordering::Acquire);
    if state == 0 {
        return None;
    }
    let length = (block.length.load(Ordering::Relaxed) as usize).min(TEXT_BYTES);
    let bytes: Vec<u8> = block.text[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    let text = String::from_utf8_lossy(&bytes);
    let shown = |line: &str| -> String { netvm_text::line(line).chars().take(256).collect() };
    if state == READY {
        let mut lines = text.split('\n').map(shown);
        let name = lines.next().unwrap_or_default();
        return Some(ReadyMessage::Ready { name, counters: lines.take(MAX_COUNTERS).collect() });
    }
    Some(ReadyMessage::Failed { reason: shown(&text) })
}

fn block(control: &Mapping) -> &Block {
    // SAFETY: within the first page, which every mapping has; all fields are atomics.
    unsafe { control.at::<Block>(OFFSET).as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    fn memory() -> Mapping {
        Mapping::create("ready_message-test", 4096, Pages::Normal, None).unwrap()
    }

    #[test]
    fn a_written_message_is_read_back() {
        let memory = memory();
        assert!(!ReadyMessage::is_present(&memory));
        assert_eq!(read(&memory), None);
        let ready =
            ReadyMessage::Ready { name: "firewall".into(), counters: vec!["passed".into(), "late".into()] };
        ready.write(&memory);
        assert!(ReadyMessage::is_present(&memory));
        assert_eq!(read(&memory), Some(ready));
        let alone = ReadyMessage::Ready { name: "monitor".into(), counters: Vec::new() };
        alone.write(&memory);
        assert_eq!(read(&memory), Some(alone));
    }

    #[test]
    fn a_hostile_message_is_bounded_and_has_no_control_characters() {
        let memory = memory();
        ReadyMessage::Failed { reason: "\x1b[2J\n".repeat(1000) }.write(&memory);
        block(&memory).length.store(u32::MAX, Ordering::Relaxed);
        let Some(ReadyMessage::Failed { reason }) = read(&memory) else { panic!("not failed") };
        assert!(reason.chars().count() == 256 && !reason.contains('\x1b'), "{reason:?}");
        block(&memory).state.store(READY, Ordering::Relaxed);
        let Some(ReadyMessage::Ready { counters, .. }) = read(&memory) else { panic!("not ready") };
        assert_eq!(counters.len(), MAX_COUNTERS);
    }
}
