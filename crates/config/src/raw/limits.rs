//! `police` of rules and ports.

use crate::finding::Kind;
use crate::model::{Police, Rate};
use crate::read::Reader;

/// Highest rate and burst: a terabit, or a packet for each of its bits.
const MOST: u64 = 1_000_000_000_000;
/// A burst is by default what comes in a tenth of a second,
const BURSTS_PER_SECOND: u64 = 10;
/// but at least this: two bursts of a worker,
const LEAST_PACKETS: u64 = 64;
/// or more than the longest frame, and a dozen of Ethernet's.
const LEAST_BITS: u64 = 600_000;

/// Reads the table of that key.
pub(super) fn read(table: &Reader<'_>, key: &'static str) -> Option<Police> {
    let police = table.table(key, "police")?;
    let packets = rate(&police, "packets", "packet_burst", LEAST_PACKETS);
    let bits = rate(&police, "bits", "bit_burst", LEAST_BITS);
    if police.first_of(&["packets", "bits"]).is_none() {
        police.missing("packets", "limit `packets`, `bits`, or both, a second: such as `{ packets = 1000 }`");
    }
    police.finish(&[]);
    Some(Police { packets, bits })
}

fn rate(police: &Reader<'_>, key: &'static str, burst_key: &'static str, least: u64) -> Option<Rate> {
    let rate = police.number::<u64>(key, 1..=MOST);
    let burst = police.number::<u64>(burst_key, 1..=MOST);
    if police.key_span(key).is_none()
        && let Some(place) = police.key_span(burst_key)
    {
        police
            .findings
            .note(Kind::Conflict, format!("`{burst_key}` without `{key}`"))
            .at(place, "of what rate?")
            .help(format!("add `{key}`, or remove `{burst_key}`"))
            .keep();
    }
    let per_second = rate?.into_inner();
    let burst = burst.map_or_else(|| least.max(per_second / BURSTS_PER_SECOND), toml::Spanned::into_inner);
    Some(Rate { per_second, burst })
}
