// SPDX-License-Identifier: Apache-2.0
//! An NF that steers flows: `steer=chain:NAME`, `steer=role:NAME`, `steer=port:NAME`, `steer=back`, at packets whose
//! payload begins with `!`.

use netlib::{NetworkFunction, Options, Packet, Steer, ThreadContext, Verdict};

/// Where the payload of UDP in IPv4 begins.
pub const PAYLOAD: usize = 42;

struct Steerer(Option<Steer>);

/// Runs the NF if `kind` names it; returns otherwise.
pub fn run_if_named(kind: &str) {
    let Some(to) = kind.strip_prefix("steer=") else { return };
    let result = netlib::run(&Options::new("steer"), |context| Steerer(destination(context, to)));
    std::process::exit(i32::from(result.is_err()));
}

fn destination(context: &ThreadContext<'_>, to: &str) -> Option<Steer> {
    match to.split_once(':') {
        Some(("chain", name)) => context.chain(name).map(Steer::Chain),
        Some(("role", name)) => context.role(name).map(Steer::Role),
        Some(("port", name)) => context.port(name).map(Steer::Port),
        _ => Some(Steer::Back),
    }
}

impl NetworkFunction for Steerer {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        match self.0 {
            Some(to) if packet.data().get(PAYLOAD) == Some(&b'!') => Verdict::SteerFlow(to),
            // It could not look up where to steer.
            None => Verdict::Drop,
            Some(_) => Verdict::Next,
        }
    }
}
