//! "Did you mean": the known word that is nearest to the one written.

/// The nearest of `known`, if it is near enough for a slip: one edit in three characters.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(word);
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&folded, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= word.len().max(candidate.len()).div_ceil(3).min(4))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `Cell-Size` is as good as `cell_size`.
fn fold(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

/// The remedy for an unknown word: the nearest known one, else all of them.
pub(crate) fn did_you_mean<'a>(
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
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["hops", "name", "on_failure", "output"];
        for (word, expected) in [
            ("hop", Some("hops")),
            ("hpos", Some("hops")),
            ("on-failure", Some("on_failure")),
            ("OnFailure", Some("on_failure")),
            ("outputs", Some("output")),
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
