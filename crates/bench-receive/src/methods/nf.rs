// SPDX-License-Identifier: Apache-2.0
//! An NF of netvm: packets stay in the region of its trust group.

use netlib::{Burst, NetworkFunction, Options, Packet, Verdict, Waiting};

use super::Consumer;
use crate::error::MethodError;
use crate::monitor::Monitor;

/// The role under which `netvm-bench receive` finds this NF.
const ROLE: &str = "receive";

pub(super) fn run<M: Monitor>(consumer: Consumer<'_, M>) -> Result<(), MethodError> {
    let options =
        Options { role: ROLE.to_owned(), waiting: Waiting::Adaptive, ..Options::new("netvm-bench-receive") };
    let attachment = netlib::attach(&options)?;
    consumer.counters.ready.set(1);
    let mut function = Function(consumer);
    for endpoint in &mut attachment.into_endpoints() {
        while let Some(mut burst) = endpoint.receive() {
            function.burst(&mut burst);
        }
    }
    Ok(())
}

struct Function<'a, M>(Consumer<'a, M>);

impl<M: Monitor> NetworkFunction for Function<'_, M> {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let frame = packet.data();
        self.0.packet(frame, frame.len());
        Verdict::Drop
    }

    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each(|packet| self.packet(packet));
        self.0.publish();
    }
}
