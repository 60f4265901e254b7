//! The layers of the source, which are the folders and files directly below `src`: each uses only those below it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest; those of one line do not use each other.
const ROOMS: &[&[&str]] = &[
    &["timeline", "hint"],
    &["host", "cluster"],
    &["bpf", "config"],
    &["report", "evidence"],
    &["stacks"],
    &["sampler"],
    &["resolve"],
    &["outcome"],
    &["profile"],
    &["session"],
    &["doctor", "replay"],
    &["cli"],
    &["testing"],
];

/// The files of Rust below `dir`.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The layers that a file uses; comments, and the tests at its end, may name any.
fn named(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    assert!(!code.contains("crate::{"), "rooms are named one by one");
    let of = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    code.split("crate::").skip(1).map(of).filter(|name| !name.is_empty()).collect()
}

#[test]
fn no_room_knows_one_beside_it_or_above() {
    let level: BTreeMap<&str, usize> =
        ROOMS.iter().enumerate().flat_map(|(level, rooms)| rooms.iter().map(move |room| (*room, level))).collect();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().display().to_string();
        let room = name.split('/').next().unwrap().trim_end_matches(".rs");
        if ["lib", "main"].contains(&room) || name.ends_with("tests.rs") {
            continue;
        }
        let Some(own) = level.get(room) else {
            wrong.push(format!("{name} is in no room that is known here"));
            continue;
        };
        for other in named(&fs::read_to_string(&file).unwrap()).iter().filter(|other| *other != room) {
            match level.get(other.as_str()) {
                Some(level) if level < own => {}
                Some(_) => wrong.push(format!("{name} knows {other}, which is not below it")),
                // An item of the crate's root.
                None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_room_that_is_named_is_found() {
    let text = "use crate::host::{self, Roots}; // crate::cli\nlet x = crate::sample::Sample::default();\n\
                #[cfg(test)]\nmod tests {\n    use crate::session;";
    assert_eq!(named(text), ["host", "sample"]);
}
