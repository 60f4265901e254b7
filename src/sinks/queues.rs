//! Dispatch queues and run queues as tracks of a trace: how many threads there are, and which queue each thread is in.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use crate::sample::sched::{SchedEvent, SchedWhat};
use scxprof_sched::dsqs;
use scxprof_trace::write::{Category, Track, Writer};

/// A depth is written at most once in this number of ns.
const STEP: u64 = 1_000_000;
/// Dispatch queues with a track; how deep later ones are is not written.
const MAX_DSQS: usize = 1024;
/// Threads with a track for their dispatch queue; later ones count in the depth alone.
const MAX_THREADS: usize = 1 << 16;
/// Threads whose dispatch queue is followed.
const MAX_QUEUED: usize = 1 << 18;

/// How many threads are in a queue, as a counter.
#[derive(Debug)]
pub(super) struct Depth {
    track: Track,
    threads: i64,
    written: Option<(u64, i64)>,
}

impl Depth {
    pub(super) fn new(track: Track) -> Self {
        Self { track, threads: 0, written: None }
    }

    /// The number of threads changes by this.
    pub(super) fn change(&mut self, time: u64, change: i64, writer: &mut Writer<impl Write>) -> io::Result<()> {
        self.threads += change;
        if self.written.is_none_or(|(at, _)| time.saturating_sub(at) >= STEP) {
            self.write(time, writer)?;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, time: u64, writer: &mut Writer<impl Write>) -> io::Result<()> {
        if self.written.is_some_and(|(_, depth)| depth == self.threads) {
            return Ok(());
        }
        self.written = Some((time, self.threads));
        writer.counter(time, self.track, self.threads as f64)
    }
}

/// The track of a thread's times in dispatch queues.
#[derive(Debug)]
struct ThreadTrack {
    track: Track,
    is_open: bool,
}

/// The dispatch queues of a sched_ext scheduler: a counter for each of its depth, and for each thread a track with its times in them.
#[derive(Debug, Default)]
pub(super) struct Dsqs {
    parent: Option<Track>,
    depths: FxHashMap<u64, Depth>,
    threads: FxHashMap<u32, ThreadTrack>,
    /// The queue that each thread is in.
    queued: FxHashMap<u32, u64>,
}

impl Dsqs {
    /// Takes an event; true if it is one of dispatch queues. `own` finds the track of a thread.
    pub(super) fn take<W: Write>(
        &mut self,
        event: &SchedEvent,
        writer: &mut Writer<W>,
        own: impl Fn(u32) -> Option<Track>,
    ) -> io::Result<bool> {
        let time = event.time;
        match event.what {
            SchedWhat::DsqInsert { tid, dsq, .. } => self.enters(time, tid, dsq, writer, own)?,
            SchedWhat::DsqSwitch { prev, dsq, .. } => {
                if let Some(dsq) = dsq.filter(|dsq| self.queued.get(&prev) != Some(dsq)) {
                    self.enters(time, prev, dsq, writer, own)?;
                }
            }
            SchedWhat::Switch { next, .. } => self.leaves(time, next.tid, writer)?,
            SchedWhat::Exit { task } => self.leaves(time, task.tid, writer)?,
            SchedWhat::Lost => {
                // Which queue a thread is in is not known any more.
                let mut queued: Vec<u32> = self.queued.keys().copied().collect();
                queued.sort_unstable();
                for tid in queued {
                    self.leaves(time, tid, writer)?;
                }
            }
            _ => {}
        }
        Ok(matches!(event.what, SchedWhat::DsqInsert { .. } | SchedWhat::DsqSwitch { .. }))
    }

    fn enters<W: Write>(
        &mut self,
        time: u64,
        tid: u32,
        dsq: u64,
        writer: &mut Writer<W>,
        own: impl Fn(u32) -> Option<Track>,
    ) -> io::Result<()> {
        self.leaves(time, tid, writer)?;
        if tid == 0 || tid == SchedEvent::UNKNOWN || self.queued.len() >= MAX_QUEUED {
            return Ok(());
        }
        self.queued.insert(tid, dsq);
        if !self.depths.contains_key(&dsq) && self.depths.len() < MAX_DSQS {
            let parent = match self.parent {
                Some(parent) => parent,
                None => *self.parent.insert(writer.track("dispatch queues", None, false)?),
            };
            let track = writer.track(&format!("DSQ {}", dsqs::name(dsq)), Some(parent), true)?;
            self.depths.insert(dsq, Depth::new(track));
        }
        if let Some(depth) = self.depths.get_mut(&dsq) {
            depth.change(time, 1, writer)?;
        }
        if !self.threads.contains_key(&tid) {
            if self.threads.len() >= MAX_THREADS {
                return Ok(());
            }
            let track = writer.track(&format!("dispatch queue of {tid}"), own(tid).or(self.parent), false)?;
            self.threads.insert(tid, ThreadTrack { track, is_open: false });
        }
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(()) };
        thread.is_open = true;
        writer.begin(time, thread.track, Category::Dsq, &format!("DSQ {}", dsqs::name(dsq)))
    }

    /// The thread runs, ends, or is in another queue.
    fn leaves(&mut self, time: u64, tid: u32, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let Some(dsq) = self.queued.remove(&tid) else { return Ok(()) };
        if let Some(depth) = self.depths.get_mut(&dsq) {
            depth.change(time, -1, writer)?;
        }
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(()) };
        if std::mem::take(&mut thread.is_open) {
            writer.end(time, thread.track)?;
        }
        Ok(())
    }

    /// Ends what is open, and writes the last depths.
    pub(super) fn finish(&mut self, time: u64, writer: &mut Writer<impl Write>) -> io::Result<()> {
        for thread in self.threads.values().filter(|thread| thread.is_open) {
            writer.end(time, thread.track)?;
        }
        for depth in self.depths.values_mut() {
            depth.write(time, writer)?;
        }
        Ok(())
    }
}
