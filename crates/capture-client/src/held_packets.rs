// SPDX-License-Identifier: Apache-2.0
//! The packets that an NF had when it ended, as a capture.

use std::collections::BTreeMap;

use netvm_api::{CaptureInfo, CaptureInterface, HeldPacket, HeldPackets};
use netvm_capture::Timestamp;
use netvm_capture::blocks::{self, LivePacket, PacketDirection, PacketOptions};
use netvm_capture_ring::{Direction, Record};

use crate::CaptureError;
use crate::describe::line;
use crate::output::Output;

/// Writes them with the time at which the NF ended.
///
/// # Errors
/// [`CaptureError::Write`] names the output.
pub fn write_held_packets(last: &HeldPackets, output: &mut Output) -> Result<(), CaptureError> {
    let (role, instance) = (last.role.as_str(), last.instance);
    let description = format!("what NF {role} had when it ended");
    let interface =
        CaptureInterface { name: role.to_owned(), description: description.clone(), labels: BTreeMap::new() };
    let info = CaptureInfo { interfaces: vec![interface], ..CaptureInfo::default() };
    let time = Timestamp((last.time * 1e9) as u64);
    output.begin([(role, description.as_str())], 0);
    for HeldPacket { port, length, data } in &last.packets {
        let data = bytes_of(data);
        if output.is_text() {
            let record = Record { original: *length, ..Record::at(0, Direction::In) };
            output.buffer.extend_from_slice(line(&info, &record, time, &data).as_bytes());
            continue;
        }
        let from = port.as_ref().map_or_else(String::new, |port| format!(", from port {port}"));
        let comment = format!("instance {instance} of NF {role} had it when it ended{from}");
        let packet = LivePacket { interface: 0, time, original: *length, data: &data, lost: 0 };
        blocks::packet(&mut output.buffer, &packet, &PacketOptions::new(PacketDirection::Inbound, &comment));
    }
    let (to, packets) = (output.name(), last.packets.len() as u64);
    output.flush().map_err(|source| CaptureError::Write { to, packets, source })
}

/// Bytes in hexadecimal, up to what is none.
fn bytes_of(text: &str) -> Vec<u8> {
    let pairs = (0..text.len() / 2).map(|n| text.get(2 * n..2 * n + 2));
    pairs.map_while(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use netvm_capture::CaptureReader;

    use super::*;
    use crate::output::Target;

    #[test]
    fn held_packets_become_a_file() {
        let packet =
            |data: &str| HeldPacket { port: Some("left".to_owned()), length: 60, data: data.to_owned() };
        let packets = vec![packet("00ff7e"), packet("0102")];
        let last = HeldPackets { role: "fw".to_owned(), instance: 3, time: 1.7e9, packets };
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut output = Output::open(Target::File(file.path().to_owned(), None)).unwrap();
        write_held_packets(&last, &mut output).unwrap();
        let mut reader = CaptureReader::open(file.path()).unwrap();
        assert_eq!(reader.next_frame().unwrap().unwrap().data, [0, 255, 126]);
        assert_eq!(reader.next_frame().unwrap().unwrap().data, [1, 2]);
        assert!(reader.next_frame().unwrap().is_none());
    }
}
