//! How right a printed configuration is for the threads of a program: compares the scheduler's assignment with the truth.

use std::collections::{BTreeMap, BTreeSet};

use scxprof::config::mitosis::{self, MAX_SUBCELLS};
use scxprof::config::Consumer;
use scxprof::testing::cluster::quality::adjusted_rand_index;

/// A thread as its program describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// The same for all threads that share memory with it; `None` if it shares nothing.
    pub group: Option<String>,
    pub name: String,
    pub pid: u32,
    pub tid: u32,
}

/// The threads in what a program prints: lines `thread group=G pid=P tid=T name=N`, group `-` for a thread alone.
pub fn threads(text: &str) -> Vec<Thread> {
    let thread = |line: &str| {
        let fields: BTreeMap<&str, &str> =
            line.strip_prefix("thread ")?.split(' ').filter_map(|field| field.split_once('=')).collect();
        let group = fields.get("group").filter(|group| **group != "-").map(|group| (*group).to_owned());
        Some(Thread {
            group,
            name: (*fields.get("name")?).to_owned(),
            pid: fields.get("pid")?.parse().ok()?,
            tid: fields.get("tid")?.parse().ok()?,
        })
    };
    text.lines().filter_map(thread).collect()
}

/// The score of a configuration for a program's threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Adjusted Rand index over the threads; 1 if all is right.
    pub index: f64,
    /// Threads that are in one subcell with a thread of the program that they share nothing with.
    pub strangers: usize,
    /// Names of sharing threads that are together with no name they share with, though their group has others.
    pub lost: usize,
}

impl Score {
    pub fn is_right(&self) -> bool {
        self.index > 0.9999 && self.strangers == 0 && self.lost == 0
    }
}

/// Scores the scheduler's assignment of each thread in the cgroup `cgroup`.
///
/// The catch-all does not mean that its threads share: each is alone there. A cell has room for seven other subcells. If there
/// are more groups, those that are in the catch-all with all of their threads are right too.
///
/// # Errors
/// A configuration that the scheduler rejects.
pub fn score(threads: &[Thread], cgroup: &str, json: &str) -> Result<Score, String> {
    let cells = mitosis::parse(json).map_err(|error| error.to_string())?;
    let consumer = Consumer::new(&cells).map_err(|error| error.to_string())?;
    let place = |thread: &Thread| {
        let assigned = consumer.assign(cgroup.as_bytes(), thread.name.as_bytes());
        let cell = assigned.cell?;
        let subcell = assigned.subcell?;
        (!cells.get(cell)?.subcells.get(subcell)?.is_catch_all()).then_some((cell, subcell))
    };
    let places: Vec<_> = threads.iter().map(place).collect();
    Ok(of_places(threads, &places, MAX_SUBCELLS - 1))
}

/// Scores any assignment; threads without one are alone, except for complete groups if there are more than `room`.
pub fn of_places<P: Copy + Ord>(threads: &[Thread], places: &[Option<P>], room: usize) -> Score {
    let groups: BTreeSet<&str> = threads.iter().filter_map(|thread| thread.group.as_deref()).collect();
    let members = |group: &str| (0..threads.len()).filter(|&at| threads[at].group.as_deref() == Some(group)).collect();
    let unplaced = groups.iter().filter(|group| {
        let members: Vec<usize> = members(group);
        members.iter().all(|&at| places[at].is_none())
    });
    let forgiven: BTreeSet<&str> = unplaced.take(groups.len().saturating_sub(room)).copied().collect();

    let mut numbers: BTreeMap<P, u32> = BTreeMap::new();
    let mut of_forgiven: BTreeMap<&str, u32> = BTreeMap::new();
    let mut next = 0..;
    let mut fresh = || next.next().unwrap_or_default();
    let mut found = Vec::new();
    for (thread, place) in threads.iter().zip(places) {
        let group = thread.group.as_deref().filter(|group| forgiven.contains(group));
        found.push(match (place, group) {
            (Some(place), _) => *numbers.entry(*place).or_insert_with(&mut fresh),
            (None, Some(group)) => *of_forgiven.entry(group).or_insert_with(&mut fresh),
            (None, None) => fresh(),
        });
    }
    let truth = truth(threads);
    let index = adjusted_rand_index(&truth, &found);
    let pairs = |at: usize| (0..threads.len()).filter(move |&other| other != at);
    let is_stranger = |at: usize| pairs(at).any(|other| found[at] == found[other] && truth[at] != truth[other]);
    let strangers = (0..threads.len()).filter(|&at| is_stranger(at)).count();
    // A name is lost if none of its threads is with a thread of another name of its group, or with one of its own name if the
    // group has no other.
    let mut kept: BTreeMap<(u32, &str), bool> = BTreeMap::new();
    for at in 0..threads.len() {
        let mates: Vec<usize> = pairs(at).filter(|&other| truth[at] == truth[other]).collect();
        let others: Vec<usize> =
            mates.iter().copied().filter(|&other| threads[other].name != threads[at].name).collect();
        let mates = if others.is_empty() { mates } else { others };
        if !mates.is_empty() {
            *kept.entry((truth[at], &threads[at].name)).or_default() |=
                mates.iter().any(|&mate| found[mate] == found[at]);
        }
    }
    let lost = kept.values().filter(|kept| !**kept).count();
    Score { index, strangers, lost }
}

