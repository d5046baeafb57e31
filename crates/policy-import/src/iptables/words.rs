// SPDX-License-Identifier: Apache-2.0
//! Splits lines of `iptables-save` into words.

use std::borrow::Cow;

/// A word and its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) text: Cow<'a, str>,
    /// From 1, in characters.
    pub(super) column: u32,
}

/// The column of an unclosed quotation mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenQuote(pub(super) u32);

/// The words of a line, separated by blanks outside quotation marks; inside, a backslash escapes the next character
/// (iptables-restore's `add_param_to_argv`).
pub(super) fn words(line: &str) -> Result<Vec<Word<'_>>, OpenQuote> {
    let mut words = Vec::new();
    let mut signs = (1..).zip(line.char_indices()).peekable();
    loop {
        while signs.next_if(|(_, (_, sign))| sign.is_whitespace()).is_some() {}
        let Some(&(column, (start, _))) = signs.peek() else { return Ok(words) };
        let mut text = Cow::Borrowed("");
        let mut end = start;
        let mut quote = None;
        while let Some((column, (at, sign))) =
            signs.next_if(|(_, (_, sign))| quote.is_some() || !sign.is_whitespace())
        {
            let next = at + sign.len_utf8();
            match sign {
                '"' => {
                    text = Cow::Owned(text.into_owned() + &line[end..at]);
                    end = next;
                    quote = if quote.is_some() { None } else { Some(column) };
                }
                '\\' if quote.is_some() => {
                    text = Cow::Owned(text.into_owned() + &line[end..at]);
                    end = next;
                    // The escaped character belongs to the following text.
                    let _ = signs.next();
                }
                _ => {}
            }
        }
        if let Some(column) = quote {
            return Err(OpenQuote(column));
        }
        let stop = signs.peek().map_or(line.len(), |(_, (at, _))| *at);
        text = if end == start { Cow::Borrowed(&line[start..stop]) } else { text + &line[end..stop] };
        words.push(Word { text, column });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<(String, u32)> {
        let words = words(line).unwrap();
        words.into_iter().map(|word| (word.text.into_owned(), word.column)).collect()
    }

    #[test]
    fn quotation_marks_hold_words_together() {
        let words = |list: &[(&str, u32)]| {
            list.iter().map(|(word, at)| ((*word).to_owned(), *at)).collect::<Vec<_>>()
        };
        assert_eq!(read(" a  b\t"), words(&[("a", 2), ("b", 5)]));
        assert_eq!(read(r#"x "a b" y"#), words(&[("x", 1), ("a b", 3), ("y", 9)]));
        assert_eq!(read(r#""a \"b\" \\ it\'s"c d"#), words(&[(r#"a "b" \ it'sc"#, 1), ("d", 21)]));
        assert_eq!(read(r#"a\b "" é é"#), words(&[(r"a\b", 1), ("", 5), ("é", 8), ("é", 10)]));
        assert_eq!(read(r#"a"b"c"#), words(&[("abc", 1)]));
        assert_eq!(read(""), []);
        assert_eq!(super::words(r#"a "b"#), Err(OpenQuote(3)));
        assert_eq!(super::words(r#"a "b\""#), Err(OpenQuote(3)));
    }
}
