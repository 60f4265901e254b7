//! The names of samples, and the accesses that they give.

use super::accesses::Accesses;
use super::namer::Namer;
use super::wakeups::{Wakeups, Woken};
use crate::profile::recovered::{self, Names, RecoveredAccess};
use crate::resolve::threads::Thread;
use crate::resolve::{Maps, Modules};
use crate::sample::batch::UserContext;
use crate::sample::sched::SchedEvent;
use crate::sample::{Access, CodeAddr, CpuMode, MemoryId, MemoryScope, RawSample, Sample, SideBand, ThreadIndex};
use crate::session::piece::{Piece, Ready};
use scxprof_recover::KERNEL_HALF;

/// The code at `ip` in the process of the sample, if code is to be named.
fn locate(modules: &mut Option<Modules>, maps: &mut Maps, sample: &Sample, ip: u64) -> Option<CodeAddr> {
    modules.as_mut().and_then(|modules| modules.locate(maps, sample.raw.pid, sample.raw.mode, ip))
}

impl Namer {
    /// Names the samples of a piece in place, or puts the accesses there that they gave. Of the side-band only cgroups are left.
    pub(in crate::session) fn name(&mut self, piece: &mut Piece) {
        let Piece { samples, side_band, sched, sched_until, records, contexts, .. } = piece;
        let mut spare = std::mem::take(&mut self.spare);
        let mut cgroups = Vec::new();
        let mut of_sched = 0;
        let mut sides = side_band.drain(..);
        let mut next_side = sides.next();
        let mut kept = 0;
        let mut contexts = contexts.drain(..);
        let mut next_context = contexts.next();
        spare.truncate(0);
        for at in 0..=samples.len() {
            while let Some((_, what)) = next_side.take_if(|(before, _)| *before <= at) {
                match what {
                    // The last stage looks them up.
                    SideBand::Cgroup { .. } => cgroups.push((kept + spare.len(), what)),
                    what => self.side_band(what),
                }
                next_side = sides.next();
            }
            while let Some((before, _)) = sched_until.get_mut(of_sched).filter(|(before, _)| *before <= at) {
                *before = kept + spare.len();
                of_sched += 1;
            }
            let samples = samples.samples_mut();
            let Some(sample) = samples.get_mut(at) else { break };
            let context = next_context.take_if(|(of, _)| *of == at).map(|(_, context)| context);
            if context.is_some() {
                next_context = contexts.next();
            }
            let before = kept + spare.len();
            let is_kept = self.sample(sample, context.as_deref(), &mut spare);
            if let (Some(context), Some(pool)) = (context, &self.pool) {
                pool.put_context(context);
            }
            if !self.cgroups_read.is_empty() {
                cgroups.extend(self.cgroups_read.drain(..).map(|what| (before, what)));
            }
            if is_kept {
                if kept < at {
                    samples.copy_within(at..=at, kept);
                }
                kept += 1;
            }
        }
        drop((sides, contexts));
        if self.accesses.are_several() {
            std::mem::swap(samples, &mut spare);
        } else if let Accesses::OfWakeups(_) = self.accesses {
            // Of this source there are no other samples.
            samples.truncate(0);
            self.woken(sched, samples);
        } else {
            samples.truncate(kept);
        }
        self.spare = spare;
        (*side_band, *records) = (cgroups, self.records);
    }

    /// Names the thread of a sample and numbers the sample; false if it is not one of ours.
    fn numbered(&mut self, sample: &mut Sample) -> bool {
        if !self.complete(sample) {
            return false;
        }
        self.records += 1;
        sample.record = self.records;
        true
    }

    /// Adds what the sampler cannot know; false if the sample is not one of ours.
    fn complete(&mut self, sample: &mut Sample) -> bool {
        let known = |sample: &mut Sample, thread: &Thread| {
            sample.thread = thread.index;
            sample.comm = Some(thread.comm);
        };
        if let Some(thread) = self.threads.get(sample.raw.pid, sample.raw.tid) {
            known(sample, thread);
        } else if let Some(thread) = self.threads.resolve(sample.raw.pid, sample.raw.tid) {
            known(sample, thread);
        } else if self.child_pid_namespace {
            // If another profiler samples the same software event, the kernel writes pids of that one's namespace into our
            // samples too (observed on 6.18; perf_prepare_sample() fills the ids once for all events).
            self.loss.outside_pid_namespace += 1;
            return false;
        } else {
            self.loss.unnamed += 1;
            sample.thread = ThreadIndex::MAX;
        }
        if self.leaves_out_profilers && self.threads.is_profiler(sample.raw.pid) {
            self.loss.profilers += 1;
            return false;
        }
        if let Some(hints) = &mut self.hints {
            sample.hint = hints.of_sample(sample.raw.pid, sample.raw.tid);
        }
        if self.cgroups_of_threads.is_some() && sample.raw.cgroup == 0 {
            sample.raw.cgroup = self.cgroup_of(sample.raw.pid, sample.raw.tid, sample.raw.time);
        }
        true
    }

