//! Prefixes: finds the few prefixes that take a set of names and no forbidden names.

use std::collections::BTreeMap;

use super::mitosis::MAX_ORS;
use crate::sample::Comm;

/// The base of a lone numbered name must be this long to be a prefix. "web1" suggests more "web", but the "x" of "x264" or the
/// "h" of "h2" would take unrelated names. The same holds for the common prefix of names.
const MIN_COMMON: usize = 3;

/// The prefixes for a set of names.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Cover {
    /// The prefixes, sorted; none is a prefix of another. At most [`MAX_ORS`].
    pub prefixes: Vec<String>,
    /// The names that they do not take.
    pub left_out: Vec<Comm>,
}

/// The name without the number at its end; a name of digits only is its own base.
pub(crate) fn base_of(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    match name.get(..name.len() - digits) {
        Some(base) if !base.is_empty() => base,
        _ => name,
    }
}

/// Finds prefixes for the names, each with its weight, that are `allowed`; if a prefix is allowed, longer ones must be too.
///
/// Names that differ only in the number at their end fold to their base, which also takes numbers without samples. If that is
/// not allowed, as many digits are kept as needed ("a1" and "a2" beside "apache"). If there are more prefixes than a subcell
/// takes, those with the longest common prefix are merged. If there are still too many, the names with the least weight are
/// left out.
pub(super) fn cover(names: &[(Comm, f64)], allowed: impl Fn(&str) -> bool) -> Cover {
    let mut of_base: BTreeMap<&[u8], usize> = BTreeMap::new();
    for (name, _) in names {
        *of_base.entry(base_of(name.as_bytes())).or_default() += 1;
    }
    let mut prefixes: Vec<String> = Vec::new();
    let mut left_out = Vec::new();
    for (name, _) in names {
        let base = base_of(name.as_bytes());
        let text = name.utf8_prefix();
        let lone = of_base.get(base).is_none_or(|&count| count < 2);
        let shortest = if lone && base.len() < MIN_COMMON { text.len() } else { base.len().min(text.len()) };
        let folded = (shortest.max(1)..=text.len()).filter_map(|len| text.get(..len)).find(|prefix| allowed(prefix));
        match folded {
            Some(prefix) => prefixes.push(prefix.to_owned()),
            None => left_out.push(*name),
        }
    }
    tidy(&mut prefixes);
    while prefixes.len() > MAX_ORS {
        let Some(joint) = most_in_common(&prefixes, &allowed) else { break };
        prefixes.push(joint);
        tidy(&mut prefixes);
    }
    if prefixes.len() > MAX_ORS {
        let weight = |prefix: &str| -> f64 {
            names.iter().filter(|(name, _)| name.as_bytes().starts_with(prefix.as_bytes())).map(|it| it.1).sum()
        };
        let mut by_weight: Vec<(f64, String)> = prefixes.iter().map(|it| (weight(it), it.clone())).collect();
        by_weight.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        by_weight.truncate(MAX_ORS);
        prefixes = by_weight.into_iter().map(|it| it.1).collect();
        prefixes.sort_unstable();
        let is_taken = |name: &Comm| prefixes.iter().any(|it| name.as_bytes().starts_with(it.as_bytes()));
        left_out = names.iter().map(|it| it.0).filter(|name| !is_taken(name)).collect();
    }
    Cover { prefixes, left_out }
}

/// Sorts the prefixes and drops those that have another one as prefix.
pub(super) fn tidy(prefixes: &mut Vec<String>) {
    prefixes.sort_unstable();
    prefixes.dedup_by(|later, kept| later.starts_with(kept.as_str()));
}

/// The longest common prefix of two prefixes that is long enough and allowed. They are sorted, so the two are neighbours.
fn most_in_common(prefixes: &[String], allowed: impl Fn(&str) -> bool) -> Option<String> {
    let mut found: Vec<&str> = prefixes.windows(2).filter_map(in_common).collect();
    found.sort_by_key(|common| std::cmp::Reverse(common.len()));
    found.into_iter().find(|common| allowed(common)).map(str::to_owned)
}

fn in_common(pair: &[String]) -> Option<&str> {
    let (a, b) = (pair.first()?, pair.get(1)?);
    let end = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b).map_or(a.len(), |((at, _), _)| at);
    a.get(..end).filter(|common| common.len() >= MIN_COMMON)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(names: &[&str], others: &[&str]) -> (Vec<String>, Vec<String>) {
        let names: Vec<_> = names.iter().map(|&name| (Comm::from(name), name.len() as f64)).collect();
        let cover = cover(&names, |prefix| !others.iter().any(|other| other.starts_with(prefix)));
        (cover.prefixes, cover.left_out.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn numbers_fold_where_they_may() {
        assert_eq!(covered(&["pool-1", "pool-2", "pool-10"], &[]).0, ["pool-"]);
        assert_eq!(covered(&["pool-1", "pool-2"], &["pool-3"]).0, ["pool-1", "pool-2"]);
        assert_eq!(covered(&["pool-11", "pool-12", "pool-2"], &["pool-3"]).0, ["pool-1", "pool-2"]);
        assert_eq!(covered(&["pool-11", "pool-2"], &["pool-10"]).0, ["pool-11", "pool-2"]);
        assert_eq!(covered(&["web1"], &["webserver"]).0, ["web1"]);
        assert_eq!(covered(&["x264"], &[]).0, ["x264"]);
    }

    #[test]
    fn what_others_begin_with_is_left_out() {
        assert_eq!(covered(&["web", "db"], &["webserver"]), (vec!["db".to_owned()], vec!["web".to_owned()]));
    }

    #[test]
    fn too_many_names_share_their_beginning() {
        let names = ["http-accept", "http-parse", "http-send", "log", "db"];
        assert_eq!(covered(&names, &[]).0, ["db", "http-", "log"]);
        assert_eq!(covered(&names, &["http-x"]).1, ["db"], "the lightest is left out");
        assert_eq!(covered(&["aa", "ab", "ac", "ad", "ae1"], &[]).1.len(), 1, "\"a\" says too little");
    }

    #[test]
    fn characters_stay_whole() {
        let names: Vec<String> = ["é", "è", "ê", "ë", "à"].iter().map(|it| format!("na{it}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(covered(&names, &[]).1.len(), 1);
    }
}
