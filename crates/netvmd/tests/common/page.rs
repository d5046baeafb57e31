// SPDX-License-Identifier: Apache-2.0
//! Code blocks of documentation.

/// The code blocks of a page in this language, without indentation.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim() == format!("```{language}") {
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            found.push(block.map(|line| format!("{}\n", line.trim())).collect());
        }
    }
    found
}
