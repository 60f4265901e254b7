//! A profile as one file, .tar.gz: made from a directory, and unpacked within limits.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use flate2::Compression;
use tempfile::TempDir;

use super::ProfileError;

/// Files of an archive; ours have five.
const MAX_FILES: usize = 1024;
/// Bytes that an archive may hold whatever its own size.
const MIN_BYTES: u64 = 256 << 20;
/// Times its own size that an archive may hold; records of samples shrink to a tenth.
const MAX_RATIO: u64 = 100;

/// Writes `dir` with its files to `out`, under its own name, until `stop` says so.
///
/// # Errors
/// Any of reading and writing, and where it was stopped.
pub(crate) fn pack(dir: &Path, out: impl Write, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let name = dir.file_name().unwrap_or_else(|| "profile".as_ref());
    let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::fast()));
    let mut files: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    // The largest file comes last: an archive that is cut has all of the others.
    files.sort_by_key(|file| (file.file_name() == "perf.data", file.file_name()));
    for file in files {
        let metadata = file.metadata()?;
        if metadata.is_file() {
            let mut header = tar::Header::new_gnu();
            // Of whom it was and who might read it says nothing elsewhere; when it was written does.
            header.set_metadata_in_mode(&metadata, tar::HeaderMode::Deterministic);
            header.set_mtime(metadata.mtime().max(0) as u64);
            header.set_mode(0o600);
            let contents = Until { inner: File::open(file.path())?, stop };
            archive.append_data(&mut header, Path::new(name).join(file.file_name()), contents)?;
        }
    }
    archive.into_inner()?.finish()?.flush()
}

/// What an archive held.
#[derive(Debug)]
pub(crate) struct Unpacked {
    /// The files; they go when it is dropped.
    pub dir: TempDir,
    /// The archive ended too early.
    pub cut: bool,
}

/// Reads on until it is told to stop; a large archive takes minutes.
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

/// Unpacks `path` into a directory of its own, which goes when it is dropped, and earlier where `stop` says so.
///
/// Only plain files and directories are taken, and only below that directory. An archive that ends too early gives what it
/// has, as far as there is anything.
///
/// # Errors
/// [`ProfileError::Archive`] for what is no archive, holds more than is reasonable, or names a place outside;
/// [`ProfileError::Stopped`].
pub(crate) fn unpack(path: &Path, stop: &dyn Fn() -> bool) -> Result<Unpacked, ProfileError> {
    let result = unpack_until(path, stop);
    // What was cut by us is no damage.
    if stop() {
        return Err(ProfileError::Stopped { path: path.to_owned() });
    }
    result
}

