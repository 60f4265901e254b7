//! Opening an archive of any bytes: it may hold anything, and nothing may be written outside its directory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::profile::Profile;

fuzz_target!(|data: &[u8]| {
    let Ok(dir) = tempfile::tempdir() else { return };
    let path = dir.path().join("profile");
    // Half of the inputs are the archive inside the compression, which random bytes seldom are.
    let bytes = match data.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            if std::io::Write::write_all(&mut encoder, rest).is_err() {
                return;
            }
            encoder.finish().unwrap_or_default()
        }
        Some((_, rest)) => rest.to_vec(),
        None => return,
    };
    if std::fs::write(&path, bytes).is_ok() {
        let _ = Profile::open(&path);
    }
});
