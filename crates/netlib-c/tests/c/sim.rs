// SPDX-License-Identifier: Apache-2.0
//! The simulator as C would call it: what goes in comes out with its verdict, and wrong arguments are errors.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use netlib_c::netlib_status::*;
use netlib_c::*;

/// Drops odd packets, and counts all.
unsafe extern "C" fn odd(
    endpoint: *mut netlib_endpoint,
    packet: *mut netlib_packet,
    _user: *mut c_void,
) -> u32 {
    // SAFETY: called by the library, with its endpoint and a packet of at least one byte.
    unsafe {
        netlib_count(endpoint, 0, 1);
        if (*packet).data.read() % 2 == 1 { NETLIB_DROP } else { NETLIB_NEXT }
    }
}

fn simulator() -> *mut netlib_sim {
    let ports = [c"lan".as_ptr(), c"wan".as_ptr(), null()];
    let mut sim = null_mut();
    // SAFETY: a list that ends with NULL, no other list, and a writable pointer.
    assert_eq!(unsafe { netlib_sim_new(ports.as_ptr(), null(), &raw mut sim) }, NETLIB_OK as c_int);
    sim
}

fn put(sim: *mut netlib_sim, frame: &[u8]) -> c_int {
    // SAFETY: a live simulator, and the slice's bytes.
    unsafe { netlib_sim_put(sim, 1, frame.as_ptr(), frame.len()) }
}

/// The next packet and its verdict.
fn take(sim: *mut netlib_sim) -> Option<(u32, Vec<u8>)> {
    let (mut bytes, mut verdict) = (vec![0; 16_384], 0);
    let mut length = bytes.len();
    // SAFETY: a live simulator, and `length` bytes of room.
    let taken = unsafe { netlib_sim_take(sim, bytes.as_mut_ptr(), &raw mut length, &raw mut verdict) };
    assert!(taken == 0 || taken == 1, "{taken}");
    bytes.truncate(length);
    (taken == 1).then_some((verdict, bytes))
}

#[test]
fn packets_come_back_in_order_with_their_verdicts() {
    let sim = simulator();
    // Twice, since buffers are used again.
    for _ in 0..2 {
        for n in 0..NETLIB_BURST as u8 {
            assert_eq!(put(sim, &[n; 60]), NETLIB_OK as c_int);
        }
        assert_eq!(put(sim, &[0; 60]), NETLIB_ERR_SPACE as c_int, "a burst is full");
        // SAFETY: a live simulator, and a callback that accepts any user pointer.
        assert_eq!(unsafe { netlib_sim_run(sim, Some(odd), null_mut()) }, NETLIB_OK as c_int);
        for n in 0..NETLIB_BURST as u8 {
            let expected = if n % 2 == 1 { NETLIB_DROP } else { NETLIB_NEXT };
            assert_eq!(take(sim), Some((expected, vec![n; 60])));
        }
        assert_eq!(take(sim), None);
    }
    // SAFETY: a live simulator, freed once.
    unsafe {
        assert_eq!(netlib_sim_counter(sim, 0), 2 * NETLIB_BURST as u64);
        assert_eq!(netlib_sim_counter(sim, 99), 0);
        netlib_sim_free(sim);
    }
}

