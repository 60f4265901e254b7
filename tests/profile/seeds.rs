//! The initial inputs of the fuzz targets: complete files from the builders of these tests.

use std::path::Path;

use scxprof::sample::{Method, RawSample, Sample, Source};
use scxprof::testing::profile::hints::{self, HintRecord};
use scxprof::testing::profile::jsonl;
use scxprof::testing::profile::recovered::{Names, RecoveredWriter};
use scxprof::testing::profile::PerfData;

use super::compressed::{compressed, Zstd};
use super::made::{self, Order};
use super::{meta, replayed, script, spe};

const LITTLE: Order = Order { big: false };
const BIG: Order = Order { big: true };
const HINTS: &[u8] = b"{\"pid\":100,\"tgid\":100,\"hints\":7,\"timestamp\":1000005000,\"snapshot\":true}\n";

fn perf_data() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("little", made::file(LITTLE, &made::records(LITTLE))),
        ("big", made::file(BIG, &made::records(BIG))),
        ("little-pipe", made::pipe(LITTLE, &made::records(LITTLE))),
        ("big-pipe", made::pipe(BIG, &made::records(BIG))),
        ("raw", made::file(LITTLE, &compressed(LITTLE, &made::records(LITTLE), Zstd::Raw))),
        ("compressed", made::file(LITTLE, &compressed(LITTLE, &made::records(LITTLE), Zstd::Compressed))),
        ("second-big", made::file(BIG, &compressed(BIG, &made::records(BIG), Zstd::Second))),
        ("spe", spe_recording()),
    ]
}

fn spe_recording() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    spe::record(&path, spe::SEED);
    std::fs::read(path).unwrap()
}

/// The AUX data of it.
fn aux_data() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = spe_recording();
    let aux = PerfData::open(std::io::Cursor::new(&bytes)).unwrap().auxtrace().unwrap().unwrap();
    let pieces = aux.buffers.iter().flat_map(|buffer| &buffer.chunks);
    vec![("records", pieces.flat_map(|piece| &bytes[piece.at as usize..][..piece.size as usize]).copied().collect())]
}

fn jsonl() -> Vec<(&'static str, Vec<u8>)> {
    let (_dir, path) = made::write(&made::file(LITTLE, &made::records(LITTLE)));
    let (collect, ..) = replayed(&path);
    let mut lines = jsonl::Writer::new(Vec::new(), Source::Recorded);
    let mut recovered = Vec::new();
    let mut writer = RecoveredWriter::new(&mut recovered);
    for (sample, path) in collect.samples.iter().zip(&collect.paths).take(4) {
        lines.write(sample, path.as_deref(), None).unwrap();
        writer.add(
            &Sample { raw: RawSample { method: Some(Method::Emulated), size: 8, ..sample.raw }, ..*sample },
            None,
            Names::default(),
        );
    }
    writer.finish().unwrap();
    let mut hints = HINTS.to_vec();
    hints::write(&mut hints, &HintRecord { tid: 7, pid: 5, hint: None, time: 9, snapshot: false }).unwrap();
    let foreign = br#"{"comm":"web","tid":11,"pid":10,"time":"5.000001","addr":"7f00","cgroup":"/a","ip":"40","sym":"main","dso":"/x (deleted)","phys_addr":"1240","data_page_size":4096,"hint":3}
"#;
    vec![
        ("lines", lines.finish().unwrap()),
        ("recovered", recovered),
        ("hints", hints),
        ("foreign", foreign.to_vec()),
        (
            "script",
            script::text().into_bytes().split_inclusive(|&byte| byte == b'\n').take(2).collect::<Vec<_>>().concat(),
        ),
    ]
}

fn archive() -> Vec<(&'static str, Vec<u8>)> {
    let records: Vec<_> = made::records(LITTLE).into_iter().take(8).collect();
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in [
        ("x/perf.data", made::file(LITTLE, &records)),
        ("x/hints.jsonl", HINTS.to_vec()),
        ("x/meta.json", meta::META.to_vec()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    vec![("tar", tar.into_inner().unwrap())]
}

/// With `SCXPROF_WRITE_SEEDS` set they are written again.
#[test]
fn seeds_are_what_the_builders_make() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let write = std::env::var_os("SCXPROF_WRITE_SEEDS").is_some();
    for (target, seeds) in [("perf_data", perf_data()), ("jsonl", jsonl()), ("archive", archive()), ("spe", aux_data())]
    {
        let dir = root.join(target);
        if write {
            std::fs::create_dir_all(&dir).unwrap();
        }
        for (name, bytes) in seeds {
            let path = dir.join(name);
            if write {
                std::fs::write(&path, &bytes).unwrap();
            }
            assert!(std::fs::read(&path).ok() == Some(bytes), "{}: run with SCXPROF_WRITE_SEEDS=1", path.display());
        }
    }
}
