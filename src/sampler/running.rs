//! A running capture: the receiver of its batches, its end, and the final counts of its events.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use perf_event_open_sys::bindings as sys;

use super::attr::{Feature, Rate};
use super::cpus::Recipe;
use super::error::SamplerError;
use super::live::{self, Live, Reader};
use super::loss::Loss;
use super::open::Event;
use super::opened::Sampler;
use super::options::TargetKind;
use super::plan::Planned;
use super::pool::Pool;
use super::steer::{self, Watcher};
use super::tee::Tee;
use super::waker::{Waker, WakesAtEnd};
use super::worker::{self, CpuRing, Outlet, Scheduled, Worker};
use crate::bpf::{Dsqs, Snapshots, WantedMap};
use crate::host::priority;
use crate::sample::batch::Batch;
use crate::sample::Source;
use scxprof_perf::tracepoint;

/// The enabled times of one capture's events can differ by this many ns on a busy host.
const SHORT: u64 = 500_000_000;
/// The config of cpu-clock, a software event.
const CPU_CLOCK: u64 = sys::PERF_COUNT_SW_CPU_CLOCK as u64;

/// A capture that continues until [`Running::stop`].
#[derive(Debug)]
pub struct Running {
    batches: Receiver<Batch>,
    waker: Waker,
    pool: Pool,
    workers: Vec<JoinHandle<(Loss, Scheduled)>>,
    /// The SCHED_FIFO priority that the workers set for themselves.
    realtime: Option<u8>,
    stop: Stop,
    watcher: Watcher,
    live: Arc<Mutex<Live>>,
    snapshots: Option<Snapshots>,
    /// The programs run until this is dropped.
    _dsqs: Option<Dsqs>,
    child_pid_namespace: bool,
}

/// Tells the workers to end, also if a capture is dropped early.
#[derive(Debug)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The final counts of the events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// All losses up to this stage.
    pub loss: Loss,
    /// The ids of events that lost samples because a ring was full, and the number for each.
    pub lost: Vec<(u64, u64)>,
    /// The number of events, sampled or not; scaled up if not all could be counted.
    pub events: u64,
    /// The SCHED_FIFO priority that all threads that read rings had to the end.
    pub realtime: Option<u8>,
    /// Sentences on what happened to the events.
    pub notes: Vec<String>,
}

/// What a worker is to read.
#[derive(Debug, Default)]
struct Share {
    rings: Vec<CpuRing>,
    /// The events that wake the worker, and those with AUX areas.
    wake: Vec<Arc<Event>>,
    buffered: Vec<Arc<Event>>,
    reader: Reader,
}

