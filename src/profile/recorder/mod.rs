//! A running recording: the bytes of the rings are written to perf.data unchanged, after records of what existed before. Other
//! facts are written to files beside it.

mod again;
mod state;

pub(crate) use again::FilesOf;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use perf_event_open_sys::bindings as sys;
use rustc_hash::FxHashSet;

use super::code_files::{CodeFile, CodeFiles};
use super::error::{ProfileError, FORMAT};
use super::features;
use super::hints::HintRecord;
use super::meta::{self, Meta, MetaEvent};
use super::recovered::{Names, RecoveredWriter};
use super::snapshot::Snapshot;
use super::strip;
use super::thread_cgroups;
use super::tracing;
use crate::host::clock::monotonic_ns;
use crate::host::{Error, Roots};
use crate::outcome::Outcome;
use crate::resolve::{symbols, Cgroups};
use crate::sample::{sentences, TimedSideBand};
use crate::sample::{Sample, Source};
use crate::sampler::attr::{layout, Feature};
use crate::sampler::intake::Intake;
use crate::sampler::tee::Tee;
use crate::sampler::{AddressFrom, Identity, OpenEvents, Sampler};
use scxprof_base::tables::Tables;
use scxprof_perf::buildid;
use scxprof_perf::buildid::BuildId;
use scxprof_perf::encode::encode;
use scxprof_perf::format::{feature, records};
use scxprof_perf::record::{sample_type, Layout, Record, SampleId};
use scxprof_perf::writer::{self, PerfDataWriter};
use state::{Noted, OpenFiles};

/// The number of cgroups that are known to be recorded; each takes some 20 bytes.
const MAX_CGROUPS: usize = 1 << 18;

/// Bytes of a cgroup without a record in meta.json besides its path, in hex.
const LATE_CGROUP: usize = 64;

/// Writes a profile while a session samples.
#[derive(Debug)]
pub struct Recorder {
    state: Mutex<OpenFiles>,
    source: Source,
    roots: Roots,
    dir: PathBuf,
    layout: Layout,
    events: Vec<OpenEvents>,
    identity: Identity,
    address_from: AddressFrom,
    watched: Option<Vec<u32>>,
    /// Writes the memory in samples to the file.
    keep_memory: bool,
    begin: u64,
}

/// The recording in progress.
struct Opened {
    events: Vec<OpenEvents>,
    identity: Identity,
    address_from: AddressFrom,
    /// See [`Meta::watched`](super::Meta).
    watched: Option<Vec<u32>>,
    /// The number of threads that read the rings.
    workers: usize,
    /// The memory in samples is kept.
    keep_memory: bool,
    /// Samples contain their cgroup.
    has_cgroups: bool,
}

impl Recorder {
    /// Begins the files in `dir` for the events that `sampler` has open. The memory in samples is left out unless `keep_memory`.
    ///
    /// # Errors
    /// A file cannot be written, or an event does not say its id.
    pub(crate) fn new(
        sampler: &Sampler,
        source: Source,
        roots: &Roots,
        follows_hints: bool,
        keep_memory: bool,
        watched: Option<Vec<u32>>,
        dir: &Path,
    ) -> Result<Self, ProfileError> {
        let events =
            sampler.events().map_err(|error| ProfileError::Meta { path: dir.to_owned(), reason: error.to_string() })?;
        let (&identity, address_from) = sampler.address_from();
        let (address_from, workers) = (address_from.clone(), sampler.workers());
        let has_cgroups = sampler.features().has(Feature::Cgroup);
        let opened = Opened { events, identity, address_from, watched, workers, keep_memory, has_cgroups };
        Self::of(opened, source, roots, follows_hints, dir)
    }

