// SPDX-License-Identifier: Apache-2.0
//! An etcd of three members: one is killed, the leader changes, the majority is lost.

use crate::site::{Etcd, Host, config, config_with};

#[test]
fn a_host_follows_a_cluster_as_long_as_it_has_a_majority() {
    let Some(mut members) = Etcd::cluster() else { return };
    let urls: Vec<String> = members.iter().map(Etcd::url).collect();
    let first = members[0].configure("a", &config(20));
    let host = Host::start("a", &urls.join(","));
    members[0].until_runs("a", first);
    host.daemon.until_flowing("a");
    let lost = host.lost();
    let problem = || {
        let status: netvm_api::Status = host.daemon.get(netvm_api::path::STATUS);
        status.problems.into_iter().find(|problem| problem.contains("etcd"))
    };

    // The leader is killed: another one is elected, and the host goes to another member if it was at this one.
    let leader = members.iter().position(Etcd::is_leader).unwrap();
    members[leader].kill();
    let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
    let second = members[one].configure("a", &config_with("two", 20));
    members[one].until_runs("a", second);

    // A second one: there is no majority, and nothing changes.
    members[other].kill();
    host.daemon.until("it says so", |_| problem().is_some());
    assert_eq!(host.rules(), ["a", "two"]);
    host.daemon.until_flowing("a");

    // Both come back.
    members[leader].start_again();
    members[other].start_again();
    let third = members[leader].configure("a", &config_with("three", 20));
    members[leader].until_runs("a", third);
    assert_eq!(host.rules(), ["a", "three"]);
    host.daemon.until("it is well again", |_| problem().is_none());
    host.daemon.until_flowing("a");
    assert_eq!(host.lost(), lost);
}
