//! Refuses an output that is an input of the same command: the result would replace what it is made of.

use super::failure::Failure;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::anyhow;
use clap::ArgMatches;

/// The options and arguments that name what a command reads. With the next two lists these are all that name a path; a test sees
/// to it.
const INPUTS: &[&str] =
    &["file", "profile", "diff", "config", "configs", "compare", "a", "b", "files", "scored", "token_file"];
/// Those that name a file that a command writes, by the names that a user knows.
const OUTPUTS: &[(&str, &str)] = &[
    ("output", "-o"),
    ("report", "--report"),
    ("html", "--html"),
    ("sharing_csv", "--sharing-csv"),
    ("prometheus", "--prometheus"),
    ("evidence", "--evidence"),
    ("perfetto", "--perfetto"),
    ("folded", "--folded"),
    ("flame_graph", "--flame-graph"),
    ("pprof", "--pprof"),
    ("firefox", "--firefox"),
    ("csv", "--csv"),
    ("jsonl", "--jsonl"),
    ("metrics", "--metrics"),
    ("archive", "-f"),
];
/// Files beside a profile's records that are read with them.
const BESIDE: [&str; 4] = ["meta.json", "recovered.jsonl", "hints.jsonl", crate::profile::thread_cgroups::NAME];

/// The identity of a file, whatever its name.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Option<Identity> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// The files that are read if `path` is an input: of a directory all that a profile or tables may have.
fn read_of(path: &Path) -> BTreeSet<Identity> {
    let Ok(metadata) = path.metadata() else { return BTreeSet::new() };
    if !metadata.is_dir() {
        return identity(&metadata).into_iter().collect();
    }
    // The records may be in the only directory below; others are no parts of profiles.
    let entries = |path: &Path| path.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let below = entries(path).filter(|path| path.is_dir()).take(1).collect::<Vec<_>>();
    let files = entries(path).chain(below.iter().flat_map(|path| entries(path))).filter(|path| is_of_input(path));
    files.filter_map(|path| identity(&path.metadata().ok()?)).collect()
}

/// True for the names of what is read of a directory. Results may lie beside that.
fn is_of_input(path: &Path) -> bool {
    let is = |name: &str| path.file_name() == Some(OsStr::new(name));
    crate::profile::input::DATA_FILES.into_iter().chain(BESIDE).any(is)
        || path.extension() == Some(OsStr::new("parquet"))
}

/// Refuses the command line of a subcommand if one of its outputs is one of its inputs.
///
/// # Errors
/// [`Failure::Usage`].
pub(super) fn check(matches: &ArgMatches) -> Result<(), Failure> {
    let mut matches = matches;
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    let paths = |id: &str| matches.try_get_raw(id).ok().flatten().into_iter().flatten().map(Path::new);
    let mut read = Vec::new();
    for path in INPUTS.iter().flat_map(|id| paths(id)) {
        read.push((path, read_of(path)));
    }
    for (id, option) in OUTPUTS {
        for path in paths(id) {
            // What is appended to while it is read never ends, so stdout is looked at too.
            let place = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
            let Some(written) = place.metadata().ok().as_ref().and_then(identity) else { continue };
            if let Some((input, _)) = read.iter().find(|(_, read)| read.contains(&written)) {
                return Err(Failure::Usage(anyhow!(
                    "{option} {}: this is what is read ({}), and the result would replace it: name another file",
                    path.display(),
                    input.display()
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::{Command, CommandFactory};

    use super::*;
    use crate::cli::Args;

    /// Those that name a directory that must not exist, what is no file of ours, or what a command both reads and writes.
    const OTHERS: &[(&str, &str)] = &[
        ("parquet", "a new directory"),
        ("dir", "the directory of manual pages"),
        ("cgroup", "a cgroup"),
        ("cgroup_root", "a mount"),
        ("state", "a directory that a watch has for itself"),
        ("cgroup_parent", "a cgroup"),
        ("hints_map", "a BPF map"),
        ("split_by", "a new directory"),
        ("root", "a directory that clients name files in"),
        ("allow_write", "a directory that gets new files only"),
    ];

    fn each(command: &Command, seen: &mut dyn FnMut(&Command)) {
        seen(command);
        command.get_subcommands().for_each(|command| each(command, seen));
    }

    #[test]
    fn each_option_that_names_a_path_is_known_here() {
        let mut unknown = Vec::new();
        each(&Args::command(), &mut |command| {
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                let is_path = arg.get_value_parser().type_id() == clap::builder::ValueParser::path_buf().type_id();
                let is_known = INPUTS.contains(&id) || OUTPUTS.iter().chain(OTHERS).any(|known| known.0 == id);
                if is_path && !is_known {
                    unknown.push(format!("{} {id}", command.get_name()));
                }
            }
        });
        assert!(unknown.is_empty(), "in no list: {unknown:?}");
    }

    #[test]
    fn what_is_read_is_found_by_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("web")).unwrap();
        for name in ["trace", "cells.json", "web/perf.data", "web/meta.json", "web/cells.json", "other"] {
            std::fs::write(at(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("trace", at("link")).unwrap();
        std::fs::hard_link(at("trace"), at("name")).unwrap();
        let refused = |line: &str| {
            let path = |word: &str| match word.strip_prefix('@') {
                Some(name) => at(name),
                None => PathBuf::from(word),
            };
            let matches = Args::command().try_get_matches_from(line.split(' ').map(path)).unwrap();
            match check(&matches) {
                Ok(()) => None,
                Err(error) => Some(error.sentence()),
            }
        };
        for line in [
            "scxprof stacks -f @trace -o @trace",
            "scxprof stacks -f @trace -o @link",
            "scxprof stacks -f @link --folded @name",
            "scxprof stacks -f @trace --config @cells.json --pprof @cells.json",
            "scxprof stacks --diff @trace @other -o @other",
            "scxprof export -f @trace --perfetto @trace",
            "scxprof export -f @web --perfetto @web/perf.data",
            "scxprof export @web --config @cells.json --perfetto @cells.json",
            "scxprof extract @web --report @web/meta.json",
            "scxprof extract -f @web/perf.data --html @web/perf.data",
            "scxprof report -f @trace --sharing-csv @trace",
            "scxprof sched -f @trace -o @trace",
            "scxprof sched -f @trace --windows 1s --csv @trace",
            "scxprof score -f @trace --config @cells.json -o @cells.json",
            "scxprof diff @trace @other -o @trace",
            "scxprof merge @trace @other --evidence @other",
            "scxprof trace info @trace -o @trace",
            "scxprof trace analyze @trace -o @trace",
            "scxprof replay -f @trace -o @trace",
        ] {
            let said = refused(line).unwrap_or_else(|| panic!("{line}"));
            assert!(said.contains("this is what is read") && !said.contains('\n'), "{line}: {said}");
        }
        for line in [
            "scxprof stacks -f @trace -o @other",
            "scxprof extract -f @web -o @web/cells.json",
            "scxprof extract -f @trace -o -",
            "scxprof watch -o @cells.json --metrics @other",
            "scxprof record -f @trace -o @new",
            "scxprof export -f @trace --perfetto /dev/null",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
