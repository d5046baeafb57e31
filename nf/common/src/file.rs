// SPDX-License-Identifier: Apache-2.0
//! Configuration files with one entry on each line, and errors that name the line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A line is wrong.
    #[error(transparent)]
    Line(#[from] LineError),
}

/// A malformed line of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub problem: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.problem)
    }
}

impl std::error::Error for LineError {}

/// The content of a configuration file. Empty lines, lines that begin with `#`, and text after ` #` are comments.
#[derive(Clone, Debug)]
pub struct Lines {
    path: PathBuf,
    text: String,
}

impl Lines {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ConfigError::Read`] with the path and the kernel's error.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Ok(Self::from_text(path, text))
    }

    /// Uses `text` as the content of `path`.
    #[must_use]
    pub fn from_text(path: &Path, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }

    /// Parses each line that is not a comment.
    ///
    /// # Errors
    /// The first error of `parse`, with its line.
    pub fn parse<T>(&self, mut parse: impl FnMut(&str) -> Result<T, String>) -> Result<Vec<T>, ConfigError> {
        let mut entries = Vec::new();
        for (line, text) in self.entries() {
            entries.push(parse(text).map_err(|problem| self.error(line, problem))?);
        }
        Ok(entries)
    }

    /// Lines that are not comments, with their numbers from 1.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.text.lines().zip(1..).map(|(text, line)| (line, without_comment(text)));
        numbered.filter(|(_, text)| !text.is_empty())
    }

    /// An error in a line.
    #[must_use]
    pub fn error(&self, line: usize, problem: String) -> ConfigError {
        LineError { path: self.path.clone(), line, problem }.into()
    }
}

fn without_comment(line: &str) -> &str {
    let comment = line
        .char_indices()
        .find(|(at, c)| *c == '#' && line[..*at].chars().next_back().is_none_or(char::is_whitespace));
    line[..comment.map_or(line.len(), |(at, _)| at)].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_are_not_entries() {
        let lines = Lines::from_text(Path::new("f"), "# all\n\n a b # rest\n\t# tab\nc#d\n");
        assert_eq!(lines.entries().collect::<Vec<_>>(), [(3, "a b"), (5, "c#d")]);
    }

    #[test]
    fn an_error_names_file_and_line() {
        let lines = Lines::from_text(Path::new("/etc/x.rules"), "1\n\ntwo\n");
        let error = lines.parse(|text| text.parse::<u8>().map_err(|e| format!("`{text}`: {e}"))).unwrap_err();
        assert_eq!(error.to_string(), "/etc/x.rules:3: `two`: invalid digit found in string");
        let error = Lines::read(Path::new("/nonexistent/x")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/x: "), "{error}");
    }
}