#[test]
fn a_loop_of_ones_own_sets_verdicts_for_the_burst() {
    let sim = simulator();
    // SAFETY: a live simulator, whose endpoint only this thread uses; arrays are as long as the calls say.
    unsafe {
        let endpoint = netlib_sim_endpoint(sim);
        let mut port = 0;
        assert_eq!(netlib_port(endpoint, c"wan".as_ptr(), &raw mut port), NETLIB_OK as c_int);
        assert_eq!(port, 1);
        let mut packets: [netlib_packet; NETLIB_BURST] = std::mem::zeroed();
        let verdicts = [0x20001_u32, 0x30002, 0x50007, 0xa0000];
        assert_eq!(
            netlib_set_verdicts(endpoint, verdicts.as_ptr(), 1),
            NETLIB_ERR_STALE as c_int,
            "no burst"
        );
        for n in 0..3 {
            put(sim, &[n; 60]);
        }
        assert_eq!(netlib_receive(endpoint, packets.as_mut_ptr(), NETLIB_BURST, 0), 3);
        assert_eq!(packets[2].ingress, 1);
        assert_eq!(netlib_set_verdicts(endpoint, null(), 3), NETLIB_ERR_NULL as c_int);
        assert_eq!(netlib_set_verdicts(endpoint, verdicts.as_ptr(), 4), NETLIB_ERR_STALE as c_int);
        assert_eq!(netlib_set_verdicts(endpoint, verdicts.as_ptr(), 3), NETLIB_OK as c_int);
        assert_eq!(netlib_send(endpoint), NETLIB_OK as c_int);
        for (n, verdict) in (0..3).zip(verdicts) {
            assert_eq!(take(sim), Some((verdict, vec![n; 60])));
        }
        // A number that is no verdict discards.
        put(sim, &[9; 60]);
        assert_eq!(netlib_receive(endpoint, packets.as_mut_ptr(), NETLIB_BURST, 0), 1);
        assert_eq!(netlib_set_verdicts(endpoint, &raw const verdicts[3], 1), NETLIB_ERR_ARGUMENT as c_int);
        netlib_send(endpoint);
        assert_eq!(take(sim), Some((NETLIB_DROP, vec![9; 60])));
        netlib_sim_free(sim);
    }
}

#[test]
fn an_nf_steers_the_rest_of_flows() {
    let sim = simulator();
    // SAFETY: a live simulator, whose endpoint only this thread uses; arrays are as long as the calls say.
    unsafe {
        let chains = [c"plain".as_ptr(), c"scrub".as_ptr(), null()];
        assert_eq!(netlib_sim_name_chains(sim, chains.as_ptr()), NETLIB_OK as c_int);
        assert_eq!(netlib_sim_name_chains(null_mut(), null()), NETLIB_ERR_NULL as c_int);
        let endpoint = netlib_sim_endpoint(sim);
        let mut packets: [netlib_packet; NETLIB_BURST] = std::mem::zeroed();
        for n in 0..4 {
            put(sim, &[n; 60]);
        }
        assert_eq!(netlib_receive(endpoint, packets.as_mut_ptr(), NETLIB_BURST, 0), 4);
        let mut chain = 0;
        assert_eq!(netlib_chain(endpoint, c"scrub".as_ptr(), &raw mut chain), NETLIB_OK as c_int);
        assert_eq!(chain, 1);
        assert_eq!(netlib_chain(endpoint, c"none".as_ptr(), &raw mut chain), NETLIB_ERR_NAME as c_int);
        let verdicts = [0x60001, 0x70000, 0x80001, NETLIB_STEER_BACK];
        assert_eq!(netlib_set_verdicts(endpoint, verdicts.as_ptr(), 4), NETLIB_OK as c_int);
        netlib_send(endpoint);
        for (n, verdict) in (0..4).zip(verdicts) {
            assert_eq!(take(sim), Some((verdict, vec![n; 60])));
        }
        netlib_sim_free(sim);
    }
}

