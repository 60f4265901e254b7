//! An origin for the records of a perf.data.

use std::time::Duration;

use perf_event_open_sys::bindings as sys;
use rustc_hash::FxHashMap;

use crate::outcome::Outcome;
use crate::profile::meta::from_hex;
use crate::profile::{PerfDataError, Profile, Records};
use crate::resolve::{SymbolOptions, Unwinder};
use crate::sample::batch::PendingSample;
use crate::sample::Source;
use crate::sampler::event::CHAIN_SIZE;
use crate::sampler::intake::Intake;
use crate::sampler::loss::Loss;
use crate::sampler::AddressFrom;
use crate::session::inlet::Inlet;
use crate::session::namer::{Accesses, Namer, Wakeups};
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::origins::spe::{Aux, Spe};
use crate::session::pipeline::{self, Pipeline, Stages};
use crate::session::stop::StopPoll;
use crate::sinks::Sink;
use scxprof_perf::buildid::BuildId;
use scxprof_perf::reader::Item;
use scxprof_perf::record::{sample_type, Header, Layout};

/// The number of records that are read before they are sorted.
const TAKE_EVERY: usize = 1 << 10;

/// Why names may be wrong: perf writes the records of one ring after those of another.
const UNTIMED: &str =
    "the recording has no times: what came first is guessed from its position in the file (`perf record -T` records times)";
/// Why threads lack names although the recording contains them.
const NAMED_AT_END: &str =
    "most names and mappings come at the end of the recording, too late for its samples: record without --tail-synthesize";

/// The records of a profile that is a perf.data.
struct PerfDataOrigin<'p> {
    profile: &'p mut Profile,
    intake: Intake,
    /// Everything older than this has been read.
    mark: u64,
    /// The latest time at the last mark; everything up to it is complete at the next mark
    /// (`perf_event__process_finished_round` in tools/perf/util).
    newest: u64,
    /// There were samples without a time.
    is_untimed: bool,
    /// Read only the samples of this event, or all samples but these.
    only: Option<(u16, bool)>,
    /// Read the call chains of samples, also those of scheduling events.
    reads_stacks: bool,
    /// The sink wants the code of samples.
    wants_code: bool,
    /// Samples of KVM guests, which are left out.
    guests: u64,
    /// perf wrote the names of existing threads only after it had recorded samples.
    is_named_at_end: bool,
    /// The SPE samples in the AUX data of the file.
    spe: Option<Box<Spe>>,
    other_aux: Option<String>,
}

