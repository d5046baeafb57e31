//! A client's filter program, and the packets that it is run for.

use netvm_tap::{Filter, Instruction, MAX_INSTRUCTIONS, Outcome};

use crate::input::Input;

/// Reads a program and a packet. A program that is verified runs to its end for every packet, and a front of the packet
/// decides as the whole does, or asks for more.
pub fn capture_filter(data: &[u8]) {
    let mut input = Input::new(data);
    let count = usize::from(input.u8() % 64);
    let program: Vec<Instruction> = (0..count)
        .map(|_| Instruction { code: input.u16(), jt: input.u8(), jf: input.u8(), k: input.u32() })
        .collect();
    let Ok(filter) = Filter::new(&program) else { return };
    assert!(!program.is_empty() && program.len() <= MAX_INSTRUCTIONS);
    let packet = input.rest();
    let length = packet.len() as u32;
    let whole = filter.run(packet, length);
    assert_ne!(whole, Outcome::Beyond, "nothing is beyond a whole packet");
    for front in [0, 1, packet.len() / 2, packet.len().saturating_sub(1)].map(|front| front.min(packet.len()))
    {
        let outcome = filter.run(&packet[..front], length);
        assert!(outcome == whole || outcome == Outcome::Beyond, "{front} bytes: {outcome:?}, all: {whole:?}");
    }
}
