// SPDX-License-Identifier: Apache-2.0
//! Calls the C functions as C would: return values and wrong arguments. Attached NFs are this test binary in a separate
//! process; an environment variable selects the NF.

use std::ffi::{CStr, CString, c_int, c_void};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

use netlib::sim::Process;
use netlib::{Idle, PortId, RoleId, Verdict};
use netlib_c::netlib_status::*;
use netlib_c::*;

const PROGRAM: &str = "NETLIB_C_TEST_PROGRAM";

fn spawn(name: &str, threads: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "abi::be_the_program", "--nocapture", "--test-threads=1"]);
    command.env(PROGRAM, name).env(netlib::THREADS_VARIABLE, threads).stdout(Stdio::null());
    Process::spawn(command, &["lan", "wan"], &["audit"]).unwrap()
}

fn last_error() -> String {
    // SAFETY: never NULL, and copied before the next failure.
    unsafe { CStr::from_ptr(netlib_last_error()) }.to_str().unwrap().to_owned()
}

fn options(name: &CStr) -> netlib_options {
    let mut options = std::mem::MaybeUninit::<netlib_options>::uninit();
    // SAFETY: the function initialises the whole struct.
    let mut options = unsafe {
        assert_eq!(netlib_options_init(options.as_mut_ptr()), NETLIB_OK as c_int);
        options.assume_init()
    };
    options.name = name.as_ptr();
    options
}

fn no_packet() -> netlib_packet {
    // SAFETY: a zeroed packet is valid, and has no endpoint.
    unsafe { std::mem::zeroed() }
}

/// Not a test: runs the NF that the environment variable names.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("burst") => burst_program(),
        Ok("callback") => callback_program(),
        Ok(other) => panic!("no program {other}"),
        Err(_) => {}
    }
}

fn burst_program() {
    let names = [c"seen".as_ptr(), c"waited".as_ptr()];
    let mut options = options(c"burst");
    (options.counters, options.counter_count) = (names.as_ptr(), 2);
    let mut nf = null_mut();
    let mut packets = [no_packet(); NETLIB_BURST];
    // SAFETY: the pointers are to locals; only this thread uses the endpoint, until it detaches.
    unsafe {
        assert_eq!(netlib_attach(&raw const options, &raw mut nf), NETLIB_OK as c_int, "{}", last_error());
        assert_eq!((netlib_threads(nf), netlib_get_endpoint(nf, 1)), (1, null_mut()));
        let endpoint = netlib_get_endpoint(nf, 0);
        let mut number = 0;
        assert_eq!(netlib_port(endpoint, c"wan".as_ptr(), &raw mut number), NETLIB_OK as c_int);
        assert_eq!((number, netlib_thread(endpoint), netlib_epoch(endpoint) > 0), (1, 0, true));
        assert_eq!(netlib_port(endpoint, c"none".as_ptr(), &raw mut number), NETLIB_ERR_NAME as c_int);
        assert_eq!(last_error(), "no such port");
        assert_eq!(netlib_port(endpoint, null(), &raw mut number), NETLIB_ERR_NULL as c_int);
        assert_eq!(netlib_count(endpoint, 2, 1), NETLIB_ERR_ARGUMENT as c_int);
        assert_eq!(netlib_receive(endpoint, packets.as_mut_ptr(), 31, 0), NETLIB_ERR_ARGUMENT as c_int);
        assert_eq!(netlib_receive(endpoint, null_mut(), 32, 0), NETLIB_ERR_NULL as c_int);
        loop {
            let count = netlib_receive(endpoint, packets.as_mut_ptr(), packets.len(), -1);
            if count < 0 {
                assert_eq!(count, NETLIB_END as c_int);
                break;
            }
            for packet in &mut packets[..count as usize] {
                exercise(packet);
                assert_eq!(netlib_count(endpoint, 0, 1), NETLIB_OK as c_int);
                // A name can be looked up while the endpoint holds a burst.
                assert_eq!(netlib_role(endpoint, c"audit".as_ptr(), &raw mut number), NETLIB_OK as c_int);
            }
            let mut old = packets[0];
            assert_eq!(netlib_send(endpoint), NETLIB_OK as c_int);
            assert_eq!(netlib_set_verdict(&raw const old, NETLIB_DROP), NETLIB_ERR_STALE as c_int);
            assert_eq!(netlib_prepend(&raw mut old, 1), NETLIB_ERR_STALE as c_int);
            assert_eq!(netlib_headroom(&raw mut old), NETLIB_ERR_STALE as c_int);
            // The test sends nothing more, and waits for this counter before it stops the NF.
            assert_eq!(netlib_receive(endpoint, packets.as_mut_ptr(), 32, 0), 0, "no packet, no waiting");
            assert_eq!(netlib_receive(endpoint, packets.as_mut_ptr(), 32, 2000), 0, "no packet for 2 ms");
            assert_eq!(netlib_count(endpoint, 1, 1), NETLIB_OK as c_int);
        }
        netlib_detach(nf);
    }
}