    /// The cgroup of a thread, which the recorder gets too; 0 if it is unknown, or if samples have theirs.
    pub(super) fn cgroup_of(&mut self, pid: u32, tid: u32, now: u64) -> u64 {
        let Self { cgroups_of_threads, cgroups_read, threads, recorder, .. } = self;
        let (Some(cgroups), Some(thread)) = (cgroups_of_threads, threads.get(pid, tid)) else { return 0 };
        cgroups.of(thread.index, (pid, tid), now, &mut |id, path, is_new| {
            if is_new {
                cgroups_read.push(SideBand::Cgroup { id, path: path.into() });
            }
            if let Some(recorder) = recorder {
                recorder.cgroup(now, (pid, tid), (id, path));
            }
        })
    }

    /// Completes a sample: true if it is ready. Otherwise it is not one of ours, or its accesses are in `spare`.
    fn sample(&mut self, sample: &mut Sample, context: Option<&UserContext>, spare: &mut Ready) -> bool {
        if let Accesses::InLines | Accesses::InNumberedLines(_) = self.accesses {
            self.line(sample);
            return true;
        }
        if !self.numbered(sample) {
            return false;
        }
        match &self.accesses {
            Accesses::Stacks(_) => self.stacked(sample, context),
            Accesses::Joined(_) => {
                self.joined(sample, spare);
                return false;
            }
            Accesses::Recovered(_) => {
                if let Some(context) = context {
                    self.recovered(sample, context, spare);
                } else {
                    self.placed(sample);
                    spare.push(*sample);
                }
                return false;
            }
            _ => self.placed(sample),
        }
        true
    }

    /// Adds the call stack of a sample.
    fn stacked(&mut self, sample: &mut Sample, context: Option<&UserContext>) {
        let Self { maps, modules, accesses, unwinder, .. } = self;
        if let (Accesses::Stacks(stacks), Some(modules)) = (accesses, modules) {
            let at = (sample.raw.pid, sample.raw.mode, sample.raw.ip);
            sample.stack = stacks.intern(modules, maps, unwinder.as_mut(), at, context);
        }
    }

    /// Adds the memory and the code of a sample that has an address.
    fn placed(&mut self, sample: &mut Sample) {
        let Self { accesses, recorder, maps, modules, loss, timeline, .. } = self;
        maps.put_memory(sample.raw.pid, sample.raw.addr, sample.raw.phys, &mut sample.memory);
        if sample.raw.addr >= KERNEL_HALF {
            sample.memory = match accesses {
                Accesses::Judged(kernel) => kernel.memory(&sample.raw, &mut maps.kernel_names),
                Accesses::Told(recovered) => {
                    let accesses = recovered.take(sample.raw.time, sample.raw.cpu, sample.raw.tid);
                    accesses.first().map(|access| kernel_memory(access, maps))
                }
                _ => None,
            };
            if let (Some(recorder), Some(_)) = (recorder, sample.memory) {
                recorder.access(sample, None, names_of(sample, maps));
            }
        }
        sample.code = locate(modules, maps, sample, sample.raw.ip);
        loss.no_user_address += u64::from(sample.memory.is_none());
        timeline.record(sample.raw.time, sample.memory.is_some());
    }

    /// Counts a line, and adds its thread's hint.
    fn line(&mut self, line: &mut Sample) {
        self.loss.no_user_address += u64::from(line.memory.is_none());
        if let Accesses::InNumberedLines(last) = &mut self.accesses {
            self.records += u64::from(self.records == 0 || *last != line.record);
            *last = line.record;
            return;
        }
        self.records += 1;
        line.record = self.records;
        line.hint = self.hints.as_mut().and_then(|hints| hints.of_sample(line.raw.pid, line.raw.tid));
        self.loss.unnamed += u64::from(line.comm.is_none());
        self.timeline.record(line.raw.time, line.memory.is_some());
    }

    /// Adds the accesses around the interrupted code to `ready`.
    fn recovered(&mut self, sample: &Sample, context: &UserContext, ready: &mut Ready) {
        let Self { accesses, maps, modules, recorder, timeline, .. } = self;
        let Accesses::Recovered(recoverer) = accesses else { return };
        let before = ready.len();
        recoverer.recover(sample, context, maps, |access, other_kind, maps| {
            if let Some(recorder) = recorder {
                recorder.access(&access, other_kind, names_of(&access, maps));
            }
            ready.push(Sample { code: locate(modules, maps, &access, access.raw.ip), ..access });
        });
        timeline.record(sample.raw.time, ready.len() > before);
    }

