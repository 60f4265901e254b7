//! Checks the library's samples: each is what the module sent, none is missing, none is invented.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use scxprof::resolve::Cgroups;
use scxprof::sample::{CpuMode, Sample, Source, PAGE_SIZE};
use scxprof::session::{HostOptions, Outcome, Sink};
use scxprof::testing::sampler::{Hardware, Pace};
use scxprof::Session;

use crate::truth::{self, Sent};

/// With fewer samples of the workload than this, a check is inconclusive.
const ENOUGH: usize = 300;
/// The time after which a check gives up.
const TIMEOUT: Duration = Duration::from_secs(100);
/// Bytes of the huge pages that the buffer of group A requests.
const HUGE: u64 = 2 << 20;

/// Keeps every sample, with the path of its cgroup.
struct Collect<'a> {
    samples: Vec<(Sample, Option<Vec<u8>>)>,
    members: &'a BTreeMap<u32, Member>,
    /// Samples of the workload.
    seen: &'a Cell<usize>,
}

impl Sink for Collect<'_> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.seen.set(self.seen.get() + usize::from(self.members.contains_key(&sample.raw.tid)));
        self.samples.push((*sample, cgroups.path(sample.raw.cgroup).map(|path| path.to_vec())));
    }
}

/// A thread of the workload.
struct Member {
    group: String,
    name: String,
    start: u64,
    end: u64,
}

/// The workload, and its threads by id.
struct Workload {
    child: Child,
    members: BTreeMap<u32, Member>,
}

