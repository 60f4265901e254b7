//! A profile as one file, .tar.gz: packed from a directory, and unpacked within limits.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use flate2::Compression;
use tempfile::TempDir;

use super::error::ProfileError;
use crate::host::open;
use crate::sample::printable;
use scxprof_perf::budget::{Budget, RATIO};

/// Entries of an archive, of any kind; ours have five.
const MAX_ENTRIES: usize = 1024;
/// Bytes of all but the contents of files: headers, long names, attributes. The tar crate holds each of them in memory.
const MAX_HEADERS: u64 = 4 << 20;
/// Bytes of a name, and names of directories in it: each directory is created.
const MAX_NAME: usize = 4096;
const MAX_DEPTH: usize = 16;

/// Writes the files of `dir` to `out`, in a directory `name`, until `stop` returns true.
///
/// # Errors
/// Those of reading and writing; or it was stopped.
pub(crate) fn pack(dir: &Path, name: &OsStr, out: impl Write, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::fast()));
    let mut files: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    // The largest file comes last: a truncated archive contains all others.
    files.sort_by_key(|file| (file.file_name() == "perf.data", file.file_name()));
    for file in files {
        let metadata = file.metadata()?;
        if metadata.is_file() {
            let mut header = tar::Header::new_gnu();
            // Owner and permissions mean nothing on another host; the time of the last write does.
            header.set_metadata_in_mode(&metadata, tar::HeaderMode::Deterministic);
            header.set_mtime(metadata.mtime().max(0) as u64);
            header.set_mode(0o600);
            let contents = Until { inner: open::regular_itself(&file.path())?, stop };
            archive.append_data(&mut header, Path::new(name).join(file.file_name()), contents)?;
        }
    }
    archive.into_inner()?.finish()?.flush()
}

/// The content of an archive.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The files; they are deleted when it is dropped.
    pub dir: TempDir,
    /// The archive ended too early.
    pub cut: bool,
    /// How much more may be unpacked from it.
    pub budget: Budget,
}

/// Reads until it is told to stop; a large archive takes minutes.
struct Until<'a, R> {
    inner: R,
    stop: &'a dyn Fn() -> bool,
}

impl<R: Read> Read for Until<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.stop)() {
            return Err(io::Error::other("interrupted"));
        }
        self.inner.read(buffer)
    }
}

/// Limits the bytes of headers; contents are counted when they are copied.
struct Limited<'a, R> {
    inner: R,
    /// Bytes; without a limit while contents are read.
    headers: &'a Cell<Option<u64>>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(left) = self.headers.get() else { return self.inner.read(buffer) };
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let read = self.inner.read(buffer.get_mut(..count).unwrap_or_default())?;
        self.headers.set(Some(left.saturating_sub(read as u64)));
        Ok(read)
    }
}

/// Unpacks `path` into a new directory, which is deleted when the result is dropped. Stops if `stop` returns true.
///
/// Only plain files are unpacked, and only below that directory. An archive that ends too early gives the files that it has, if
/// there are any.
///
/// # Errors
/// [`ProfileError::Archive`] if it is no archive, contains more than is reasonable, or names a path outside;
/// [`ProfileError::Stopped`].
pub(crate) fn unpack(path: &Path, stop: &dyn Fn() -> bool) -> Result<Unpacked, ProfileError> {
    let result = unpack_until(path, stop);
    // A read that we stopped is no damage.
    if stop() {
        return Err(ProfileError::Stopped { path: path.to_owned() });
    }
    result
}

