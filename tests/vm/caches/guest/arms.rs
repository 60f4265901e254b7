//! The configurations that are compared: what scxprof says, what names alone would say, and one that is wrong on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
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
    /// As `scxprof score --json` says it, for scx_mitosis and for scx_layered.
    pub score: Value,
    pub layered: Value,
}

impl Arm {
    fn new(name: &'static str, groups: Groups) -> Self {
        Self { name, groups, score: Value::Null, layered: Value::Null }
    }
}

/// Makes all configurations from a profile of the workload.
pub fn make(profile: &str, llcs: u32, cpus: u32) -> Result<Vec<Arm>> {
    let samples = names_of(profile)?;
    let cpus = cpus.to_string();
    let extract = |share: Option<&str>| {
        let mut words =
            vec!["extract", "-f", profile, "--no-symbols", "--target-cpus", &cpus, "-o", "/tmp/extracted.json"];
        words.extend(share.iter().flat_map(|share| ["--min-share", share]));
        scxprof(&words)?;
        groups_of(&fs::read_to_string("/tmp/extracted.json")?)
    };
    let found = extract(None)?;
    let name = by_name(&samples);
    let (crossed, aligned) = (crossed(&found, &samples), aligned(&found, &samples, llcs));
    let mut arms = vec![
        Arm::new("none", Vec::new()),
        Arm::new("name", name),
        Arm::new("scxprof", found),
        Arm::new("aligned", aligned),
        Arm::new("crossed", crossed),
    ];
    for share in SHARES {
        arms.push(Arm::new("best", extract(Some(share))?));
    }
    let scores = score(&arms, mitosis, profile, llcs, &cpus)?;
    let of_layers = score(&arms, layered, profile, llcs, &cpus)?;
    for ((arm, score), layered) in arms.iter_mut().zip(scores).zip(of_layers) {
        arm.score = score;
        arm.layered = layered;
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
    // 4: samples were lost, which is said; the result is there. 5: there is none for this host.
    if matches!(out.status.code(), Some(0 | 4 | 5)) {
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
    let cells: Vec<Value> = serde_json::from_str(json)?;
    let rest = cells.iter().find(|cell| cell["matches"] == json!({})).context("no cell for the rest")?;
    let subcells = rest["subcells"].as_array().map_or(&[][..], Vec::as_slice);
    let groups = subcells.iter().map(|subcell| {
        let ors = subcell["matches"].as_array().map_or(&[][..], Vec::as_slice);
        ors.iter().filter_map(|ands| ands[0]["CommPrefix"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    });
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
    large.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut groups: Groups = large.into_iter().take(MOST_SUBCELLS).map(|(class, _)| vec![class.to_owned()]).collect();
    // The first that matches takes a thread, so the longer prefix stands first.
    groups.sort_by_key(|group| std::cmp::Reverse(group.first().map_or(0, String::len)));
    groups
}

/// The threads of each group dealt out to as many groups, two at least, so that those that share are apart.
fn crossed(groups: &Groups, samples: &BTreeMap<String, u64>) -> Groups {
    let names: BTreeSet<&str> = samples.keys().map(String::as_str).collect();
    // A name that another one begins with cannot be told apart.
    let alone = |name: &&str| !names.iter().any(|other| other != name && other.starts_with(*name));
    let mut dealt = vec![Vec::new(); groups.len().max(2)];
    let mut at = 0;
    for group in groups {
        let of_group =
            names.iter().copied().filter(|name| group.iter().any(|prefix| name.starts_with(prefix.as_str())));
        for name in of_group.filter(alone) {
            let count = dealt.len();
            if let Some(into) = dealt.get_mut(at % count).filter(|into| into.len() < MOST_NAMES) {
                into.push(name.to_owned());
            }
            at += 1;
        }
    }
    dealt.retain(|group| !group.is_empty());
    dealt
}

/// A place for each last-level cache: groups side by side, the largest first, each where fewest threads are. The first place is the
/// catch-all, which needs no names, so it is left out.
fn aligned(groups: &Groups, samples: &BTreeMap<String, u64>, llcs: u32) -> Groups {
    let threads = |group: &[String]| {
        samples.keys().filter(|name| group.iter().any(|prefix| name.starts_with(prefix.as_str()))).count()
    };
    let mut sorted: Vec<_> = groups.iter().map(|group| (threads(group), group)).collect();
    sorted.sort_by_key(|(threads, _)| std::cmp::Reverse(*threads));
    let mut places = vec![(0, Vec::new()); llcs.max(1) as usize];
    for (threads, group) in sorted {
        let room = |at: usize, names: &Vec<String>| at == 0 || names.len() + group.len() <= MOST_NAMES;
        let free = places.iter_mut().enumerate().filter(|(at, (_, names))| room(*at, names));
        // The last one where several have as few: the first has threads without a group too.
        if let Some((_, (count, names))) = free.rev().min_by_key(|(_, (count, _))| *count) {
            *count += threads;
            names.extend(group.iter().cloned());
        }
    }
    places.into_iter().skip(1).map(|(_, names)| names).filter(|names| !names.is_empty()).collect()
}

/// The score of each arm as a configuration that `write` makes, by one call.
fn score(arms: &[Arm], write: fn(&Groups) -> Value, profile: &str, llcs: u32, cpus: &str) -> Result<Vec<Value>> {
    let llcs = llcs.to_string();
    let mut words =
        vec!["score", "-f", profile, "--json", "--llcs", &llcs, "--target-cpus", cpus, "-o", "/tmp/score.json"];
    let mut files = Vec::new();
    for (at, arm) in arms.iter().enumerate() {
        let file = format!("/tmp/arm{at}.json");
        fs::write(&file, write(&arm.groups).to_string())?;
        files.push(file);
    }
    for file in &files {
        words.extend(["--config", file]);
    }
    scxprof(&words)?;
    let said: Value = serde_json::from_str(&fs::read_to_string("/tmp/score.json")?)?;
    let scores = said["configurations"].as_array().context("no configurations in the score")?;
    ensure!(scores.len() == arms.len(), "{} scores of {} configurations", scores.len(), arms.len());
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
pub fn mitosis(groups: &Groups) -> Value {
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

/// As a configuration of scx_layered, with layers as scxprof writes them.
pub fn layered(groups: &Groups) -> Value {
    let kind = json!({"Grouped": {"util_range": [0.5, 0.8], "growth_algo": "StickyDynamic"}});
    let mut layers: Vec<Value> = groups
        .iter()
        .enumerate()
        .map(|(at, group)| {
            let ors: Vec<Value> = group.iter().map(|prefix| json!([{"CommPrefix": prefix}])).collect();
            json!({"name": format!("group{at}"), "matches": ors, "kind": kind})
        })
        .collect();
    layers.push(json!({"name": "rest", "matches": [[]], "kind": {"Open": {}}}));
    Value::Array(layers)
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
        let crossed = crossed(&found, &names);
        assert_eq!(crossed, groups(&[&["get-a", "put-b"], &["put-a", "pool-1"], &["get-b", "pool-2"]]));
        // One group becomes two.
        assert_eq!(super::crossed(&groups(&[&["pool"]]), &names), groups(&[&["pool-1"], &["pool-2"]]));
    }

    #[test]
    fn aligned_groups_are_whole_and_as_many_as_caches() {
        let names = samples(&[("a1", 1), ("a2", 1), ("a3", 1), ("b1", 1), ("b2", 1), ("c1", 1), ("x", 1), ("y", 1)]);
        let found = groups(&[&["a"], &["b1", "b2"], &["c1"], &["x", "y"]]);
        // The catch-all has b, x and y: four threads, as a and c.
        assert_eq!(aligned(&found, &names, 2), groups(&[&["a", "c1"]]));
        assert_eq!(aligned(&found, &names, 1), groups(&[]));
        let all = aligned(&found, &names, 8);
        assert_eq!(all, groups(&[&["c1"], &["x", "y"], &["b1", "b2"], &["a"]]));
    }

    #[test]
    fn a_configuration_has_the_groups_that_it_was_made_of() {
        for groups in [groups(&[]), groups(&[&["a", "b"], &["c"]])] {
            assert_eq!(groups_of(&mitosis(&groups).to_string()).unwrap(), groups);
        }
        assert_eq!(layered(&groups(&[&["a"]]))[1]["matches"], json!([[]]));
    }
}
