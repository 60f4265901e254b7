//! The profile that has no name on the command line: how `record` calls it, and how the commands that read one find it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::anyhow;
use clap::{Arg, ArgMatches, Command, Id};

use super::failure::Failure;
use scxprof_base::date;

const PREFIX: &str = "scxprof-";
const ARCHIVE: &str = ".tar.gz";
/// The records of a profile, and the file that perf writes by default.
const RECORDS: &str = "perf.data";
/// Profiles of one host and one minute.
const MAX_SAME: u32 = 1000;

/// The name of a profile that `record` makes now: `scxprof-HOST-20261125-0913`, in UTC. If `is_taken`, a number comes after it.
pub(super) fn by_default(host: &str, seconds: u64, is_taken: impl Fn(&str) -> bool) -> String {
    let (year, month, day) = date::of_days(seconds / 86_400);
    let minutes = seconds % 86_400 / 60;
    let name = format!("{PREFIX}{}-{year:04}{month:02}{day:02}-{:02}{:02}", short(host), minutes / 60, minutes % 60);
    if !is_taken(&name) {
        return name;
    }
    let numbered = (2..MAX_SAME).map(|number| format!("{name}-{number}")).find(|name| !is_taken(name));
    numbered.unwrap_or(name)
}

/// The host's own name, without its domain, of characters that a shell takes as they are.
fn short(host: &str) -> String {
    let own = host.split('.').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let name: String = own.chars().map(plain).take(64).collect();
    if name.is_empty() {
        "host".to_owned()
    } else {
        name
    }
}

/// True for what [`by_default`] makes.
fn is_default(name: &str) -> bool {
    let is_number = |part: Option<&str>, digits: usize| {
        part.is_some_and(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    // The last number of several of one minute.
    let numbered = rest.rsplit_once('-').filter(|(_, last)| last.len() < 4 && is_number(Some(last), last.len()));
    let mut parts = numbered.map_or(rest, |(before, _)| before).rsplitn(3, '-');
    is_number(parts.next(), 4) && is_number(parts.next(), 8) && parts.next().is_some_and(|host| !host.is_empty())
}

/// When the profile at `path` was written; `None` if its name is not one of `record` or perf.
fn written(path: &Path, name: &OsStr) -> Option<SystemTime> {
    let name = name.to_str()?;
    let metadata = path.metadata().ok()?;
    if metadata.is_dir() {
        // That of the directory changes with what is put beside the records.
        let records = path.join(RECORDS).metadata().ok().filter(|_| is_default(name))?;
        return records.modified().ok();
    }
    let is_profile = name == RECORDS || name.strip_suffix(ARCHIVE).is_some_and(is_default);
    (is_profile && metadata.is_file()).then(|| metadata.modified().ok())?
}

/// The newest profile in a directory.
fn newest(directory: &Path) -> Option<PathBuf> {
    let entries = directory.read_dir().ok()?.flatten();
    let profiles = entries.filter_map(|entry| Some((written(&entry.path(), &entry.file_name())?, entry.file_name())));
    // Of two of the same time always the same one.
    profiles.max().map(|(_, name)| PathBuf::from(name))
}

/// The command line with the newest profile of the current directory, if it is one of a command that reads a profile and names
/// none; `None` if there is nothing to add.
pub(super) fn with_newest(
    all: &Command,
    args: &[OsString],
    matches: &ArgMatches,
) -> Result<Option<Vec<OsString>>, Failure> {
    let Some((command, below)) = matches.subcommand() else { return Ok(None) };
    let known: Vec<&Id> =
        all.find_subcommand(command).iter().flat_map(|it| it.get_arguments()).map(Arg::get_id).collect();
    // Only commands that read a profile have both. The matches know this in debug builds alone.
    let is_unnamed = |id: &str| known.iter().any(|it| *it == id) && matches!(below.try_get_raw(id), Ok(None));
    if !(is_unnamed("file") && is_unnamed("profile")) {
        return Ok(None);
    }
    let Some(profile) = newest(Path::new(".")) else {
        return Err(Failure::Usage(anyhow!(
            "there is no profile here ({PREFIX}HOST-DATE-TIME of scxprof record, or perf.data): name one with -f PROFILE, or make \
             one with `sudo scxprof record`"
        )));
    };
    say!("note: {command} reads {}, the newest profile here", profile.display());
    let mut args = args.to_vec();
    // After the name of the subcommand: there are no options before it.
    let at = args.len().min(2);
    args.splice(at..at, ["-f".into(), profile.into_os_string()]);
    Ok(Some(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_has_the_host_and_the_time() {
        let at = 1_764_062_000; // 2025-11-25 09:13:20
        assert_eq!(by_default("web1.example.com", at, |_| false), "scxprof-web1-20251125-0913");
        assert_eq!(by_default("", 0, |_| false), "scxprof-host-19700101-0000");
        assert_eq!(by_default("a/b\n c", 86_399, |_| false), "scxprof-a_b__c-19700101-2359");
        let taken = |name: &str| !name.ends_with("-3");
        assert_eq!(by_default("web1", at, taken), "scxprof-web1-20251125-0913-3");
        for host in ["web1", "web-1", "", "é"] {
            assert!(is_default(&by_default(host, at, |_| false)), "{host}");
            assert!(is_default(&by_default(host, at, taken)), "{host}");
        }
        for other in [
            "scxprof-0.2.0-x86_64-linux",
            "scxprof-web1-20251125",
            "scxprof-20251125-0913",
            "web1-20251125-0913",
            "scxprof-web1-20251125-09133",
            "scxprof-web1-20251125-0913.out",
            "scxprof-",
            "",
        ] {
            assert!(!is_default(other), "{other}");
        }
    }

    #[test]
    fn the_newest_profile_is_what_record_or_perf_wrote_last() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let write = |name: &str, seconds: u64| {
            let file = std::fs::File::create(at(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
        };
        assert_eq!(newest(directory.path()), None);
        std::fs::create_dir(at("scxprof-a-20261125-0915")).unwrap();
        for other in ["scxprof-0.2.0-x86_64-linux.tar.gz", "web.tar.gz", "cells.json", "scxprof-a-20261125-0914.out"] {
            write(other, 9_000);
        }
        assert_eq!(newest(directory.path()), None, "none of these is a profile with a default name");
        for (name, seconds) in [
            ("scxprof-a-20261125-0913.tar.gz", 1_000),
            ("perf.data", 2_000),
            ("scxprof-a-20261125-0915/perf.data", 3_000),
        ] {
            write(name, seconds);
            let found = newest(directory.path()).unwrap();
            assert_eq!(found, Path::new(name.trim_end_matches("/perf.data")), "{name}");
        }
        write("scxprof-a-20261125-0913-2.tar.gz", 4_000);
        assert_eq!(newest(directory.path()).unwrap(), Path::new("scxprof-a-20261125-0913-2.tar.gz"));
    }
}
