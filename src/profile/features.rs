//! The sections after the data of a perf.data file: facts about the host (tools/perf/util/header.c).

use std::fs::{self, File};

use crate::host::{proc, topology, Roots};
use scxprof_perf::format::feature;
use scxprof_perf::reader::PerfData;
use scxprof_perf::section::{Builder, Cursor};

/// The CPUs that were online on the recorded host, from `HEADER_NRCPUS`.
pub(crate) fn online_cpus(perf_data: &mut PerfData<File>) -> Option<usize> {
    let bytes = perf_data.section(feature::NRCPUS)?;
    let mut cursor = Cursor { bytes: &bytes, swapped: perf_data.is_swapped() };
    // First comes the number of CPUs that could be online.
    cursor.u32()?;
    cursor.u32().filter(|&online| online > 0).map(|online| online as usize)
}

/// The times of the first and the last sample: `HEADER_SAMPLE_TIME`.
pub(crate) fn sample_times(perf_data: &mut PerfData<File>) -> Option<(u64, u64)> {
    let bytes = perf_data.section(feature::SAMPLE_TIME)?;
    let is_swapped = perf_data.is_swapped();
    let time = |at: usize| {
        let time = bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))?;
        Some(if is_swapped { time.swap_bytes() } else { time })
    };
    Some((time(0)?, time(8)?))
}

/// The version in `HEADER_VERSION`, where perf writes its own without its name.
const OWN_VERSION: &str = concat!("scxprof-", env!("CARGO_PKG_VERSION"));

/// True for a `HEADER_VERSION` of any scxprof.
pub(crate) fn is_own(version: &str) -> bool {
    version.starts_with("scxprof-")
}

fn one(text: &[u8]) -> Vec<u8> {
    let mut builder = Builder::default();
    builder.string(text);
    builder.0
}

/// The facts about the host, as sections by their bit. Those that cannot be read are left out.
pub(crate) fn of_host(roots: &Roots) -> Vec<(u8, Vec<u8>)> {
    let mut sections = Vec::new();
    let sysctl = |name: &str| fs::read(roots.proc.join("sys/kernel").join(name)).ok();
    for (bit, name) in [(feature::HOSTNAME, "hostname"), (feature::OSRELEASE, "osrelease")] {
        if let Some(text) = sysctl(name) {
            sections.push((bit, one(text.trim_ascii_end())));
        }
    }
    sections.push((feature::VERSION, one(OWN_VERSION.as_bytes())));
    sections.push((feature::ARCH, one(std::env::consts::ARCH.as_bytes())));
    let online = topology::online_cpus(roots).unwrap_or_default();
    let possible = topology::possible_cpus(roots).map_or(online.len(), |possible| possible.len());
    if !online.is_empty() {
        let mut builder = Builder::default();
        builder.u32(possible).u32(online.len());
        sections.push((feature::NRCPUS, builder.0));
    }
    let cpuinfo = fs::read(roots.proc.join("cpuinfo")).unwrap_or_default();
    let field = |name: &str| proc::field(&cpuinfo, name).map(|value| String::from_utf8_lossy(value).into_owned());
    if let Some(model) = proc::cpu_model(&cpuinfo) {
        sections.push((feature::CPUDESC, one(model.as_bytes())));
    }
    if let Some(cpuid) = cpuid(&field) {
        sections.push((feature::CPUID, one(cpuid.as_bytes())));
    }
    if let Some(total) = proc::memory(roots, "MemTotal") {
        sections.push((feature::TOTAL_MEM, total.to_ne_bytes().to_vec()));
    }
    let mut cmdline = Builder::default();
    let arguments: Vec<_> = std::env::args_os().collect();
    cmdline.u32(arguments.len());
    for argument in &arguments {
        cmdline.string(argument.as_encoded_bytes());
    }
    sections.push((feature::CMDLINE, cmdline.0));
    sections
        .extend(super::topology::cpu_topology(roots, &online, possible).map(|bytes| (feature::CPU_TOPOLOGY, bytes)));
    sections.extend(super::topology::numa_topology(roots).map(|bytes| (feature::NUMA_TOPOLOGY, bytes)));
    sections.extend(super::topology::caches(roots, &online).map(|bytes| (feature::CACHE, bytes)));
    sections
}

/// In perf's format on x86: "GenuineIntel-6-143-8" (tools/perf/arch/x86/util/header.c).
fn cpuid(field: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let parts = ["vendor_id", "cpu family", "model", "stepping"].map(field);
    let parts: Option<Vec<String>> = parts.into_iter().collect();
    Some(parts?.join("-"))
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;
    use crate::sampler::OpenEvents;
    use scxprof_perf::writer::{finished_round, PerfDataWriter};

    #[test]
    fn the_cpus_of_the_host_that_was_recorded_are_known() {
        let of = |sections| {
            let attr = perf_event_open_sys::bindings::perf_event_attr::default();
            let events = [OpenEvents { name: "x".into(), attr, ids: vec![1], is_aside: false }];
            let mut writer =
                PerfDataWriter::new(tempfile::tempfile().unwrap(), events.iter().map(OpenEvents::desc).collect())
                    .unwrap();
            writer.write(&finished_round()).unwrap();
            let mut file = writer.finish(sections).unwrap();
            file.rewind().unwrap();
            online_cpus(&mut PerfData::open(file).unwrap())
        };
        let mut section = Builder::default();
        section.u32(512).u32(96);
        assert_eq!(of(vec![(feature::NRCPUS, section.0.clone())]), Some(96));
        assert_eq!(of(vec![(feature::NRCPUS, section.0[..4].to_vec())]), None);
        assert_eq!(of(Vec::new()), None);
    }
}
