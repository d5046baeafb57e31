// SPDX-License-Identifier: Apache-2.0
//! Parses the chain of a replay from the command line.

/// Splits a chain at its commas, and each NF into its program and arguments as a shell does: quotes keep commas and
/// blanks together. `None` if a quote is not closed, or the text ends with a backslash.
pub(super) fn commands(text: &str) -> Option<Vec<Vec<String>>> {
    let mut parts = vec![String::new()];
    let (mut quote, mut is_escaped) = (None, false);
    for c in text.chars() {
        let is_separator = c == ',' && quote.is_none() && !is_escaped;
        match (c, quote) {
            _ if is_escaped => is_escaped = false,
            ('\\', None | Some('"')) => is_escaped = true,
            ('"' | '\'', None) => quote = Some(c),
            (_, Some(open)) if open == c => quote = None,
            _ => {}
        }
        match parts.last_mut() {
            Some(last) if !is_separator => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.iter().map(|part| shlex::split(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_commas_and_blanks() {
        let found = commands(r#"scan --words 'a,b' "c d",monitor,x\,y"#).unwrap();
        assert_eq!(found, [vec!["scan", "--words", "a,b", "c d"], vec!["monitor"], vec!["x,y"]]);
        assert_eq!(commands("a,,b").unwrap()[1], Vec::<String>::new());
        assert_eq!(commands("scan 'a"), None);
        assert_eq!(commands("scan \\"), None);
    }
}
