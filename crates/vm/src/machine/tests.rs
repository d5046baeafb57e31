// SPDX-License-Identifier: Apache-2.0
use super::*;

pub(crate) const OLD: Version = Version { major: 7, minor: 2, micro: 22 };
pub(crate) const NEW: Version = Version { major: 10, minor: 0, micro: 2 };

pub(crate) fn machine() -> Machine {
    Machine {
        name: "web".to_owned(),
        memory: 512,
        cpus: 1,
        node: None,
        accel: Accel::Tcg,
        boot: Boot::Kernel {
            kernel: "/boot/vmlinuz".into(),
            initrd: Some("/boot/initrd".into()),
            append: "quiet".to_owned(),
        },
        cards: vec![Card {
            name: "guest1".to_owned(),
            kind: CardKind::VhostUser,
            socket: "/run/netvm/guest1,a.sock".into(),
            connects: true,
            mac: "02:00:00:00:00:01".to_owned(),
            queues: 1,
            mtu: None,
        }],
    }
}

fn text(machine: &Machine, version: Version) -> String {
    let sockets = Sockets::Inherited { qmp: 7, serial: 8, log: Some(9) };
    let words: Vec<String> =
        machine.arguments(version, sockets).iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ")
}

#[test]
fn a_machine_fits_vhost_user() {
    let text = text(&machine(), NEW);
    for part in [
        "-smp 1,maxcpus=2",
        "memory-backend-memfd,id=ram,size=512M,share=on",
        "-chardev socket,id=port0,path=/run/netvm/guest1,,a.sock,reconnect-ms=1000",
        "-append console=ttyS0 no_timer_check quiet",
        "socket,id=qmp,fd=7,server=on,wait=off",
        "-add-fd fd=9,set=1 -chardev socket,id=serial,fd=8,server=on,wait=off,logfile=/dev/fdset/1,logappend=on",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("vectors") && !text.contains("mq=on") && !text.contains("host-nodes"), "{text}");
}

#[test]
fn a_card_over_vfio_user_is_passed_on() {
    let mut machine = machine();
    machine.cards[0].kind = CardKind::VfioUser;
    let text = text(&machine, NEW);
    let device =
        r#"{"driver":"vfio-user-pci","rombar":0,"socket":{"path":"/run/netvm/guest1,a.sock","type":"unix"}}"#;
    assert!(text.contains(device) && !text.contains("virtio-net"), "{text}");
}

#[test]
fn a_disk_boots_first_with_firmware_output_on_the_console() {
    let mut machine = machine();
    for (path, format) in [("/var/a,b.qcow2", "qcow2"), ("/var/a,b.img", "raw")] {
        machine.boot = Boot::Image { path: path.into(), is_qcow2: format == "qcow2" };
        let text = text(&machine, NEW);
        let file = path.replace(',', ",,");
        for part in [
            "-machine graphics=off",
            &format!("-drive if=none,id=disk,format={format},file={file}"),
            "drive=disk,bootindex=1",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("-kernel") && !text.contains("-append"), "{text}");
    }
}

#[test]
fn a_kernel_gets_a_console_and_skips_the_timer_check_under_tcg() {
    assert_eq!(command_line("", Accel::Tcg), "console=ttyS0 no_timer_check");
    assert_eq!(command_line("quiet", Accel::Kvm), "console=ttyS0 quiet");
    assert_eq!(command_line("console=hvc0 a=b", Accel::KvmOrTcg), "no_timer_check console=hvc0 a=b");
    assert_eq!(command_line("no_timer_check", Accel::Tcg), "console=ttyS0 no_timer_check");
}

#[test]
fn an_old_qemu_gets_no_msix_under_tcg() {
    let mut machine = machine();
    assert!(text(&machine, OLD).contains(",vectors=0"));
    assert!(text(&machine, OLD).contains(",reconnect=1 "));
    machine.accel = Accel::Kvm;
    assert!(!text(&machine, OLD).contains("vectors"));
    machine.cards[0].queues = 4;
    assert!(!text(&machine, OLD).contains("mtu"));
    machine.cards[0].mtu = Some(9000);
    assert!(text(&machine, OLD).contains(",mq=on,host_mtu=9000,vectors=10"));
    machine.cards[0].mtu = None;
    assert!(text(&machine, OLD).contains("queues=4") && text(&machine, OLD).contains("mq=on,vectors=10"));
}

#[test]
fn a_manual_vm_has_its_console_on_the_terminal_and_qmp_on_a_socket() {
    let words = |qmp| {
        let words = machine().arguments(NEW, Sockets::Terminal { qmp });
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    assert!(words(None).contains("-serial mon:stdio") && !words(None).contains("qmp"));
    let with = words(Some(Path::new("/run/a,b/qmp.sock")));
    assert!(
        with.contains(
            "-chardev socket,id=netvm-qmp,path=/run/a,,b/qmp.sock,reconnect-ms=1000 -mon chardev=netvm-qmp,mode=control"
        ),
        "{with}"
    );
}

#[test]
fn words_are_quoted_for_a_shell() {
    assert_eq!(shell_line(["qemu", "-append", "a b", "it's", ""]), r"qemu -append 'a b' 'it'\''s' ''");
}
