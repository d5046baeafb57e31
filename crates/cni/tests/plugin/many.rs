// SPDX-License-Identifier: Apache-2.0
//! Many attachments: what each takes, and that all of them go.

use std::time::Instant;

use crate::net::{Call, Namespace, Net};
use crate::{ATTACHMENTS, attachments};

/// Prints the figures that `docs/how-to/cni.md` has.
#[test]
fn each_attachment_takes_as_long_as_the_first() {
    let Some(net) = Net::start() else { return };
    let count = attachments();
    let namespaces: Vec<Namespace> = (0..count).map(|number| Namespace::new(&format!("m{number}"))).collect();
    let started = Instant::now();
    let add = |(number, namespace): (usize, &Namespace)| {
        let started = Instant::now();
        net.call("ADD", &format!("many{number}"), &namespace.path()).good();
        started.elapsed()
    };
    let times: Vec<_> = namespaces.iter().enumerate().map(add).collect();
    let total = started.elapsed();
    let median = |times: &[std::time::Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2].as_millis()
    };
    let tenth = (count / 10).max(1);
    println!(
        "{count} attachments: {} ms; median {} ms, of the first tenth {} ms, of the last {} ms",
        total.as_millis(),
        median(&times),
        median(&times[..tenth]),
        median(&times[count - tenth..])
    );
    assert_eq!(net.left(), [count; 3]);
    let started = Instant::now();
    for number in 0..count {
        net.call("DEL", &format!("many{number}"), "").good();
    }
    println!("{count} DEL: {} ms", started.elapsed().as_millis());
    assert_eq!(net.left(), [0, 0, 0]);
}

/// As runtimes do: several at once.
#[test]
fn attachments_at_once_all_succeed() {
    let Some(net) = Net::start() else { return };
    let namespaces: Vec<Namespace> =
        (0..ATTACHMENTS).map(|number| Namespace::new(&format!("o{number}"))).collect();
    let calls: Vec<Call> = (0..)
        .zip(&namespaces)
        .map(|(number, namespace)| net.call("ADD", &format!("once{number}"), &namespace.path()))
        .collect();
    let running: Vec<_> = calls.iter().map(Call::start).collect();
    for child in running {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(net.left(), [ATTACHMENTS; 3]);
    net.keep_only(&[]);
    assert_eq!(net.left(), [0, 0, 0]);
}
