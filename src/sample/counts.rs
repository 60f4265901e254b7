//! Prints loss counts as sentences.

/// A sentence for each count that is not 0.
pub(crate) fn sentences(counts: &[(u64, &str)]) -> Vec<String> {
    counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
}
