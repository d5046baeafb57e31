// SPDX-License-Identifier: Apache-2.0
//! Packets that are translated between IPv6 and IPv4.

use netvm_conntrack::nat64::{Counterpart, Ends, Front, Original, Translated, Untranslatable, translate};
use netvm_wire::{Address, Headers, IpProto, checksum, parse};

use crate::input::Input;

/// Translates a packet of which some first bytes are at hand, and back.
pub fn nat64(data: &[u8]) {
    let mut input = Input::new(data);
    let (flags, at_hand, ports) = (input.u8(), usize::from(input.u16()), [input.u16(), input.u16()]);
    let frame = input.rest();
    let at_hand = if flags & 1 == 0 { frame.len() } else { at_hand % (frame.len() + 1) };
    let is_partial = flags & 2 != 0;
    let original = Original { front: &frame[..at_hand], length: frame.len(), is_partial };
    let to_v4 = parse(frame).is_ok_and(|headers| !headers.key().source.is_v4());
    let ports = (flags & 4 != 0).then_some(ports);
    let mut front = Front::new();
    let Ok(translated) = translate(&original, &counterpart(to_v4, ports), &mut front) else { return };
    let before = parse(frame).expect("what is translated is well-formed");
    let new = applied(frame, &front, translated, at_hand);
    let after = parse(&new).expect("what was translated is well-formed");
    assert_eq!(after.key().source.is_v4(), to_v4);
    assert_eq!((before.vlan_tags(), before.key().fragment), (after.vlan_tags(), after.key().fragment));
    check_sums([frame, &new], [&before, &after], translated.is_partial || is_partial);
    if is_error(&before) {
        return;
    }
    assert_eq!(before.payload(frame), after.payload(&new));
    let original = Original { front: &new, length: new.len(), is_partial: translated.is_partial };
    match translate(&original, &counterpart(!to_v4, None), &mut front) {
        Ok(translated) => {
            let again = applied(&new, &front, translated, new.len());
            let headers = parse(&again).expect("what was translated is well-formed");
            assert_eq!(headers.payload(&again), before.payload(frame));
        }
        Err(error) => {
            assert!(matches!(error, Untranslatable::TooLong | Untranslatable::NoChecksum), "{error:?}");
        }
    }
}

fn counterpart(to_v4: bool, ports: Option<[u16; 2]>) -> Counterpart {
    let v4 = |last| Address::from_v4_octets([203, 0, 113, last]);
    let v6 = |last: u8| Address::from_v6_bits(0x2001_0db8 << 96 | u128::from(last));
    let [source, destination] = if to_v4 { [v4(1), v4(2)] } else { [v6(1), v6(2)] };
    let ends = Ends { source, destination, ports };
    Counterpart { ends, about: Ends { source: destination, destination: source, ports }, identification: 7 }
}

/// The whole packet after a translation, which replaced only what was at hand.
fn applied(frame: &[u8], front: &Front, translated: Translated, at_hand: usize) -> Vec<u8> {
    assert!(translated.replaced <= at_hand && front.bytes().len() <= Front::ROOM);
    let mut new = [front.bytes(), &frame[translated.replaced..]].concat();
    assert!(front.bytes().len() <= translated.length && translated.length <= new.len());
    new.truncate(translated.length);
    new
}

/// Correct checksums stay correct, if they were complete.
fn check_sums([old, new]: [&[u8]; 2], [before, after]: [&Headers; 2], is_partial: bool) {
    if checksum::verify(old, before).is_err() {
        return;
    }
    let mut new = new.to_vec();
    if is_partial {
        assert_eq!(checksum::fill(&mut new, after), Ok(()));
    }
    assert_eq!(checksum::verify(&new, after), Ok(()));
}

fn is_error(headers: &Headers) -> bool {
    let key = headers.key();
    match key.protocol {
        IpProto::ICMP => !matches!(key.icmp_type, 0 | 8),
        IpProto::ICMPV6 => key.icmp_type < 128,
        _ => false,
    }
}
