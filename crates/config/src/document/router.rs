//! `[[router]]`.

use toml::{Table, Value};

use super::{Item, number, text};
use crate::model::{Host, RouterConfig, RouterInterface};

pub(super) fn item(host: &Host, router: &RouterConfig) -> Item {
    let interfaces = router.interfaces.iter().map(|item| Value::Table(interface(host, item)));
    let fields = vec![("name", text(&router.name)), ("interface", Value::Array(interfaces.collect()))];
    Item { name: router.name.clone(), fields }
}

fn interface(host: &Host, interface: &RouterInterface) -> Table {
    let mut fields = vec![("name", text(&interface.name))];
    fields.extend(host.port(interface.port).map(|port| ("port", text(&port.name))));
    fields.extend(interface.vlan.map(|vlan| ("vlan", number(vlan.get()))));
    fields.push(("mac", text(&interface.mac.to_string())));
    let addresses = interface.addresses.iter().map(|address| text(&address.to_string()));
    fields.push(("addresses", Value::Array(addresses.collect())));
    fields.push(("punt_rate", interface.punt_rate.into()));
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