/// Calls the functions on a packet, selected by its first byte.
///
/// # Safety
/// The packet belongs to its endpoint's current burst.
unsafe fn exercise(packet: &mut netlib_packet) {
    // SAFETY: the caller's promise.
    unsafe {
        assert_eq!((packet.ingress, packet.chain, packet.hop), (1, 0, 0));
        let headroom = netlib_headroom(packet) as usize;
        assert_eq!(netlib_prepend(packet, headroom + 1), NETLIB_ERR_SPACE as c_int);
        assert_eq!(netlib_append(packet, netlib_tailroom(packet) as usize + 1), NETLIB_ERR_SPACE as c_int);
        assert_eq!(netlib_trim_front(packet, packet.length as usize + 1), NETLIB_ERR_SPACE as c_int);
        assert_eq!(netlib_truncate(packet, packet.length as usize + 1), NETLIB_ERR_SPACE as c_int);
        assert_eq!(netlib_set_verdict(packet, 7), NETLIB_ERR_ARGUMENT as c_int);
        match packet.data.read() {
            0 => {
                assert_eq!(netlib_prepend(packet, 2), NETLIB_OK as c_int);
                packet.data.copy_from_nonoverlapping(b"ab".as_ptr(), 2);
                assert_eq!(netlib_append(packet, 1), NETLIB_OK as c_int);
                packet.data.add(packet.length as usize - 1).write(b'z');
                assert_eq!(netlib_set_verdict(packet, 0x30000), NETLIB_OK as c_int);
            }
            1 => {
                assert_eq!(netlib_trim_front(packet, 1), NETLIB_OK as c_int);
                assert_eq!(netlib_truncate(packet, 1), NETLIB_OK as c_int);
                assert_eq!((netlib_set_hash(packet, 77), packet.hash), (NETLIB_OK as c_int, 77));
                assert_eq!(netlib_set_verdict(packet, 0x20001), NETLIB_OK as c_int);
            }
            2 => assert_eq!(netlib_set_verdict(packet, NETLIB_DROP), NETLIB_OK as c_int),
            _ => {}
        }
    }
}

fn callback_program() {
    unsafe extern "C" fn callback(
        endpoint: *mut netlib_endpoint,
        packet: *mut netlib_packet,
        user: *mut c_void,
    ) -> u32 {
        let mut packets = [no_packet(); NETLIB_BURST];
        // SAFETY: endpoint and packet come from the library; `user` is the pointer passed to netlib_run.
        unsafe {
            assert_eq!(user.cast::<u32>().read(), 42);
            assert_eq!(netlib_send(endpoint), NETLIB_ERR_ARGUMENT as c_int, "not within a callback");
            let received = netlib_receive(endpoint, packets.as_mut_ptr(), 32, 0);
            assert_eq!(received, NETLIB_ERR_ARGUMENT as c_int, "not within a callback");
            assert_eq!(netlib_set_hash(packet, netlib_thread(endpoint) as u8 + 1), NETLIB_OK as c_int);
            match (*packet).data.read() {
                0 => NETLIB_NEXT,
                1 => NETLIB_DROP,
                2 => 0x20001,
                3 => 0x30000,
                5 => 0x40003,
                6 => {
                    assert_eq!(netlib_withdraw(endpoint), NETLIB_OK as c_int);
                    assert_eq!(netlib_withdraw(null_mut()), NETLIB_ERR_NULL as c_int);
                    0x5ffff
                }
                _ => 0x12345,
            }
        }
    }
    let mut options = options(c"callback");
    options.role = c"filter".as_ptr();
    let mut user = 42u32;
    // SAFETY: the pointers are to locals.
    let ended = unsafe { netlib_run(&raw const options, Some(callback), (&raw mut user).cast()) };
    assert_eq!(ended, NETLIB_OK as c_int, "{}", last_error());
}

#[test]
fn the_burst_functions_send_by_their_verdicts() {
    let mut nf = spawn("burst", "1");
    let frames: [&[u8]; 4] = [&[0, 10], &[1, 11, 12], &[2, 13], &[3, 14]];
    let outcomes = nf.inject_all(&frames.map(|frame| (PortId(1), frame))).unwrap();
    assert_eq!((outcomes[0].verdict, &outcomes[0].bytes[..]), (Verdict::Role(RoleId(0)), &b"ab\0\nz"[..]));
    assert_eq!((outcomes[1].verdict, &outcomes[1].bytes[..]), (Verdict::Port(PortId(1)), &[11][..]));
    assert_eq!(
        (outcomes[1].hash, outcomes[2].verdict, outcomes[3].verdict),
        (77, Verdict::Drop, Verdict::Next)
    );
    netvm_testing::until("the timeout ends", || nf.counter("waited") != Some(0));
    assert!(nf.stop().unwrap().success());
    assert_eq!(nf.counter("seen"), Some(4));
}

