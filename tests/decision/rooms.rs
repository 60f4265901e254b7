//! The layers of the source: each folder and file directly below `src` uses only those below it, and no files import each other
//! in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest; those of one line do not use each other.
const ROOMS: &[&[&str]] = &[
    &["timeline", "hint", "memory"],
    &["host", "cluster"],
    &["bpf", "config"],
    &["report", "evidence"],
    &["stacks"],
    &["sampler"],
    &["resolve"],
    &["sinks"],
    &["decider"],
    &["outcome"],
    &["profile"],
    &["session"],
    &["doctor"],
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

/// Files by their names below the `src` of a crate, with their texts; without tests, and without those that open everything to
/// others.
fn read(dir: &str) -> BTreeMap<String, String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let name = |file: &Path| file.strip_prefix(&src).unwrap().display().to_string();
    let files = files.iter().map(|file| (name(file), fs::read_to_string(file).unwrap()));
    files.filter(|(name, _)| !["lib.rs", "main.rs"].contains(&name.as_str()) && !name.ends_with("tests.rs")).collect()
}

fn room_of(name: &str) -> &str {
    name.split('/').next().unwrap().trim_end_matches(".rs")
}

/// A text without comments and the tests at its end, which may name any.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_end =
        |at: usize| lines[at] == "#[cfg(test)]" && lines.get(at + 1).is_some_and(|it| it.ends_with("mod tests {"));
    let code = (0..lines.len()).take_while(|&at| !is_end(at)).map(|at| lines[at]);
    code.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The layers that a file uses.
fn named(text: &str) -> Vec<String> {
    let code = code(text);
    assert!(!code.contains("crate::{"), "rooms are named one by one");
    let of = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    code.split("crate::").skip(1).map(of).filter(|name| !name.is_empty()).collect()
}