fn unpack_until(path: &Path, stop: &dyn Fn() -> bool) -> Result<Unpacked, ProfileError> {
    let failed = |reason: String| ProfileError::Archive { path: path.to_owned(), reason };
    let file = open::regular(path).map_err(|source| ProfileError::io("open", path, source))?;
    let mut budget = Budget::of(file.metadata().map_or(0, |metadata| metadata.len()));
    let dir = tempfile::Builder::new()
        .prefix("scxprof-")
        .permissions(PermissionsExt::from_mode(0o700))
        .tempdir()
        .map_err(|source| ProfileError::io("make a directory in", &std::env::temp_dir(), source))?;
    let headers = Cell::new(Some(MAX_HEADERS));
    let inner = Until { inner: MultiGzDecoder::new(io::BufReader::new(file)), stop };
    let mut archive = tar::Archive::new(Limited { inner, headers: &headers });
    let (mut found, mut files, mut cut) = (0, 0, false);
    for entry in archive.entries().map_err(|error| failed(format!("not an archive: {error}")))? {
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(_) if headers.get() == Some(0) => {
                let reason = "its names and headers alone have more than 4 MiB, which no profile's have";
                return Err(failed(reason.to_owned()));
            }
            // The files before the damage are good.
            Err(_) if files > 0 => {
                cut = true;
                break;
            }
            // The tar crate's error for an invalid header; its text contains the bytes.
            Err(error) if error.kind() == io::ErrorKind::Other => {
                return Err(failed("compressed, but not a .tar.gz: unpack it first (gunzip)".to_owned()));
            }
            Err(error) => return Err(failed(format!("not a .tar.gz: {error}"))),
        };
        found += 1;
        if found > MAX_ENTRIES {
            return Err(failed(format!("it has more than {MAX_ENTRIES} entries, which no profile has")));
        }
        let name = entry.path().map_err(|error| failed(error.to_string()))?.into_owned();
        let shown = shown(&name);
        if name.as_os_str().len() > MAX_NAME || name.components().count() > MAX_DEPTH {
            return Err(failed(format!("the name of an entry is too long: {shown}")));
        }
        if !name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(failed(format!("it would write outside its directory: {shown}")));
        }
        match entry.header().entry_type() {
            // Directories are created for the files in them.
            tar::EntryType::Directory | tar::EntryType::XGlobalHeader => {}
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                files += 1;
                let to = dir.path().join(&name);
                if let Some(parent) = to.parent() {
                    fs::create_dir_all(parent).map_err(|source| ProfileError::io("make", parent, source))?;
                }
                // A name that occurs twice would let the second file change the first.
                let out = File::options().write(true).create_new(true).mode(0o600).open(&to);
                let mut out = out.map_err(|source| ProfileError::io("unpack", &name, source))?;
                let allowed = headers.replace(None);
                let copied = copy(&mut entry, &mut out, budget.left());
                headers.set(allowed);
                match copied {
                    Ok(count) if !budget.take(count) => {
                        return Err(failed(format!(
                            "it holds more than {RATIO} times its own size, which no profile does"
                        )));
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                        return Err(ProfileError::io("unpack into", dir.path(), error));
                    }
                    // The file is truncated; its reader counts what is missing.
                    Err(_) => {
                        cut = true;
                        break;
                    }
                }
            }
            kind => {
                return Err(failed(format!("{shown} is a {kind:?}, which no profile has")));
            }
        }
    }
    if files == 0 {
        return Err(failed("it has no files".to_owned()));
    }
    Ok(Unpacked { dir, cut, budget })
}

/// The beginning of a name, for a message.
fn shown(name: &Path) -> String {
    /// Bytes.
    const SHOWN: usize = 100;
    let bytes = name.as_os_str().as_bytes();
    let text = printable(bytes.get(..SHOWN).unwrap_or(bytes));
    if bytes.len() > SHOWN {
        return format!("{text}...");
    }
    text
}

