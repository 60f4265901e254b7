//! The scheduler's tracepoints on this host, with their ids and formats.

use std::path::Path;

use super::attr::EventSpec;
use super::error::SamplerError;
use crate::host::tracefs::Tracefs;
use scxprof_perf::tracepoint::{self, SchedDecoder};

/// Which scheduling events to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedOptions {
    /// Also the handling of interrupts and softirqs.
    pub irq: bool,
    /// Also the CPU time that the kernel charges (`sched_stat_runtime`), which `perf sched latency` reads.
    pub runtime: bool,
    /// Also insertions into dispatch queues (DSQs) by a sched_ext scheduler, if one is loaded. This needs BPF; without
    /// BPF, the other events are sampled, and a note gives the reason.
    pub dsq: bool,
}

/// True if a sched_ext scheduler is loaded.
#[must_use]
pub fn has_scheduler(sysfs: &Path) -> bool {
    std::fs::read(sysfs.join("kernel/sched_ext/state")).is_ok_and(|state| state.trim_ascii() == b"enabled")
}

/// The event that all results depend on.
const SWITCH: &str = "sched:sched_switch";

/// The tracepoints and how to decode them; notes name those that this kernel lacks.
///
/// # Errors
/// [`SamplerError::Tracefs`], [`SamplerError::Tracepoint`].
pub(super) fn tracepoints(
    options: SchedOptions,
    procfs: &Path,
) -> Result<(Vec<EventSpec>, SchedDecoder, Vec<String>), SamplerError> {
    let tracefs = Tracefs::open(procfs)?;
    let runtime = |name: &&&str| options.runtime || **name != tracepoint::RUNTIME;
    let names = tracepoint::SCHED.iter().filter(runtime).chain(tracepoint::IRQ.iter().filter(|_| options.irq));
    let mut decoder = SchedDecoder::new(false);
    let (mut specs, mut notes) = (Vec::new(), Vec::new());
    for &name in names {
        let path = name.replace(':', "/");
        let read = tracefs.event_id(&path).and_then(|id| Ok((id, tracefs.read(&format!("events/{path}/format"))?)));
        let (id, format) = match read {
            Ok(read) => read,
            Err(error) if name == SWITCH => return Err(error.into()),
            Err(error) => {
                notes.push(format!("{name} is left out: {error}"));
                continue;
            }
        };
        decoder.add(name, &String::from_utf8_lossy(&format))?;
        specs.push(EventSpec::sched(name, id));
    }
    decoder.add(tracepoint::DSQ, tracepoint::DSQ_FORMAT)?;
    Ok((specs, decoder, notes))
}
