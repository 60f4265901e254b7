//! Prints loss counts as sentences.

/// A sentence for each count that is not 0. It begins with what is counted, in the plural.
#[must_use]
pub fn sentences(counts: &[(u64, &str)]) -> Vec<String> {
    counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|&(count, what)| format!("{count} {}", noun(count, what)))
        .collect()
}

/// `what` with its first word in the singular if there is one of it.
fn noun(count: u64, what: &str) -> String {
    match what.split_once(' ') {
        Some((noun, rest)) if count == 1 => format!("{} {rest}", noun.strip_suffix('s').unwrap_or(noun)),
        _ => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_none_is_left_out() {
        let texts = sentences(&[(0, "rings given up"), (1, "samples lost"), (2, "samples late"), (1, "names")]);
        assert_eq!(texts, ["1 sample lost", "2 samples late", "1 names"]);
    }
}