    /// Adds the accesses that were recovered when `sample` was recorded to `ready`.
    fn joined(&mut self, sample: &Sample, ready: &mut Ready) {
        let Self { accesses, maps, modules, timeline, .. } = self;
        let Accesses::Joined(recovered) = accesses else { return };
        let accesses = recovered.take(sample.raw.time, sample.raw.cpu, sample.raw.tid);
        timeline.record(sample.raw.time, !accesses.is_empty());
        let share = 1.0 / accesses.len() as f32;
        for access in &accesses {
            // As at the capture: its page contradicted the mappings.
            let memory = if access.addr >= KERNEL_HALF {
                Some(kernel_memory(access, maps))
            } else if access.unmapped {
                // The mappings may be known by now.
                let memory = maps.memory(sample.raw.pid, access.addr, access.phys);
                memory.filter(|memory| !matches!(memory, MemoryId::Private { .. }))
            } else {
                maps.place_of_page(sample.raw.pid, access.addr, access.phys, access.anonymous.then_some(false)).0
            };
            ready.push(Sample {
                raw: RawSample {
                    ip: access.ip,
                    addr: access.addr,
                    phys: access.phys,
                    access: recovered::op(&access.op),
                    size: access.size,
                    method: recovered::method(&access.method),
                    share,
                    ..sample.raw
                },
                memory,
                code: locate(modules, maps, sample, access.ip),
                ..*sample
            });
        }
    }

    /// Adds the samples of the wakeups among these events to `ready`, if that is the source.
    fn woken(&mut self, events: &[SchedEvent], ready: &mut Ready) {
        let mut accesses = std::mem::replace(&mut self.accesses, Accesses::InSamples);
        if let Accesses::OfWakeups(wakeups) = &mut accesses {
            self.woken_by(wakeups, events, ready);
        }
        self.accesses = accesses;
    }

    fn woken_by(&mut self, wakeups: &mut Wakeups, events: &[SchedEvent], ready: &mut Ready) {
        for event in events {
            let Some(Woken { time, cpu, waker, wakee }) = wakeups.take(event) else { continue };
            let (Some(a), Some(b)) = (self.user_thread(&waker), self.user_thread(&wakee)) else { continue };
            let Some(memory) = wakeups.pair(a.thread, b.thread) else { continue };
            for half in [a, b] {
                self.records += 1;
                let raw = RawSample { time, cpu, mode: CpuMode::User, access: Access::Update, ..half.raw };
                ready.push(Sample { raw, record: self.records, memory: Some(memory), ..half });
            }
        }
    }

    /// The thread, unless it is the kernel's: one without any mapping.
    fn user_thread(&mut self, thread: &scxprof_sched::Thread) -> Option<Sample> {
        let scxprof_sched::Thread { pid, tid, cgroup, .. } = *thread;
        if !self.maps.has_process(pid) {
            return None;
        }
        let Some(known) = self.threads.resolve(pid, tid) else {
            self.loss.unnamed += 1;
            return None;
        };
        let (index, comm) = (known.index, known.comm);
        if self.leaves_out_profilers && self.threads.is_profiler(pid) {
            return None;
        }
        let hint = self.hints.as_mut().and_then(|hints| hints.of_sample(pid, tid));
        let raw = RawSample { pid, tid, cgroup, ..RawSample::default() };
        Some(Sample { raw, thread: index, comm: Some(comm), hint, ..Sample::default() })
    }
}

/// The kernel's memory that an access was recorded with; notes its names.
fn kernel_memory(access: &RecoveredAccess, maps: &mut Maps) -> MemoryId {
    let names = &mut maps.kernel_names;
    let of_file = |(dev, ino, offset)| MemoryId::Shared { scope: MemoryScope::from_number(dev), ino, offset };
    let of_object = |(cache, at): &(String, u64)| MemoryId::kernel_object(names.number(cache), *at);
    let object = access.slab.as_ref().map(of_object);
    let memory = access.file.map_or_else(|| object.unwrap_or(MemoryId::kernel(access.phys)), of_file);
    if let (Some(_), Some(path)) = (access.file, &access.path) {
        names.add_file(memory, path.as_bytes());
    }
    memory
}

/// The name of memory that kernel code accesses.
fn names_of<'a>(access: &Sample, maps: &'a Maps) -> Names<'a> {
    let Some(memory) = access.memory.filter(|_| access.raw.addr >= KERNEL_HALF) else { return Names::default() };
    let names = &maps.kernel_names;
    Names { slab: names.cache(memory).map(|name| &**name), path: names.file(memory).map(|path| &**path) }
}
