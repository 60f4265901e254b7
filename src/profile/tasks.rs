//! tasks.jsonl: what procfs said of the threads in samples, one line of JSON for each thread.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::ProfileError;
use crate::host::facts::Tasks;

/// Its name in the directory.
pub(crate) const NAME: &str = "tasks.jsonl";
/// The most bytes of a line: a command line has 4 KiB, each byte of it at most six.
const MAX_LINE: u64 = 32 << 10;

/// Writes the threads into `dir`, in the order of their ids.
///
/// # Errors
/// [`ProfileError::Io`].
pub(crate) fn write(dir: &Path, tasks: &Tasks) -> Result<(), ProfileError> {
    let path = dir.join(NAME);
    let all = || -> io::Result<()> {
        // Command lines may hold secrets.
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let mut out = BufWriter::new(file);
        for task in tasks.sorted() {
            serde_json::to_writer(&mut out, task)?;
            out.write_all(b"\n")?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    };
    all().map_err(|source| ProfileError::io("write", &path, source))
}

/// Reads the threads, and how many lines are none.
pub(super) fn read(file: impl Read) -> (Tasks, u64) {
    let mut lines = BufReader::new(file);
    let (mut tasks, mut unreadable) = (Tasks::default(), 0);
    loop {
        let mut text = Vec::new();
        match Read::by_ref(&mut lines).take(MAX_LINE).read_until(b'\n', &mut text) {
            Ok(0) => break,
            Ok(_) if text.trim_ascii().is_empty() => {}
            Ok(_) => match serde_json::from_slice(&text) {
                Ok(task) => tasks.add(task),
                Err(_) => unreadable += 1,
            },
            Err(_) => {
                unreadable += 1;
                break;
            }
        }
    }
    (tasks, unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::facts::TaskFacts;

    #[test]
    fn what_is_written_is_read_and_lines_that_are_none_are_counted() {
        let text = b"{\"pid\":7,\"tid\":8,\"process\":\"web\",\"uid\":33,\"nice\":-5,\"other\":1}\n\nnone\n{\"pid\":7}\n{\"pid\":9,\"tid\":9}";
        let (tasks, unreadable) = read(&text[..]);
        assert_eq!(unreadable, 2);
        let task = |pid, tid| tasks.get(pid, tid).cloned().unwrap();
        assert_eq!((task(7, 8).uid, task(7, 8).nice, task(9, 9).uid), (Some(33), Some(-5), None));
        assert_eq!(tasks.process(7), Some("web"));
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &tasks).unwrap();
        let (again, unreadable) = read(File::open(dir.path().join(NAME)).unwrap());
        let both: [Vec<TaskFacts>; 2] = [&tasks, &again].map(|tasks| tasks.sorted().into_iter().cloned().collect());
        assert_eq!((&both[0], unreadable), (&both[1], 0));
    }
}
