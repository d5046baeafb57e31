// SPDX-License-Identifier: Apache-2.0
//! Copies to guests by a DMA engine: DPDK's software one (`dma_skeleton`), a thread that copies.

use std::path::Path;
use std::time::Duration;

use crate::support::Rig;
use crate::support::guest::Guest;
use crate::support::guests::{
    Guests, TIMEOUT, connected, flood, frames, goes_on, host, leaves_work, no_buffer_is_lost, segments,
    swallow, transfer, two_guests, view,
};
use netvm_engine::DropReason;
use netvm_model::{EngineConfig, Host, PortKind, VhostDma};

const DEVICE: &str = "dma_skeleton0";

/// Has the device copy to the guest of port 1.
fn with_copies(mut host: Host) -> Host {
    let PortKind::VhostUser { dma, .. } = &mut host.ports[1].kind else { unreachable!() };
    *dma = VhostDma::Device(DEVICE.to_owned());
    host
}

/// The engine with two guests, the second of which is copied to by the device, if DPDK has it.
fn rig(a: &Path, b: &Path) -> Option<Rig> {
    let mut rig = Rig::new(&EngineConfig::default());
    match rig.engine.apply(&with_copies(host(&[a, b]))) {
        Ok(_) => Some(rig),
        Err(error) if error.to_string().contains("no DMA device") => {
            println!("SKIP: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn copies(rig: &Rig) -> u64 {
    view(&rig.engine, 1).copies.unwrap().completed
}

#[test]
fn what_the_device_copies_is_what_was_sent() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let Some(mut rig) = rig(&a, &b) else { return };
    assert_eq!(view(&rig.engine, 1).driver, format!("vhost-user, copies by {DEVICE}"));
    assert_eq!(view(&rig.engine, 0).copies, None);
    let sent = frames(200);
    // Packed rings are left to the processor.
    for (ring, copied) in [("", 200), (",packed_vq=1", 0), (",queues=2", 200)] {
        let before = copies(&rig);
        let expected = rig.sent(1) + 200;
        let mut receiver = Guest::new(&b);
        receiver.device = ring;
        let got = transfer(
            &mut rig,
            Guests { scratch: &scratch, sender: Guest::new(&a), receiver },
            &sent,
            expected,
        );
        assert!(got == sent, "{} of {} frames, or others: {}", got.len(), sent.len(), rig.describe());
        assert!(copies(&rig) >= before + copied, "{}", rig.describe());
        assert!(copied > 0 || copies(&rig) == before, "{}", rig.describe());
        assert!(rig.until(TIMEOUT, |engine| view(engine, 1).link == Some(false)), "{}", rig.describe());
    }
    no_buffer_is_lost(&mut rig);
}

#[test]
fn segments_in_several_buffers_are_copied_whole() {
    let Some((_turn, scratch, a, b)) = two_guests() else { return };
    let Some(mut rig) = rig(&a, &b) else { return };
    let mut receiver = Guest::new(&b);
    receiver.arguments = vec!["--mbuf-size=10240", "--max-pkt-len=9728"];
    receiver.commands = "port stop 1\nport config 1 rx_offload tcp_lro on\nport config 1 rx_offload tcp_cksum on\n\
                         port config 1 rx_offload udp_cksum on\nport start 1\nstart\n";
    let sent = segments();
    let got = transfer(&mut rig, Guests { scratch: &scratch, sender: leaves_work(&a), receiver }, &sent, 4);
    // Behind the longest headers: the checksums in them are left to the receiver.
    let payload = |frame: &Vec<u8>| frame[74..].to_vec();
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), sent.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(got.iter().map(payload).collect::<Vec<_>>(), sent.iter().map(payload).collect::<Vec<_>>());
    assert!(copies(&rig) > 4, "{}", rig.describe());
    no_buffer_is_lost(&mut rig);
}

#[test]
fn guests_and_ports_that_go_with_copies_under_way_lose_no_buffer() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    let Some(mut rig) = rig(&a, &b) else { return };
    let sender = flood(&a);
    for _ in 0..3 {
        let mut receiver = swallow(&b);
        connected(&mut rig, 1);
        goes_on(&mut rig);
        // Its driver negotiates other features, and then it is killed.
        receiver.command("stop\nport stop 0\nport config 0 rx_offload tcp_cksum on\nport start 0\nstart");
        // It says nothing when it has done so, and its link may be down too shortly to be seen.
        std::thread::sleep(Duration::from_millis(300));
        connected(&mut rig, 1);
        let before = copies(&rig);
        goes_on(&mut rig);
        assert!(copies(&rig) > before + 500, "{}", rig.describe());
        receiver.kill();
        let counted = rig.until(TIMEOUT, |engine| {
            view(engine, 1).drops.iter().any(|(reason, _)| *reason == DropReason::NoPeer)
        });
        assert!(counted, "{}", rig.describe());
    }
    let receiver = swallow(&b);
    goes_on(&mut rig);
    // The port goes, and its device is free for the next one.
    rig.engine.apply(&host(&[&a])).unwrap();
    drop(receiver);
    rig.engine.apply(&with_copies(host(&[&a, &b]))).unwrap();
    let receiver = swallow(&b);
    goes_on(&mut rig);
    drop((sender, receiver));
    no_buffer_is_lost(&mut rig);
}

#[test]
fn what_is_wrong_with_a_device_is_said() {
    let Some((_turn, _scratch, a, b)) = two_guests() else { return };
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&a, &b]);
    let ask = |host: &mut Host, port: usize, wanted: VhostDma| {
        let PortKind::VhostUser { dma, .. } = &mut host.ports[port].kind else { unreachable!() };
        *dma = wanted;
    };
    ask(&mut host, 0, VhostDma::Device("wq77.7".to_owned()));
    let error = rig.engine.apply(&host).unwrap_err().to_string();
    assert!(error.contains("port guest0") && error.contains("no DMA device wq77.7"), "{error}");
    // Without hardware the processor copies, and that is said.
    ask(&mut host, 0, VhostDma::Auto);
    rig.engine.apply(&host).unwrap();
    let view = view(&rig.engine, 0);
    assert!(view.copies.is_some() || view.fallback == Some("no DMA device is free".to_owned()), "{view:?}");
    (0..2).for_each(|port| ask(&mut host, port, VhostDma::Device(DEVICE.to_owned())));
    let error = rig.engine.apply(&host).unwrap_err().to_string();
    if error.contains("no DMA device") {
        println!("SKIP: {error}");
    } else {
        assert!(error.contains("port guest1") && error.contains("copies for another port"), "{error}");
    }
}