impl Sampler {
    /// Enables the events and starts the workers, which pass what they read to `tee`.
    ///
    /// # Errors
    /// The errno of the ioctl, or of a thread that could not be started.
    pub fn start(self, tee: Option<&Arc<dyn Tee>>) -> Result<Running, SamplerError> {
        // The channel has more room than is used, see `BatchSink::send`.
        let has_contexts = self.address_from.recovers() || self.recipe.options.source == Source::Stacks;
        let room = worker::queue(self.workers, self.recipe.options.queue, has_contexts);
        let (to, batches) = crossbeam_channel::bounded(room + self.workers + 1);
        let pool = Pool::default();
        let waker = Waker::default();
        let out = Outlet { to, pool: pool.clone(), room, waker: WakesAtEnd(waker.clone()) };
        // If a later step fails, dropping this ends the running workers.
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let mut shares: Vec<Share> = (0..self.workers).map(|_| Share::default()).collect();
        // One worker reads all rings of a CPU.
        let places: BTreeMap<u32, usize> = self.cpus.keys().copied().zip(0..).collect();
        for (cpu, ring) in self.rings {
            let place = places.get(&cpu).map_or(0, |place| place % self.workers);
            if let Some(share) = shares.get_mut(place) {
                share.rings.push(ring);
            }
        }
        for (cpu, events) in &self.cpus {
            let place = places.get(cpu).map_or(0, |place| place % self.workers);
            if let Some(Share { wake, buffered, reader, .. }) = shares.get_mut(place) {
                wake.extend(events.owners.iter().cloned());
                buffered.extend(self.recipe.buffered(events));
                reader.cpus.push(*cpu);
            }
        }
        let on_exec = self.recipe.target() == (TargetKind::Tasks { enable_on_exec: true });
        for cpu in self.cpus.values() {
            if on_exec {
                self.recipe.enable_at_once(cpu)?;
            } else {
                cpu.enable()?;
            }
        }
        let (mut workers, mut readers) = (Vec::new(), Vec::new());
        for (index, Share { rings, wake, buffered, reader }) in shares.into_iter().enumerate() {
            let worker = Worker {
                realtime: self.realtime,
                index,
                rings,
                wake,
                buffered,
                inbox: Arc::clone(&reader.inbox),
                identity: self.identity,
                address_from: self.address_from.clone(),
                out: out.clone(),
                stop: Arc::clone(&stop.0),
                tee: tee.cloned(),
            };
            let spawned = priority::spawn(&format!("ring-{index}"), move || worker.run());
            workers.push(spawned.map_err(SamplerError::Thread)?);
            readers.push(reader);
        }
        let live = Live::new(self.recipe, self.cpus, readers, tee.cloned())?;
        let live = Arc::new(Mutex::new(live));
        let watcher = steer::start(&live).map_err(SamplerError::Thread)?;
        Ok(Running {
            batches,
            waker,
            pool,
            workers,
            realtime: self.realtime,
            stop,
            watcher,
            live,
            snapshots: self.snapshots,
            _dsqs: self.dsqs,
            child_pid_namespace: self.identity.child_pid_namespace,
        })
    }
}

impl Running {
    /// The receiver of the batches; it disconnects after [`Running::stop`], when the rings are empty.
    #[must_use]
    pub fn batches(&self) -> &Receiver<Batch> {
        &self.batches
    }

    /// The next batch; waits at most `most` if there is none. Only the thread that called this first is woken by a new
    /// batch; other threads should read [`Running::batches`].
    ///
    /// # Errors
    /// There is no batch yet, or there will be no further one.
    pub fn next_batch(&self, most: Duration) -> Result<Batch, TryRecvError> {
        self.waker.wait(most, || self.batches.try_recv())
    }

    /// Where emptied sample buffers are returned.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The map that selects the memory that the next samples contain; `None` if samples contain no memory, or if the
    /// kernel's process ids are not ours.
    #[must_use]
    pub(crate) fn wanted(&self) -> Option<WantedMap> {
        self.snapshots.as_ref().filter(|_| !self.child_pid_namespace)?.wanted()
    }

    /// The number of workers; batches contain their index.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The losses so far, up to one of the last rounds of each worker. The events' own counts are read from the kernel,
    /// by one system call for each event.
    #[must_use]
    pub fn loss_so_far(&self) -> Loss {
        let live = live::lock(&self.live);
        let mut loss = Loss::default();
        live.losses_of_workers().for_each(|of_worker| loss.add(&of_worker));
        let Recipe { events, features, side_features, .. } = &live.recipe;
        if features.has(Feature::FormatLost) && side_features.has(Feature::FormatLost) {
            (loss.ring_full, loss.sched.ring_full) = (0, 0);
            for (plan, planned) in events.iter().enumerate().filter(|(_, planned)| !planned.is_aside) {
                let lost = if planned.spec.is_sched { &mut loss.sched.ring_full } else { &mut loss.ring_full };
                *lost = lost.saturating_add(live.counted(plan).lost);
            }
            loss.side_band = live.lost_side_band();
        }
        loss
    }

