//! Profiles of the call stacks in a trace: of the samples of a profiler, or of slices and instants that have stacks.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::profile::{At, Builder, Frame, Row, StackProfile, Thread};
use scxprof_trace::{Event, Name, StackFrame, StackId, Trace, TraceEvent, TraceWhat};

/// The name of samples of a profiler.
const SAMPLES: &str = "perf_sample";
/// Different pairs of a thread and a stack, and samples that are kept one by one.
const MAX_ROWS: usize = 1 << 21;
const MAX_SAMPLES: usize = 1 << 20;

/// What has a stack: samples, or slices of a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum StackSource {
    Samples,
    Slices(Name),
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    kind: StackSource,
    time: u64,
    cpu: u32,
    tid: u32,
    pid: u32,
    stack: Option<StackId>,
}

/// Collects the call stacks of a trace.
#[derive(Debug, Default)]
pub struct TracedStacks {
    rows: FxHashMap<(StackSource, u32, u32, Option<StackId>), u64>,
    samples: Vec<Seen>,
    left_out: u64,
}

impl TracedStacks {
    /// Takes one event of the trace, in their order.
    pub fn take(&mut self, event: &Event) {
        let Event::Trace(TraceEvent { time, cpu, pid, tid, what }) = event else { return };
        let (kind, stack) = match what {
            TraceWhat::Sample { stack, .. } => (StackSource::Samples, *stack),
            TraceWhat::Stack { category, stack } => (StackSource::Slices(*category), Some(*stack)),
            _ => return,
        };
        let key = (kind, *pid, *tid, stack);
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        *self.rows.entry(key).or_default() += 1;
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push(Seen { kind, time: *time, cpu: *cpu, pid: *pid, tid: *tid, stack });
        }
    }

    /// Stacks for which there was no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What has stacks, and how many, the most frequent first.
    #[must_use]
    pub fn kinds<R: Read + Seek>(&self, trace: &Trace<R>) -> Vec<(String, u64)> {
        let mut counts: BTreeMap<StackSource, u64> = BTreeMap::new();
        for ((kind, ..), count) in &self.rows {
            *counts.entry(*kind).or_default() += count;
        }
        let mut kinds: Vec<_> = counts.into_iter().map(|(kind, count)| (name(kind, trace), count)).collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        kinds
    }

    /// The profile of what is called so, after the last event: samples of a profiler where `wanted` is `None`, else what most
    /// stacks are of. `None` if there is nothing of this name.
    #[must_use]
    pub fn profile<R: Read + Seek>(&self, trace: &Trace<R>, wanted: Option<&str>) -> Option<StackProfile> {
        let kinds = self.kinds(trace);
        let default =
            || kinds.iter().find(|(name, _)| name == SAMPLES).or_else(|| kinds.first()).map(|(name, _)| &**name);
        let event = wanted.or_else(default)?;
        let is_it = |kind: StackSource| name(kind, trace) == event;
        let mut builder = Builder::default();
        let mut stacks: FxHashMap<Option<StackId>, u32> = FxHashMap::default();
        let mut threads: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        // In an order that does not depend on that of the table.
        let mut rows: Vec<_> = self.rows.iter().filter(|((kind, ..), _)| is_it(*kind)).collect();
        rows.sort_unstable_by_key(|(key, _)| **key);
        for (&(_, pid, tid, stack), &samples) in rows {
            let number = *stacks.entry(stack).or_insert_with(|| {
                let frames = stack.map(|stack| trace.stack(stack)).unwrap_or_default();
                let mut frames: Vec<u32> = frames.iter().rev().map(|it| builder.frame(frame(it, trace))).collect();
                if frames.is_empty() {
                    frames.push(builder.frame(frame(&StackFrame::default(), trace)));
                }
                builder.profile.stacks.push(frames);
                builder.profile.stacks.len() as u32 - 1
            });
            let profile = &mut builder.profile;
            let thread = *threads.entry((pid, tid)).or_insert_with(|| {
                profile.threads.push(thread(pid, tid, trace));
                profile.threads.len() as u32 - 1
            });
            profile.rows.push(Row { thread, stack: number, samples, events: samples });
        }
        let StackProfile { rows, .. } = &builder.profile;
        if rows.is_empty() {
            return None;
        }
        let mut profile = builder.profile;
        let at = |seen: &Seen| {
            let (stack, thread) = (*stacks.get(&seen.stack)?, *threads.get(&(seen.pid, seen.tid))?);
            is_it(seen.kind).then_some(At { time: seen.time, cpu: seen.cpu, thread, stack, events: 1 })
        };
        profile.samples = self.samples.iter().filter_map(at).collect();
        let ends = profile.samples.first().zip(profile.samples.last());
        profile.duration_ns = ends.map_or(0, |(first, last)| last.time.saturating_sub(first.time));
        event.clone_into(&mut profile.event);
        Some(profile)
    }
}

fn name<R: Read + Seek>(kind: StackSource, trace: &Trace<R>) -> String {
    match kind {
        StackSource::Samples => SAMPLES.to_owned(),
        StackSource::Slices(category) => crate::sample::printable(trace.names().text(category)),
    }
}

fn thread<R: Read + Seek>(pid: u32, tid: u32, trace: &Trace<R>) -> Thread {
    let comm = |tid| trace.threads().get(tid).map_or_else(String::new, |thread| thread.comm.to_string());
    Thread { pid, tid, comm: comm(tid), process: comm(pid), ..Thread::default() }
}

/// A frame, with what wprof puts before the name of a function (`[K]`, `[U]`) taken off it.
fn frame<R: Read + Seek>(frame: &StackFrame, trace: &Trace<R>) -> Frame {
    let text = |name: Name| if name.is_none() { &b""[..] } else { trace.names().text(name) };
    let (function, module) = (text(frame.function), text(frame.module));
    let of_kernel = function.strip_prefix(b"[K] ");
    let function = of_kernel.or_else(|| function.strip_prefix(b"[U] ")).unwrap_or(function);
    Frame {
        function: (!function.is_empty()).then(|| Arc::from(crate::sample::printable(function))),
        module: module.into(),
        file: None,
        line: frame.line,
        is_kernel: of_kernel.is_some() || module.starts_with(b"[kernel"),
        is_inlined: false,
    }
}
