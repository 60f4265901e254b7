//! Opening an archive of any bytes: it may hold anything, and nothing may be written outside its directory.

#![no_main]

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use scxprof::profile::Profile;

fuzz_target!(|data: &[u8]| {
    // Where this was started, for it is changed below.
    static TEMPORARY: OnceLock<PathBuf> = OnceLock::new();
    let Ok(dir) = tempfile::tempdir_in(TEMPORARY.get_or_init(std::env::temp_dir)) else { return };
    let path = dir.path().join("profile");
    // What is not compressed is taken for the inside, which random bytes seldom reach.
    let bytes = if data.starts_with(&[0x1f, 0x8b]) {
        data.to_vec()
    } else {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        if encoder.write_all(data).is_err() {
            return;
        }
        encoder.finish().unwrap_or_default()
    };
    let scratch = dir.path().join("scratch");
    if std::fs::write(&path, bytes).is_err() || std::fs::create_dir(&scratch).is_err() {
        return;
    }
    std::env::set_var("TMPDIR", &scratch);
    let _ = Profile::open(&path);
    let entries = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
    assert_eq!((entries(dir.path()), entries(&scratch)), (2, 0), "something was written outside or left behind");
});
