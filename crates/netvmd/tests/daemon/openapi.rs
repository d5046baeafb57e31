// SPDX-License-Identifier: Apache-2.0
//! `GET /openapi.json` describes every route, and netvmd's answers follow it.

use netvm_api::{ConnectionList, path};
use serde_json::Value;

use super::common::{Daemon, ENGINE, forwarding_chain, is_root, program};
use super::watch::{HOSTILE, router};

/// Routes of the source: path and method.
fn routes() -> Vec<(String, String)> {
    let api = include_str!("../../src/api/mod.rs");
    let paths = include_str!("../../../api/src/lib.rs");
    let mut routes = Vec::new();
    for route in api.split(".route(path::").skip(1) {
        let (name, rest) = route.split_once(", ").unwrap();
        let start = format!("pub const {name}: &str = \"");
        let text = paths.split(&start).nth(1).unwrap_or_else(|| panic!("no path {name}"));
        let path = text.split('"').next().unwrap();
        // `get(a)`, or `get(a).post(b)`.
        let line = rest.lines().next().unwrap();
        let methods = line.split(").").map(|call| call.split('(').next().unwrap());
        routes.extend(methods.map(|method| (path.to_owned(), method.to_owned())));
    }
    routes
}

/// An object that has the properties of all parts of `allOf`.
fn merged(all: &Value, schema: &Value) -> Value {
    let schema = match schema["$ref"].as_str() {
        Some(name) => {
            all.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} is missing"))
        }
        None => schema,
    };
    let Some(parts) = schema["allOf"].as_array() else { return schema.clone() };
    let mut whole = serde_json::json!({"type": "object", "properties": {}, "required": []});
    for part in parts.iter().map(|part| merged(all, part)) {
        for (name, property) in part["properties"].as_object().into_iter().flatten() {
            whole["properties"][name] = property.clone();
        }
        let required = part["required"].as_array().cloned().unwrap_or_default();
        whole["required"].as_array_mut().unwrap().extend(required);
    }
    whole
}

/// The parts of `value` that break `schema`, each with its place.
fn mismatches(all: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = all.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} is missing"));
        return mismatches(all, target, value, place);
    }
    let any = ["oneOf", "anyOf"].iter().find_map(|key| schema[*key].as_array());
    if let Some(choices) = any {
        let fits = choices.iter().any(|choice| mismatches(all, choice, value, place).is_empty());
        return if fits { Vec::new() } else { vec![format!("{place}: {value} fits none of {choices:?}")] };
    }
    if schema["allOf"].is_array() {
        return mismatches(all, &merged(all, schema), value, place);
    }
    let mut found: Vec<String> = Vec::new();
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => vec![kind],
    };
    let fits = kinds.contains(&kind) || (kind == "integer" && kinds.contains(&"number"));
    if !fits {
        found.push(format!("{place}: {value} is not {kinds:?}"));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        found.push(format!("{place}: {value} is not one of {}", schema["enum"]));
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(mismatches(all, &schema["items"], item, &format!("{place}/{n}")));
    }
    let Some(object) = value.as_object() else { return found };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            found.push(format!("{place}: {name} is missing"));
        }
    }
    for (name, value) in object {
        let place = format!("{place}/{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Null) if schema["properties"].is_object() => {
                found.push(format!("{place} is not described"));
            }
            (Value::Null, Value::Null | Value::Bool(_)) => {}
            (Value::Null, others) => found.extend(mismatches(all, others, value, &place)),
            (known, _) => found.extend(mismatches(all, known, value, &place)),
        }
    }
    found
}

/// A port whose packets are of one connection.
const TRACKED: &str = "
[[port]]
name = \"tracked\"
kind = \"source\"
rate = 100
flows = 1
track = true
forward = { out = \"end\" }

[[port]]
name = \"end\"
kind = \"sink\"
";

#[test]
fn openapi_describes_every_route_and_what_it_answers() {
    let name = format!("o{}", std::process::id());
    let router = if is_root() { router(&name) } else { String::new() };
    let engine = ENGINE.replace("huge_pages", "flow_monitor = {}\nhuge_pages");
    let chain = forwarding_chain("a", &program("counting"));
    let switch = "[switch]\nmcast_snooping = true\n";
    let mut daemon = Daemon::start(&format!("{engine}{chain}{TRACKED}{router}{switch}"));
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    daemon.until("a connection is tracked", |daemon| {
        daemon.get::<ConnectionList>(path::CONNECTIONS).connections.len() == 1
    });
    let document: Value = daemon.get(path::OPENAPI);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let routes = routes();
    assert!(routes.len() > 25, "{routes:?}");
    for (path, method) in &routes {
        assert!(document["paths"][path][method].is_object(), "{method} {path} is not described");
    }
    let described: usize =
        document["paths"].as_object().unwrap().values().map(|item| item.as_object().unwrap().len()).sum();
    assert_eq!(described, routes.len());
    let mut compared = 0;
    for (path, _) in routes.iter().filter(|(_, method)| method == "get") {
        let reply =
            &document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        if !reply.is_object()
            || path.contains("{vm}")
            || path.contains("{role}")
            || path.contains("{router}") && router.is_empty()
        {
            continue;
        }
        let value: Value = daemon.get(&path.replace("{router}", &name).replace("{number}", "1"));
        let found = mismatches(&document, reply, &value, path);
        assert!(found.is_empty(), "{found:#?}");
        compared += 1;
    }
    assert!(compared > 12, "{compared}");
    let (status, error) = daemon.request("GET", "/v1/nothing", "");
    let schema = serde_json::json!({"$ref": "#/components/schemas/ApiError"});
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!((status, mismatches(&document, &schema, &error, "error")), (404, Vec::new()));
    // The check itself finds what is wrong.
    let stats = serde_json::json!({"$ref": "#/components/schemas/Stats"});
    let mut wrong: Value = daemon.get(path::STATS);
    wrong["ports"][0]["link"] = HOSTILE.into();
    wrong["workers"][0]["surprise"] = 1.into();
    assert_eq!(mismatches(&document, &stats, &wrong, "").len(), 2);
    daemon.purge();
}
