//! Opens a profile: an archive, a directory written by us or by scx_characterize, or bare records.

use std::fs::{DirEntry, File};
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::archive::{self, Unpacked};
use super::boot;
use super::error::ProfileError;
use super::file_type::{kind_of, FileType};
use super::hints::Hints;
use super::meta::Host;
use super::recovered::Recovered;
use super::thread_cgroups::{self, ThreadCgroups};
use super::{features, jsonl, sched_text, script, tasks, Meta};
use crate::host::clock::monotonic_ns;
use crate::host::facts::Tasks;
use crate::host::open;
use crate::host::Roots;
use crate::outcome::Outcome;
use crate::sample::caches::Caches;
use crate::sample::places::CpuPlaces;
use crate::sample::Source;
use crate::sampler::{AddressFrom, Identity};
use scxprof_perf::format::{feature, record_name};
use scxprof_perf::reader::{Event, PerfData};
use scxprof_trace::Recorded;

mod damage;
mod sched;

/// A pid that no process has (`PID_MAX_LIMIT` is 4 Mi).
const NOBODY: u32 = 1 << 30;
const PERF_TYPE_SOFTWARE: u32 = 1;
/// The accesses of the timer source.
const RECOVERED: &str = "recovered.jsonl";
/// Page faults: all, minor, major (`PERF_COUNT_SW_PAGE_FAULTS*`).
const FAULTS: [u64; 3] = [2, 5, 6];
/// The records in a directory written by perf (`--kcore`, `--threads`).
const DATA: &str = "data";
/// The files that may contain the samples, the most complete one first.
pub(crate) const DATA_FILES: [&str; 10] = [
    "perf.data",
    "perf.mem.data",
    "perf.jsonl",
    "perf.mem.jsonl",
    "perf.mem.script",
    "perf.script",
    SCHED_FILES[0],
    SCHED_FILES[1],
    SCHED_FILES[2],
    DATA,
];
/// Those of them that have only scheduling events, which scx_characterize records beside memory.
const SCHED_FILES: [&str; 3] = ["perf.sched.data", "perf.sched.jsonl", "perf.sched.script"];
/// Events of the scheduler, and what is missing without them.
const SCHED_NEEDS: [(&[&str], &str); 4] = [
    (&["sched:sched_switch"], "no run times, waits or sleeps"),
    (&["sched:sched_waking", "sched:sched_wakeup"], "no wakeups, no wakeup latency, no sleep times"),
    (&["sched:sched_wakeup_new"], "no wait of new threads"),
    (&["sched:sched_migrate_task"], "no migrations"),
];
/// An event that never occurs (`PERF_COUNT_SW_DUMMY`).
const DUMMY: u64 = 9;

/// The form of the samples.
#[derive(Debug)]
pub enum Records {
    /// The records of perf.data.
    PerfData(Box<PerfData<File>>),
    /// The text that `perf script` printed, if the records are gone.
    Script(Box<script::Reader<BufReader<File>>>),
    /// The lines of JSON that `process` wrote.
    Lines(Box<jsonl::Blocks<File>>),
    /// Scheduling events as text or as lines of JSON.
    Sched(Box<sched_text::Reader<BufReader<File>>>),
}

/// A profile that is open for reading.
#[derive(Debug)]
#[non_exhaustive]
pub struct Profile {
    /// The samples and their side-band.
    #[doc(hidden)]
    pub records: Records,
    /// The recorder's metadata; `None` for a recording by another program.
    pub meta: Option<Meta>,
    /// The accesses of a source that recovers them.
    #[doc(hidden)]
    pub recovered: Option<Recovered<File>>,
    /// Task hints.
    #[doc(hidden)]
    pub hints: Option<Hints<File>>,
    /// The cgroups of threads, if samples have none.
    pub(crate) thread_cgroups: Option<ThreadCgroups<File>>,
    /// The records that could not be parsed, up to the bound.
    unparseable: Vec<String>,
    /// The source of the addresses, as in JSON lines.
    source: Option<Source>,
    /// The times of the first sample and of the last record, once they were read.
    pub(crate) times: Option<(u64, u64)>,
    /// Problems outside the records, one sentence each.
    wrong: Vec<String>,
    /// The path that was opened.
    path: PathBuf,
    /// The file that contains the samples.
    data: PathBuf,
    /// The directory of the files that belong to it.
    beside: Option<PathBuf>,
    /// The directory into which an archive was unpacked; it is removed with the profile.
    unpacked: Option<Unpacked>,
}