    fn of(
        opened: Opened,
        source: Source,
        roots: &Roots,
        follows_hints: bool,
        dir: &Path,
    ) -> Result<Self, ProfileError> {
        let Opened { events, identity, address_from, watched, workers, keep_memory, has_cgroups } = opened;
        let path = dir.join("perf.data");
        let failed = |source| ProfileError::io("write", &path, source);
        let described = events.iter().map(OpenEvents::desc).collect();
        let writer =
            PerfDataWriter::new(BufWriter::with_capacity(1 << 18, create(&path)?), described).map_err(failed)?;
        let hints = follows_hints.then(|| create(&dir.join("hints.jsonl")).map(BufWriter::new)).transpose()?;
        let (recovered, cgroups) = (dir.join("recovered.jsonl"), dir.join(thread_cgroups::NAME));
        // The previous source may have created them.
        let _ = (std::fs::remove_file(&recovered), std::fs::remove_file(&cgroups));
        let thread_cgroups = (!has_cgroups).then(|| create(&cgroups).map(BufWriter::new)).transpose()?;
        let recovered = (source == Source::Timer || address_from.is_of_kernel())
            .then(|| create(&recovered).map(|file| RecoveredWriter::new(BufWriter::new(file))))
            .transpose()?;
        let spool = tempfile::tempfile_in(dir).map_err(|source| ProfileError::io("write in", dir, source))?;
        let layout = events.first().map(|event| layout(&event.attr)).unwrap_or_default();
        let recorder = Self {
            state: Mutex::new(OpenFiles {
                layout,
                writer: Some(writer),
                spool: Some(BufWriter::with_capacity(1 << 16, spool)),
                complete: vec![0; workers],
                renewing: u64::MAX,
                newest: 0,
                marked: 0,
                ids: events.iter().flat_map(|event| event.ids.iter().map(|&id| (id, id))).collect(),
                first_id: events.first().and_then(|event| event.ids.first().copied()).unwrap_or(0),
                cgroups: FxHashSet::default(),
                late_cgroups: Vec::new(),
                files: CodeFiles::default(),
                left_out: 0,
                hints,
                thread_cgroups,
                recovered,
                failed: None,
            }),
            source,
            roots: roots.clone(),
            dir: dir.to_owned(),
            layout,
            events,
            identity,
            address_from,
            watched,
            keep_memory,
            begin: monotonic_ns(),
        };
        recorder.meta(None).write(dir)?;
        Ok(recorder)
    }

    /// Writes an event to hints.jsonl.
    pub(crate) fn hint(&self, record: &HintRecord) {
        let mut state = self.lock();
        let Some(hints) = &mut state.hints else { return };
        let result = super::hints::write(hints, record);
        state.check(result);
    }

    /// Writes to cgroups.jsonl that a thread is in a cgroup from `time` on.
    pub(crate) fn cgroup(&self, time: u64, thread: (u32, u32), cgroup: (u64, &[u8])) {
        let mut state = self.lock();
        let Some(cgroups) = &mut state.thread_cgroups else { return };
        let result = thread_cgroups::write(cgroups, time, thread, cgroup);
        state.check(result);
    }

    /// Writes an access to recovered.jsonl; those of a sample follow one another. `other_kind`: its page is one of a file or of
    /// shared memory, or is none, but the mappings show another kind of memory. `names`: of the kernel's memory.
    pub(crate) fn access(&self, access: &Sample, other_kind: Option<bool>, names: Names<'_>) {
        if let Some(recovered) = &mut self.lock().recovered {
            recovered.add(access, other_kind, names);
        }
    }

    /// The source of the addresses.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// The directories of the host.
    pub(super) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The events that are recorded.
    #[must_use]
    pub(crate) fn events(&self) -> &[OpenEvents] {
        &self.events
    }

    /// The processes whose samples are left out when it is read.
    #[must_use]
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// How to read a sample.
    #[must_use]
    pub(crate) fn address_from(&self) -> &AddressFrom {
        &self.address_from
    }

    /// CLOCK_MONOTONIC, ns, before the first event was enabled.
    #[must_use]
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// True if the file could not be written, so continuing is pointless.
    #[must_use]
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// Writes what exists (the processes with one of `tids`, or all) and passes it to `known`, as a later reader would get it.
    ///
    /// # Errors
    /// procfs cannot be read; the recording continues without the rest.
    pub(crate) fn snapshot(
        &self,
        roots: &Roots,
        tids: Option<&[u32]>,
        cgroups: &Cgroups,
        known: &mut dyn FnMut(TimedSideBand),
    ) -> Result<(), Error> {
        let layout = self.layout;
        let mut intake = Intake::new(self.identity, self.address_from.clone());
        let mut out = |bytes: &[u8], _| {
            self.lock().write_front(bytes);
            for record in records(bytes) {
                intake.take(record, &layout);
            }
            intake.batch().side_band.drain(..).for_each(&mut *known);
            true
        };
        let mut snapshot = Snapshot { layout, out: &mut out };
        snapshot.kernel(roots);
        snapshot.cgroups(cgroups);
        let result = snapshot.processes(roots, tids, &|| 0);
        let mut state = self.lock();
        state.cgroups.extend(cgroups.known().map(|(id, _)| id));
        state.unspool();
        result
    }

    /// Writes the final loss counts of the events, by their ids, as perf record does (record__read_lost_samples() in
    /// tools/perf/builtin-record.c); perf report adds them up.
    pub(crate) fn lost(&self, events: &[(u64, u64)]) {
        for &(id, lost) in events {
            let id = self.lock().written_id(id);
            let id = SampleId { id, identifier: id, ..SampleId::default() };
            let mut bytes = Vec::new();
            if encode(&Record::LostSamples { lost }, &id, 0, &self.layout, &mut bytes) {
                self.lock().write(&bytes);
            }
        }
    }

