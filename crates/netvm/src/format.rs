// SPDX-License-Identifier: Apache-2.0
//! Formats numbers, times and labels.

use std::collections::BTreeMap;

/// `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate per second with an SI prefix, such as `14.88 M`.
pub fn rate(per_second: f64) -> String {
    // No -0, which is the sum of nothing.
    let per_second = per_second.max(0.0) + 0.0;
    for (scale, prefix) in [(1e9, " G"), (1e6, " M"), (1e3, " k")] {
        if per_second >= scale {
            return format!("{:.2}{prefix}", per_second / scale);
        }
    }
    format!("{per_second:.0}")
}

/// Bytes with a binary prefix, such as `32 MiB`.
pub fn bytes(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
        if whole > 0 {
            return if rest == 0 {
                format!("{whole} {unit}")
            } else {
                format!("{:.1} {unit}", bytes as f64 / f64::from(1u32 << shift))
            };
        }
    }
    format!("{bytes} B")
}

/// Seconds in the two largest units, such as `3 h 12 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", whole % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Labels, such as `app=web tier=front`.
pub fn labels(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// A cell of a table: a dash for nothing.
pub fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// `1 port`, `2 ports`.
pub fn plural(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [0, 12, 999, 1000, 1_234_567, u64::MAX].map(count),
            ["0", "12", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]
        );
        assert_eq!(
            [-0.0, 0.4, 999.0, 1500.0, 14.88e6, 2e9].map(rate),
            ["0", "0", "999", "1.50 k", "14.88 M", "2.00 G"]
        );
        assert_eq!(
            [0, 1023, 2048, 1 << 25, (1 << 30) + (1 << 29)].map(bytes),
            ["0 B", "1023 B", "2 KiB", "32 MiB", "1.5 GiB"]
        );
        assert_eq!([0.5, 61.0, 3600.0, 90_000.0].map(duration), ["0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
        assert_eq!([1, 2].map(|n| plural(n, "port")), ["1 port", "2 ports"]);
    }
}