    /// Stops the events. The workers then empty the rings, send what they have, and end.
    pub fn stop(&self) {
        live::lock(&self.live).stop();
        self.stop.0.store(true, Ordering::Release);
    }

    /// Waits for the workers and adds up the losses. Call it after the last batch.
    #[must_use]
    pub fn join(self) -> Totals {
        let Self { batches, workers, stop: _stop, watcher, live, snapshots, realtime, .. } = self;
        // A worker that still waits for space in the channel must not wait forever.
        drop(batches);
        let ended = ended_early(live::lock(&live).enabled_until());
        let (notes, has_steered) = watcher.stop(&ended);
        let live = live::lock(&live);
        let Recipe { events, features, side_features, .. } = &live.recipe;
        // Events that watch a whole CPU should have run for as long as they were enabled.
        let cpu_wide = !matches!(live.recipe.target(), TargetKind::Tasks { .. });
        let knows_lost = features.has(Feature::FormatLost) && side_features.has(Feature::FormatLost);
        let mut totals = Totals { notes, ..Totals::default() };
        let mut scheduled = Vec::new();
        let mut not_realtime = None;
        for worker in workers {
            match worker.join() {
                Ok((loss, how)) => {
                    totals.loss.add(&loss);
                    scheduled.push(how);
                }
                // A worker that panics returns its counts. It fails to do so only in this case.
                Err(_) => totals.loss.dead_workers += 1,
            }
        }
        if let Some(priority) = realtime {
            not_realtime = not_realtime_note(&scheduled);
            totals.realtime = scheduled.iter().all(|how| matches!(how, Scheduled::Realtime)).then_some(priority);
        }
        let (mut lost, mut sched_lost, mut sched_events) = (0u64, 0u64, 0u64);
        for (plan, planned) in events.iter().enumerate() {
            let counted = live.counted(plan);
            if planned.spec.is_sched {
                sched_lost = sched_lost.saturating_add(counted.lost);
                if planned.spec.name != tracepoint::RUNTIME {
                    sched_events = sched_events.saturating_add(counted.value);
                }
                continue;
            }
            if planned.is_aside {
                let samples = if counted.lost == 1 { "sample" } else { "samples" };
                let said = format!("{} {samples} of {} with call stacks were lost", counted.lost, planned.spec.name);
                totals.notes.extend((counted.lost > 0).then_some(said));
                totals.notes.extend(refused_note(&planned.spec.name, live.refused(plan)));
                continue;
            }
            lost = lost.saturating_add(counted.lost);
            if planned.spec.aux.is_some() {
                // An event with an AUX area counts nothing.
                totals.events = totals.events.saturating_add(live.in_aux(&planned.cpus));
                continue;
            }
            totals.events = totals.events.saturating_add(counted.scaled(cpu_wide) / unit(planned));
            let of_software = [sys::PERF_TYPE_SOFTWARE, sys::PERF_TYPE_TRACEPOINT].contains(&planned.spec.kind);
            let on_pmu = planned.probe.is_some() || planned.spec.callchain.is_some() && !of_software;
            totals.notes.extend(counted.note(&planned.spec.name, cpu_wide, on_pmu));
            totals.notes.extend(refused_note(&planned.spec.name, live.refused(plan)));
        }
        if let Some(counts) = snapshots.map(|snapshots| snapshots.counts()) {
            totals.events = totals.events.saturating_add(counts.hits);
            totals.loss.in_kernel += counts.in_kernel;
            totals.loss.in_interrupt += counts.in_interrupt;
            if counts.unwatched > 0 {
                totals.notes.push(format!("{} threads were made that there was no room to watch", counts.unwatched));
            }
        }
        if knows_lost {
            // The kernel writes a LOST record only when there is space again, and it does not tell samples from other
            // records; the counts of the events do.
            totals.loss.ring_full = lost;
            totals.loss.sched.ring_full = sched_lost;
            totals.lost = live.lost();
            totals.loss.side_band = live.lost_side_band();
        }
        // The kernel counts runtime events in ns, and events of dispatch queues not at all.
        let uncounted = totals.loss.sched.of_runtime.saturating_add(totals.loss.sched.of_dsq);
        totals.loss.sched.unsampled = sched_events.saturating_sub(totals.loss.sched.seen().saturating_sub(uncounted));
        if events.iter().all(Planned::is_beside) {
            // For the source `wakeups`, scheduling events are the samples.
            totals.events = totals.loss.sched.events;
        }
        // Without a loss, the priority made no difference.
        if totals.loss.lost() > 0 || totals.loss.aux_lost > 0 {
            totals.notes.extend(not_realtime);
        }
        let each_is_sampled =
            |planned: &Planned| matches!(planned.spec.rate, Rate::Period(1)) && planned.probe.is_none();
        let mut of_memory = events.iter().filter(|event| !event.is_beside());
        if !has_steered && of_memory.all(each_is_sampled) {
            totals.loss.unsampled = totals.events.saturating_sub(totals.loss.seen());
        }
        totals
    }
}

