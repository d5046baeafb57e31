// SPDX-License-Identifier: Apache-2.0
//! The result of ADD, in the form of the configuration's version.

use serde_json::{Value, json};

use crate::config::{Config, Environment};
use crate::ipam::Addresses;
use crate::port;

/// The result: the interface and its addresses, behind those of plug-ins before this one.
pub fn of(config: &Config, environment: &Environment, mac: Option<&str>, given: &Addresses) -> Value {
    let mut result = config.previous.clone().unwrap_or_else(|| json!({}));
    let names_family = config.version.starts_with("0.");
    let list =
        |result: &Value, key: &str| result.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut interfaces = list(&result, "interfaces");
    let at = interfaces.len();
    let mut own = json!({ "name": environment.interface });
    match port::socket(config, environment) {
        Some(path) => own["socketPath"] = path.display().to_string().into(),
        None => own["mac"] = mac.unwrap_or_default().into(),
    }
    own["sandbox"] = environment.namespace.as_str().into();
    interfaces.push(own);
    let mut ips = list(&result, "ips");
    ips.extend(given.ips.iter().map(|ip| {
        let mut entry = json!({ "address": ip.address, "interface": at });
        if let Some(gateway) = &ip.gateway {
            entry["gateway"] = gateway.as_str().into();
        }
        if names_family {
            entry["version"] = if ip.address.contains(':') { "6" } else { "4" }.into();
        }
        entry
    }));
    let mut routes = list(&result, "routes");
    routes.extend(given.routes.iter().map(|route| json!(route)));
    result["cniVersion"] = config.version.as_str().into();
    result["interfaces"] = interfaces.into();
    result["ips"] = ips.into();
    if !routes.is_empty() {
        result["routes"] = routes.into();
    }
    if !given.dns.is_empty() {
        result["dns"] = Value::Object(given.dns.clone());
    } else if result.get("dns").is_none() && names_family {
        result["dns"] = json!({});
    }
    result
}
