//! The section that describes tracepoints; without it, perf rejects files with tracepoints
//! (tools/perf/util/trace-event-info.c).

use std::path::Path;

use crate::host::tracefs::Tracefs;
use scxprof_perf::tracepoint;
use scxprof_perf::tracing::MAGIC;

/// The formats of `events`, each "system:name"; `None` if there is none or tracefs cannot be read.
pub(super) fn section(procfs: &Path, events: &[&str]) -> Option<Vec<u8>> {
    let names: Vec<(&str, &str)> = events.iter().filter_map(|event| event.split_once(':')).collect();
    if names.is_empty() {
        return None;
    }
    let tracefs = Tracefs::open(procfs).ok()?;
    let read = |path: String| tracefs.read(&path).ok();
    let mut bytes = MAGIC.to_vec();
    bytes.push(u8::from(cfg!(target_endian = "big")));
    bytes.push(size_of::<usize>() as u8);
    bytes.extend_from_slice(&(rustix::param::page_size() as u32).to_ne_bytes());
    let file = |bytes: &mut Vec<u8>, text: &[u8]| {
        bytes.extend_from_slice(&(text.len() as u64).to_ne_bytes());
        bytes.extend_from_slice(text);
    };
    for name in ["header_page", "header_event"] {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        file(&mut bytes, &read(format!("events/{name}"))?);
    }
    // Formats of the system "ftrace": none.
    bytes.extend_from_slice(&0u32.to_ne_bytes());
    bytes.extend_from_slice(&(names.len() as u32).to_ne_bytes());
    for (system, name) in names {
        bytes.extend_from_slice(system.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&1u32.to_ne_bytes());
        if format!("{system}:{name}") == tracepoint::DSQ {
            file(&mut bytes, tracepoint::DSQ_FORMAT.as_bytes());
        } else {
            file(&mut bytes, &read(format!("events/{system}/{name}/format"))?);
        }
    }
    // No kallsyms, no formats of printk, no names of commands.
    for size in [4, 4, 8] {
        bytes.resize(bytes.len() + size, 0);
    }
    Some(bytes)
}
