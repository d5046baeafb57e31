// SPDX-License-Identifier: Apache-2.0
//! Text of others, for a terminal or a log. In: names, messages and files that an NF, a guest, a sender of packets or
//! an unknown author has written. Out: the same without characters that control a terminal (U+001B), reverse what
//! follows (U+202E), or cannot be seen (U+200B), which could make one thing look like another (Unicode TR 36,
//! CVE-2021-42574). They become U+FFFD.
#![forbid(unsafe_code)]

use std::borrow::Cow;

/// What stands for a character that is not shown.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Characters that are neither controls nor visible: Unicode's categories Cf, Zl and Zp, and default ignorable code
/// points.
const INVISIBLE: [(char, char); 24] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Whether a character is one that a reader sees, and only that.
#[must_use]
pub fn is_visible(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let at = INVISIBLE.partition_point(|(_, last)| *last < c);
    !c.is_control() && INVISIBLE.get(at).is_none_or(|(first, _)| c < *first)
}

/// One line of text.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    replaced(text, is_visible)
}

/// Text with line breaks and tabs.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| is_visible(c) || matches!(c, '\n' | '\t'))
}

/// [`lines`] in which a program of ours has set colours and weights for a terminal; other sequences for terminals, such
/// as those that hide text, go.
#[must_use]
pub fn styled(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return lines(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        out.push_str(&lines(&rest[..at]));
        let style = style_at(&rest[at..]);
        match style {
            Some(length) => out.push_str(&rest[at..at + length]),
            None => out.push(REPLACEMENT),
        }
        rest = &rest[at + style.unwrap_or(1)..];
    }
    out.push_str(&lines(rest));
    Cow::Owned(out)
}

/// Text in which each character that is not shown is replaced by as many bytes as it has, so that places in it keep
/// their numbers. Line breaks and tabs stay, carriage returns before line breaks, too.
#[must_use]
pub fn same_length(text: &str) -> Cow<'_, str> {
    let is_kept = |c: char, next: Option<char>| {
        is_visible(c) || matches!(c, '\n' | '\t') || (c == '\r' && next == Some('\n'))
    };
    let followed = || text.chars().zip(text.chars().skip(1).map(Some).chain([None]));
    if followed().all(|(c, next)| is_kept(c, next)) {
        return Cow::Borrowed(text);
    }
    let shown = |(c, next): (char, Option<char>)| match c.len_utf8() {
        _ if is_kept(c, next) => c.to_string(),
        3 => REPLACEMENT.to_string(),
        // A visible character of two bytes.
        2 => "¿".to_owned(),
        4 => format!("{REPLACEMENT}?"),
        _ => "?".to_owned(),
    };
    Cow::Owned(followed().map(shown).collect())
}

fn replaced(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&is_kept) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if is_kept(c) { c } else { REPLACEMENT }).collect())
}

/// Bytes of the sequence at the start of `text` if it sets a colour of the foreground, or a weight (ECMA-48, SGR).
fn style_at(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    if !parameters[end..].starts_with('m') {
        return None;
    }
    let mut codes = parameters[..end].split(';');
    while let Some(code) = codes.next() {
        match code.parse().unwrap_or(0_u8) {
            0..=4 | 22..=24 | 30..=37 | 39 | 90..=97 => {}
            // A colour of 256, by its number.
            38 if codes.next() == Some("5") && codes.next().is_some() => {}
            _ => return None,
        }
    }
    Some("\u{1b}[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_not_shown() {
        for c in [
            '\u{1b}',
            '\u{0}',
            '\u{7f}',
            '\u{9b}',
            '\u{200b}',
            '\u{202e}',
            '\u{2066}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            assert!(!is_visible(c), "{c:?}");
            assert_eq!(line(&format!("a{c}b")), "a\u{fffd}b");
            assert_eq!(same_length(&format!("a{c}b\n")).len(), format!("a{c}b\n").len());
            assert!(same_length(&format!("{c}\n")).chars().all(|c| is_visible(c) || c == '\n'));
        }
        for text in ["uplink", "Büro", "日本語", "🙂", "×╭─"] {
            assert!(matches!(line(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(line("a\nb\t"), "a\u{fffd}b\u{fffd}");
        assert_eq!(lines("a\nb\t\r\n"), "a\nb\t\u{fffd}\n");
        assert!(matches!(same_length("a\r\n\tb\n"), Cow::Borrowed(_)));
        assert_eq!(same_length("\r\u{85}"), "?¿");
        assert!(INVISIBLE.windows(2).all(|pair| pair[0].1 < pair[1].0), "in order");
    }

    #[test]
    fn only_harmless_styles_stay() {
        let fine = "\u{1b}[1;31mred\u{1b}[0m \u{1b}[38;5;9mand\u{1b}[39m";
        assert_eq!(styled(fine), fine);
        for sequence in ["[2J", "]0;title\u{7}", "[8m", "[30;40m", "[38;2;1;1;1m", "c", ""] {
            let text = styled(&format!("a\u{1b}{sequence}b")).into_owned();
            assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{sequence}: {text:?}");
        }
        assert_eq!(styled("x\u{202e}\n"), "x\u{fffd}\n");
    }
}
