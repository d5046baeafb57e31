//! Keys of `[[port]]` that are about packets, not about the device.

use netvm_wire::{IpNet, MacAddr, VlanId};
use toml::Spanned;

use super::rule::yes;
use super::{RawForward, RawPortPolicy, check_name, limits};
use crate::document::ACL;
use crate::field::tagged;
use crate::model::{Guard, PortPolicy, VlanMode};
use crate::read::Reader;

/// Most MAC addresses that a port, or all ports together, can have.
pub(super) const MOST_MACS: u64 = 1 << 20;

/// Keys of ports that have several VLANs.
const TAGGED: &[(&str, &str)] = &[("trunk", "ports without `access`"), ("native", "`trunk`")];

pub(super) fn read(table: &Reader<'_>) -> RawPortPolicy {
    let default = PortPolicy::default();
    let acl = |key| table.word(key, ACL).map(Spanned::into_inner).unwrap_or_default();
    let policy = PortPolicy {
        acl_in: acl("acl_in"),
        acl_out: acl("acl_out"),
        vlan: vlan(table).unwrap_or_default(),
        mac_limit: table.number("mac_limit", 0..=MOST_MACS).map_or(default.mac_limit, Spanned::into_inner),
        split_horizon: split_horizon(table),
        guard: guard(table),
        police_in: limits::read(table, "police_in"),
        police_out: limits::read(table, "police_out"),
        ..default
    };
    RawPortPolicy { forward: forward(table), policy }
}

fn forward(table: &Reader<'_>) -> Option<RawForward> {
    let forward = table.table("forward", "forward")?;
    let chain = forward.text("chain").map(RawForward::Chain);
    let out = forward.text("out").map(RawForward::Port);
    let router = forward.text("router").map(RawForward::Router);
    let normal = yes(&forward, "normal").then_some(RawForward::Normal);
    let help = "write `{ normal = true }`, `{ chain = \"…\" }`, `{ out = \"…\" }` or `{ router = \"…\" }`";
    forward.just_one(&["chain", "out", "router", "normal"], help);
    forward.finish(&[]);
    chain.or(out).or(router).or(normal)
}

fn vlan(table: &Reader<'_>) -> Option<VlanMode> {
    let vlan = table.table("vlan", "vlan")?;
    let id = |key| {
        let number: Spanned<u16> = vlan.number(key, 1..=u64::from(VlanId::MAX))?;
        VlanId::new(number.into_inner()).ok()
    };
    let access = id("access");
    let is_access = vlan.key_span("access").is_some();
    let mode = if is_access {
        access.map(VlanMode::Access)
    } else {
        if vlan.key_span("trunk").is_none() {
            vlan.missing("trunk", "write `{ access = 10 }`, or `{ trunk = [10, \"20-30\"] }`");
        }
        let vlans = vlan.set("trunk", tagged).into_iter().map(Spanned::into_inner).collect();
        Some(VlanMode::Trunk { vlans, native: id("native") })
    };
    vlan.finish(if is_access { TAGGED } else { &[] });
    mode
}

fn split_horizon(table: &Reader<'_>) -> Option<String> {
    let name = table.text("split_horizon")?;
    check_name(table.findings, "split_horizon", &name).then(|| name.into_inner())
}

fn guard(table: &Reader<'_>) -> Option<Guard> {
    let guard = table.table("guard", "guard")?;
    let macs: Vec<Spanned<MacAddr>> = guard.set("macs", str::parse);
    let addresses: Vec<Spanned<IpNet>> = guard.set("addresses", str::parse);
    if guard.first_of(&["macs", "addresses"]).is_none() {
        guard.missing(
            "macs",
            "name the guest's MAC addresses (`macs`), its IP addresses (`addresses`), or both",
        );
    }
    for mac in macs.iter().filter(|mac| mac.get_ref().is_multicast() || *mac.get_ref() == MacAddr::ZERO) {
        guard
            .bad_value("macs", mac.span(), &format!("cannot have `{}`", mac.get_ref()))
            .help("nobody can send as a group address or as none: name the guest's own")
            .keep();
    }
    guard.finish(&[]);
    let plain = |macs: Vec<Spanned<MacAddr>>| macs.into_iter().map(Spanned::into_inner).collect();
    Some(Guard { macs: plain(macs), addresses: addresses.into_iter().map(Spanned::into_inner).collect() })
}