fn unpack_until(path: &Path, stop: &dyn Fn() -> bool) -> Result<Unpacked, ProfileError> {
    let failed = |reason: String| ProfileError::Archive { path: path.to_owned(), reason };
    let file = File::open(path).map_err(|source| ProfileError::io("open", path, source))?;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let mut budget = size.saturating_mul(MAX_RATIO).max(MIN_BYTES);
    let dir = tempfile::Builder::new()
        .prefix("scxprof-")
        .permissions(PermissionsExt::from_mode(0o700))
        .tempdir()
        .map_err(|source| ProfileError::io("make a directory in", &std::env::temp_dir(), source))?;
    let mut archive = tar::Archive::new(Until { inner: MultiGzDecoder::new(io::BufReader::new(file)), stop });
    let (mut files, mut cut) = (0, false);
    for entry in archive.entries().map_err(|error| failed(format!("not an archive: {error}")))? {
        let mut entry = match entry {
            Ok(entry) => entry,
            // What came before the damage is good.
            Err(_) if files > 0 => {
                cut = true;
                break;
            }
            // What tar says of a header that is none; its text has the bytes in it.
            Err(error) if error.kind() == io::ErrorKind::Other => {
                return Err(failed("compressed, but not a .tar.gz: unpack it first (gunzip)".to_owned()));
            }
            Err(error) => return Err(failed(format!("not a .tar.gz: {error}"))),
        };
        let name = entry.path().map_err(|error| failed(error.to_string()))?.into_owned();
        if !name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(failed(format!("it would write outside its directory: {}", name.display())));
        }
        let to = dir.path().join(&name);
        match entry.header().entry_type() {
            tar::EntryType::Directory => {
                fs::create_dir_all(&to).map_err(|source| ProfileError::io("make", &to, source))?;
            }
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                files += 1;
                if files > MAX_FILES {
                    return Err(failed(format!("it has more than {MAX_FILES} files")));
                }
                if let Some(parent) = to.parent() {
                    fs::create_dir_all(parent).map_err(|source| ProfileError::io("make", parent, source))?;
                }
                // A name that is there twice would let the second change the first.
                let out = File::options().write(true).create_new(true).mode(0o600).open(&to);
                let mut out = out.map_err(|source| ProfileError::io("unpack", &name, source))?;
                let copied = copy(&mut entry, &mut out, budget);
                match copied {
                    Ok(count) if count > budget => {
                        return Err(failed(format!(
                            "it holds more than {MAX_RATIO} times its own size, which no profile does"
                        )));
                    }
                    Ok(count) => budget -= count,
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                        return Err(ProfileError::io("unpack into", dir.path(), error));
                    }
                    // The file is cut; its reader counts what is missing.
                    Err(_) => {
                        cut = true;
                        break;
                    }
                }
            }
            tar::EntryType::XGlobalHeader => {}
            kind => {
                return Err(failed(format!("{} is a {kind:?}, which no profile has", name.display())));
            }
        }
    }
    if files == 0 {
        return Err(failed("it has no files".to_owned()));
    }
    Ok(Unpacked { dir, cut })
}

/// Copies until the end, or until more than `limit` bytes have come.
fn copy(from: &mut impl Read, to: &mut impl Write, limit: u64) -> io::Result<u64> {
    io::copy(&mut from.take(limit.saturating_add(1)), to)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn archive(path: &Path, entries: &[(&str, tar::EntryType, u64)]) {
        let mut builder = tar::Builder::new(GzEncoder::new(File::create(path).unwrap(), Compression::fast()));
        for &(name, kind, size) in entries {
            let mut header = tar::Header::new_gnu();
            // Not set_path, which refuses what an attacker writes.
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
        pack(&profile, File::create(&path).unwrap(), &|| false).unwrap();
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
        // Cut anywhere it gives what there is, or says that there is nothing.
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
        use tar::EntryType as Kind;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        for (name, kind) in [
            ("../escape", Kind::Regular),
            ("a/../../escape", Kind::Regular),
            ("/tmp/scxprof-escape", Kind::Regular),
            ("link", Kind::Symlink),
            ("link", Kind::Link),
            ("pipe", Kind::Fifo),
        ] {
            archive(&path, &[("fine", Kind::Regular, 3), (name, kind, 0)]);
            assert!(matches!(unpack(&path, &|| false), Err(ProfileError::Archive { .. })), "{name}");
        }
        archive(&path, &[("twice", Kind::Regular, 3), ("twice", Kind::Regular, 3)]);
        assert!(unpack(&path, &|| false).is_err());
    }

    #[test]
    fn a_bomb_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        archive(&path, &[("bomb", tar::EntryType::Regular, MIN_BYTES + (1 << 20))]);
        assert!(fs::metadata(&path).unwrap().len() < MIN_BYTES / MAX_RATIO);
        let error = unpack(&path, &|| false).unwrap_err().to_string();
        assert!(error.contains("times its own size"), "{error}");
        let many: Vec<String> = (0..=MAX_FILES).map(|index| format!("f{index}")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), tar::EntryType::Regular, 0)).collect();
        archive(&path, &many);
        assert!(unpack(&path, &|| false).is_err());
    }
}
