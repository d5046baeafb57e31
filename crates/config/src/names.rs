//! What rules call ports, chains and routers.

use std::borrow::Cow;

use netvm_policy::{ChainId, Names, PortId, RouterId};

use crate::model::Host;

impl Names for Host {
    fn port(&self, port: PortId) -> Cow<'_, str> {
        Self::port(self, port)
            .map_or_else(|| Cow::Owned(format!("port {port}")), |port| Cow::Borrowed(port.name.as_str()))
    }

    fn chain(&self, chain: ChainId) -> Cow<'_, str> {
        let named = Self::chain(self, chain);
        named.map_or_else(|| Cow::Owned(format!("chain {chain}")), |chain| Cow::Borrowed(chain.name.as_str()))
    }

    fn router(&self, router: RouterId) -> Cow<'_, str> {
        let named = Self::router(self, router);
        named.map_or_else(
            || Cow::Owned(format!("router {router}")),
            |router| Cow::Borrowed(router.name.as_str()),
        )
    }
}
