//! Detects the type of a file by its beginning, not by its name.

use std::io::Read;
use std::path::Path;

use super::error::ProfileError;
use super::{foreign, jsonl, sched_text, script};
use crate::host::open;
use scxprof_perf::format::MAGIC;

/// Bytes that are read: some lines of text.
const HEAD: usize = 64 << 10;

/// The supported types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileType {
    Directory,
    /// gzip (RFC 1952).
    Archive,
    /// perf.data, of either byte order.
    PerfData,
    /// Lines of JSON, as `process` writes them.
    Lines,
    /// Output of `perf script`.
    Text,
    /// Scheduling events: output of `perf script`, or lines of JSON.
    Sched,
}

/// The type of `path`. If the beginning is ambiguous, as in a damaged file, the name decides.
///
/// # Errors
/// It cannot be opened, is not a file (a pipe, say), or has none of these types; [`ProfileError::Foreign`] if it is a known one of
/// another program.
pub(crate) fn kind_of(path: &Path) -> Result<FileType, ProfileError> {
    let unknown = |reason: &str| ProfileError::Unknown { path: path.to_owned(), reason: reason.to_owned() };
    let failed = |source| ProfileError::io("open", path, source);
    let metadata = path.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Ok(FileType::Directory);
    }
    if !metadata.is_file() {
        return Err(unknown("a profile must be a file or a directory, as it is read more than once"));
    }
    let mut head = Vec::new();
    open::regular(path).and_then(|file| file.take(HEAD as u64).read_to_end(&mut head)).map_err(failed)?;
    let foreign = |reason| ProfileError::Foreign { path: path.to_owned(), reason };
    if head.starts_with(&[0x1f, 0x8b]) {
        return foreign::what(&head).map_or(Ok(FileType::Archive), |reason| Err(foreign(reason)));
    }
    if [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()].iter().any(|magic| head.starts_with(magic)) {
        return Ok(FileType::PerfData);
    }
    // Before JSON lines: the name of a thread may begin with a brace.
    if matches!(script::Reader::new(head.as_slice()).next_line(), Ok(Some(_))) {
        return Ok(FileType::Text);
    }
    if matches!(jsonl::Reader::new(head.as_slice()).next_line(), Ok(Some(_))) {
        return Ok(FileType::Lines);
    }
    if sched_text::is_sched(&head) {
        return Ok(FileType::Sched);
    }
    let what = foreign::what(&head);
    let is_lines =
        path.extension().is_some_and(|extension| extension == "jsonl") && what.as_deref() == Some(foreign::JSON);
    if let Some(reason) = what.filter(|_| !is_lines) {
        return Err(foreign(reason));
    }
    if foreign::is_tar(&head) {
        return Err(foreign(
            "an archive that is not compressed: unpack it (`tar -xf`) and name its directory".to_owned(),
        ));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl") => Ok(FileType::Lines),
        Some("script") => Ok(FileType::Text),
        Some("data") => Ok(FileType::PerfData),
        _ => Err(unknown(&format!(
            "neither a directory or an archive (.tar.gz) of `record`, nor a perf.data file (PERFILE2), nor lines of `process` \
             (perf.jsonl), nor what `{}` prints",
            script::COMMAND
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_is_does_not_depend_on_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let line = b"             web 100/101 10.000001:             7f00           401000\n";
        for (bytes, kind) in [
            (&b"\x1f\x8b\x08"[..], FileType::Archive),
            (b"PERFILE2....", FileType::PerfData),
            (b"2ELIFREP....", FileType::PerfData),
            (b" \n{\"pid\": 1, \"tid\": 1, \"time\": \"1.5\"}\n", FileType::Lines),
            (line, FileType::Text),
            (&[&b"perf: a warning\n"[..], line].concat(), FileType::Text),
        ] {
            for name in ["x", "perf.data", "perf.jsonl", "perf.script", "x.tar.gz"] {
                let path = dir.path().join(name);
                std::fs::write(&path, bytes).unwrap();
                assert_eq!(kind_of(&path).ok(), Some(kind), "{name}");
            }
        }
        for (name, kind) in
            [("perf.data", FileType::PerfData), ("perf.jsonl", FileType::Lines), ("perf.script", FileType::Text)]
        {
            let path = dir.path().join(name);
            std::fs::write(&path, "nothing of the kind\n").unwrap();
            assert_eq!(kind_of(&path).ok(), Some(kind), "a damaged file");
        }
        let path = dir.path().join("perf.jsonl");
        std::fs::write(&path, "{\"pid\": 1}\n").unwrap();
        assert_eq!(kind_of(&path).ok(), Some(FileType::Lines), "a damaged file");
        let path = dir.path().join("x");
        std::fs::write(&path, "nothing of the kind\n").unwrap();
        let error = kind_of(&path).unwrap_err().to_string();
        assert!(
            error.contains("`perf script -F comm,pid,tid,time,addr,ip`") && error.contains("perf.jsonl"),
            "{error}"
        );
        let error = kind_of(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("a profile must be a file or a directory"), "{error}");
    }
}