impl Profile {
    /// Opens `path`.
    ///
    /// # Errors
    /// [`ProfileError`] if there is nothing to read.
    pub fn open(path: &Path) -> Result<Self, ProfileError> {
        Self::open_until(path, &|| false)
    }

    /// As [`Profile::open`]; unpacking an archive, below `std::env::temp_dir`, ends if `stop` returns true.
    ///
    /// # Errors
    /// As [`Profile::open`], and [`ProfileError::Stopped`].
    pub fn open_until(path: &Path, stop: &dyn Fn() -> bool) -> Result<Self, ProfileError> {
        let unpacked = match kind_of(path)? {
            FileType::Archive => Some(archive::unpack(path, stop)?),
            FileType::Directory | FileType::PerfData | FileType::Text | FileType::Lines | FileType::Sched => None,
        };
        Self::open_unpacked(path, unpacked)
    }

    /// Checks what `path` contains, without unpacking it.
    ///
    /// # Errors
    /// As [`Profile::open`], if no profile has such a beginning.
    pub(crate) fn check(path: &Path) -> Result<(), ProfileError> {
        kind_of(path).map(drop)
    }

    /// The same profile from its beginning.
    ///
    /// # Errors
    /// As [`Profile::open`], if it has changed meanwhile.
    pub fn rewind(self) -> Result<Self, ProfileError> {
        Self::open_unpacked(&self.path, self.unpacked)
    }

    fn open_unpacked(path: &Path, unpacked: Option<Unpacked>) -> Result<Self, ProfileError> {
        let dir = unpacked.as_ref().map(|unpacked| unpacked.dir.path().to_owned());
        Self::open_files(path, unpacked).map_err(|error| match &dir {
            Some(dir) => error.in_archive(dir, path),
            None => error,
        })
    }

