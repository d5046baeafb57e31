// SPDX-License-Identifier: Apache-2.0
//! Words: enums whose values are words in the file and in JSON, each listed once by `words!`; and the known word that
//! is nearest to an unknown one ("did you mean").

/// An enum whose values are words in the file.
pub trait Words: Copy + PartialEq + 'static {
    /// Every value with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// The word in the file.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, known)| *known == self).map_or("", |(word, _)| word)
    }
}

/// The words of an enum, in the file and in JSON.
macro_rules! words {
    ($type:ident: $($word:literal => $value:ident),+) => {
        impl crate::words::Words for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),+];
        }

        impl $type {
            /// The word in the configuration.
            #[must_use]
            pub fn word(self) -> &'static str {
                crate::words::Words::word(self)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                match &*word {
                    $($word => Ok(Self::$value),)+
                    _ => Err(serde::de::Error::unknown_variant(&word, &[$($word),+])),
                }
            }
        }
    };
}
pub(crate) use words;

/// Letters that a part of a known word must have to stand for it.
const MIN_PART_LETTERS: usize = 3;

/// The nearest of `known`, if it is near enough for a typing error (one edit in three characters), else the
/// only known word that contains it.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let folded = fold(word);
    let slip = known
        .clone()
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&folded, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (word.len().max(candidate.len()) / 3).clamp(1, 4))
        .min_by_key(|(distance, _)| *distance);
    let part = || {
        let mut whole =
            known.into_iter().filter(|known| folded.len() >= MIN_PART_LETTERS && known.contains(&folded));
        whole.next().filter(|_| whole.next().is_none())
    };
    slip.map(|(_, candidate)| candidate).or_else(part)
}

/// The names nearest to an unknown one, the nearest first; at most three.
#[must_use]
pub fn nearest_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let folded = fold(name);
    let mut ranked: Vec<(usize, &str)> = known
        .into_iter()
        .map(|candidate| {
            let other = fold(candidate);
            let is_part = !folded.is_empty() && (other.contains(&folded) || folded.contains(&other));
            (if is_part { 0 } else { strsim::osa_distance(&folded, &other) }, candidate)
        })
        .collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}

/// Makes `Buffer-Size` equal to `buffer_size`.
fn fold(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

/// The remedy for an unknown word: the nearest known one, else all of them.
#[must_use]
pub fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
    what: &str,
) -> Option<String> {
    if let Some(candidate) = nearest(word, known.clone()) {
        return Some(format!("did you mean `{candidate}`?"));
    }
    let all: Vec<String> = known.into_iter().map(|candidate| format!("`{candidate}`")).collect();
    if all.is_empty() { None } else { Some(format!("{what} are {}", all.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["hops", "name", "on_failure", "output"];
        for (word, expected) in [
            ("hop", Some("hops")),
            ("hpos", Some("hops")),
            ("on-failure", Some("on_failure")),
            ("OnFailure", Some("on_failure")),
            ("outputs", Some("output")),
            ("out", Some("output")),
            ("failure", Some("on_failure")),
            ("o", None),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(
            did_you_mean("colour", known, "keys").unwrap(),
            "keys are `hops`, `name`, `on_failure`, `output`"
        );
    }
}