/// Passes the samples of the records to `sink` until their end, or until it must end.
pub(super) fn run(
    profile: &mut Profile,
    memory: usize,
    symbols: &SymbolOptions,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Outcome {
    // In recordings by other programs, samples may have any addresses, but a sink of stacks needs none.
    let is_foreign = profile.meta.is_none();
    let aside = profile.aside_event();
    let reads_stacks = sink.wants_stacks() && (is_foreign || aside.is_some());
    let address_from = if reads_stacks { AddressFrom::Callchain } else { profile.address_from() };
    let identity = profile.identity();
    let accesses = if profile.source() == Source::Wakeups {
        let watched = profile.meta.as_ref().and_then(|meta| meta.watched.as_ref());
        let watched = watched.map(|pids| pids.iter().copied().collect());
        Accesses::OfWakeups(Box::new(Wakeups::new(watched, identity.own_pid)))
    } else {
        let is_beside = address_from.recovers() || address_from.is_of_kernel() || is_foreign;
        // The file exists for this case, unless the records themselves contain the accesses.
        match profile.recovered.take_if(|_| is_beside && !sink.wants_stacks()) {
            Some(told) if address_from.is_of_kernel() => Accesses::Told(Box::new(told)),
            Some(recovered) => Accesses::Joined(Box::new(recovered)),
            None => Accesses::InSamples,
        }
    };
    let mut namer = Namer::recorded(memory / 4, identity.child_pid_namespace, accesses);
    if identity.without_profilers {
        namer = namer.without_profilers();
    }
    if profile.hints.is_some() {
        namer = namer.with_hints(None);
    }
    if profile.thread_cgroups.is_some() {
        namer = namer.with_recorded_cgroups();
    }
    let mut chain = 0;
    if let (AddressFrom::Callchain, Records::PerfData(perf_data)) = (&address_from, &mut profile.records) {
        // The samples of the timer also have registers.
        let is_read = |number: usize| aside.is_none_or(|aside| usize::from(aside) == number);
        let events = perf_data.events().iter().enumerate().filter(|(number, _)| is_read(*number));
        let stack = events.map(|(_, event)| event.attr.stack_user).max().unwrap_or(0) as usize;
        chain = CHAIN_SIZE + stack;
        if stack > 0 {
            namer = namer.with_unwinder(Unwinder::new(symbols.clone(), unambiguous(perf_data.build_ids())));
        }
    }
    let waiting = size_of::<PendingSample>() + chain;
    let mut pipeline = Pipeline::new(Order::new(1, memory / 4 / waiting), namer);
    pipeline.order.joins_hints = profile.hints.is_some();
    for (id, path) in profile.meta.as_ref().map(|meta| meta.cgroups.as_slice()).unwrap_or_default() {
        if let Some(path) = from_hex(path) {
            pipeline.names.cgroups.record(*id, &path);
        }
    }
    let mut aux = Aux::Nothing;
    if let Records::PerfData(perf_data) = &mut profile.records {
        match Spe::open(perf_data) {
            Ok(found) => aux = found,
            Err(error) => profile.note_failed(Some(error)),
        }
    }
    let (spe, other_aux) = match aux {
        Aux::Nothing => (None, None),
        Aux::Spe(spe) => (Some(spe).filter(|_| !reads_stacks), None),
        Aux::Other(hardware) => (None, Some(hardware)),
    };
    let origin = PerfDataOrigin {
        profile,
        intake: Intake::new(identity, address_from),
        mark: 0,
        newest: 0,
        is_untimed: false,
        only: aside.map(|aside| (aside, reads_stacks)),
        reads_stacks,
        wants_code: sink.wants_code() || sink.wants_stacks(),
        guests: 0,
        is_named_at_end: false,
        spe,
        other_aux,
    };
    pipeline::run(pipeline, origin, Stages::InThreads, sink, ends)
}

impl PerfDataOrigin<'_> {
    /// Reads some records.
    fn read(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Result<Filled, PerfDataError> {
        for _ in 0..TAKE_EVERY {
            let Records::PerfData(perf_data) = &mut self.profile.records else { return Ok(Filled::End) };
            match perf_data.next_item()? {
                Some(Item::Record { bytes, event, sched: Some(_), .. })
                    if self.only.is_some_and(|(only, wanted)| !wanted && usize::from(only) == event)
                        && is_of_others(self.only, bytes, event) => {}
                Some(Item::Record { bytes, layout, event, sched: Some(decoder), .. })
                    if !(self.reads_stacks && is_stack(self.only, layout, event)) =>
                {
                    self.intake.take_sched(bytes, layout, decoder);
                }
                Some(Item::Record { bytes, event, .. }) if is_of_others(self.only, bytes, event) => {}
                Some(Item::Record { bytes, layout, period, event, .. }) => {
                    let header = Header::read(bytes);
                    let malformed = self.intake.malformed();
                    if let Some(sample) = header.filter(|header| header.kind == sys::PERF_RECORD_SAMPLE) {
                        if is_of_a_guest(sample) {
                            self.guests += 1;
                            continue;
                        }
                        self.is_untimed |= layout.sample_type & sample_type::TIME == 0;
                        self.intake.take_of(bytes, layout, u16::try_from(event).unwrap_or(u16::MAX), period);
                    } else {
                        let is_timed = layout.sample_type & sample_type::TIME != 0;
                        if !is_timed && self.is_untimed {
                            // The record applies to the samples after it in the file, not to those before it.
                            inlet.take(self.intake.batch());
                            inlet.release();
                        }
                        let (newest, sides) = (self.intake.newest(), self.intake.batch().side_band.len());
                        self.intake.take(bytes, layout);
                        if let Some(spe) = &mut self.spe {
                            spe.note(bytes, layout, &mut self.intake, sides);
                        }
                        // perf's own records of existing threads and mappings have time 0.
                        if let Some(side) = self.intake.batch().side_band.get(sides) {
                            self.is_named_at_end |= side.time == 0 && newest > 0 && is_timed && layout.sample_id_all;
                        }
                    }
                    if self.intake.malformed() > malformed {
                        self.profile.note_unparseable(header);
                    }
                }
                Some(Item::Round) => {
                    self.take_beside(self.intake.newest(), inlet);
                    self.mark = self.mark.max(self.newest);
                    if let (Some(spe), Records::PerfData(perf_data)) = (&mut self.spe, &mut self.profile.records) {
                        spe.take_until(self.mark, perf_data, &mut self.intake, inlet)?;
                    }
                    self.newest = self.intake.newest();
                    self.intake.batch().complete_until = self.mark;
                    inlet.take(self.intake.batch());
                    inlet.release_due();
                }
                None => {
                    self.take_beside(u64::MAX, inlet);
                    if let (Some(spe), Records::PerfData(perf_data)) = (&mut self.spe, &mut self.profile.records) {
                        spe.take_until(u64::MAX, perf_data, &mut self.intake, inlet)?;
                    }
                    return Ok(Filled::End);
                }
            }
        }
        Ok(Filled::More)
    }

    /// Takes hints and cgroups up to `until`; they must precede the samples of their time.
    fn take_beside(&mut self, until: u64, inlet: &mut Inlet<'_, PendingSample>) {
        if let Some(hints) = &mut self.profile.hints {
            inlet.take_hints(hints, until);
        }
        if let Some(cgroups) = &mut self.profile.thread_cgroups {
            inlet.take_cgroups(cgroups, until);
        }
    }
}

impl Origin for PerfDataOrigin<'_> {
    type Sample = PendingSample;

    fn fill(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Filled {
        let filled = self.read(inlet).unwrap_or_else(|error| {
            self.profile.note_failed(Some(error));
            Filled::End
        });
        self.take_beside(if filled == Filled::End { u64::MAX } else { self.intake.newest() }, inlet);
        inlet.take(self.intake.batch());
        filled
    }

    fn loss(&self) -> Loss {
        self.intake.loss()
    }

    fn end(self, outcome: &mut Outcome, ending: Ending<PendingSample>) {
        let Self { profile, intake, is_untimed, is_named_at_end, guests, wants_code, spe, other_aux, .. } = self;
        let first = ending.order.first;
        // The duration covers all records, not only the samples.
        outcome.duration = Duration::from_nanos(intake.newest().saturating_sub(first));
        profile.times = Some((first, intake.newest()));
        profile.recovered = ending.namer.take_recovered().or(profile.recovered.take());
        if let (true, Records::PerfData(perf_data)) = (wants_code, &mut profile.records) {
            outcome.modules.finish_recorded(perf_data.build_ids());
        }
        if is_named_at_end && outcome.loss.unnamed > 0 && profile.meta.is_none() {
            outcome.notes.insert(0, NAMED_AT_END.to_owned());
        }
        if guests > 0 {
            let note = format!("{guests} samples of KVM guests are left out: their code and memory are not the host's");
            outcome.notes.insert(0, note);
        }
        for note in spe.iter().flat_map(|spe| spe.notes()) {
            outcome.notes.insert(0, note);
        }
        if let Some(other) = other_aux {
            outcome.notes.insert(0, format!("AUX data of {other} is left out"));
        }
        if is_untimed {
            outcome.notes.insert(0, UNTIMED.to_owned());
        }
    }
}

/// True for an event whose samples are read as call stacks, also for a scheduling event.
fn is_stack(only: Option<(u16, bool)>, layout: &Layout, event: usize) -> bool {
    layout.sample_type & sample_type::CALLCHAIN != 0 && only.is_none_or(|(only, _)| usize::from(only) == event)
}

/// True for a sample that interrupted a KVM guest: its addresses are not those of the process that runs the guest.
fn is_of_a_guest(sample: Header) -> bool {
    const MODE: u32 = sys::PERF_RECORD_MISC_CPUMODE_MASK;
    const GUEST: [u32; 2] = [sys::PERF_RECORD_MISC_GUEST_KERNEL, sys::PERF_RECORD_MISC_GUEST_USER];
    GUEST.contains(&(u32::from(sample.misc) & MODE))
}

/// True for samples of events that are not read, and for records of their loss.
fn is_of_others(only: Option<(u16, bool)>, bytes: &[u8], event: usize) -> bool {
    const OF_EVENTS: [u32; 3] = [sys::PERF_RECORD_SAMPLE, sys::PERF_RECORD_LOST, sys::PERF_RECORD_LOST_SAMPLES];
    let is_of_an_event = || Header::read(bytes).is_some_and(|header| OF_EVENTS.contains(&header.kind));
    only.is_some_and(|(only, is_wanted)| (usize::from(only) == event) != is_wanted && is_of_an_event())
}

/// The build ids of paths that have only one: files in several containers can have the same path.
fn unambiguous(build_ids: Vec<(Vec<u8>, BuildId)>) -> FxHashMap<Vec<u8>, BuildId> {
    let mut by_path: FxHashMap<Vec<u8>, Option<BuildId>> = FxHashMap::default();
    for (path, build_id) in build_ids {
        let known = by_path.entry(path).or_insert(Some(build_id));
        *known = known.filter(|known| *known == build_id);
    }
    by_path.into_iter().filter_map(|(path, build_id)| Some((path, build_id?))).collect()
}