/// Copies until the end, or until more than `limit` bytes have come.
fn copy(from: &mut impl Read, to: &mut impl Write, limit: u64) -> io::Result<u64> {
    io::copy(&mut from.take(limit.saturating_add(1)), to)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use scxprof_perf::budget::FREE;

    fn archive(path: &Path, entries: &[(&str, tar::EntryType, u64)]) {
        let mut builder = tar::Builder::new(GzEncoder::new(File::create(path).unwrap(), Compression::fast()));
        for &(name, kind, size) in entries {
            let mut header = tar::Header::new_gnu();
            // Not set_path, which rejects what an attacker writes.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(0o644);
            header.set_size(size);
            if kind == tar::EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, io::repeat(7).take(size)).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap();
    }

    #[test]
    fn a_directory_survives_the_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let profile = dir.path().join("some profile");
        fs::create_dir(&profile).unwrap();
        fs::write(profile.join("perf.data"), b"abc").unwrap();
        fs::write(profile.join("recovered.jsonl"), b"{}").unwrap();
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        File::options().write(true).open(profile.join("perf.data")).unwrap().set_modified(written).unwrap();
        let path = dir.path().join("x.tar.gz");
        pack(&profile, "some profile".as_ref(), File::create(&path).unwrap(), &|| false).unwrap();
        let mut tar = tar::Archive::new(MultiGzDecoder::new(File::open(&path).unwrap()));
        for entry in tar.entries().unwrap() {
            let header = entry.unwrap().header().clone();
            assert_eq!((header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0o600, 0, 0));
            let is_data = header.path().unwrap().ends_with("perf.data");
            assert!(!is_data || header.mtime().unwrap() == 1_700_000_000, "{}", header.mtime().unwrap());
        }
        let unpacked = unpack(&path, &|| false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let data = unpacked.dir.path().join("some profile/perf.data");
        assert_eq!((mode(unpacked.dir.path()), mode(&data)), (0o700, 0o600));
        assert_eq!(fs::read(unpacked.dir.path().join("some profile/perf.data")).unwrap(), b"abc");
        // Truncated anywhere, it gives the files that it has, or reports that there are none.
        let bytes = fs::read(&path).unwrap();
        let mut best = 0;
        for len in 0..bytes.len() {
            fs::write(&path, &bytes[..len]).unwrap();
            let Ok(unpacked) = unpack(&path, &|| false) else {
                assert_eq!(best, 0, "{len} bytes give less than fewer did");
                continue;
            };
            let read = |name| fs::read(unpacked.dir.path().join("some profile").join(name)).unwrap_or_default();
            let (side, data) = (read("recovered.jsonl"), read("perf.data"));
            assert!(b"{}".starts_with(&side) && b"abc".starts_with(&data));
            assert!(side == b"{}" || data.is_empty(), "perf.data comes last");
            assert!(unpacked.cut || data == b"abc", "{len} bytes");
            assert!(side.len() + data.len() >= best);
            best = side.len() + data.len();
        }
        assert_eq!(best, 5, "the last bytes are a checksum");
    }

    #[test]
    fn it_stops_within_a_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        archive(&path, &[("perf.data", tar::EntryType::Regular, 64 << 20)]);
        let asked = std::cell::Cell::new(0);
        let unpacked = unpack(&path, &|| {
            asked.set(asked.get() + 1);
            asked.get() > 100
        });
        assert!(matches!(unpacked, Err(ProfileError::Stopped { .. })), "{unpacked:?}");
        assert!(asked.get() < 110, "it went on for {} reads", asked.get());
    }

    #[test]
    fn what_is_compressed_but_no_archive_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.jsonl.gz");
        let mut gz = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
        gz.write_all(&b"{\"comm\": \"web\", \"pid\": 1}\n".repeat(100)).unwrap();
        gz.finish().unwrap();
        let error = unpack(&path, &|| false).unwrap_err().to_string();
        assert!(error.ends_with("perf.jsonl.gz: compressed, but not a .tar.gz: unpack it first (gunzip)"), "{error}");
    }

    #[test]
    fn nothing_is_written_outside() {
        use tar::EntryType;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        for (name, kind) in [
            ("../escape", EntryType::Regular),
            ("a/../../escape", EntryType::Regular),
            ("/tmp/scxprof-escape", EntryType::Regular),
            ("link", EntryType::Symlink),
            ("link", EntryType::Link),
            ("pipe", EntryType::Fifo),
        ] {
            archive(&path, &[("fine", EntryType::Regular, 3), (name, kind, 0)]);
            assert!(matches!(unpack(&path, &|| false), Err(ProfileError::Archive { .. })), "{name}");
        }
        archive(&path, &[("twice", EntryType::Regular, 3), ("twice", EntryType::Regular, 3)]);
        assert!(unpack(&path, &|| false).is_err());
    }

    #[test]
    fn a_bomb_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        archive(&path, &[("bomb", tar::EntryType::Regular, FREE + (1 << 20))]);
        assert!(fs::metadata(&path).unwrap().len() < FREE / RATIO);
        let error = unpack(&path, &|| false).unwrap_err().to_string();
        assert!(error.contains("times its own size"), "{error}");
        let many: Vec<String> = (0..=MAX_ENTRIES).map(|index| format!("f{index}")).collect();
        for kind in [tar::EntryType::Regular, tar::EntryType::Directory, tar::EntryType::XGlobalHeader] {
            let many: Vec<_> = many.iter().map(|name| (name.as_str(), kind, 0)).collect();
            archive(&path, &many);
            let error = unpack(&path, &|| false).unwrap_err().to_string();
            assert!(error.contains("more than 1024 entries"), "{error}");
        }
        // A path in which each part is a directory that must be created.
        let deep = ["d"; 40].join("/");
        archive(&path, &[(&deep, tar::EntryType::Regular, 0)]);
        let error = unpack(&path, &|| false).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }

    #[test]
    fn names_and_headers_are_bounded() {
        use tar::EntryType;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        for kind in [
            EntryType::GNULongName,
            EntryType::GNULongLink,
            EntryType::XHeader,
            EntryType::XGlobalHeader,
            EntryType::Directory,
        ] {
            archive(&path, &[("long", kind, MAX_HEADERS), ("perf.data", EntryType::Regular, 3)]);
            let error = unpack(&path, &|| false).unwrap_err().to_string();
            assert!(error.contains("names and headers alone"), "{kind:?}: {error}");
        }
        archive(&path, &[("long", EntryType::GNULongName, 100_000), ("perf.data", EntryType::Regular, 3)]);
        let error = unpack(&path, &|| false).unwrap_err().to_string();
        assert!(error.contains("too long") && error.len() < 1000, "{error}");
        archive(&path, &[("a\x1b[2J\u{202e}", EntryType::Fifo, 0)]);
        let error = unpack(&path, &|| false).unwrap_err().to_string();
        assert!(error.contains(r"a\x1b[2J\xe2\x80\xae is a Fifo"), "{error}");
    }
}
