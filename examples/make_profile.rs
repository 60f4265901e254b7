//! Writes a perf.data of made samples, for benchmarks: `make_profile SAMPLES FILE`.
//!
//! 256 threads of 64 processes on 8 CPUs, each group of four processes with 256 shared pages; one sample in five is in them.

use std::fs::File;
use std::io::BufWriter;

use anyhow::{Context, Result};
use scxprof::testing::profile::writer::{finished_round, PerfDataWriter};
use scxprof::testing::sampler::attr::{self, EventSpec, Features, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::record::{MappedFile, Record, SampleId, SampleRecord};
use scxprof::testing::sampler::OpenEvents;

const CPUS: u64 = 8;
/// Samples of a CPU that follow one another in the file.
const CHUNK: u64 = 1024;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let count: u64 = args.next().and_then(|count| count.parse().ok()).context("usage: make_profile SAMPLES FILE")?;
    let path = args.next().context("usage: make_profile SAMPLES FILE")?;
    let attr = attr::sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 4096);
    let layout = attr::layout(&attr);
    let events = [OpenEvents { name: "minor-faults".into(), attr, ids: (1..=CPUS).collect(), is_aside: false }];
    let out = BufWriter::with_capacity(1 << 20, File::create_new(&path).with_context(|| path.clone())?);
    let mut writer = PerfDataWriter::new(out, events.iter().map(OpenEvents::desc).collect())?;
    let mut bytes = Vec::new();
    let id = SampleId::default();
    for process in 0..64u32 {
        let pid = 1000 + process * 10;
        for tid in pid..pid + 4 {
            let comm = format!("w{}-{}", process / 4, tid % 2);
            encode(&Record::Comm { pid, tid, exec: false, comm: comm.as_bytes() }, &id, 0, &layout, &mut bytes);
        }
        for (addr, len, flags, inode, prot, filename) in [
            (0x40_0000, 0x10_0000, 2, 5, 5, &b"/usr/bin/server"[..]),
            (0x7000_0000, 0x10_0000, 1, 100 + u64::from(process / 4), 3, b"/dev/shm/buffer"),
            (0x8000_0000, 0x1000_0000, 2, 0, 3, b"//anon"),
        ] {
            let file = MappedFile::Inode { major: 8, minor: 1, inode, generation: 0 };
            let data = prot & 4 == 0;
            let mapping = Record::Mmap2 { pid, tid: pid, addr, len, pgoff: 0, file, prot, flags, data, filename };
            encode(&mapping, &id, 2, &layout, &mut bytes);
        }
    }
    encode(&Record::Cgroup { id: 7, path: b"/workload.slice/web.service" }, &id, 0, &layout, &mut bytes);
    writer.write(&bytes)?;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut written = 0;
    for round in 0.. {
        for cpu in 0..CPUS {
            bytes.clear();
            for step in 0..CHUNK.min(count - written) {
                let thread = (next() % 256) as u32;
                let pid = 1000 + thread / 4 * 10;
                let shared = next().is_multiple_of(5);
                let base = if shared { 0x7000_0000 } else { 0x8000_0000 };
                let addr = base + next() % if shared { 0x10_0000 } else { 0x40_0000 };
                let sample = SampleRecord {
                    identifier: cpu + 1,
                    ip: 0x40_1000 + next() % 4096,
                    pid,
                    tid: pid + thread % 4,
                    time: 1_000_000_000 + (round * CHUNK + step) * 20_000 + cpu,
                    addr,
                    cpu: cpu as u32,
                    period: 1,
                    weight: 30 + next() % 300,
                    data_src: 0x0681_0014,
                    phys_addr: addr + (u64::from(thread / 4) << 32),
                    cgroup: 7,
                    data_page_size: 4096,
                    ..SampleRecord::default()
                };
                encode(&Record::Sample(sample), &id, 2, &layout, &mut bytes);
                written += 1;
            }
            writer.write(&bytes)?;
        }
        writer.write(&finished_round())?;
        if written >= count {
            break;
        }
    }
    writer.finish(Vec::new())?;
    Ok(())
}
