// SPDX-License-Identifier: Apache-2.0
//! Answers that the engine itself sends. In: their bytes. Out: packets for the port that has received what they answer.

use dpdk::{Batch, PortNumber};

use crate::memory::Memory;

/// Adds a packet with these bytes, as if `port` had received it. Returns false if there is no buffer.
pub(crate) fn add(memory: &Memory, answers: &mut Batch, port: PortNumber, bytes: &[u8]) -> bool {
    memory.pool.alloc_into(answers, 1);
    let Some(mut buffer) = answers.pop() else { return false };
    buffer.set_port(port);
    // The buffer may have held a packet of a capture port.
    memory.set_stamp(&buffer, None);
    if buffer.copy_from(bytes).is_ok() {
        answers.add(buffer);
    }
    true
}
