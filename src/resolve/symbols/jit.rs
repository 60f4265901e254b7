//! Functions that a JIT compiler listed in `/tmp/perf-PID.map` (tools/perf/Documentation/jit-interface.txt of the kernel):
//! lines of `START SIZE NAME`, the numbers in hex.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use super::Named;
use crate::host::{number, open, proc, Roots};

/// Longer names are truncated.
const MAX_LINE: u64 = 4096;
/// Bytes of a map that are read: some million functions.
const MAX_MAP: u64 = 256 << 20;

/// Names for sorted addresses of the process's executable memory.
pub(super) fn names(
    roots: &Roots,
    pid: u32,
    is_live: bool,
    begin: SystemTime,
    addresses: &[u64],
) -> Vec<Option<Named>> {
    let process = roots.proc.join(pid.to_string());
    let file = match std::fs::metadata(&process) {
        // In a container the process has another pid, and another /tmp.
        Ok(running) if is_live => {
            let inner = own_pid(&process).unwrap_or(pid);
            let file = open::regular_itself_inside(&process.join("root"), Path::new(&format!("tmp/perf-{inner}.map")));
            // Any user can create a file there.
            let is_own = |file: &File| file.metadata().is_ok_and(|file| [0, running.uid()].contains(&file.uid()));
            file.ok().filter(is_own)
        }
        // The process has ended. An old file may belong to an earlier process with that pid.
        _ => {
            let file = open::regular_itself_inside(&roots.files, Path::new(&format!("tmp/perf-{pid}.map")));
            let written =
                |file: &File| file.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|at| at >= begin);
            file.ok().filter(written)
        }
    };
    file.map(|file| parse(BufReader::new(file.take(MAX_MAP)), addresses)).unwrap_or_default()
}

/// The last of the pids in `NSpid:` is the process's own (proc_pid_status(5)).
fn own_pid(process: &Path) -> Option<u32> {
    let pids = proc::status(process, "NSpid")?;
    let last = pids.split(u8::is_ascii_whitespace).rfind(|word| !word.is_empty())?;
    u32::try_from(number(last, 10)?).ok()
}

fn parse(mut map: impl BufRead, addresses: &[u64]) -> Vec<Option<Named>> {
    let mut names: Vec<Option<Named>> = vec![None; addresses.len()];
    // Overwritten code: it is unknown which of the two ran.
    let mut unsure = vec![false; addresses.len()];
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut map).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if line.len() as u64 == MAX_LINE && line.last() != Some(&b'\n') && map.skip_until(b'\n').is_err() {
            break;
        }
        let Some((start, size, name)) = split(&line) else { continue };
        let first = addresses.partition_point(|&address| address < start);
        let last = addresses.partition_point(|&address| address < start.saturating_add(size));
        for index in first..last.max(first) {
            let (Some(known), Some(unsure), Some(address)) =
                (names.get_mut(index), unsure.get_mut(index), addresses.get(index))
            else {
                continue;
            };
            let named = Named { name: String::from_utf8_lossy(name).into_owned(), offset: address - start, dso: None };
            *unsure |= known.as_ref().is_some_and(|known| *known != named);
            *known = Some(named);
        }
    }
    names.into_iter().zip(unsure).map(|(named, unsure)| named.filter(|_| !unsure)).collect()
}

fn split(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut words = line.splitn(3, |&byte| byte == b' ');
    let mut hex = || words.next().and_then(|word| number(word.strip_prefix(b"0x").unwrap_or(word), 16));
    let (start, size) = (hex()?, hex()?);
    Some((start, size, words.next().filter(|name| !name.is_empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn functions_are_found_and_those_written_over_are_not() {
        let map = b"1000 10 a b\n2000 20 old\nx y z\n2010 20 new\n3000 0 empty\n0x4000 0x8 hex\n";
        let names = parse(&map[..], &[0xfff, 0x1000, 0x100f, 0x1010, 0x2008, 0x2018, 0x2028, 0x3000, 0x4007]);
        let texts: Vec<_> = names.iter().map(|it| it.as_ref().map(|it| (it.name.as_str(), it.offset))).collect();
        let expected = [
            None,
            Some(("a b", 0)),
            Some(("a b", 15)),
            None,
            Some(("old", 8)),
            None,
            Some(("new", 0x18)),
            None,
            Some(("hex", 7)),
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_file_is_that_of_the_processs_own_pid_and_root() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("proc/77");
        std::fs::create_dir_all(process.join("root/tmp")).unwrap();
        std::fs::create_dir_all(dir.path().join("tmp")).unwrap();
        std::fs::write(process.join("status"), "Name:\tx\nNSpid:\t77\t5\n").unwrap();
        std::fs::write(process.join("root/tmp/perf-5.map"), "1000 10 inner\n").unwrap();
        std::fs::write(dir.path().join("tmp/perf-77.map"), "1000 10 outer\n").unwrap();
        let roots = Roots { proc: dir.path().join("proc"), files: dir.path().into(), ..Roots::default() };
        let name = |live, begin| names(&roots, 77, live, begin, &[0x1000]).pop().flatten().map(|it| it.name);
        let (now, later) = (SystemTime::UNIX_EPOCH, SystemTime::now() + std::time::Duration::from_secs(9));
        assert_eq!(name(true, now).as_deref(), Some("inner"));
        assert_eq!(name(false, now).as_deref(), Some("outer"));
        assert_eq!(name(false, later), None, "a file of before the capture may be another process's");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = parse(&text[..], &[0, 5, u64::MAX]);
        }

        #[test]
        fn line_like_bytes_are_read(text in "([0-9a-f]{1,17} [0-9a-f]{1,17} .{0,5}\n){0,6}") {
            let _ = parse(text.as_bytes(), &[0, 5, 0x1000, u64::MAX]);
        }
    }
}
