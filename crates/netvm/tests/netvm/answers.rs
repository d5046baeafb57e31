// SPDX-License-Identifier: Apache-2.0
//! The canned answers.

mod multicast;

use netvm_api::{
    ChainInfo, ChainState, Drift, Drops, GroupInfo, HugePages, Idle, NfInfo, NfPackets, NfState, PortInfo,
    PortWorkerInfo, RegionInfo, RevisionInfo, RoleInfo, StageInfo, Stats, Status, ThreadInfo, WorkerInfo,
};

#[allow(clippy::needless_update, reason = "a new counter is 0 here")]
pub fn workers() -> Vec<WorkerInfo> {
    vec![WorkerInfo {
        id: 0,
        core: 3,
        node: 0,
        idle: Idle::Poll,
        queues: 2,
        busy_percent: 99.94,
        sleeps: 0,
        copies: 1234,
        copied_bytes: 2048,
        longest_turn_us: 55.4,
        ..WorkerInfo::default()
    }]
}

pub fn status() -> Status {
    Status {
        version: "9.8.7".into(),
        dpdk: "DPDK 22.11.7".into(),
        pid: 77,
        config: Some("/etc/netvm/host.toml".into()),
        drift: Drift::Changes { changes: 2 },
        revision: Some(RevisionInfo {
            number: 7,
            source: "/root/try.toml".into(),
            how: "apply".into(),
            applied_at: 0,
        }),
        confirm_within_s: Some(42),
        uptime_s: 3725.0,
        clock_hz: 2_596_000_000,
        huge_pages: HugePages::All,
        workers: workers(),
        ports: 2,
        nfs: 1,
        chains: 1,
        dropped: 967_548,
        problems: vec!["nf firewall has no process".into()],
    }
}

/// Statistics after `seconds`, at a thousand packets a second.
#[allow(clippy::needless_update, reason = "a new counter is 0 here")]
pub fn stats(seconds: u64) -> Stats {
    let packets = seconds * 1000;
    let port = |id: u16, name: &str, link| PortInfo {
        id,
        name: name.into(),
        kind: "af_xdp".into(),
        driver_mode: "native".into(),
        link,
        queues: 1,
        workers: vec![PortWorkerInfo { worker: 0, queues: 1, load_percent: 12.3 }],
        mtu: 1500,
        group: None,
        rx_packets: packets,
        rx_bytes: packets * 125,
        rx_coalesced: None,
        rx_by_kernel: None,
        tx_packets: 0,
        tx_bytes: 0,
        rx_dropped: 0,
        tx_dropped: 0,
        policed: None,
        spoofed: None,
        mac_moves: 0,
        mac_moves_held: 0,
        share: None,
        tx_queues: Vec::new(),
        ..PortInfo::default()
    };
    let thread = |cycles| ThreadInfo {
        nf_thread: 1,
        packets: NfPackets {
            received: packets / 2,
            next: packets / 2,
            dropped: 0,
            to_port: 0,
            to_role: 0,
            detoured: 0,
            flows_decided: 12_345,
            flows_refused: 678,
            ..NfPackets::default()
        },
        cycles_per_packet: cycles,
        nf_cycles_per_packet: 20.0,
        bursts: 1,
        sleeps: 0,
        cycles: packets * 2_000_000,
        ring_percent: 62.5,
        buffers: 12,
        ..ThreadInfo::default()
    };
    let nf = NfInfo {
        role: "firewall".into(),
        instance: 0,
        pid: Some(78),
        state: NfState::Running,
        managed: true,
        group: "edge".into(),
        threads: vec![thread(30.0), thread(50.0)],
        restarts: 2,
        last_exit: Some("killed by signal 9".into()),
        uptime_s: Some(61.0),
        counters: [("allowed".to_owned(), 4_000_000)].into(),
        violations: [("ring-index".to_owned(), 1)].into(),
    };
    let chain = ChainInfo {
        id: 0,
        name: "web".into(),
        hops: vec!["firewall".into(), "monitor".into()],
        output: None,
        state: ChainState::Down,
        entered: packets,
        left: packets,
        dropped_at_entry: 7,
        dropped_inside: 1,
        ..ChainInfo::default()
    };
    let region = RegionInfo {
        node: 1,
        pages: "2 MiB pages".into(),
        bytes: 36 << 20,
        buffers: 16_384,
        buffer_size: 2048,
        in_engine: 4,
        in_nfs: 380,
        free: 16_000,
    };
    let group = GroupInfo {
        id: 0,
        name: "edge".into(),
        regions: vec![region],
        instances: 1,
        reclaimed_total: 99,
        longest_reclaim_ms: 3.25,
        ..GroupInfo::default()
    };
    let drops = Drops {
        total: packets,
        chains: [("web".to_owned(), [("chain-full".to_owned(), packets)].into())].into(),
        ..Drops::default()
    };
    let stage =
        StageInfo { stage: "steering".into(), packets, cycles_per_packet: 26.04, ns_per_packet: 10.0 };
    Stats {
        uptime_s: seconds as f64,
        ports: vec![port(0, "client", true), port(4, "server", false)],
        roles: vec![RoleInfo {
            role: nf.role.clone(),
            packets: NfPackets { received: 123_456_789, flows_decided: 24_690, ..NfPackets::default() },
            ..RoleInfo::default()
        }],
        nfs: vec![nf],
        chains: vec![chain],
        groups: vec![group],
        workers: workers(),
        drops,
        stages: vec![stage],
        flow_monitor: None,
        nat_targets: Vec::new(),
        connections: None,
    }
}
