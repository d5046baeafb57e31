// SPDX-License-Identifier: Apache-2.0
//! The page `docs/reference/counters.md`.

use super::{COLUMNS, Column, DROPS, METRICS, MetricKind, VIOLATIONS};

/// Words before the tables.
const HEAD: &str = "# Drop reasons, columns and metrics

What the counters of netvm mean. `netvm explain NAME` prints the same, for example `netvm explain chain-full`; `netvm explain` lists all
names. This page is made of the same text: `netvm explain --markdown > docs/reference/counters.md` (a test compares them).
";

const DROP_HEAD: &str = "
## Drop reasons

Every dropped packet is counted under one reason, at a port, a chain or an NF: `netvm stats --drops`, and per second `netvm stats --drops --watch`.

| reason | what happened | what to do |
|---|---|---|
";

const VIOLATION_HEAD: &str = "
## Violations

Actions of an NF that a correct NF does not take. Other trust groups lose no packets by them. `netvm nf ROLE` shows the counts.

| violation | what happened | what to do |
|---|---|---|
";

const METRIC_HEAD: &str = "
## Metrics

What `GET /metrics` exports for Prometheus: [watch.md](../how-to/watch.md#prometheus-and-grafana). A counter starts at 0 with netvmd, or when what it counts is configured again.

| metric | kind | labels | meaning |
|---|---|---|---|
";

/// The whole page.
#[must_use]
pub fn page() -> String {
    let mut page = format!("{HEAD}{DROP_HEAD}");
    page.extend(DROPS.iter().map(|one| format!("| `{}` | {} | {} |\n", one.name, one.text, one.remedy)));
    page.push_str(VIOLATION_HEAD);
    page.extend(VIOLATIONS.iter().map(|one| format!("| `{}` | {} | {} |\n", one.name, one.text, one.remedy)));
    page.push_str("\n## Columns\n");
    for command in commands() {
        page.push_str(&format!("\n### `{command}`\n\n| column | meaning |\n|---|---|\n"));
        let columns = COLUMNS.iter().filter(|column| column.of.contains(&command));
        page.extend(columns.map(|one| format!("| {} | {} |\n", one.name, one.text)));
    }
    page.push_str(METRIC_HEAD);
    for one in METRICS.iter() {
        let suffix = if one.kind == MetricKind::Counter { "_total" } else { "" };
        let labels = one.labels.join(", ");
        page.push_str(&format!(
            "| `{}{suffix}` | {} | {labels} | {} |\n",
            one.name,
            one.kind.word(),
            one.text
        ));
    }
    page
}

/// The commands with tables, in the order of their first columns.
fn commands() -> Vec<&'static str> {
    let mut commands = Vec::new();
    for command in COLUMNS.iter().flat_map(|column: &Column| column.of) {
        if !commands.contains(command) {
            commands.push(*command);
        }
    }
    commands
}