#[test]
fn an_nf_gets_messages_and_sends_some() {
    let sim = simulator();
    // SAFETY: a live simulator, whose endpoint only this thread uses; a zeroed message is valid.
    unsafe {
        let endpoint = netlib_sim_endpoint(sim);
        let mut message: netlib_message = std::mem::zeroed();
        assert_eq!(netlib_next_message(endpoint, &raw mut message), 0, "none");
        (message.version, message.length, message.instance) = (7, 2, 4);
        message.role[..3].copy_from_slice(&b"log".map(|byte| byte as _));
        message.payload[..2].copy_from_slice(b"hi");
        assert_eq!(netlib_sim_tell(sim, &raw const message), NETLIB_OK as c_int);
        let load = netlib_message { kind: netlib_message_kind::NETLIB_LOAD as c_int, percent: 40, ..message };
        assert_eq!(netlib_sim_tell(sim, &raw const load), NETLIB_OK as c_int);
        let mut got: netlib_message = std::mem::zeroed();
        assert_eq!(netlib_next_message(endpoint, &raw mut got), 1);
        assert_eq!((got.kind, got.version, got.instance, &got.payload[..got.length]), (0, 7, 4, &b"hi"[..]));
        assert_eq!(netlib_next_message(endpoint, &raw mut got), 1);
        assert_eq!((got.kind, got.percent), (netlib_message_kind::NETLIB_LOAD as c_int, 40));
        assert_eq!(netlib_send_message(endpoint, &raw const message), NETLIB_OK as c_int);
        assert_eq!(netlib_sim_told(sim, &raw mut got), 1);
        assert_eq!((got.role[0] as u8, got.version, got.length), (b'l', 7, 2));
        assert_eq!(netlib_sim_told(sim, &raw mut got), 0);
        let long = netlib_message { length: NETLIB_MAX_PAYLOAD + 1, ..message };
        assert_eq!(netlib_send_message(endpoint, &raw const long), NETLIB_ERR_ARGUMENT as c_int);
        let unknown = netlib_message { kind: 9, ..message };
        assert_eq!(netlib_sim_tell(sim, &raw const unknown), NETLIB_ERR_ARGUMENT as c_int);
        assert_eq!(netlib_send_message(endpoint, null()), NETLIB_ERR_NULL as c_int);
        assert_eq!(netlib_next_message(null_mut(), &raw mut got), NETLIB_ERR_NULL as c_int);
        netlib_sim_free(sim);
    }
}

#[test]
fn wrong_arguments_are_errors() {
    let sim = simulator();
    // SAFETY: NULL is allowed everywhere here; the simulator is live.
    unsafe {
        let null_error = NETLIB_ERR_NULL as c_int;
        assert_eq!(netlib_sim_new(null(), null(), null_mut()), null_error);
        assert_eq!(netlib_sim_put(null_mut(), 0, null(), 0), null_error);
        assert_eq!(netlib_sim_put(sim, 0, null(), 1), null_error);
        assert_eq!(netlib_sim_run(null_mut(), Some(odd), null_mut()), null_error);
        assert_eq!(netlib_sim_run(sim, None, null_mut()), null_error);
        assert_eq!(netlib_sim_take(sim, null_mut(), null_mut(), null_mut()), null_error);
        assert!(netlib_sim_endpoint(null_mut()).is_null());
        netlib_sim_free(null_mut());
        let long = vec![0; 17_000];
        assert_eq!(put(sim, &long), NETLIB_ERR_SPACE as c_int);

        // A packet that does not fit says how long it is, and stays.
        put(sim, &[2; 60]);
        assert_eq!(netlib_sim_run(sim, Some(odd), null_mut()), NETLIB_OK as c_int);
        let (mut bytes, mut length) = ([0; 10], 10);
        let taken = netlib_sim_take(sim, bytes.as_mut_ptr(), &raw mut length, null_mut());
        assert_eq!((taken, length), (NETLIB_ERR_SPACE as c_int, 60));
        assert_eq!(take(sim), Some((NETLIB_NEXT, vec![2; 60])));
        netlib_sim_free(sim);
    }
}

/// A number for each test, of packets that the NF has beyond bursts.
struct Queue {
    held: Vec<netlib_packet>,
    sent: u32,
}

