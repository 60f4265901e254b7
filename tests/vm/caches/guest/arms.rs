//! The configurations that are compared: what scxprof says, what names alone would say, and one that is wrong on purpose.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use scxprof::config::layered::{to_json, Layer, LayerKind, LayerMatch};
use scxprof::config::{self, CellMatch};
use serde_json::{json, Value};

/// Of the samples of its cell a name must have this part to have a subcell: the rule of the tool that scxprof replaces.
const LEAST: f64 = 0.05;
/// What scx_mitosis takes: subcells of a cell without the catch-all, and names of a subcell.
const MOST_SUBCELLS: usize = 7;
const MOST_NAMES: usize = 4;
/// The candidates for the best by score: `--min-share` of each, in percent.
const SHARES: [&str; 3] = ["0.5", "3", "10"];

/// A set of groups: each is a list of prefixes of names.
pub type Groups = Vec<Vec<String>>;

/// What is compared.
#[derive(Debug, Clone)]
pub struct Arm {
    pub name: &'static str,
    pub groups: Groups,
    /// The configuration for scx_mitosis, and what `scxprof score --json` says of it.
    pub mitosis: String,
    pub score: Value,
    /// The same by samples of kernel code too, where there are any.
    pub kernel_score: Value,
    /// The same for scx_layered.
    pub layered: String,
    pub layered_score: Value,
}

impl Arm {
    fn new(name: &'static str, groups: Groups, cpus: u32) -> Result<Self> {
        let (mitosis, layered) = (mitosis(&groups).to_string(), layered(&groups, cpus)?);
        Ok(Self::of(name, groups, mitosis, layered))
    }

    const fn of(name: &'static str, groups: Groups, mitosis: String, layered: String) -> Self {
        let [score, kernel_score, layered_score] = [Value::Null, Value::Null, Value::Null];
        Self { name, groups, mitosis, score, kernel_score, layered, layered_score }
    }

    /// What `scxprof extract` prints with these words, for the machine of the profile.
    fn printed(name: &'static str, profile: &str, words: &[&str]) -> Result<Self> {
        let extract = |target: &str| {
            let mut all =
                vec!["extract", "-f", profile, "--no-symbols", "--target", target, "-o", "/tmp/extracted.json"];
            all.extend(words);
            scxprof(&all)?;
            anyhow::Ok(fs::read_to_string("/tmp/extracted.json")?)
        };
        let (mitosis, layered) = (extract("mitosis")?, extract("layered")?);
        let groups = groups_of(&mitosis)?;
        Ok(Self::of(name, groups, mitosis, layered))
    }
}

/// Makes all configurations from a profile of the workload, and from another one with kernel code, if there is one.
pub fn make(profile: &str, kernel: Option<&str>, llcs: u32, cpus: u32) -> Result<Vec<Arm>> {
    let samples = names_of(profile)?;
    let found = Arm::printed("scxprof", profile, &[])?;
    let each = Arm::printed("each", profile, &["--target-llcs", "1"])?;
    let mut arms = vec![
        Arm::new("none", Vec::new(), cpus)?,
        Arm::new("name", by_name(&samples), cpus)?,
        Arm::new("crossed", crossed(&each.groups, llcs as usize, &samples), cpus)?,
        found,
        each,
    ];
    for share in SHARES {
        arms.push(Arm::printed("best", profile, &["--min-share", share])?);
    }
    if let Some(kernel) = kernel {
        arms.push(Arm::printed("kernel", kernel, &[])?);
        let scores = score(arms.iter().map(|arm| &*arm.mitosis), kernel, ("known", &[]))?;
        arms.iter_mut().zip(scores).for_each(|(arm, score)| arm.kernel_score = score);
    }
    let caches = llcs.to_string();
    let of_mitosis = score(arms.iter().map(|arm| &*arm.mitosis), profile, ("known", &[]))?;
    // scx_layered gives layers CPUs as they use them, so their order is not known.
    let of_layered = score(arms.iter().map(|arm| &*arm.layered), profile, ("random", &["--llcs", &caches]))?;
    for ((arm, of_mitosis), of_layered) in arms.iter_mut().zip(of_mitosis).zip(of_layered) {
        arm.score = of_mitosis;
        arm.layered_score = of_layered;
    }
    Ok(with_best(arms))
}

