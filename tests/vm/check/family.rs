//! Checks the memory that accesses of kernel code are to, by what programs of tests/sharing say of their threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{ensure, Context, Result};
use serde_json::Value;

/// The accesses of a file that are needed of each group.
const WANTED: usize = 20;
/// The devices of files are below; objects of the kernel have one above (docs/profile.md, `memory`).
const NO_FILE: u64 = 1 << 52;

/// `vm-check family LINES OUTPUT`: LINES are those of `scxprof process`, OUTPUT is what a program printed whose groups read a file each.
pub fn check(arguments: &[String]) -> Result<()> {
    let [lines, output] = arguments else { anyhow::bail!("vm-check family LINES OUTPUT") };
    let text = |path: &String| fs::read_to_string(path).with_context(|| path.clone());
    let output = text(output)?;
    // thread group=G pid=P tid=T name=N
    let groups: BTreeMap<u64, &str> = output
        .lines()
        .filter_map(|line| {
            let field =
                |name: &str| line.strip_prefix("thread ")?.split(' ').find_map(|field| field.strip_prefix(name));
            Some((field("tid=")?.parse().ok()?, field("group=").filter(|group| *group != "-")?))
        })
        .collect();
    // By group the files, and how often each was accessed; other threads are of the group "".
    let mut files: BTreeMap<&str, BTreeMap<u64, usize>> = BTreeMap::new();
    for line in text(lines)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let is_of_kernel = line["addr"].as_str().is_some_and(|addr| addr.len() == 16 && addr >= "8");
        let (Some(device), Some(inode)) = (line["dev"].as_u64(), line["ino"].as_u64()) else { continue };
        if is_of_kernel && device < NO_FILE {
            let group = line["tid"].as_u64().and_then(|tid| groups.get(&tid)).copied().unwrap_or_default();
            *files.entry(group).or_default().entry(inode).or_default() += 1;
        }
    }
    let names: BTreeSet<&str> = groups.values().copied().collect();
    let mut known = BTreeSet::new();
    for name in names {
        let of_group = files.get(name).with_context(|| format!("no access of {name}: {files:?}"))?;
        let most = of_group.iter().max_by_key(|(_, count)| **count);
        let (inode, count) = most.with_context(|| format!("no file of {name}"))?;
        ensure!(*count >= WANTED, "only {count} accesses of the file of {name}: {files:?}");
        ensure!(known.insert(*inode), "{name} has the file of another group: {files:?}");
    }
    for (name, of_group) in &files {
        let shared: Vec<&u64> = of_group.keys().filter(|inode| known.contains(*inode)).collect();
        ensure!(shared.len() == usize::from(!name.is_empty()), "\"{name}\" accesses files of others: {files:?}");
    }
    println!("family: each group reads its own file, and nobody else does");
    Ok(())
}