    /// Records the cgroups without a record.
    pub(crate) fn note_cgroups(&self, cgroups: &Cgroups) {
        let mut state = self.lock();
        let mut room = meta::MAX_CGROUPS;
        let mut late = Vec::new();
        for (id, path) in cgroups.known() {
            if state.cgroups.contains(&id) {
                continue;
            }
            let Some(rest) = room.checked_sub(2 * path.len() + LATE_CGROUP) else {
                state.left_out += 1;
                continue;
            };
            room = rest;
            late.push((id, path.to_vec()));
        }
        state.late_cgroups = late;
    }

    /// The sizes of its tables.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let state = self.lock();
        tables.set_map::<u64>("cgroups of the recording", state.cgroups.len(), state.cgroups.capacity(), 0);
        tables.set_map::<(u64, u64)>("ids of the recording", state.ids.len(), state.ids.capacity(), 0);
        state.files.measure(tables);
    }

    /// What did not fit, one sentence each.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let state = self.lock();
        let (files, cgroups) = (state.files.left_out(), state.left_out);
        sentences(&[
            (files, "mappings of code were left out of the build ids, as there were too many different files"),
            (cgroups, "cgroups have no path in the recording, as there were too many that no record names"),
        ])
    }

    /// See [`Recorder::note_cgroups`].
    #[must_use]
    pub(crate) fn late_cgroups(&self) -> Vec<(u64, Vec<u8>)> {
        self.lock().late_cgroups.clone()
    }

    /// The metadata of a recording that has just ended, or begun: then there is no outcome.
    fn meta(&self, ended: Option<&Outcome>) -> Meta {
        let outcome = ended.unwrap_or(&Outcome::default()).clone();
        // The current time since 1970, minus the time since the beginning.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let passed = monotonic_ns().saturating_sub(self.begin()) as f64 / 1e9;
        let events = self.events().iter().map(|events| {
            let attr = &events.attr;
            let layout = layout(attr);
            MetaEvent {
                name: events.name.to_string(),
                stacks: events.is_aside,
                kind: attr.type_,
                config: attr.config,
                sample_type: layout.sample_type,
                period_or_freq: meta::period_or_freq(attr),
                count: events.ids.len(),
            }
        });
        Meta {
            format: FORMAT,
            scxprof: env!("CARGO_PKG_VERSION").to_owned(),
            source: self.source().name().to_owned(),
            clock: "CLOCK_MONOTONIC".to_owned(),
            begin: self.begin(),
            begin_unix: now - passed,
            duration: outcome.duration.as_secs_f64(),
            cpu_seconds: outcome.cpu_time.map(|it| it.as_secs_f64()),
            host: meta::Host::here(self.roots()),
            events: events.collect(),
            identity: self.identity(),
            address_from: self.address_from().clone(),
            watched: self.watched().map(<[u32]>::to_vec),
            samples: outcome.samples,
            accesses: outcome.accesses,
            event_count: outcome.events,
            loss: outcome.loss,
            recovery: outcome.recovery.and_then(|recovery| serde_json::to_value(recovery).ok()),
            hints: outcome.hints,
            cgroups: self.late_cgroups().into_iter().map(|(id, path)| (id, meta::to_hex(&path))).collect(),
            notes: outcome.notes,
            unfinished: ended.is_none(),
            damage: Vec::new(),
        }
    }

    /// Finishes the files when the session has ended. Until then meta.json marks the profile as unfinished.
    ///
    /// # Errors
    /// The first error of any write; what was written can still be read.
    pub fn finish(&self, outcome: &Outcome) -> Result<(), ProfileError> {
        let meta = self.meta(Some(outcome));
        let records = self.finish_records().map_err(|error| ("perf.data", error));
        let (hints, cgroups, recovered) = {
            let mut state = self.lock();
            (state.hints.take(), state.thread_cgroups.take(), state.recovered.take())
        };
        let finish = |file: Option<BufWriter<File>>| {
            file.map_or(Ok(()), |mut file| file.flush().and_then(|()| file.get_ref().sync_all()))
        };
        let (hints, cgroups) = (finish(hints), finish(cgroups));
        let recovered = recovered.map_or(Ok(()), RecoveredWriter::finish);
        let meta = meta.write(&self.dir);
        records
            .and(hints.map_err(|error| ("hints.jsonl", error)))
            .and(cgroups.map_err(|error| (thread_cgroups::NAME, error)))
            .and(recovered.map_err(|error| ("recovered.jsonl", error)))
            .map_err(|(name, error)| ProfileError::io("write", &self.dir.join(name), error))
            .and(meta)
    }

    /// Finishes perf.data, with sections about the host.
    fn finish_records(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.unspool();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let Some(writer) = state.writer.take() else { return Ok(()) };
        let mut sections = features::of_host(&self.roots);
        // The resolution of CLOCK_MONOTONIC, ns.
        sections.push((feature::CLOCKID, 1u64.to_ne_bytes().to_vec()));
        let times = [self.begin.to_ne_bytes(), state.newest.to_ne_bytes()].concat();
        sections.push((feature::SAMPLE_TIME, times));
        sections.push((feature::BUILD_ID, self.build_ids(&state)));
        let tracepoints: Vec<&str> =
            self.events.iter().filter(|event| is_tracepoint(event)).map(|event| &*event.name).collect();
        sections.extend(tracing::section(&self.roots.proc, &tracepoints).map(|bytes| (feature::TRACING_DATA, bytes)));
        writer.finish(sections)?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }

    /// The section of build ids. If several files have one path, the section has all of them, or none if one is unknown: no
    /// file must be taken for another.
    fn build_ids(&self, state: &OpenFiles) -> Vec<u8> {
        let roots = &self.roots;
        let (now, monotonic) = (SystemTime::now(), monotonic_ns());
        let at = |time: u64| now.checked_sub(Duration::from_nanos(monotonic.saturating_sub(time.max(self.begin))));
        let mut build_ids = symbols::host_build_ids(roots);
        for (path, files) in state.files.iter() {
            let id = |file: &CodeFile| {
                symbols::mapped_build_id(roots, (path, file.dev, file.ino), &file.pids, at(file.since)?)
            };
            let ids: Option<Vec<BuildId>> = files.iter().map(id).collect();
            build_ids.extend(ids.into_iter().flatten().map(|id| (&path[..], id)));
        }
        buildid::write(build_ids)
    }

    /// The samples contain memory: a BPF program writes them.
    fn carries_memory(&self) -> bool {
        self.source == Source::Timer && self.layout.sample_type & sample_type::RAW != 0
    }

    /// See [`Meta::watched`](super::Meta).
    pub(super) fn watched(&self) -> Option<&[u32]> {
        self.watched.as_deref()
    }

    fn lock(&self) -> MutexGuard<'_, OpenFiles> {
        // A panic elsewhere leaves at worst half a record, which readers skip.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new file at `path`; it replaces that of a recording that was just abandoned and may still be written to.