/// Holds each packet until the next one comes, and answers every packet.
unsafe extern "C" fn hold_and_answer(
    _endpoint: *mut netlib_endpoint,
    packet: *mut netlib_packet,
    user: *mut c_void,
) -> u32 {
    // SAFETY: called by the library with its packet, and with the test's queue.
    unsafe {
        let queue = &mut *user.cast::<Queue>();
        let mut answer = *packet;
        assert_eq!(netlib_alloc_for(packet, 60, &raw mut answer), NETLIB_OK as c_int);
        assert_eq!(((*answer.data), answer.length, answer.ingress), (0, 60, 1));
        *answer.data = 0xaa;
        assert_eq!(netlib_append(&raw mut answer, 4), NETLIB_OK as c_int);
        assert_eq!(netlib_send_packet(&raw const answer, NETLIB_NEXT), NETLIB_OK as c_int);
        assert_eq!(
            netlib_send_packet(&raw const answer, NETLIB_NEXT),
            NETLIB_ERR_STALE as c_int,
            "sent twice"
        );
        assert_eq!(netlib_release(&raw const answer), NETLIB_ERR_STALE as c_int);
        let mut copy = *packet;
        assert_eq!(netlib_clone(packet, &raw mut copy), NETLIB_OK as c_int);
        assert_eq!(*copy.data, *(*packet).data);
        assert_eq!(netlib_release(&raw const copy), NETLIB_OK as c_int);
        let mut held = *packet;
        assert_eq!(netlib_hold(packet, &raw mut held), NETLIB_OK as c_int);
        assert_eq!(netlib_hold(packet, &raw mut copy), NETLIB_ERR_STALE as c_int, "held twice");
        assert_eq!(netlib_append(packet, 1), NETLIB_ERR_STALE as c_int);
        queue.held.push(held);
        if queue.held.len() > 1 {
            let first = queue.held.remove(0);
            assert_eq!(netlib_send_packet(&raw const first, NETLIB_NEXT), NETLIB_OK as c_int);
            queue.sent += 1;
        }
        NETLIB_DROP
    }
}

#[test]
fn an_nf_answers_packets_and_holds_them_beyond_their_burst() {
    let sim = simulator();
    let mut queue = Queue { held: Vec::new(), sent: 0 };
    for n in 0..3 {
        assert_eq!(put(sim, &[n; 60]), NETLIB_OK as c_int);
        // SAFETY: a live simulator; the queue outlives the call.
        let ran = unsafe { netlib_sim_run(sim, Some(hold_and_answer), (&raw mut queue).cast()) };
        assert_eq!(ran, NETLIB_OK as c_int);
        let answer = take(sim).unwrap();
        assert_eq!((answer.0, answer.1[0], answer.1.len()), (NETLIB_NEXT, 0xaa, 64));
        assert_eq!(take(sim), (n > 0).then(|| (NETLIB_NEXT, vec![n - 1; 60])));
        assert_eq!(take(sim), None);
    }
    assert_eq!((queue.held.len(), queue.sent), (1, 2));
    let mut made = queue.held[0];
    // SAFETY: a live simulator, and its endpoint between bursts.
    unsafe {
        let endpoint = netlib_sim_endpoint(sim);
        assert_eq!(netlib_alloc(endpoint, 20_000, &raw mut made), NETLIB_ERR_SPACE as c_int);
        assert_eq!(netlib_alloc(endpoint, 60, &raw mut made), NETLIB_OK as c_int);
        assert_eq!(made.ingress, u16::MAX);
        assert_eq!(netlib_set_ingress(&raw mut made, 1), NETLIB_OK as c_int);
        assert_eq!(netlib_send_packet(&raw const made, 0x2_0001), NETLIB_OK as c_int);
        assert_eq!(netlib_alloc(null_mut(), 60, &raw mut made), NETLIB_ERR_NULL as c_int);
        assert_eq!(netlib_may_hold(endpoint), 511);
        assert_eq!(netlib_sim_set_time(sim, 5_000_000_000), NETLIB_OK as c_int);
        assert_eq!((netlib_now(endpoint), netlib_now(null_mut())), (5_000_000_000, 0));
    }
    assert_eq!(take(sim), Some((0x2_0001, vec![0; 60])));
    // SAFETY: not used any more.
    unsafe { netlib_sim_free(sim) };
}