#[test]
fn every_thread_calls_the_callback() {
    let mut nf = spawn("callback", "2");
    assert_eq!((nf.hello().role.as_str(), nf.hello().threads), ("filter", 2));
    let frames: [&[u8]; 7] = [&[0], &[1], &[2], &[3], &[4], &[5], &[6]];
    let outcomes = nf.inject_all(&frames.map(|frame| (PortId(0), frame))).unwrap();
    let verdicts: Vec<_> = outcomes.iter().map(|outcome| outcome.verdict).collect();
    // An invalid verdict discards the packet.
    let expected = [
        Verdict::Next,
        Verdict::Drop,
        Verdict::Port(PortId(1)),
        Verdict::Role(RoleId(0)),
        Verdict::Drop,
        Verdict::DropFlow(Idle(3)),
        Verdict::SkipFlow(Idle::MAX),
    ];
    assert_eq!(verdicts, expected);
    assert!(outcomes.iter().any(|o| o.hash == 1) && outcomes.iter().any(|o| o.hash == 2));
    assert!(nf.stop().unwrap().success());
}

#[test]
fn a_null_is_an_error_everywhere() {
    let good = options(c"x");
    let mut packet = no_packet();
    let packet = &raw mut packet;
    let mut nf = null_mut();
    let null_error = NETLIB_ERR_NULL as c_int;
    // SAFETY: the pointers are NULL or to locals.
    unsafe {
        let codes = [
            netlib_options_init(null_mut()),
            netlib_attach(null(), &raw mut nf),
            netlib_attach(&raw const good, null_mut()),
            netlib_receive(null_mut(), null_mut(), 32, 0),
            netlib_send(null_mut()),
            netlib_count(null_mut(), 0, 1),
            netlib_port(null(), c"x".as_ptr(), null_mut()),
            netlib_role(null(), c"x".as_ptr(), null_mut()),
            netlib_serve(null(), None, null_mut()),
            netlib_run(&raw const good, None, null_mut()),
            netlib_set_verdict(null(), 0),
            netlib_headroom(null_mut()),
            netlib_tailroom(null_mut()),
            netlib_prepend(null_mut(), 1),
            netlib_append(null_mut(), 1),
            netlib_trim_front(null_mut(), 1),
            netlib_truncate(null_mut(), 1),
            netlib_set_hash(null_mut(), 1),
            // A packet without an endpoint.
            netlib_set_verdict(packet, 0),
            netlib_prepend(packet, 1),
        ];
        assert_eq!(codes, [null_error; 20]);
        netlib_detach(null_mut());
        netlib_stop(null());
        assert_eq!((netlib_threads(null()), netlib_thread(null()), netlib_epoch(null())), (0, 0, 0));
        assert_eq!(netlib_get_endpoint(null(), 0), null_mut());
    }
}

#[test]
fn invalid_options_are_named() {
    let long = CString::new(vec![0xff; 3]).unwrap();
    let counters = [long.as_ptr(), null()];
    let attach = |change: &dyn Fn(&mut netlib_options)| {
        let mut options = options(c"x");
        change(&mut options);
        let mut nf = null_mut();
        // SAFETY: the pointers are to locals.
        let code = unsafe { netlib_attach(&raw const options, &raw mut nf) };
        assert!(nf.is_null());
        (code, last_error())
    };
    let wrong = |code: netlib_status, message: &str| (code as c_int, message.to_owned());
    assert_eq!(attach(&|o| o.name = null()), wrong(NETLIB_ERR_NULL, "options.name is NULL"));
    assert_eq!(attach(&|o| o.threads = 0), wrong(NETLIB_ERR_ARGUMENT, "options.threads is 0"));
    let text = "options.waiting is not a netlib_waiting";
    assert_eq!(attach(&|o| o.waiting = 9), wrong(NETLIB_ERR_ARGUMENT, text));
    let text = "options.size does not match this version of netlib: call netlib_options_init()";
    assert_eq!(attach(&|o| o.size = 8), wrong(NETLIB_ERR_ARGUMENT, text));
    let list = |count: usize| attach(&|o| (o.counters, o.counter_count) = (counters.as_ptr(), count));
    assert_eq!(list(1), wrong(NETLIB_ERR_ARGUMENT, "options.counters is not UTF-8"));
    assert_eq!(list(33), wrong(NETLIB_ERR_ARGUMENT, "options.counter_count exceeds the limit of counters"));
    let text = "options.counters is NULL";
    assert_eq!(attach(&|o| o.counter_count = 1), wrong(NETLIB_ERR_NULL, text));
    let (code, message) = attach(&|o| o.socket = c"/nonexistent/attach.sock".as_ptr());
    assert_eq!(code, NETLIB_ERR_CONNECT as c_int);
    assert!(message.starts_with("cannot connect to /nonexistent/attach.sock: "), "{message}");
}

#[test]
fn the_header_has_the_librarys_version() {
    // SAFETY: never NULL, and lives as long as the program.
    let version = unsafe { CStr::from_ptr(netlib_version()) }.to_str().unwrap();
    let header = include_str!(concat!(env!("OUT_DIR"), "/netlib.h"));
    assert!(header.contains(&format!("#define NETLIB_VERSION \"{version}\"\n")));
    for function in ["netlib_run", "netlib_serve", "netlib_receive", "netlib_prepend", "netlib_strerror"] {
        assert!(header.contains(&format!("{function}(")), "{function}");
    }
    assert!(!header.contains("# Safety"));
}