    fn open_files(path: &Path, unpacked: Option<Unpacked>) -> Result<Self, ProfileError> {
        let root = unpacked.as_ref().map_or(path, |unpacked| unpacked.dir.path());
        let (dir, data) = match root.metadata() {
            Ok(metadata) if metadata.is_dir() => find(root, path).map_err(|error| match &unpacked {
                Some(Unpacked { cut: true, .. }) => {
                    let reason = "the archive ends before its records".to_owned();
                    ProfileError::Archive { path: path.to_owned(), reason }
                }
                _ => error,
            })?,
            Ok(_) => (beside_file(root), root.to_owned()),
            Err(source) => return Err(ProfileError::io("open", path, source)),
        };
        let beside = |name: &str| {
            let Some(path) = dir.as_ref().map(|dir| dir.join(name)) else { return Ok(None) };
            match open::regular_itself(&path) {
                Ok(file) => Ok(Some(file)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(source) => Err(ProfileError::io("open", &path, source)),
            }
        };
        let mut wrong = Vec::new();
        let meta = match dir.as_deref().map_or(Ok(None), Meta::read) {
            Err(ProfileError::Meta { reason, .. }) => {
                wrong.push(format!("meta.json is invalid ({reason})"));
                None
            }
            meta => meta?,
        };
        // A damaged file is rejected when it is opened, with the reason.
        let kind = match kind_of(&data) {
            Err(error @ ProfileError::Foreign { .. }) => return Err(error),
            kind => kind.unwrap_or(FileType::PerfData),
        };
        let (mut recovered, mut hints, mut thread_cgroups) = (None, None, None);
        if kind == FileType::Lines {
            // The lines contain what would be beside them.
            wrong.extend(meta.iter().flat_map(|meta| meta.damage.clone()));
        } else if kind == FileType::Sched {
            wrong.extend(meta.iter().flat_map(|meta| meta.damage.clone()));
            // Lines of JSON contain the hints.
            if data.extension().is_none_or(|extension| extension != "jsonl") {
                hints = beside("hints.jsonl")?.map(Hints::new);
            }
        } else {
            recovered = beside(RECOVERED)?.map(Recovered::new);
            hints = beside("hints.jsonl")?.map(Hints::new);
            thread_cgroups = beside(thread_cgroups::NAME)?.map(ThreadCgroups::new);
            match (&meta, &recovered) {
                (Some(meta), None) if meta.address_from.recovers() => {
                    wrong.push(format!("{RECOVERED} is missing, which has the addresses"));
                }
                (None, Some(_)) if wrong.is_empty() => wrong.push("meta.json is missing".to_owned()),
                (Some(Meta { unfinished: true, .. }), _) => {
                    wrong.push("the recording was not finished: losses at its end are unknown".to_owned());
                }
                _ => {}
            }
        }
        let mut source = None;
        let records = match kind {
            FileType::Text => Records::Script(Box::new(script::Reader::new(open_lines(&data, data != root)?))),
            FileType::Sched => Records::Sched(Box::new(sched_text::Reader::new(open_lines(&data, data != root)?))),
            FileType::Lines => {
                let failed = |source| ProfileError::io("read", &data, source);
                let first = jsonl::Reader::new(open_lines(&data, data != root)?).next_line().map_err(failed)?;
                source = first.and_then(|line| line.source);
                Records::Lines(Box::new(jsonl::Blocks::new(open_file(&data, data != root)?)))
            }
            _ => Records::PerfData(Box::new(open_perf_data(&data, root, path, unpacked.as_ref())?)),
        };
        let (unparseable, path, beside) = (Vec::new(), path.to_owned(), dir);
        Ok(Self {
            records,
            meta,
            recovered,
            hints,
            thread_cgroups,
            unparseable,
            source,
            times: None,
            wrong,
            path,
            data,
            beside,
            unpacked,
        })
    }

    /// The facts about threads in the recording beside samples, and damage to these; nothing if another program made it.
    #[must_use]
    pub fn tasks(&self) -> (Tasks, Option<String>) {
        let Some(path) = self.beside.as_ref().map(|dir| dir.join(tasks::NAME)) else { return Default::default() };
        match open::regular_itself(&path) {
            Ok(file) => {
                let (found, unreadable) = tasks::read(file);
                (found, (unreadable > 0).then(|| format!("{unreadable} lines of {} make no sense", tasks::NAME)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Default::default(),
            Err(error) => (Tasks::default(), Some(format!("{} cannot be read: {}", tasks::NAME, error.kind()))),
        }
    }

    /// The number of CPUs of the recorded host, if the recording has it.
    pub(crate) fn cpus(&mut self) -> Option<usize> {
        match (&self.meta, &mut self.records) {
            (Some(meta), _) if meta.host.cpus > 0 => Some(meta.host.cpus),
            (_, Records::PerfData(perf_data)) => features::online_cpus(perf_data),
            _ => None,
        }
    }

    /// True if these are the records of a profile of scxprof without the files that belong to it.
    pub(crate) fn is_of_scxprof_alone(&mut self) -> bool {
        let Records::PerfData(perf_data) = &mut self.records else { return false };
        self.meta.is_none() && perf_data.text(feature::VERSION).is_some_and(|tool| features::is_own(&tool))
    }

    /// Its description, as `scxprof trace info` prints it, after its last record was read.
    pub(crate) fn recorded(&mut self) -> Recorded {
        let mut recorded = Recorded {
            is_ours: self.meta.is_some(),
            cpus: self.cpus().and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(0),
            has_places: !self.places().is_empty(),
            damage: self.damage(),
            events: self.sampled_events(),
            ..Recorded::default()
        };
        if let Records::PerfData(perf_data) = &mut self.records {
            let mut counts: Vec<(u32, u64)> = perf_data.counts().collect();
            counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let named = |(kind, count): (u32, u64)| (format!("PERF_RECORD_{}", record_name(kind)), count);
            recorded.records = counts.into_iter().map(named).collect();
            let mut text = |bit| perf_data.text(bit).unwrap_or_default();
            recorded.kernel = text(feature::OSRELEASE);
            recorded.tool = text(feature::VERSION);
            if !recorded.tool.is_empty() && !recorded.is_ours && !features::is_own(&recorded.tool) {
                recorded.tool.insert_str(0, "perf ");
            }
        }
        if let Some(meta) = &self.meta {
            recorded.tool = format!("scxprof {}", meta.scxprof);
            recorded.kernel.clone_from(&meta.host.kernel);
            recorded.clock.clone_from(&meta.clock);
            recorded.real_time = (meta.begin > 0).then_some((meta.begin, (meta.begin_unix * 1e9) as u64));
            recorded.attributes = vec![
                ("host".to_owned(), meta.host.name.clone()),
                ("architecture".to_owned(), meta.host.arch.clone()),
                ("CPU model".to_owned(), meta.host.cpu.clone()),
                ("memory source".to_owned(), meta.source.clone()),
            ];
        }
        recorded
    }

    /// The names of the events of samples by their number; empty for events of ours that sample memory.
    fn sampled_events(&self) -> Vec<String> {
        let aside = self.aside_event().map(usize::from);
        let is_memory = self.meta.as_ref().is_some_and(|meta| meta.source != Source::Stacks.name());
        let named = |(number, name): (usize, Option<&str>)| match name {
            Some(name) if !is_memory || aside == Some(number) => name.to_owned(),
            _ => String::new(),
        };
        self.event_names().enumerate().map(named).collect()
    }

    /// The number of the event of call stacks that was recorded beside memory.
    pub(crate) fn aside_event(&self) -> Option<u16> {
        let events = &self.meta.as_ref()?.events;
        events.iter().position(|event| event.stacks).and_then(|number| u16::try_from(number).ok())
    }

    /// When the recording began, if it was made on this host since it booted; `None` otherwise, because files with the same
    /// paths may differ. A file from a pipe says it only after its last record was read.
    pub(crate) fn recorded_here(&mut self, roots: &Roots) -> Option<SystemTime> {
        let host = Host::here(roots);
        let Some(meta) = &self.meta else {
            let written = self.data.metadata().ok()?.modified().ok()?;
            let Records::PerfData(perf_data) = &mut self.records else { return None };
            let mut text = |bit| perf_data.text(bit);
            let recorded = [text(feature::HOSTNAME)?, text(feature::OSRELEASE)?];
            // In a pipe they come before the samples, and are 0.
            let said = features::sample_times(perf_data).filter(|times| *times != (0, 0));
            let times = said.or(self.times)?;
            let now = (SystemTime::now(), monotonic_ns());
            if self.unpacked.is_some() {
                return None;
            }
            return (recorded == [host.name, host.kernel]).then(|| boot::began(times, written, now)).flatten();
        };
        let Host { name, boot_id, .. } = &meta.host;
        if boot_id.is_empty() || (boot_id, name) != (&host.boot_id, &host.name) {
            return None;
        }
        SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(meta.begin_unix).ok()?)
    }

    /// The records; `None` if there is only text.
    #[must_use]
    pub fn perf_data(&self) -> Option<&PerfData<File>> {
        match &self.records {
            Records::PerfData(perf_data) => Some(perf_data),
            Records::Script(_) | Records::Lines(_) | Records::Sched(_) => None,
        }
    }

    /// The source of its addresses.
    #[must_use]
    pub fn source(&self) -> Source {
        if let Some(source) = self.source {
            return source;
        }
        if let Some(meta) = &self.meta {
            return meta.source.parse().unwrap_or(Source::Recorded);
        }
        if self.recovered.is_some() {
            return Source::Timer;
        }
        let Some(perf_data) = self.perf_data() else { return Source::Recorded };
        // perf opens it only for names and mappings, under varying names.
        let is_dummy = |event: &Event| event.attr.kind == PERF_TYPE_SOFTWARE && event.attr.config == DUMMY;
        let sampling = || perf_data.events().iter().filter(|event| !is_dummy(event));
        let are_faults = |event: &Event| event.attr.kind == PERF_TYPE_SOFTWARE && FAULTS.contains(&event.attr.config);
        if sampling().next().is_some() && sampling().all(are_faults) {
            return Source::Faults;
        }
        let named = |text: &str| sampling().any(|event| event.name.as_ref().is_some_and(|name| name.contains(text)));
        let known = if named("ibs_op") {
            "ibs"
        } else if named("mem-loads") || named("mem-stores") {
            "pebs"
        } else {
            "recorded"
        };
        known.parse().unwrap_or(Source::Recorded)
    }

    /// The names of its events by their number, as far as it says them.
    pub(crate) fn event_names(&self) -> impl Iterator<Item = Option<&str>> {
        self.perf_data().into_iter().flat_map(PerfData::events).map(|event| event.name.as_deref())
    }

    /// What is missing in its scheduling events for complete statistics, one sentence each.
    #[must_use]
    pub fn sched_lacks(&self) -> Vec<String> {
        let Some(perf_data) = self.perf_data() else { return Vec::new() };
        let (decoder, wrong) = perf_data.sched();
        let mut lacks: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        if decoder.is_empty() {
            return lacks;
        }
        // Either of the names will do.
        for (names, what) in SCHED_NEEDS {
            if !decoder.names().any(|name| names.contains(&name)) {
                let name = names.first().and_then(|name| name.split_once(':')).map_or("", |(_, name)| name);
                lacks.push(format!("the recording has no {name}: {what}"));
            }
        }
        lacks
    }

    /// Where the CPUs of the recorded host are in the machine, as far as the recording says it.
    #[must_use]
    pub fn places(&mut self) -> CpuPlaces {
        match &mut self.records {
            Records::PerfData(perf_data) => perf_data.places(),
            Records::Script(_) | Records::Lines(_) | Records::Sched(_) => CpuPlaces::default(),
        }
    }

    /// The last-level caches of the recorded host, if the recording has those of all its CPUs and they are regular.
    #[must_use]
    pub fn caches(&mut self) -> Option<Caches> {
        let cpus = self.cpus()?;
        let Records::PerfData(perf_data) = &mut self.records else { return None };
        Some(perf_data.caches()).filter(|caches| caches.len() == cpus).and_then(|caches| Caches::of(&caches))
    }

    /// The process that recorded it, if it is ours.
    #[must_use]
    pub fn own_pid(&self) -> Option<u32> {
        self.meta.as_ref().map(|meta| meta.identity.own_pid)
    }

    /// The metadata for its lines, which do not show what was lost or damaged.
    pub(crate) fn meta_of_lines(&self, outcome: &Outcome, damage: Vec<String>) -> Meta {
        let of_others = || Meta::of_others(self.source(), self.identity(), self.address_from());
        Meta {
            duration: outcome.duration.as_secs_f64(),
            cpu_seconds: outcome.cpu_time.map(|it| it.as_secs_f64()),
            samples: outcome.samples,
            accesses: outcome.accesses,
            event_count: outcome.events,
            loss: outcome.loss,
            notes: outcome.notes.clone(),
            unfinished: false,
            damage,
            ..self.meta.clone().unwrap_or_else(of_others)
        }
    }

    /// The processes whose samples are left out.
    #[must_use]
    pub(crate) fn identity(&self) -> Identity {
        let nobody = Identity { own_pid: NOBODY, child_pid_namespace: false, without_profilers: false };
        self.meta.as_ref().map_or(nobody, |meta| meta.identity)
    }

    /// How to read its samples.
    #[must_use]
    pub(crate) fn address_from(&self) -> AddressFrom {
        self.meta.as_ref().map_or(AddressFrom::OtherTool, |meta| meta.address_from.clone())
    }
}

/// Opens the perf.data `data` of the profile `root`, which the user knows as `path`.
fn open_perf_data(
    data: &Path,
    root: &Path,
    path: &Path,
    unpacked: Option<&Unpacked>,
) -> Result<PerfData<File>, ProfileError> {
    let opened = PerfData::open(open_file(data, data != root)?);
    let mut perf_data = opened.map_err(|source| ProfileError::PerfData { path: data.to_owned(), source })?;
    if is_in_parts(data, &perf_data) {
        let reason =
            "its samples are in several files, as `perf record --threads` writes them: record without --threads";
        return Err(ProfileError::Unknown { path: path.to_owned(), reason: reason.to_owned() });
    }
    if let Some(unpacked) = unpacked {
        perf_data.unpack_within(unpacked.budget);
    }
    Ok(perf_data)
}

/// True if the file has no samples, but others beside it have (`perf_data__create_dir` in tools/perf/util/data.c).
fn is_in_parts(data: &Path, perf_data: &PerfData<File>) -> bool {
    let in_directory = data.file_name().is_some_and(|name| name == DATA) && data.with_file_name("data.0").exists();
    // A truncated recording lacks the sections that show this.
    let says_so = perf_data.damage().unfinished || perf_data.features().any(|bit| bit == feature::DIR_FORMAT);
    in_directory && says_so
}

/// The directory of the files that belong to `data`, which the user named.
fn beside_file(data: &Path) -> Option<PathBuf> {
    match kind_of(data) {
        Ok(FileType::Lines | FileType::Sched) => data.parent().map(Path::to_owned),
        _ if data.file_name().is_some_and(|name| name == SCHED_FILES[0]) => data.parent().map(Path::to_owned),
        _ => of_ours(data),
    }
}

/// The directory of `data` if it is part of a profile of ours, which is incomplete without the other files.
fn of_ours(data: &Path) -> Option<PathBuf> {
    let dir = data.parent().filter(|_| data.file_name().is_some_and(|name| name == "perf.data"))?;
    // A meta.json that cannot be parsed may be ours.
    let has_meta = !matches!(Meta::read(dir), Ok(None) | Err(ProfileError::Io { .. }));
    (has_meta || dir.join(RECOVERED).exists()).then(|| dir.to_owned())
}

/// The directory with the records, which may be the only one in `root`, and the records themselves. The user knows it as
/// `path`.
fn find(root: &Path, path: &Path) -> Result<(Option<PathBuf>, PathBuf), ProfileError> {
    let mut dirs = vec![root.to_owned()];
    let entries = std::fs::read_dir(root).map_err(|source| ProfileError::io("open", path, source))?;
    let is_dir = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    // A second one is enough to know that there are several.
    let below: Vec<_> = entries.flatten().filter(is_dir).take(2).collect();
    if let [only] = below.as_slice() {
        dirs.push(only.path());
    }
    for dir in dirs {
        // Lines and text are derived from the records and contain less, so perf.data comes first.
        for name in DATA_FILES {
            let data = dir.join(name);
            let Ok(metadata) = data.symlink_metadata() else { continue };
            // Opening a link fails with a message.
            let may_be = metadata.is_file() || metadata.is_symlink();
            // Other programs may have a file named `data`.
            if may_be && (name != DATA || matches!(kind_of(&data), Ok(FileType::PerfData))) {
                return Ok((Some(dir), data));
            }
        }
    }
    Err(ProfileError::NoData { path: path.to_owned() })
}

/// Opens a file that the user named, or that was `found` in a directory that the user named.
fn open_file(path: &Path, found: bool) -> Result<File, ProfileError> {
    let file = if found { open::regular_itself(path) } else { open::regular(path) };
    file.map_err(|source| ProfileError::io("open", path, source))
}

/// Opens a file of lines, complete or not, that the user named or that was `found` in a directory.
pub(crate) fn open_lines(path: &Path, found: bool) -> Result<BufReader<File>, ProfileError> {
    Ok(BufReader::with_capacity(1 << 18, open_file(path, found)?))
}