/// The note on a pinned event that was never on the PMU of some CPUs.
fn refused_note(name: &str, refused: usize) -> Option<String> {
    let events = if refused == 1 { "an event".to_owned() } else { format!("{refused} events") };
    (refused > 0).then(|| {
        format!("{name} is pinned (D), and the PMU never had a counter for {events} of it: there it sampled nothing")
    })
}

/// A sentence on why threads that read rings were not real-time to the end.
fn not_realtime_note(scheduled: &[Scheduled]) -> Option<String> {
    let refused = scheduled.iter().find_map(|how| match how {
        Scheduled::Refused(error) => Some(error),
        _ => None,
    });
    if let Some(error) = refused {
        return Some(format!(
            "the threads that read samples have no real-time priority (sched_setattr: {error}): samples may be lost on a busy \
             host; it takes CAP_SYS_NICE, and --realtime 0 does not ask for it"
        ));
    }
    let busy = scheduled.iter().filter(|how| matches!(how, Scheduled::Busy)).count();
    (busy > 0).then(|| {
        format!(
            "{busy} of {} threads that read samples took more than half a CPU, and gave up their real-time priority: sample less \
             often, or use more --workers",
            scheduled.len()
        )
    })
}

/// The CPUs with events that were not enabled to the end: the CPU was offline, if only briefly, which ended its events.
fn ended_early(enabled: Vec<(u32, u64)>) -> Vec<u32> {
    let longest = enabled.iter().map(|&(_, enabled)| enabled).max().unwrap_or(0);
    let is_short = |(cpu, enabled): (u32, u64)| (longest - enabled > SHORT).then_some(cpu);
    enabled.into_iter().filter_map(is_short).collect()
}

/// The unit of an event's count: cpu-clock counts ns.
fn unit(planned: &Planned) -> u64 {
    match (planned.spec.kind, planned.spec.rate) {
        (sys::PERF_TYPE_SOFTWARE, Rate::Period(ns)) if planned.spec.config.0[0] == CPU_CLOCK => ns.max(1),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_event_without_a_counter_is_said() {
        assert_eq!(refused_note("cycles:D", 0), None);
        let said = refused_note("cycles:D", 2).unwrap();
        assert!(
            said.starts_with("cycles:D is pinned (D), and the PMU never had a counter for 2 events of it"),
            "{said}"
        );
    }

    #[test]
    fn cpus_that_were_away_for_a_moment_are_found() {
        assert_eq!(ended_early(vec![(0, 5_000_000_000), (1, 1_000_000_000), (2, 4_900_000_000), (3, 0)]), [1, 3]);
        assert_eq!(ended_early(vec![(0, 0), (1, 0)]), [0; 0]);
        assert_eq!(ended_early(Vec::new()), [0; 0]);
    }
}
