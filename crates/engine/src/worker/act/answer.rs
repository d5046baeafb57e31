//! Answers that the engine itself sends. In: their bytes. Out: packets by the port that has received what they answer.

use dpdk::{Batch, PortNumber};

use crate::ids::PortId;
use crate::memory::Memory;
use crate::worker::graph::walk;
use crate::worker::next::Next;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

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

/// Sends the answers of the SYN proxy to a burst that `port` has received.
#[cold]
pub(crate) fn send_of_proxy(dp: &mut Datapath, cx: Context<'_>, port: PortId) {
    let mut answers = Batch::new();
    let Datapath { connections, memories, .. } = dp;
    if let (Some(connections), Some(memory)) = (connections, memories.get(cx.memory)) {
        for answer in connections.syn_proxy.answers.drain(..) {
            if !add(memory, &mut answers, PortNumber(port.0), answer.bytes()) {
                break;
            }
        }
    }
    walk(dp, cx, Next::Tx(port), &mut answers);
}
