// SPDX-License-Identifier: Apache-2.0
//! Messages of ARP and neighbour discovery, which a tunnel answers in place of other servers' hosts.

use netvm_wire::neighbour::{Holder, MAX_ANSWER, Message};
use netvm_wire::{MacAddr, checksum, parse};

/// Reads a frame, whose checksum is made right, and the answer to it.
pub fn neighbours(data: &[u8]) {
    let mut frame = data.to_vec();
    if let Ok(headers) = parse(data) {
        // Not of a packet whose lengths contradict each other.
        let _ = checksum::fill(&mut frame, &headers);
    }
    let request = match Message::read(&frame) {
        None => return,
        Some(Message::Claim(address, mac)) => {
            assert!(!mac.is_multicast() && !address.to_ip().is_multicast());
            return;
        }
        Some(Message::Request(request)) => request,
    };
    assert!(!request.source_mac.is_multicast());
    let holder = Holder { mac: MacAddr([2, 0, 0, 0, 0, 9]), is_router: false, vlan: None };
    let mut answer = [0; MAX_ANSWER];
    let length = request.answer(holder, &mut answer).expect("every answer has room");
    let answer = &answer[..length];
    assert!(Message::may_begin(answer));
    match Message::read(answer) {
        Some(Message::Claim(address, mac)) => assert_eq!((address, mac), (request.target, holder.mac)),
        // Nobody can have such an address.
        other => assert_eq!(other, None),
    }
}