/// A number for each group and one for each thread alone.
fn truth(threads: &[Thread]) -> Vec<u32> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut next = 0..;
    let mut fresh = || next.next().unwrap_or_default();
    let mut labels = Vec::new();
    for thread in threads {
        labels.push(match &thread.group {
            Some(group) => *numbers.entry(group).or_insert_with(&mut fresh),
            None => fresh(),
        });
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads by name, the group before a colon.
    fn program(words: &str) -> Vec<Thread> {
        let line = |word: &str| {
            let (group, name) = word.split_once(':').unwrap();
            format!("thread group={group} pid=1 tid=2 name={name}\n")
        };
        threads(&words.split(' ').map(line).collect::<String>())
    }

    /// A configuration of one cell with these subcells of prefixes.
    fn cells(subcells: &[&[&str]]) -> String {
        let prefix = |prefix: &&str| format!(r#"[{{"CommPrefix": "{prefix}"}}]"#);
        let subcell = |(number, prefixes): (usize, &&[&str])| {
            let prefixes: Vec<String> = prefixes.iter().map(prefix).collect();
            format!(r#"{{"name": "s{number}", "matches": [{}]}}"#, prefixes.join(", "))
        };
        let mut subcells: Vec<String> = subcells.iter().enumerate().map(subcell).collect();
        subcells.push(r#"{"name": "rest", "matches": [[]]}"#.to_owned());
        format!(r#"[{{"name": "rest", "matches": {{}}, "subcells": [{}]}}]"#, subcells.join(", "))
    }

    fn of(words: &str, subcells: &[&[&str]]) -> (f64, usize, usize) {
        let score = score(&program(words), "/", &cells(subcells)).unwrap();
        let Score { index, strangers, lost } = score;
        assert_eq!(score.is_right(), index > 0.99 && strangers + lost == 0);
        ((index * 100.0).round() / 100.0, strangers, lost)
    }

    #[test]
    fn lines_are_read() {
        let read =
            threads("program threads=2\nthread group=0 pid=5 tid=6 name=put-a\nthread group=- pid=5 tid=7 name=s\n");
        let thread = |group: Option<&str>, name: &str, tid| Thread {
            group: group.map(str::to_owned),
            name: name.to_owned(),
            pid: 5,
            tid,
        };
        assert_eq!(read, [thread(Some("0"), "put-a", 6), thread(None, "s", 7)]);
    }

    #[test]
    fn what_is_right_and_what_is_not() {
        let two = "0:put-a 0:get-a 1:put-b 1:get-b -:solo";
        assert_eq!(of(two, &[&["put-a", "get-a"], &["put-b", "get-b"]]), (1.0, 0, 0));
        assert_eq!(of(two, &[&["put-a", "get-a"], &["put-b", "get-b"], &["solo"]]), (1.0, 0, 0));
        // The catch-all joins no threads.
        assert_eq!(of(two, &[&["put-a", "get-a"]]), (0.62, 0, 2));
        assert_eq!(of(two, &[]), (0.0, 0, 4));
        assert_eq!(of(two, &[&["put-", "get-"]]), (0.29, 4, 0));
        assert_eq!(of(two, &[&["put-a", "get-a", "solo"], &["put-b", "get-b"]]), (0.55, 3, 0));
        // By name alone.
        assert_eq!(of(two, &[&["put-a"], &["get-a"], &["put-b"], &["get-b"]]), (0.0, 0, 4));
        assert_eq!(of("-:solo-a -:solo-b", &[]), (1.0, 0, 0));
        assert_eq!(of("-:solo-a -:solo-b", &[&["solo"]]), (0.0, 2, 0));
    }

    #[test]
    fn a_name_of_several_threads_is_kept_with_another_of_its_group() {
        let group = "0:put-a 0:put-a 0:get-a";
        assert_eq!(of(group, &[&["put-a", "get-a"]]), (1.0, 0, 0));
        assert_eq!(of(group, &[&["put-a"]]), (0.0, 0, 2));
        assert_eq!(of("0:put-a 0:put-a", &[&["put-a"]]), (1.0, 0, 0), "it has no other name");
    }

    #[test]
    fn a_cell_has_room_for_seven() {
        let words: Vec<String> = ('a'..='i').map(|group| format!("{group}:put-{group} {group}:get-{group}")).collect();
        let names: Vec<[String; 2]> =
            ('a'..='i').map(|group| ["put", "get"].map(|it| format!("{it}-{group}"))).collect();
        let subcells: Vec<Vec<&str>> = names.iter().map(|names| names.iter().map(String::as_str).collect()).collect();
        let subcells: Vec<&[&str]> = subcells.iter().map(Vec::as_slice).collect();
        assert_eq!(of(&words[..8].join(" "), &subcells[..7]), (1.0, 0, 0), "the eighth has the catch-all");
        assert_eq!(of(&words.join(" "), &subcells[..7]), (1.0, 0, 0), "and so has the ninth, which nothing can help");
        let (index, strangers, lost) = of(&words[..8].join(" "), &subcells[..6]);
        assert!(index < 1.0 && (strangers, lost) == (0, 2), "one of the last two could have had a subcell");
    }
}
