// SPDX-License-Identifier: Apache-2.0
//! Captures of a running netvmd, in files.

use std::path::Path;

use netvm_capture_client::{Limits, Output, Session, Summary, Target, run};
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;

/// A capture that runs until it has so many packets.
pub fn gather(session: Session, packets: usize, file: &Path) -> std::thread::JoinHandle<Summary> {
    let target = Target::File(file.to_owned(), None);
    std::thread::spawn(move || {
        let mut output = Output::open(target).unwrap();
        run(session, &mut output, Limits { packets: Some(packets as u64), stop: None }).unwrap()
    })
}

/// One packet of a file.
#[derive(Debug)]
pub struct Captured {
    pub interface: String,
    pub comment: String,
    pub data: Vec<u8>,
    /// When the engine had it, since 1970.
    pub at: std::time::Duration,
}

pub fn read(file: &Path) -> Vec<Captured> {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut names, mut all) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap().0 {
            Block::InterfaceDescription(interface) => {
                let text = format!("{:?}", interface.options[0]);
                names.push(text.split('"').nth(1).unwrap().to_owned());
            }
            Block::EnhancedPacket(packet) => {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Common(comment) => Some(format!("{comment:?}")),
                    _ => None,
                });
                all.push(Captured {
                    interface: names[packet.interface_id as usize].clone(),
                    comment: comment.unwrap_or_default(),
                    data: packet.data.to_vec(),
                    at: packet.timestamp,
                });
            }
            _ => {}
        }
    }
    all
}
