//! `[[chain]]`.

use toml::Spanned;

use super::rule::yes;
use super::{RawChain, RawOutput, name};
use crate::document::{INGRESS, ON_FAILURE};
use crate::finding::Kind;
use crate::model::{MAX_HOPS, OnFailure};
use crate::read::{Reader, at};

pub(super) fn read(table: &Reader<'_>) -> RawChain {
    let name = name(table, "name", "web");
    let hops = table.texts("hops");
    let example = "list the roles that packets pass, such as `hops = [\"firewall\", \"monitor\"]`";
    if table.key_span("hops").is_none() {
        table.missing("hops", example);
    }
    if let Some(hops) = hops.as_ref().filter(|hops| hops.get_ref().is_empty()) {
        table
            .bad_value("hops", hops.span(), "is empty")
            .help(format!("{example}; to send packets straight out of a port, use `out` in [[rule]]"))
            .keep();
    }
    if let Some(extra) = hops.as_ref().and_then(|hops| hops.get_ref().get(MAX_HOPS)) {
        table
            .findings
            .note(Kind::TooMany, "a chain with too many hops")
            .at(extra.span(), format!("this is hop {}", MAX_HOPS + 1))
            .help(format!("a chain has at most {MAX_HOPS} hops"))
            .keep();
    }
    let chain = RawChain {
        span: table.span.clone(),
        name,
        hops: hops.map(Spanned::into_inner).unwrap_or_default(),
        on_failure: table
            .word("on_failure", ON_FAILURE)
            .unwrap_or_else(|| at(table.span.clone(), OnFailure::default())),
        output: output(table),
    };
    table.finish(&[]);
    chain
}

fn output(table: &Reader<'_>) -> RawOutput {
    let Some(port) = table.text_or_table("output", "output") else { return RawOutput::None };
    let after = match port {
        Ok(text) if text.get_ref() == INGRESS => return RawOutput::Ingress,
        Ok(text) => return RawOutput::Port(text),
        Err(after) => after,
    };
    let router = after.text("router").map(RawOutput::Router);
    let normal = yes(&after, "normal").then_some(RawOutput::Normal);
    after.just_one(&["router", "normal"], "write `\"PORT\"`, `{ normal = true }` or `{ router = \"…\" }`");
    after.finish(&[]);
    normal.or(router).unwrap_or(RawOutput::None)
}