/// Of the candidates for the best the one with the highest score is left, and none where scxprof's own has that too.
fn with_best(arms: Vec<Arm>) -> Vec<Arm> {
    let mid = |arm: &Arm| arm.score["score"]["mid"].as_f64().unwrap_or(0.0);
    let (candidates, mut arms): (Vec<_>, Vec<_>) = arms.into_iter().partition(|arm| arm.name == "best");
    let own = arms.iter().filter(|arm| arm.name == "scxprof").map(&mid).fold(f64::MIN, f64::max);
    let best = candidates.into_iter().filter(|arm| mid(arm) > own + 0.001).max_by(|a, b| mid(a).total_cmp(&mid(b)));
    arms.extend(best);
    arms
}

fn scxprof(words: &[&str]) -> Result<()> {
    let out = Command::new("scxprof").args(words).stdin(Stdio::null()).output()?;
    // 4: samples were lost, which is said; the result is there.
    if matches!(out.status.code(), Some(0 | 4)) {
        return Ok(());
    }
    bail!("scxprof {}: {}: {}", words.join(" "), out.status, String::from_utf8_lossy(&out.stderr))
}

/// Samples by name of the thread. A sample may have several accesses.
fn names_of(profile: &str) -> Result<BTreeMap<String, u64>> {
    let lines = format!("{profile}.lines");
    scxprof(&["process", "-f", profile, "-o", &lines])?;
    let mut samples = BTreeSet::new();
    let mut names = BTreeMap::new();
    for line in fs::read_to_string(format!("{lines}/perf.jsonl")).context("the lines of the profile")?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let Some(name) = line["comm"].as_str() else { continue };
        if samples.insert((line["tid"].as_u64(), line["time"].to_string())) {
            *names.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    Ok(names)
}

/// The groups in a configuration of scx_mitosis for a host without cells.
fn groups_of(json: &str) -> Result<Groups> {
    let cells = config::mitosis::parse(json)?;
    let rest = cells.into_iter().find(|cell| cell.matches == CellMatch::All).context("no cell for the rest")?;
    let groups = rest.subcells.into_iter().map(|subcell| subcell.matches.into_iter().flatten().collect::<Vec<_>>());
    Ok(groups.filter(|group| !group.is_empty()).collect())
}

/// One group for each name, without the number at its end, that has enough samples.
fn by_name(samples: &BTreeMap<String, u64>) -> Groups {
    let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in samples {
        *classes.entry(name.trim_end_matches(|c: char| c.is_ascii_digit())).or_insert(0) += count;
    }
    let all: u64 = classes.values().sum();
    let mut large: Vec<(&str, u64)> =
        classes.into_iter().filter(|(class, count)| !class.is_empty() && *count as f64 >= LEAST * all as f64).collect();
    large.sort_by_key(|(_, count)| Reverse(*count));
    let mut groups: Groups = large.into_iter().take(MOST_SUBCELLS).map(|(class, _)| vec![class.to_owned()]).collect();
    // The first that matches takes a thread, so the longer prefix stands first.
    groups.sort_by_key(|group| Reverse(group.first().map_or(0, String::len)));
    groups
}

/// The threads of each group dealt out to as many places as there are caches, the catch-all among them, so that those that share are on
/// different caches.
fn crossed(groups: &Groups, llcs: usize, samples: &BTreeMap<String, u64>) -> Groups {
    let names: BTreeSet<&str> = samples.keys().map(String::as_str).collect();
    // A name that another one begins with cannot be told apart.
    let alone = |name: &&str| !names.iter().any(|other| other != name && other.starts_with(*name));
    let threads_of = |group: &Vec<String>| -> Vec<&str> {
        let is_in = |name: &&str| group.iter().any(|prefix| name.starts_with(prefix.as_str()));
        names.iter().copied().filter(is_in).filter(alone).collect()
    };
    let mut threads: Vec<Vec<&str>> = groups.iter().map(threads_of).collect();
    // A subcell has few names: those of large groups first, which are more pairs that share.
    threads.sort_by_key(|of_group| Reverse(of_group.len()));
    let mut dealt = vec![Vec::new(); llcs.saturating_sub(1)];
    // What comes last is left to the catch-all.
    for (name, at) in threads.concat().into_iter().zip((0..llcs).cycle()) {
        if let Some(into) = dealt.get_mut(at).filter(|into| into.len() < MOST_NAMES) {
            into.push(name.to_owned());
        }
    }
    dealt.retain(|group| !group.is_empty());
    dealt
}

/// The score of each configuration, by one call with these words, for the machine of the profile. The CPUs of groups must be in this
/// order: without the caches of the machine, neither scxprof's configuration nor the score would be what they are with them.
fn score<'a>(
    configs: impl Iterator<Item = &'a str>,
    profile: &str,
    (order, more): (&str, &[&str]),
) -> Result<Vec<Value>> {
    let mut words = vec!["score", "-f", profile, "--json", "-o", "/tmp/score.json"];
    words.extend(more);
    let mut files = Vec::new();
    for (at, config) in configs.enumerate() {
        let file = format!("/tmp/arm{at}.json");
        fs::write(&file, config)?;
        files.push(file);
    }
    for file in &files {
        words.extend(["--config", file]);
    }
    scxprof(&words)?;
    let said: Value = serde_json::from_str(&fs::read_to_string("/tmp/score.json")?)?;
    ensure!(said["order"] == order, "the order of {} caches is {}, and not {order}", said["llcs"], said["order"]);
    let scores = said["configurations"].as_array().context("no configurations in the score")?;
    ensure!(scores.len() == files.len(), "{} scores of {} configurations", scores.len(), files.len());
    let figure = |mid: &Value, low: &Value, high: &Value| {
        if mid.is_null() {
            Value::Null
        } else {
            json!({"mid": mid, "low": low, "high": high})
        }
    };
    let one = |score: &Value| {
        json!({
            "score": figure(&score["score"], &score["interval"][0], &score["interval"][1]),
            "locality": figure(&score["locality"], &Value::Null, &Value::Null),
            "avoidable": said["avoidable"],
        })
    };
    Ok(scores.iter().map(one).collect())
}