impl Workload {
    /// Starts it and waits until it has described itself.
    fn start(arguments: &[String]) -> Result<Self> {
        let mut child = Command::new("workload")
            .args(["-s", "600"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .context("workload")?;
        let out = child.stdout.take().context("no stdout")?;
        let (mut buffers, mut members) = (BTreeMap::new(), BTreeMap::new());
        for line in BufReader::new(out).lines() {
            let line = line?;
            let fields = truth::fields(&line);
            let field = |name: &str| fields.get(name).copied().with_context(|| format!("no {name} in {line}"));
            let pid = truth::number(field("pid")?)?;
            match line.split_whitespace().next() {
                Some("buffer") => {
                    buffers.insert(pid, (truth::number(field("start")?)?, truth::number(field("end")?)?));
                }
                Some("thread") => {
                    let &(start, end) = buffers.get(&pid).context("a thread without a buffer")?;
                    let (group, name) = (field("group")?.to_owned(), field("name")?.to_owned());
                    members.insert(truth::number(field("tid")?)? as u32, Member { group, name, start, end });
                }
                _ => break,
            }
        }
        ensure!(members.len() == 4, "the workload has {} threads", members.len());
        Ok(Self { child, members })
    }
}

/// The parameters of a check, from words such as `source=ibs ldlat=100 stores=1`; the rest is the workload's.
struct Wanted {
    source: Source,
    hardware: Hardware,
    /// Loads with a latency below this are filtered in user space.
    filter: u64,
    workload: Vec<String>,
}

fn wanted(arguments: &[String]) -> Result<Wanted> {
    let mut hardware = Hardware::default();
    let mut source = Source::Pebs;
    let mut filter = 0;
    let mut workload = Vec::new();
    for argument in arguments {
        let Some((key, value)) = argument.split_once('=') else {
            workload.push(argument.clone());
            continue;
        };
        let number = || truth::number(value);
        match key {
            "source" => source = value.parse().map_err(anyhow::Error::msg)?,
            "ldlat" => hardware.ldlat = Some(number()? as u32),
            "filter" => filter = number()?,
            "rate" => hardware.pace = Pace::Rate(number()? as u32),
            "period" => hardware.pace = Pace::Period(number()?),
            "freq" => hardware.pace = Pace::Frequency(number()? as u32),
            "stores" => hardware.stores = number()? == 1,
            "kernel" => hardware.kernel = number()? == 1,
            "batched" => hardware.batched = number()? == 1,
            _ => bail!("vm-check samples: unknown word {argument}"),
        }
    }
    Ok(Wanted { source, hardware, filter, workload })
}

/// `vm-check samples source=SOURCE [ldlat=N] [filter=N] [rate=N] [period=N] [freq=N] [stores=1] [kernel=1] [OPTIONS OF workload]`
pub fn check(arguments: &[String]) -> Result<()> {
    let wanted = wanted(arguments)?;
    let options = HostOptions { hardware: wanted.hardware.clone(), ..HostOptions::source(wanted.source) };
    let session = Session::builder().host(options).start()?;
    // What is sent from here on is read; the probe of the source has ended.
    fs::write(truth::SAMPLES, "\n").context(truth::SAMPLES)?;
    let mut workload = Workload::start(&wanted.workload)?;
    let seen = Cell::new(0);
    let mut collect = Collect { samples: Vec::new(), members: &workload.members, seen: &seen };
    let outcome = session.run_into(&mut collect, |progress| seen.get() >= ENOUGH || progress.elapsed >= TIMEOUT);
    workload.child.kill()?;
    workload.child.wait()?;
    for note in &outcome.notes {
        println!("note: {note}");
    }
    let mut sent = truth::by_time(truth::sent()?)?;
    if wanted.source == Source::Spe {
        sent = at_times_of(sent, &collect.samples);
    }
    same(&wanted, &workload.members, sent, &collect.samples, &outcome)?;
    plausible(&wanted, &workload.members, &collect.samples)
}

/// The times in records of SPE are counts, of which the module and we make CLOCK_MONOTONIC each in our own way. So each sample is taken
/// for the one that was sent at the nearest time on its CPU by its thread at its address; its time must be nearly the same.
fn at_times_of(
    mut sent: BTreeMap<(u32, u64), Sent>,
    samples: &[(Sample, Option<Vec<u8>>)],
) -> BTreeMap<(u32, u64), Sent> {
    /// ns: the counts are some 16 ns apart in QEMU, and CLOCK_MONOTONIC is slewed against them.
    const NEAR: u64 = 5_000_000;
    let mut moved = BTreeMap::new();
    for (sample, _) in samples {
        let raw = &sample.raw;
        let near = sent.range((raw.cpu, raw.time.saturating_sub(NEAR))..=(raw.cpu, raw.time.saturating_add(NEAR)));
        let same = near.filter(|(_, sent)| (sent.tid, sent.addr, sent.ip) == (raw.tid, raw.addr, raw.ip));
        let Some(key) = same.min_by_key(|((_, time), _)| time.abs_diff(raw.time)).map(|(key, _)| *key) else {
            continue;
        };
        if let Some(it) = sent.remove(&key) {
            moved.insert((raw.cpu, raw.time), Sent { time: raw.time, ..it });
        }
    }
    // What was not received keeps its time.
    moved.extend(sent);
    moved
}

/// True if `sample` must reach the sink: an access of a thread of the workload that no filter leaves out.
fn is_expected(wanted: &Wanted, members: &BTreeMap<u32, Member>, sent: &Sent) -> bool {
    members.contains_key(&sent.tid)
        && sent.addr != 0
        && (sent.user || wanted.hardware.kernel)
        && !(sent.latency > 0 && sent.latency < wanted.filter)
}

/// Every expected sample arrived once and as it was sent; nothing else arrived.
fn same(
    wanted: &Wanted,
    members: &BTreeMap<u32, Member>,
    sent: BTreeMap<(u32, u64), Sent>,
    samples: &[(Sample, Option<Vec<u8>>)],
    outcome: &Outcome,
) -> Result<()> {
    let mut expected: BTreeMap<_, _> =
        sent.into_iter().filter(|(_, sent)| is_expected(wanted, members, sent)).collect();
    let count = expected.len();
    ensure!(count >= ENOUGH, "only {count} samples were sent, {loss:?}", loss = outcome.loss);
    for (sample, path) in samples.iter().filter(|(sample, _)| members.contains_key(&sample.raw.tid)) {
        let Some(sent) = expected.remove(&(sample.raw.cpu, sample.raw.time)) else {
            bail!("never sent, or twice: {sample:?}");
        };
        let got = Sent {
            time: sample.raw.time,
            cpu: sample.raw.cpu,
            pid: sample.raw.pid,
            tid: sample.raw.tid,
            user: sample.raw.mode == CpuMode::User,
            ip: sample.raw.ip,
            addr: sample.raw.addr,
            phys: sample.raw.phys,
            page_size: sample.raw.page_size,
            cgroup: sample.raw.cgroup,
            period: sample.raw.period,
            latency: sample.raw.latency.into(),
            data_src: sample.raw.data_src.0,
            comm: sample.comm.map(|comm| comm.as_bytes().to_vec()).unwrap_or_default(),
        };
        ensure!(got == sent, "got {got:?}, sent was {sent:?}");
        ensure!(path.is_some(), "no path of cgroup {}", sample.raw.cgroup);
    }
    let loss = outcome.loss;
    ensure!(
        expected.len() as u64 <= loss.lost(),
        "{} of {count} samples are missing, such as {:?}; counted is {loss:?}",
        expected.len(),
        expected.values().next()
    );
    println!(
        "samples: {} of {count} as sent, {} lost, AUX data lost {} times, cut records {}",
        count - expected.len(),
        loss.lost(),
        loss.aux_lost,
        loss.malformed
    );
    Ok(())
}

/// The workload really did what was sent; the module does not know that.
fn plausible(wanted: &Wanted, members: &BTreeMap<u32, Member>, samples: &[(Sample, Option<Vec<u8>>)]) -> Result<()> {
    let cgroup = fs::metadata(own_cgroup()?)?.ino();
    let mut pages: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    let (mut loads, mut stores, mut hitm, mut slow, mut huge) = (0, 0, 0, 0, 0);
    let mut by_thread: BTreeMap<u32, usize> = BTreeMap::new();
    for (sample, _) in samples {
        let Some(member) = members.get(&sample.raw.tid) else { continue };
        if sample.raw.mode == CpuMode::Kernel {
            continue;
        }
        *by_thread.entry(sample.raw.tid).or_default() += 1;
        ensure!((member.start..member.end).contains(&sample.raw.addr), "{} has no {:#x}", member.name, sample.raw.addr);
        ensure!(sample.comm.is_some_and(|comm| comm.as_bytes() == member.name.as_bytes()), "{sample:?}");
        ensure!(sample.raw.cgroup == cgroup, "cgroup {} in place of {cgroup}", sample.raw.cgroup);
        ensure!(sample.raw.phys != 0 && (sample.raw.phys ^ sample.raw.addr) % PAGE_SIZE == 0, "phys of {sample:?}");
        if member.group == "B" {
            let page_size = if wanted.source == Source::Spe { 0 } else { PAGE_SIZE };
            ensure!(sample.raw.page_size == page_size, "a page of {} bytes", sample.raw.page_size);
            let page = (sample.raw.addr - member.start) / PAGE_SIZE;
            let frame = sample.raw.phys / PAGE_SIZE;
            pages.entry(&member.name).or_default().insert(page, frame);
        }
        huge += usize::from(sample.raw.page_size == HUGE);
        loads += usize::from(sample.raw.data_src.0 & 2 != 0);
        stores += usize::from(sample.raw.data_src.0 & 4 != 0);
        hitm += usize::from(sample.raw.data_src.is_hitm());
        slow += usize::from(sample.raw.latency > 100);
    }
    ensure!(by_thread.len() == members.len(), "samples of {} threads only", by_thread.len());
    let mut sides = pages.into_values();
    let (Some(one), Some(other)) = (sides.next(), sides.next()) else { bail!("no pages of group B") };
    let shared: Vec<_> = one.iter().filter_map(|(page, frame)| Some((frame, other.get(page)?))).collect();
    ensure!(!shared.is_empty(), "the processes of group B were never seen on one page");
    ensure!(shared.iter().all(|(one, other)| one == other), "one shared page has two frames");
    // SPE does not say whether a line was modified.
    let says_hitm = wanted.source != Source::Spe;
    ensure!(loads > 0 && (hitm > 0) == says_hitm && slow > 0, "{loads} loads, {hitm} in modified lines, {slow} slow");
    let sees_stores = wanted.source != Source::Pebs || wanted.hardware.stores;
    ensure!((stores > 0) == sees_stores, "{stores} stores");
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    ensure!(huge > 0 || wanted.source == Source::Spe || thp.is_empty() || thp.contains("[never]"), "no huge pages");
    println!("samples: {loads} loads, {stores} stores, {hitm} in modified lines, {huge} in huge pages");
    Ok(())
}

/// The directory of the cgroup that we and the workload are in.
fn own_cgroup() -> Result<String> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).context("no cgroup2")?;
    Ok(format!("/sys/fs/cgroup{path}"))
}
