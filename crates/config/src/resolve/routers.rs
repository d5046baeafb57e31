//! Virtual routers, and the punt port of each of their interfaces.

use toml::Spanned;

use crate::model::{
    Forward, Host, PortConfig, PortId, PortKind, PortPolicy, RouterConfig, RouterId, RouterInterface,
};
use crate::raw::{Name, RawRouter};

/// Names of the punt ports, in the order of their numbers. The place of each is that of the interface's name; a name that
/// a router's interface had before was complained of already.
pub(super) fn punt_names(routers: &[RawRouter]) -> Vec<Name> {
    let name = |(router, n): (&RawRouter, usize)| {
        let (before, rest) = router.interfaces.split_at_checked(n)?;
        let (router, interface) = (router.name.as_ref()?, rest.first()?.name.as_ref()?);
        if before
            .iter()
            .any(|before| before.name.as_ref().is_some_and(|name| name.get_ref() == interface.get_ref()))
        {
            return None;
        }
        let name = RouterInterface::punt_name(router.get_ref(), interface.get_ref());
        Some(Spanned::new(interface.span(), name))
    };
    let interfaces = routers.iter().flat_map(|router| (0..router.interfaces.len()).map(move |n| (router, n)));
    interfaces.map(name).collect()
}

/// Adds the routers, and behind the ports of the file, of which there are `written`, their punt ports.
pub(super) fn resolve(
    raw: &[RawRouter],
    host: &mut Host,
    written: usize,
    port: impl Fn(&Spanned<String>) -> Option<PortId>,
) {
    let text = |name: &Name| name.as_ref().map(|name| name.get_ref().clone()).unwrap_or_default();
    let mut numbers = (u16::try_from(written).unwrap_or(u16::MAX)..u16::MAX).map(PortId);
    for (number, item) in (0..u16::MAX).zip(raw) {
        let mut router =
            RouterConfig { id: RouterId(number), name: text(&item.name), interfaces: Vec::new() };
        for written in &item.interfaces {
            // Each has its number, whatever becomes of the others.
            let Some(punt) = numbers.next() else { break };
            let Some(port) = written.port.as_ref().and_then(&port) else { continue };
            let name = text(&written.name);
            let interface = RouterInterface {
                port,
                vlan: written.vlan,
                mac: written.mac,
                addresses: written.addresses.clone(),
                punt_rate: written.punt_rate,
                punt,
                host_end: RouterInterface::host_end_of(&router.name, &name),
                name,
            };
            host.ports.extend(punt_port(host, &router, &interface));
            router.interfaces.push(interface);
        }
        host.routers.push(router);
    }
}

/// Its packets land where those of the interface's port do.
fn punt_port(host: &Host, router: &RouterConfig, interface: &RouterInterface) -> Option<PortConfig> {
    let port = host.port(interface.port)?;
    Some(PortConfig {
        id: interface.punt,
        name: RouterInterface::punt_name(&router.name, &interface.name),
        kind: PortKind::AfXdp { interface: interface.host_end.clone(), generic: false },
        queues: 1,
        mtu: port.mtu,
        group: host.landing_group(port),
        policy: PortPolicy { forward: Forward::Router(router.id), ..PortPolicy::default() },
    })
}
