//! Writes files of evidence of made hosts, to test and measure merging: `make_evidence DIR`, with options.
//!
//! Each host has cells of classes. The classes of a cell are in groups of five that share memory: with `--other`, the last hosts
//! have other groups. The same seed makes the same files, and a host's file does not depend on how many hosts there are.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use scxprof::evidence::{file, Class, Evidence, Key, RowKind, Scope, Sum, Sums, PARTS};

/// Classes of a group that shares memory.
pub const GROUP: usize = 5;
/// The part of their possible misses that classes of one group share, and others.
const SHARED: (f64, f64) = (0.2, 0.001);
/// The cell specs without options of the user, as a run writes them.
const SPECS: [(&str, &str); 3] = [
    ("allotment", r"regex workload-tw-[^/]+\.allotment\.slice"),
    ("workload.slice", "contains workload.slice"),
    ("rest", "all"),
];

/// What is made.
#[derive(Debug, Clone, Parser)]
#[command(about = "Writes files of evidence of made hosts into DIR, one for each host")]
pub struct Fleet {
    /// The directory; it must not exist, or be empty
    pub dir: PathBuf,
    /// Hosts
    #[arg(long, default_value_t = 10_000)]
    pub hosts: usize,
    /// Cells of a host
    #[arg(long, default_value_t = 10)]
    pub cells: usize,
    /// Classes of a cell
    #[arg(long, default_value_t = 20)]
    pub classes: usize,
    /// Hosts, the last ones, whose classes are in other groups
    #[arg(long, default_value_t = 0)]
    pub other: usize,
    /// The seed of all numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A random count with this expected value: about as uncertain as a real one.
    fn count(&mut self, expected: f64) -> f64 {
        // The sum of three uniform numbers has nearly the shape of a normal one.
        let normal = (self.unit() + self.unit() + self.unit() - 1.5) * 2.0;
        (expected + normal * expected.sqrt()).round().max(0.0)
    }
}

/// The group of a class of a cell: of five in a row, or distributed round-robin.
fn group(class: usize, classes: usize, other: bool) -> usize {
    let groups = classes.div_ceil(GROUP);
    if other {
        class % groups
    } else {
        class / GROUP
    }
}

impl Fleet {
    /// The evidence of a host.
    ///
    /// # Errors
    /// It has too many rows.
    pub fn host(&self, host: usize) -> Result<Evidence> {
        let mut random = Random(self.seed ^ (host as u64) << 32);
        // Two kernels and two models of CPUs, as fleets have several of each.
        let scope = Scope {
            label: "web".into(),
            source: "timer".into(),
            kernel: ["6.16.4", "6.18.0"][host % 2].into(),
            cpu: ["Made 9000", "Made 9100"][host / 2 % 2].into(),
            cpus: "128".into(),
        };
        let other = host + self.other >= self.hosts;
        let once = Sums::default().with(Sum::Runs, 1);
        let mut evidence = Evidence::default();
        for (place, (name, matches)) in (0..).zip(SPECS) {
            let class = Class { cell: name.into(), cgroup: matches.into(), ..Class::default() };
            evidence.add(Key { part: place, ..Key::of(RowKind::Spec, &scope, &class) }, &once)?;
        }
        let mut parts = vec![(0.0, 0.0); PARTS as usize];
        let mut samples_of_run = 0.0;
        for cell in 0..self.cells {
            let cgroup = format!("/workload.slice/workload-tw-service{}.allotment.slice", letters(cell));
            let of =
                |comm: String| Class { cell: "allotment".into(), cgroup: cgroup.clone(), comm, ..Class::default() };
            evidence.add(Key::of(RowKind::Cell, &scope, &of(String::new())), &once.with(Sum::Cgroups, 1))?;
            let classes: Vec<(Class, f64, f64)> = (0..self.classes)
                .map(|class| {
                    let threads = 2.0 + (random.next() % 6) as f64;
                    (of(format!("worker-{}-", letters(class))), threads, random.count(40.0 * threads))
                })
                .collect();
            for (class, threads, counted) in &classes {
                let samples = random.count(counted * 4.0);
                samples_of_run += samples;
                let sums = once
                    .with(Sum::Threads, *threads as u64)
                    .with_value(Sum::Samples, samples)
                    .with_value(Sum::Misses, counted * 1.5)
                    .with_value(Sum::Counted, *counted)
                    .with(Sum::Lines, random.count(counted * 0.7) as u64);
                evidence.add(Key::of(RowKind::Class, &scope, class), &sums)?;
            }
            for (at, a) in classes.iter().enumerate() {
                for (to, b) in classes.iter().enumerate().skip(at) {
                    let possible = f64::midpoint(a.2 * b.1, b.2 * a.1);
                    let together = group(at, self.classes, other) == group(to, self.classes, other);
                    let part = if together { SHARED.0 } else { SHARED.1 };
                    let shared = random.count(possible * part);
                    let sums = once
                        .with_value(Sum::Possible, possible)
                        .with_value(Sum::Shared, shared)
                        .with_value(Sum::Spread, shared * shared / possible.max(1.0))
                        .with_value(Sum::Common, shared)
                        .with_value(Sum::Avoidable, shared * 1.5)
                        .with(Sum::Sharing, u64::from(together))
                        .with(Sum::Apart, u64::from(!together));
                    // Any way to divide the pairs into parts does, if it is the same on all hosts.
                    let slot = &mut parts[(cell + at * 7 + to * 13) % PARTS as usize];
                    *slot = (slot.0 + possible, slot.1 + shared);
                    evidence.add(Key::pair(&scope, &a.0, &b.0), &sums)?;
                }
            }
        }
        let run = once.with(Sum::Duration, 60_000).with_value(Sum::Samples, samples_of_run);
        evidence.add(Key::new(RowKind::Run, &scope), &run.with(Sum::Lost, random.next() % 10))?;
        for (part, (possible, shared)) in (0..).zip(parts) {
            let key = Key { host: format!("host{host:06}"), part, ..Key::new(RowKind::Host, &scope) };
            evidence.add(key, &once.with_value(Sum::Possible, possible).with_value(Sum::Shared, shared))?;
        }
        Ok(evidence)
    }

    /// Writes the files of some of the hosts.
    fn write(&self, hosts: impl Iterator<Item = usize>) -> Result<()> {
        for host in hosts {
            let path = self.dir.join(format!("host{host:06}.parquet"));
            let mut out = BufWriter::new(File::create_new(&path).with_context(|| path.display().to_string())?);
            file::write(&self.host(host)?, &mut out).with_context(|| path.display().to_string())?;
            out.flush().with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Writes the files of all hosts, on all CPUs.
    ///
    /// # Errors
    /// The directory is not empty, or a file cannot be written.
    pub fn make(&self) -> Result<()> {
        create(&self.dir)?;
        let workers = std::thread::available_parallelism()?.get();
        std::thread::scope(|scope| {
            let work = |worker| scope.spawn(move || self.write((worker..self.hosts).step_by(workers)));
            let started: Vec<_> = (0..workers).map(work).collect();
            started
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked"))))
        })
    }
}

/// A directory without files.
fn create(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut files = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    anyhow::ensure!(files.next().is_none(), "{}: it is not empty", dir.display());
    Ok(())
}

/// A number as letters: numbers would be folded.
fn letters(number: usize) -> String {
    let letter = |number: usize| (b'a' + (number % 26) as u8) as char;
    [letter(number / 26), letter(number)].iter().collect()
}

fn main() -> Result<()> {
    Fleet::parse().make()
}
