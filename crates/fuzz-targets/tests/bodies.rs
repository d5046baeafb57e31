// SPDX-License-Identifier: Apache-2.0
//! Runs every body on valid examples and deterministic mutations.
//!
//! `NETVM_FUZZ_CORPUS=DIR` writes the examples to `DIR/BODY`, as a corpus for a fuzzer.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod examples;
mod mutate;

use std::path::Path;

use netvm_fuzz_targets::{
    attach_message, capture_filter, capture_read, config_fragments, config_parse, connections,
    control_header, e1000, flow_names, memif, multicast, nat64, neighbours, nf_descriptors, ring_peer,
    route_updates, rule_files, table, vhost_user, vhost_user_rings, vxlan, wire_parse,
};

use crate::mutate::{Random, mutated};

/// Runs a body on each example, on `rounds` mutations, and on a tenth as many pieces of noise.
fn exercise(name: &str, body: fn(&[u8]), examples: &[Vec<u8>], rounds: usize) {
    assert!(!examples.is_empty());
    if let Some(corpus) = std::env::var_os("NETVM_FUZZ_CORPUS") {
        keep(&Path::new(&corpus).join(name), examples);
    }
    let mut random = Random::new();
    body(&[]);
    for example in examples {
        body(example);
    }
    for round in 0..rounds {
        let example = &examples[random.below(examples.len())];
        let other = &examples[random.below(examples.len())];
        body(&mutated(example, other, &mut random));
        if round % 10 == 0 {
            let length = random.below(400);
            body(&random.bytes(length));
        }
    }
}

fn keep(directory: &Path, examples: &[Vec<u8>]) {
    std::fs::create_dir_all(directory).unwrap();
    for (n, example) in examples.iter().enumerate() {
        std::fs::write(directory.join(format!("example-{n}")), example).unwrap();
    }
}

#[test]
fn rings_survive_a_hostile_peer() {
    exercise("ring_peer", ring_peer, &examples::ring_steps(), 4000);
}

#[test]
fn control_memory_is_refused_or_usable() {
    exercise("control_header", control_header, &examples::control_headers(), 1000);
}

#[test]
fn tables_answer_with_any_content() {
    exercise("table", table, &examples::tables(), 400);
}

#[test]
fn attach_messages_are_parsed_or_refused() {
    exercise("attach_message", attach_message, &examples::attach_messages(), 2000);
}

#[test]
fn cards_survive_their_client_and_guest() {
    // The kernel takes some milliseconds to end the AIO context by which a card interrupts.
    exercise("e1000", e1000, &examples::card_steps(), 200);
}

#[test]
fn memifs_survive_hostile_programs() {
    exercise("memif", memif, &examples::memif_steps(), 300);
}

#[test]
fn started_rings_lie_in_shared_memory() {
    exercise("vhost_user", vhost_user, &examples::vhost_user_steps(), 4000);
}

#[test]
fn nfs_survive_any_descriptor() {
    exercise("nf_descriptors", nf_descriptors, &examples::descriptor_bursts(), 2000);
}

#[test]
fn frames_parse_and_change_within_bounds() {
    exercise("wire_parse", wire_parse, &examples::frames(), 4000);
}

#[test]
fn connections_are_bounded_and_their_packets_well_formed() {
    exercise("connections", connections, &examples::connection_steps(), 4000);
}

#[test]
fn translated_packets_are_well_formed_in_the_other_family() {
    exercise("nat64", nat64, &examples::packets_to_translate(), 20_000);
}

#[test]
fn memberships_are_bounded_and_counted() {
    exercise("multicast", multicast, &examples::multicast_messages(), 20_000);
}

#[test]
fn tunnels_take_only_what_they_would_send() {
    exercise("vxlan", vxlan, &examples::datagrams_of_tunnels(), 20_000);
}

#[test]
fn requests_of_neighbours_get_answers_that_fit() {
    exercise("neighbours", neighbours, &examples::requests_of_neighbours(), 20_000);
}

#[test]
fn names_are_printable_and_bounded() {
    exercise("flow_names", flow_names, &examples::names(), 4000);
}

#[test]
fn captures_yield_frames_or_an_error() {
    exercise("capture_read", capture_read, &examples::captures(), 2000);
}

#[test]
fn filters_are_refused_or_end() {
    exercise("capture_filter", capture_filter, &examples::filters(), 4000);
}

#[test]
fn routes_are_applied_in_any_order() {
    exercise("route_updates", route_updates, &examples::route_steps(), 600);
}

#[test]
fn configurations_are_refused_or_survive_the_round_trip() {
    exercise("config_parse", config_parse, &examples::configurations(), 600);
}

#[test]
fn fragments_are_refused_in_their_place_or_say_the_same_as_one_file() {
    exercise("config_fragments", config_fragments, &examples::fragments(), 300);
}

#[test]
fn rules_are_refused_or_survive_the_round_trip() {
    exercise("rule_files", rule_files, &examples::rules(), 2000);
}

/// Valid examples must reach the code after the checks; otherwise the mutations would test refusals only.
#[test]
fn examples_are_valid() {
    for text in examples::configurations() {
        let text = String::from_utf8(text).unwrap();
        netvm_config::parse("example", &text).unwrap_or_else(|e| unreachable!("{}", e.render(false)));
    }
    for frame in examples::whole_frames() {
        netvm_wire::parse(&frame).unwrap();
    }
    for capture in examples::capture_files() {
        let source = std::io::Cursor::new(capture);
        let mut reader = netvm_capture::CaptureReader::from_source(Path::new("x"), source).unwrap();
        assert!(reader.next_frame().unwrap().is_some());
    }
    for steps in examples::vhost_user_steps() {
        assert_eq!(vhost_user_rings(&steps), 2);
    }
    let lines = |text: &str| netvm_nf_common::Lines::from_text(Path::new("x"), text);
    assert_eq!(netvm_nf_firewall::Rules::from_lines(&lines(examples::RULES)).unwrap().list().len(), 4);
    assert_eq!(netvm_nf_l3_forward::Routes::from_lines(&lines(examples::ROUTES)).unwrap().len(), 3);
}
