// SPDX-License-Identifier: Apache-2.0
//! Short benchmarks end to end: real engine, real NF process, documented JSON.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &str) -> std::io::Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netvm-bench"));
    command.args(arguments.split_whitespace()).output()
}

#[test]
fn hop_prints_one_json_object() {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        println!("SKIP: this process may use {cores} core, the benchmark needs two");
        return;
    }
    let output = bench("hop --json --quick --skip-peers --runs 2 --seconds 0.1").unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "hop");
    for key in ["cpu", "kernel", "dpdk", "revision", "cores", "huge_pages"] {
        assert!(!report["host"][key].is_null(), "{key}");
    }
    let results = report["results"].as_array().unwrap();
    let hop = results.iter().find(|row| row["case"] == "hop").unwrap();
    assert_eq!((hop["unit"].as_str(), hop["runs"].as_u64()), (Some("Mpps"), Some(2)));
    let figure = |key: &str| hop[key].as_f64().unwrap();
    assert!(figure("min") > 0.0 && figure("min") <= figure("median") && figure("median") <= figure("max"));
    assert!(results.iter().any(|row| row["case"] == "hop engine NF to engine"), "{results:?}");
    // Skipped peers are reported.
    assert!(progress.contains("--skip-peers"), "{progress}");
}

#[test]
fn routes_are_looked_up_beside_dpdk() {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        println!("SKIP: this process may use {cores} core, the benchmark needs two");
        return;
    }
    let list = tempfile::NamedTempFile::new().unwrap();
    let routes = (0..4000u16).map(|n| {
        let [high, low] = n.to_be_bytes();
        format!("10.{high}.{low}.0/{}\n2001:db8:{n:x}::/{}\n", 24 + n % 9, 48 + n % 81)
    });
    // Default routes apply to the rest.
    let text: String = routes.chain(["0.0.0.0/0\n::/0\n".to_owned()]).collect();
    std::fs::write(list.path(), text).unwrap();
    let path = list.path().display();
    let output = bench(&format!("route --json --runs 1 --seconds 0.1 --routes {path}")).unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    for case in
        ["netvm-v4-full", "fib-scalar-v6-full", "netvm-v4-anywhere/fib-v4-anywhere", "fib-v6-few memory"]
    {
        let row = results.iter().find(|row| row["case"] == case);
        assert!(row.is_some_and(|row| row["median"].as_f64().unwrap() > 0.0), "{case}: {results:?}");
    }
}

#[test]
fn a_router_with_512_interfaces_loses_nothing() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("SKIP: needs two cores");
        return;
    }
    let command = "router --json --runs 1 --seconds 0.1 --skip-peers --only interfaces --interfaces 2,512";
    let output = bench(command).unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    for case in ["interfaces-2", "interfaces-512", "interfaces-512/interfaces-2"] {
        let row = results.iter().find(|row| row["case"] == case);
        assert!(row.is_some_and(|row| row["median"].as_f64().unwrap() > 0.0), "{case}: {results:?}");
    }
}

/// Trials of the measurements for studies: what arrives is what was sent, where that is far below the capacity.
#[test]
fn trials_count_every_packet() {
    let cores = std::thread::available_parallelism().unwrap().get();
    // SAFETY: takes nothing.
    if cores < 2 || unsafe { libc::geteuid() } != 0 {
        println!("SKIP: needs root (network namespaces) and two cores");
        return;
    }
    for measurement in [
        "receive --method=netvm-port --monitor=flow --flows=multi --size=64",
        "routers --kind=netvm --routers=2 --ingress=3 --size=1518",
        "routers --kind=netvm --directions=2 --workers=2 --queues=2",
        "routers --kind=kernel-macvlan --routers=3 --ingress=2",
        "routers --kind=kernel-veth --routers=3 --directions=2",
        "routers --kind=kernel-forward --ingress=2 --directions=2",
        "routers --kind=netvm --interfaces=512",
        "routers --kind=kernel-macvlan --interfaces=16",
        "routers --kind=kernel-veth --interfaces=16",
        "routers --kind=netvm --beside=1000",
        "routers --kind=kernel-macvlan --beside=1000",
        "routers --kind=kernel-veth --beside=1000",
    ] {
        let output = bench(&format!("{measurement} --rate=2000 --seconds=0.3")).unwrap();
        let progress = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{measurement}: {progress}");
        let trial: Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |key: &str| trial[key].as_u64().unwrap();
        assert!(count("sent_packets") > 400, "{measurement}: {trial}");
        assert_eq!(count("received_packets"), count("sent_packets"), "{measurement}: {trial}");
        assert_eq!(trial["loss"], 0.0, "{measurement}: {trial}");
        // Half as many through another router.
        if measurement.contains("--beside") {
            assert_eq!(trial["beside_loss"], 0.0, "{measurement}: {trial}");
            let offered = trial["beside_offered"].as_f64().unwrap();
            assert!((500.0..=1100.0).contains(&offered), "{measurement}: {trial}");
        }
    }
    let output = bench("receive --platform=guest --method=netvm-port --rate=1").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("choose the platform host"), "{said}");
}

#[test]
fn a_failed_benchmark_has_an_error_and_no_result() {
    let output = bench("hop --json --quick --cores 0,0").unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("needs 2 cores"), "{text}");
}

#[test]
fn one_worker_is_compared_with_two() {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        println!("SKIP: this process may use {cores} core, the benchmark needs two");
        return;
    }
    let output = bench("workers --json --quick --skip-peers --runs 1 --seconds 0.1").unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    for case in ["source-sink-2/source-sink-1", "router-2/router-1", "chain-2/chain-1"] {
        let row =
            results.iter().find(|row| row["case"] == case).unwrap_or_else(|| panic!("{case}: {results:?}"));
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    // What two workers share is said.
    assert_eq!(cores < 4, progress.contains("share those of the workers"), "{progress}");
}
