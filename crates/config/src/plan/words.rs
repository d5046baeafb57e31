//! Items and values in a few words.

use toml::Value;

use super::ItemKind;
use crate::document::Item;

/// A value without its punctuation: lists with commas, commands with spaces, an empty one as `none`, no value as `unset`.
pub(super) fn value(key: &str, value: Option<&Value>) -> String {
    let text = match value {
        None => return "unset".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) => {
            let separator = if key == "command" { " " } else { "," };
            let parts: Vec<String> = list.iter().map(|part| element(key, part)).collect();
            parts.join(separator)
        }
        Some(Value::Table(table)) => {
            let parts: Vec<String> =
                table.iter().map(|(name, part)| format!("{name}={}", element(key, part))).collect();
            parts.join(" ")
        }
        Some(other) => other.to_string(),
    };
    if text.is_empty() { "none".to_owned() } else { text }
}

fn element(key: &str, part: &Value) -> String {
    match part {
        Value::Array(_) => format!("[{}]", value(key, Some(part))),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What an item is.
pub(super) fn summary(kind: ItemKind, item: &Item) -> String {
    let word = |key| value(key, item.get(key));
    match kind {
        ItemKind::Engine => String::new(),
        ItemKind::Group => format!("{} cells of {} bytes", word("cells"), word("cell_size")),
        ItemKind::Port => {
            let what =
                ["interface", "address", "input", "output", "size"].into_iter().find_map(|key| item.get(key));
            match what {
                Some(what) => format!("{} {}", word("kind"), value("", Some(what))),
                None => word("kind"),
            }
        }
        ItemKind::Nf if item.get("command").is_some() => word("command"),
        ItemKind::Nf => "attaches by itself".to_owned(),
        ItemKind::Chain => match item.get("output") {
            Some(_) => format!("{} → {}", word("hops"), word("output")),
            None => word("hops"),
        },
        ItemKind::Steering => rule(item),
    }
}

/// A steering rule, such as `protocol=tcp destination_ports=80 → chain web`.
fn rule(item: &Item) -> String {
    let matches = match item.get("match") {
        Some(matches) => value("match", Some(matches)),
        None => "everything".to_owned(),
    };
    let action = if let Some(chain) = item.get("chain") {
        format!("chain {}", value("chain", Some(chain)))
    } else if let Some(port) = item.get("out") {
        format!("port {}", value("out", Some(port)))
    } else {
        "drop".to_owned()
    };
    format!("{matches} → {action}")
}