#[test]
fn no_room_knows_one_beside_it_or_above() {
    let level: BTreeMap<&str, usize> =
        ROOMS.iter().enumerate().flat_map(|(level, rooms)| rooms.iter().map(move |room| (*room, level))).collect();
    let mut wrong = Vec::new();
    for (name, text) in read("") {
        let room = room_of(&name);
        let Some(own) = level.get(room) else {
            wrong.push(format!("{name} is in no room that is known here"));
            continue;
        };
        for other in named(&text).iter().filter(|other| *other != room) {
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

/// The names of a path, such as `crate`, `host`, `Roots`.
type Names = Vec<String>;

/// A file: the paths in its code, and what it imports by the names that it has for that.
struct File {
    name: String,
    paths: Vec<Names>,
    imports: BTreeMap<String, Names>,
}

/// The words and marks of code.
fn tokens(mut code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    while let Some(first) = code.chars().next() {
        let word = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
        let size = if code.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
        tokens.extend(Some(&code[..size]).filter(|_| !first.is_whitespace()));
        code = &code[size..];
    }
    tokens
}

/// The paths of a `use` after those names, each with the name that the file has for it.
fn imports<'a>(tokens: &mut impl Iterator<Item = &'a str>, before: &[String], found: &mut Vec<(String, Names)>) {
    let mut path = before.to_vec();
    while let Some(token) = tokens.next() {
        match token {
            "::" => {}
            "{" => {
                imports(tokens, &path, found);
                path.clear();
            }
            "as" => found.extend(tokens.next().map(|name| (name.to_owned(), std::mem::take(&mut path)))),
            "," | "}" | ";" => {
                if path.len() > before.len() {
                    // `{self}` is what stands before it.
                    let size = path.len() - usize::from(path.len() > 1 && path.ends_with(&["self".to_owned()]));
                    path.truncate(size);
                    found.push((path[size - 1].clone(), path));
                }
                path = before.to_vec();
                if token != "," {
                    return;
                }
            }
            name => path.push(name.to_owned()),
        }
    }
}

fn parse(name: &str, text: &str) -> (Names, File) {
    let path = name.trim_end_matches(".rs").trim_end_matches("/mod");
    let module = path.split('/').map(str::to_owned).collect();
    let code = code(text);
    let mut tokens = tokens(&code).into_iter().peekable();
    let (mut found, mut paths) = (Vec::new(), Vec::new());
    while let Some(token) = tokens.next() {
        if token == "use" {
            imports(&mut tokens, &[], &mut found);
        } else if tokens.peek() == Some(&"::") {
            let mut path = vec![token.to_owned()];
            while tokens.next_if_eq(&"::").is_some() {
                path.extend(tokens.next().map(str::to_owned));
            }
            paths.push(path);
        }
    }
    paths.extend(found.iter().map(|it| it.1.clone()));
    (module, File { name: name.to_owned(), paths, imports: found.into_iter().collect() })
}

/// Files by their modules, and how many names the module of a room has: in a crate below `crates/` there is no room but the crate.
struct Sources(BTreeMap<Names, File>, usize);

impl Sources {
    /// A path in the module `own` from the crate's root on; `None` if its first name is no module.
    fn absolute(&self, own: &[String], path: &[String]) -> Option<Names> {
        let up = path.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (&own[..0], &path[1..]),
            "self" => (own, &path[1..]),
            "super" => (&own[..own.len().checked_sub(up)?], &path[up..]),
            name if self.0.contains_key(&[own, &[name.to_owned()]].concat()) => (own, path),
            _ => return None,
        };
        Some([base, rest].concat())
    }

    /// The module of the file that defines what `path` names in `own`; `None` if it names a module, or is no path in the crate.
    fn find(&self, own: &[String], path: &[String]) -> Option<&Names> {
        let known = || self.absolute(own, self.0[own].imports.get(path.first()?)?);
        let path = self.absolute(own, path).or_else(|| Some([&known()?[..], &path[1..]].concat()))?;
        let (module, file) = (0..=path.len()).rev().find_map(|size| self.0.get_key_value(&path[..size]))?;
        let (name, rest) = path[module.len()..].split_first()?;
        match file.imports.get(name) {
            Some(import) => self.find(module, &[import, rest].concat()),
            None => Some(module),
        }
    }

    /// What each file takes from others. A file that has a folder, and the files in it, are one: these may use what it defines.
    /// The file of a room itself is none of these: it lists what is in the room.
    fn arrows(&self) -> BTreeMap<&Names, BTreeMap<&Names, BTreeSet<&str>>> {
        let mut arrows: BTreeMap<_, BTreeMap<_, BTreeSet<_>>> = BTreeMap::new();
        for (own, file) in &self.0 {
            for path in &file.paths {
                let to = self.find(own, path).filter(|to| *to != own && (to.len() <= self.1 || !own.starts_with(to)));
                if let Some(to) = to {
                    arrows.entry(own).or_default().entry(to).or_default().insert(path.last().unwrap().as_str());
                }
            }
        }
        arrows
    }
}

/// The circles of files that import each other: a line for each file and other that it takes something from.
fn circles(files: &BTreeMap<String, String>, room: usize) -> Vec<String> {
    let sources = Sources(files.iter().map(|(name, text)| parse(name, text)).collect(), room);
    let arrows = sources.arrows();
    let leads = |from: &Names, to: &Names| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            let others = arrows.get(next).into_iter().flat_map(BTreeMap::keys);
            open.extend(others.filter(|other| seen.insert(**other)));
        }
        seen.contains(to)
    };
    let name = |module: &Names| &sources.0[module].name;
    let all = arrows.iter().flat_map(|(from, to)| to.iter().map(move |(to, names)| (*from, *to, names)));
    let back = all.filter(|(from, to, _)| leads(to, from));
    back.map(|(from, to, names)| format!("{} takes {names:?} from {}", name(from), name(to))).collect()
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let crates = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap();
    let crates = crates.map(|entry| format!("crates/{}", entry.unwrap().file_name().display()));
    for dir in crates.chain([String::new()]) {
        let files = read(&dir);
        assert!(!files.is_empty(), "{dir}");
        let found = circles(&files, usize::from(dir.is_empty()));
        assert!(
            found.is_empty(),
            "{dir}: these are in circles; move what they share below both:\n{}",
            found.join("\n")
        );
    }
}

#[test]
fn a_circle_is_found() {
    let circles = |files: &[(&str, &str)]| {
        circles(&files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(), 1)
    };
    let room = ("a/mod.rs", "mod low;\nmod up;\npub use low::Low;\npub use up::{up, Up as Top};");
    let up = ("a/up.rs", "use super::{low::{self, Low as L}};\nfn up() -> L { low::low() }\nstruct Up;");
    // What a room lists is of the file that defines it; comments and tests may name any.
    let below = "struct Low; // super::up::up\n#[cfg(test)]\nmod tests {\n    use crate::a::up;";
    assert_eq!(circles(&[room, up, ("a/low.rs", below)]), [""; 0]);
    for low in [
        "use super::{Top};",
        "use crate::a::{up::Up};",
        "type Low = super::up::Up;",
        "use super::up;\ntype Low = up::Up;",
    ] {
        assert_eq!(circles(&[room, up, ("a/low.rs", low)]).len(), 2, "{low}");
    }
    let found = circles(&[room, up, ("a/low.rs", "use super::Top;")]);
    assert_eq!(found, ["a/low.rs takes {\"Top\"} from a/up.rs", "a/up.rs takes {\"Low\", \"low\"} from a/low.rs"]);
    // What the file of a room defines is above all that it lists. Any other file and its folder are one.
    assert_eq!(circles(&[("a.rs", "pub use low::Low; struct A;"), ("a/low.rs", "use super::A;")]).len(), 2);
    assert_eq!(circles(&[("a/b.rs", "use low::Low; struct B;"), ("a/b/low.rs", "use super::B;")]), [""; 0]);
}
