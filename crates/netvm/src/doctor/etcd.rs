// SPDX-License-Identifier: Apache-2.0
//! Checks of etcd, if it is named: whether each member answers and has a leader, and its clock.

use netvm_fleet::{CLOCK_TOLERANCE, EtcdArgs, EtcdError};

use super::Check;

const NAME: &str = "etcd";

/// Checks each member that the options or the environment name.
pub(super) async fn check(args: &EtcdArgs) -> Vec<Check> {
    let mut checks = Vec::new();
    for url in args.urls() {
        checks.push(member(&EtcdArgs { etcd: vec![url.clone()], ..args.clone() }, &url).await);
    }
    checks
}

async fn member(args: &EtcdArgs, url: &str) -> Check {
    let failed = |error: EtcdError| {
        let url = netvm_text::line(url);
        let found = format!("{url}: {error}");
        let meaning = "hosts keep the configuration that they run, and learn of no other by this member";
        let command = match &error {
            EtcdError::OpenPassword(path) => Some(format!("sudo chmod 600 {}", path.display())),
            EtcdError::Unreachable { .. } | EtcdError::Timeout { .. } => {
                Some(format!("etcdctl --endpoints {url} endpoint status"))
            }
            _ => None,
        };
        Check { command, ..Check::warn(NAME, found, meaning) }
    };
    let etcd = match args.client() {
        Ok(etcd) => etcd,
        Err(error) => return failed(error),
    };
    let member = match etcd.member().await {
        Ok(member) => member,
        Err(error) => return failed(error),
    };
    let found = format!("{}, etcd {}", etcd.addresses(), netvm_text::line(&member.version));
    if !member.has_leader {
        let meaning = "it has no leader: more than half of the members must run, and reach each other";
        return Check::warn(NAME, found, meaning).command(format!("etcdctl --endpoints {url} member list"));
    }
    let ahead = etcd.clock_ahead().unwrap_or_default();
    if ahead.abs() > CLOCK_TOLERANCE {
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        let found = format!("{found}; this machine's clock is {} s {way} its own", ahead.unsigned_abs());
        let meaning =
            "nothing is ordered by clocks, but certificates may count as expired, or as not valid yet";
        return Check::warn(NAME, found, meaning).command("chronyc tracking");
    }
    Check::ok(NAME, found, "hosts follow their configurations there")
}