fn create(path: &Path) -> Result<File, ProfileError> {
    let _ = std::fs::remove_file(path);
    // It contains data from other users' registers and stacks.
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|source| ProfileError::io("write", path, source))
}

impl Tee for Recorder {
    fn records(&self, bytes: &[u8], newest: u64, is_beside: bool) {
        let short =
            (self.carries_memory() && !self.keep_memory && !is_beside).then(|| strip::without(bytes, &self.layout));
        let bytes = short.as_deref().unwrap_or(bytes);
        let mut state = self.lock();
        state.newest = state.newest.max(newest);
        let Noted { strange, segments } = state.note(bytes);
        for (pid, time) in segments {
            let mut before = Vec::new();
            let snapshot = Snapshot { layout: self.layout, out: &mut |_, _| true };
            snapshot.ipc_namespace(&self.roots.proc, pid, time, &mut before);
            state.write(&before);
        }
        if strange.is_empty() {
            return state.write(bytes);
        }
        let mut bytes = bytes.to_vec();
        for (at, word) in strange {
            if let Some(field) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..word.len())) {
                field.copy_from_slice(&word);
            }
        }
        state.write(&bytes);
    }

    fn opened(&self, id: u64, like: Option<u64>) {
        let mut state = self.lock();
        let written = like.unwrap_or(state.first_id);
        state.ids.insert(id, written);
    }

    fn complete(&self, worker: usize, until: u64) {
        let mut state = self.lock();
        if let Some(mark) = state.complete.get_mut(worker) {
            *mark = until;
        }
        let all = state.complete.iter().copied().min().unwrap_or(0).min(state.renewing);
        // At a mark, a reader releases records up to the newest time at the previous mark.
        if all > state.marked && state.newest > state.marked {
            state.marked = state.newest;
            state.write(&writer::finished_round());
        }
    }
}

fn is_tracepoint(event: &OpenEvents) -> bool {
    event.attr.type_ == sys::PERF_TYPE_TRACEPOINT
}

#[cfg(test)]
mod tests;
