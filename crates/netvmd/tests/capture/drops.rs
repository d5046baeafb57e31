// SPDX-License-Identifier: Apache-2.0
//! Packets that devices and shapers drop, after they were sent as far as the engine knows.

use super::*;

/// A guest's port without a guest, and a port whose queue is full.
const PORTS: &str = "
[[port]]
name = \"to-nobody\"
kind = \"source\"
size = 60
rate = 500
forward = { out = \"nobody\" }
[[port]]
name = \"nobody\"
kind = \"vhost-user\"
path = \"PATH\"
[[port]]
name = \"to-slow\"
kind = \"source\"
size = 60
rate = 500
forward = { out = \"slow\" }
[[port]]
name = \"slow\"
kind = \"sink\"
qos = { bits = 20_000, bit_burst = 13_000, queues = [{ name = \"all\", packets = 8, codel_ms = 0 }] }
";

#[test]
fn devices_and_shapers_show_what_they_drop() {
    let folder = common::Folder::new();
    let socket = folder.0.join("nobody.sock");
    let ports = PORTS.replace("PATH", &socket.display().to_string());
    let daemon = Daemon::start(&format!("{}{ports}", common::ENGINE));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Some(&daemon.api_socket()));
    for (point, reason) in [("nobody", "no-peer"), ("slow", "queue-full")] {
        let file = daemon.folder.0.join(format!("{point}.pcapng"));
        let dropped = CaptureRequest { dropped: true, ..request(&[point], "") };
        let session = runtime.block_on(Session::start(&client, &dropped)).unwrap();
        gather(session, 50, &file).join().unwrap();
        let packets = read(&file);
        let comment = format!("dropped: {reason}, from port to-{point}");
        for packet in &packets {
            assert!(packet.interface == point && packet.comment.contains(&comment), "{packet:?}");
            assert_eq!(packet.data.len(), 60);
        }
        assert_eq!(packets.len(), 50);
    }
}
