//! The reader of perf.data on any bytes, and what a session makes of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::profile::Profile;
use scxprof::session::SchedSink;
use scxprof::Session;

fuzz_target!(|data: &[u8]| {
    // What does not begin as a file does is made to, so that there is something behind the header.
    let mut bytes = Vec::new();
    if !data.starts_with(b"PERFILE2") && !data.starts_with(b"2ELIFREP") {
        let Some((choice, _)) = data.split_first() else { return };
        bytes.extend_from_slice(if choice % 2 == 0 { b"PERFILE2" } else { b"2ELIFREP" });
    }
    bytes.extend_from_slice(data);
    let Ok(file) = tempfile::NamedTempFile::new() else { return };
    if std::fs::write(file.path(), bytes).is_err() {
        return;
    }
    let Ok(mut profile) = Profile::open(file.path()) else { return };
    let mut stats = SchedSink::new(profile.places(), profile.own_pid()).with_wakers();
    let builder = Session::builder().profile(&mut profile).memory(1 << 20);
    let _ = builder.start().map(|session| session.run_into(&mut stats, |_| false));
    let _ = profile.damage();
});