/// As a configuration of scx_mitosis: one cell, which is divided.
fn mitosis(groups: &Groups) -> Value {
    let mut cell = json!({"name": "rest", "matches": {}});
    if !groups.is_empty() {
        let mut subcells: Vec<Value> = groups
            .iter()
            .enumerate()
            .map(|(at, group)| {
                let ors: Vec<Value> = group.iter().map(|prefix| json!([{"CommPrefix": prefix}])).collect();
                json!({"name": format!("group{at}"), "matches": ors})
            })
            .collect();
        subcells.push(json!({"name": "rest", "matches": [[]]}));
        cell["subcells"] = Value::Array(subcells);
    }
    json!([cell])
}

/// As a configuration of scx_layered, with layers of the kinds that scxprof writes for communities and for all other threads.
fn layered(groups: &Groups, cpus: u32) -> Result<String> {
    let layer = |name: String, matches, kind| Layer { name, template: None, matches, kind };
    let of_group = |(at, group): (usize, &Vec<String>)| {
        let ors = group.iter().map(|prefix| vec![LayerMatch::CommPrefix(prefix.clone())]).collect();
        layer(format!("group{at}"), ors, LayerKind::community())
    };
    let mut layers: Vec<Layer> = groups.iter().enumerate().map(of_group).collect();
    layers.push(layer("rest".to_owned(), vec![Vec::new()], LayerKind::rest(cpus as usize)));
    Ok(to_json(&layers)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn groups(of: &[&[&str]]) -> Groups {
        of.iter().map(|group| group.iter().map(|name| (*name).to_owned()).collect()).collect()
    }

    #[test]
    fn names_make_groups_without_their_numbers() {
        let samples = samples(&[("pool-1", 30), ("pool-2", 29), ("web", 6), ("webserver12", 31), ("rare", 4)]);
        assert_eq!(by_name(&samples), groups(&[&["webserver"], &["pool-"], &["web"]]));
    }

    #[test]
    fn crossed_groups_have_no_two_that_share() {
        let names = samples(&[
            ("get-a", 1),
            ("put-a", 1),
            ("get-b", 1),
            ("put-b", 1),
            ("pool-1", 1),
            ("pool-2", 1),
            ("pool", 1),
        ]);
        let found = groups(&[&["put-a", "get-a"], &["get-b", "put-b"], &["pool"]]);
        let crossed = |found: &Groups, llcs| super::crossed(found, llcs, &names);
        assert_eq!(crossed(&found, 2), groups(&[&["get-a", "get-b", "pool-1"]]));
        assert_eq!(crossed(&found, 3), groups(&[&["get-a", "put-b"], &["put-a", "pool-1"]]));
        assert_eq!(crossed(&groups(&[&["pool"]]), 4), groups(&[&["pool-1"], &["pool-2"]]));
        assert_eq!(crossed(&groups(&[]), 2), groups(&[]));
    }

    #[test]
    fn a_configuration_has_the_groups_that_it_was_made_of() {
        for groups in [groups(&[]), groups(&[&["a", "b"], &["c"]])] {
            assert_eq!(groups_of(&mitosis(&groups).to_string()).unwrap(), groups);
        }
        let layers = config::layered::parse(&layered(&groups(&[&["a", "b"]]), 32).unwrap()).unwrap();
        assert_eq!(layers.iter().map(|layer| layer.matches.len()).collect::<Vec<_>>(), [2, 1]);
    }
}
