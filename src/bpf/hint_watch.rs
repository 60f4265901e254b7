//! The thread that reads the ring of hint events and passes them to the session.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use libbpf_rs::RingBufferBuilder;

use super::event::RawEvent;
use super::hints::{HintOptions, HintsError, MapRef};
use super::map::{pid_namespace, HintMap};
use super::probe::{self, Loaded, Setting};
use super::snapshot::Tasks;
use crate::hint::{Counts, HintProbe};
use crate::host::clock::monotonic_ns;
use crate::host::priority;
use crate::sample::batch::Batch;

/// Events per batch.
const BATCH: usize = 1024;
/// The most queued batches for the session. Beyond that, the ring fills, and the kernel counts the dropped events.
const QUEUE: usize = 16;
/// How long the thread sleeps if the ring does not wake it.
const TICK: Duration = Duration::from_millis(50);
/// The longest time in ns between the time stamp of an event and the moment it is readable: the CPU may be preempted in
/// between.
const VISIBLE_WITHIN: u64 = 20_000_000;
/// How often to check whether the map is still the requested one.
const LOOK: Duration = Duration::from_secs(1);

/// The shortest interval for reading all tasks again after events were lost.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A running watch.
#[derive(Debug)]
pub struct HintWatch {
    probe: HintProbe,
    notes: Vec<String>,
    batches: Receiver<Batch>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Counts, Vec<String>)>,
}

impl HintWatch {
    /// Attaches the best probe that the kernel accepts, then reads the existing hints.
    ///
    /// # Errors
    /// [`HintsError`]; then nothing stays attached.
    pub fn start(options: &HintOptions, proc: &Path) -> Result<Self, HintsError> {
        let map = HintMap::open(&options.map)?;
        let namespace =
            pid_namespace(proc).map_err(|source| HintsError::Io { what: "cannot tell our pid namespace", source })?;
        let setting = Setting { pid_namespace: namespace, ring_bytes: options.ring_bytes };
        let mut refusals = Vec::new();
        let mut attached = None;
        for probe in HintProbe::ALL.into_iter().filter(|probe| options.probe.is_none_or(|only| only == *probe)) {
            match probe::probe(probe, Some(&map), setting) {
                Ok(loaded) => {
                    attached = Some((probe, loaded));
                    break;
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        let Some((probe, loaded)) = attached else { return Err(HintsError::NoProbe(refusals)) };
        let mut notes: Vec<String> = Vec::new();
        if !refusals.is_empty() {
            notes.push(format!("hints are seen by {probe} ({})", super::hints::list(&refusals)));
        }
        let tasks = Tasks::new(&map, setting, proc);
        let at_start = tasks.ask(&map);
        notes.extend(at_start.notes);
        let with_hint = at_start.events.iter().filter(|event| event.hint.is_some()).count();
        let counts = Counts { at_start: with_hint as u64, not_asked: at_start.not_asked, ..Counts::default() };
        let (out, batches) = crossbeam_channel::bounded(QUEUE);
        let stop = Arc::new(AtomicBool::new(false));
        let first =
            Batch { side_band: at_start.events.into_iter().map(RawEvent::side_band).collect(), ..Batch::default() };
        let reader =
            Reader { loaded, map, tasks, named: options.map.clone(), out, first, counts, stop: Arc::clone(&stop) };
        let thread = priority::spawn("hints", move || reader.run())
            .map_err(|source| HintsError::Io { what: "cannot start a thread", source })?;
        Ok(Self { probe, notes, batches, stop, thread })
    }

    /// The probe in use.
    #[must_use]
    pub fn probe(&self) -> HintProbe {
        self.probe
    }

    /// Notes for the user on rejected probes and on threads that could not be read.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The events, as [`SideBand::Hint`](crate::sample::SideBand::Hint); the receiver assigns a worker's number to
    /// them.
    #[must_use]
    pub fn batches(&self) -> &Receiver<Batch> {
        &self.batches
    }

    /// Tells the thread to read the rest of the ring and to end. [`HintWatch::batches`] must be emptied afterwards.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Waits for the thread; returns its counts, and notes for the user.
    #[must_use]
    pub fn join(self) -> (Counts, Vec<String>) {
        self.stop();
        drop(self.batches);
        self.thread.join().unwrap_or_else(|_| {
            (Counts::default(), vec!["the thread that reads hints died: hints are missing".to_owned()])
        })
    }
}

struct Reader {
    loaded: Loaded,
    map: HintMap,
    tasks: Tasks,
    named: MapRef,
    out: Sender<Batch>,
    first: Batch,
    counts: Counts,
    stop: Arc<AtomicBool>,
}

impl Reader {
    fn run(mut self) -> (Counts, Vec<String>) {
        let mut notes = Vec::new();
        if let Err(error) = self.read(&mut notes) {
            notes.push(format!("the ring of hints cannot be read ({error}): hints are missing"));
            // Samples must not wait for this thread.
            let _ = self.out.send(Batch { complete_until: u64::MAX, ..Batch::default() });
        }
        let Counts { dropped, missed, unreadable, outside_pid_namespace, .. } = self.loaded.counts();
        (Counts { dropped, missed, unreadable, outside_pid_namespace, ..self.counts }, notes)
    }

    fn read(&mut self, notes: &mut Vec<String>) -> io::Result<()> {
        let Self { loaded, map, tasks, named, out, first, counts, stop } = self;
        let pending = std::cell::RefCell::new(std::mem::take(first));
        let events = std::cell::Cell::new(0);
        let send = |batch: Batch| out.send(batch).is_ok();
        let take = |bytes: &[u8]| {
            if let Some(event) = RawEvent::parse(bytes) {
                let mut batch = pending.borrow_mut();
                batch.side_band.push(event.side_band());
                events.set(events.get() + 1);
                if batch.side_band.len() >= BATCH {
                    batch.complete_until = event.time.saturating_sub(VISIBLE_WITHIN);
                    send(std::mem::take(&mut *batch));
                }
            }
            0
        };
        let failed = |_| io::Error::last_os_error();
        let mut builder = RingBufferBuilder::new();
        let events_ring = loaded.map("ring")?;
        builder.add(&events_ring, take).map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        let begin = Instant::now();
        let mut looked = begin;
        let mut gone = false;
        let (mut lost, mut asked) = (0, begin);
        loop {
            // Read this before the ring: after the last round the ring must be empty.
            let stopping = stop.load(Ordering::Acquire);
            if stopping {
                // No events are written from here on.
                loaded.links.clear();
            }
            let until = monotonic_ns().saturating_sub(VISIBLE_WITHIN);
            ring.consume().map_err(failed)?;
            let mut batch = pending.take();
            batch.complete_until = if stopping { u64::MAX } else { until };
            if !stopping && asked.elapsed() >= ASK_AGAIN && loaded.counts().lost() > lost {
                // The lost event may be the last write of a task.
                lost = loaded.counts().lost();
                asked = Instant::now();
                batch.side_band.extend(tasks.ask(map).events.into_iter().map(RawEvent::side_band));
                counts.asked_again += 1;
            }
            let sent = send(batch);
            counts.events = events.get();
            // Without a session, nothing is left to do.
            if stopping || !sent {
                return Ok(());
            }
            if !gone && looked.elapsed() >= LOOK {
                looked = Instant::now();
                if let Some(what) = map.replaced(named) {
                    gone = true;
                    let at = begin.elapsed().as_secs_f64();
                    notes.push(format!("{what} {at:.0} s after the start: hints are missing from then on"));
                }
            }
            // An interrupted sleep is only shorter.
            ring.poll_raw(TICK);
        }
    }
}
