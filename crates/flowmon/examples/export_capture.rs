// SPDX-License-Identifier: Apache-2.0
//! Sends the flows of captures to an IPFIX collector, to try one without traffic:
//! `cargo run -p netvm-flowmon --example export_capture ipfix:udp:127.0.0.1:9995 in.pcap ...`

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use netvm_capture::CaptureReader;
use netvm_flowmon::export::{Clock, Exporter, Options};
use netvm_flowmon::{Meter, Settings, Tagged};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().ok_or("usage: export_capture ipfix:udp:HOST:PORT CAPTURE...")?;
    // Time stamps of captures are nanoseconds of Unix time.
    let clock = Clock { cycles: 0, unix_micros: 0, per_second: 1_000_000_000 };
    let exporter = Exporter::start(&Options {
        program: "export_capture",
        collector: Some(target.parse()?),
        domain: 1,
        message_size: 1400,
        messages_per_second: 5000,
        template_refresh: Duration::from_secs(60),
        sampling: 1,
        rules: netvm_flowmon::export::RuleNames::default(),
        interfaces: netvm_flowmon::export::Interfaces::default(),
        eve: None,
        reopen: std::sync::Arc::default(),
        clock,
    })?;
    let (producer, consumer) = rtrb::RingBuffer::new(1 << 16);
    exporter.add(consumer);
    let settings = Settings { idle: u64::MAX, active: u64::MAX, sampling: 1, names: 4096 };
    let mut meter = Meter::new(Tagged::new(1 << 16), settings, Some(producer));
    for path in arguments {
        let mut reader = CaptureReader::open(Path::new(&path))?;
        while let Some(frame) = reader.next_frame()? {
            let headers = netvm_wire::parse(frame.data).ok();
            meter.packet(frame.data, headers.as_ref(), (1, frame.timestamp.0));
        }
    }
    let end = SystemTime::now() + Duration::from_secs(10);
    meter.finish(|| {
        std::thread::sleep(Duration::from_millis(1));
        SystemTime::now() < end
    });
    let counts = meter.counts();
    drop(meter);
    println!("{} packets, {} records", counts.seen.packets, counts.records);
    println!("{:?}", exporter.finish());
    Ok(())
}
