//! Recordings that are made here.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Recordings in a directory, which is the root of a server.
pub struct Made {
    dir: tempfile::TempDir,
}

/// Lines of accesses, as `scxprof process` writes them: two groups of four threads, each with pages of its own, and a line of which
/// two threads write different bytes.
pub fn lines(count: usize) -> String {
    let mut text = String::new();
    let mut seed = 7u64;
    for at in 0..count {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (seed >> 33) as usize;
        let (group, thread) = (random % 2, random / 2 % 4);
        let name = ["web", "db"][group];
        let is_false = group == 1 && thread < 2 && random.is_multiple_of(3);
        let (line, byte) = if is_false { (0, thread * 32) } else { (1 + random / 8 % 200, random / 1600 % 8 * 8) };
        let offset = group * 0x10_0000 + line * 64 + byte;
        let op = if is_false || random.is_multiple_of(2) { "store" } else { "load" };
        let (tid, pid) = (100 * (group + 1) + thread, 100 * (group + 1));
        let (seconds, micros) = (1 + at / 1000, at % 1000);
        let _ = writeln!(
            text,
            "{{\"comm\": \"{name}-{thread}\", \"pid\": {pid}, \"tid\": {tid}, \"cpu\": {}, \"time\": \"{seconds}.{micros:03}000000\", \
             \"ip\": \"401{thread:03x}\", \"cgroup\": \"/{name}.slice\", \"op\": \"{op}\", \"weight\": 20, \"period\": 1000, \
             \"size\": 8, \"memory\": \"private\", \"space\": {group}, \"addr\": \"{:x}\", \"phys_addr\": \"0\", \
             \"data_page_size\": 4096, \"record\": {}, \"data_src\": \"0\"}}",
            group * 4 + thread,
            0x5600_0000_0000u64 + offset as u64,
            at + 1,
        );
    }
    text
}

fn unpacked(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

impl Made {
    /// `samples.jsonl`, `other.jsonl`, `sched.data` (of perf), `trace.pb.gz` (of wprof) and two configurations.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = Self { dir };
        fs::write(made.path("samples.jsonl"), lines(6000)).unwrap();
        fs::write(made.path("other.jsonl"), lines(3000).replace("db-", "sql-")).unwrap();
        fs::write(made.path("sched.data"), unpacked("tests/fixtures/sched/perf-sched.data.gz")).unwrap();
        fs::write(made.path("trace.pb"), unpacked("crates/trace/tests/fixtures/wprof.pb.gz")).unwrap();
        let cells = r#"[{"name": "rest", "matches": {}, "subcells": [
            {"name": "web", "matches": [[{"CommPrefix": "web"}]]}, {"name": "rest", "matches": [[]]}]}]"#;
        fs::write(made.path("cells.json"), cells).unwrap();
        made
    }

    /// A recording whose reading does not end by itself: after its accesses comes a hole of 1 TiB, which takes hours to read.
    pub fn endless(&self, name: &str) {
        let mut file = fs::File::create(self.path(name)).unwrap();
        file.write_all(lines(3000).as_bytes()).unwrap();
        file.set_len(1 << 40).unwrap();
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}
