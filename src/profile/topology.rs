//! The host's CPUs, nodes and caches in the format of perf.data sections (tools/perf/util/header.c).

use std::fs;
use std::path::Path;

use crate::host::{proc, Roots};
use scxprof_base::cpus::parse_cpu_list;
use scxprof_perf::section::Builder;

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<usize> {
    text(path)?.parse().ok()
}

/// `HEADER_CPU_TOPOLOGY`: the lists of CPUs that share a package, those that share a core, then core and package of each CPU.
pub(super) fn cpu_topology(roots: &Roots, online: &[u32], possible: usize) -> Option<Vec<u8>> {
    let of = |cpu: usize, name: &str| roots.sys.join(format!("devices/system/cpu/cpu{cpu}/topology/{name}"));
    let lists = |names: [&str; 2]| {
        let mut lists = Vec::new();
        for &cpu in online {
            let list = names.iter().find_map(|name| text(&of(cpu as usize, name)));
            lists.extend(list.filter(|list| !lists.contains(list)));
        }
        lists
    };
    let packages = lists(["package_cpus_list", "core_siblings_list"]);
    let cores = lists(["core_cpus_list", "thread_siblings_list"]);
    if packages.is_empty() {
        return None;
    }
    let mut builder = Builder::default();
    for lists in [packages, cores] {
        builder.u32(lists.len());
        for list in lists {
            builder.string(list.as_bytes());
        }
    }
    // An offline CPU has neither.
    let unknown = u32::MAX as usize;
    for cpu in 0..possible {
        for name in ["core_id", "physical_package_id"] {
            builder.u32(number(&of(cpu, name)).unwrap_or(unknown));
        }
    }
    let dies: Vec<Option<usize>> = (0..possible).map(|cpu| number(&of(cpu, "die_id"))).collect();
    if dies.iter().any(Option::is_some) {
        let mut lists = Vec::new();
        for &cpu in online {
            lists.extend(text(&of(cpu as usize, "die_cpus_list")).filter(|list| !lists.contains(list)));
        }
        builder.u32(lists.len());
        for list in lists {
            builder.string(list.as_bytes());
        }
        for die in dies {
            builder.u32(die.unwrap_or(unknown));
        }
    }
    Some(builder.0)
}

/// `HEADER_NUMA_TOPOLOGY`: for each node its number, its memory in KiB and its CPUs.
pub(super) fn numa_topology(roots: &Roots) -> Option<Vec<u8>> {
    let nodes = roots.sys.join("devices/system/node");
    let online = parse_cpu_list(&fs::read(nodes.join("online")).ok()?)?;
    let mut builder = Builder::default();
    let mut count = 0;
    let mut each = Builder::default();
    for node in online {
        let dir = nodes.join(format!("node{node}"));
        let Some(cpus) = text(&dir.join("cpulist")) else { continue };
        let meminfo = fs::read(dir.join("meminfo")).unwrap_or_default();
        let kib =
            |name| proc::field(&meminfo, &format!("Node {node} {name}")).and_then(proc::first_number).unwrap_or(0);
        let [total, free] = ["MemTotal", "MemFree"].map(kib);
        each.u32(node as usize).u64(total).u64(free).string(cpus.as_bytes());
        count += 1;
    }
    builder.u32(count);
    builder.0.append(&mut each.0);
    (count > 0).then_some(builder.0)
}

/// `HEADER_CACHE`: each cache once, with its level, line size, sets, ways, type, size and CPUs.
pub(super) fn caches(roots: &Roots, online: &[u32]) -> Option<Vec<u8>> {
    const VERSION: usize = 1;
    let mut caches = Vec::new();
    for cpu in online {
        for index in 0..10 {
            let dir = roots.sys.join(format!("devices/system/cpu/cpu{cpu}/cache/index{index}"));
            let Some(level) = number(&dir.join("level")) else { break };
            let numbers = ["coherency_line_size", "number_of_sets", "ways_of_associativity"]
                .map(|name| number(&dir.join(name)).unwrap_or(0));
            let texts = ["type", "size", "shared_cpu_list"].map(|name| text(&dir.join(name)).unwrap_or_default());
            let cache = (level, numbers, texts);
            if !caches.contains(&cache) {
                caches.push(cache);
            }
        }
    }
    if caches.is_empty() {
        return None;
    }
    caches.sort();
    let mut builder = Builder::default();
    builder.u32(VERSION).u32(caches.len());
    for (level, numbers, texts) in caches {
        builder.u32(level);
        for number in numbers {
            builder.u32(number);
        }
        for text in texts {
            builder.string(text.as_bytes());
        }
    }
    Some(builder.0)
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::host::topology;
    use crate::host::topology::tests::fake_sysfs;
    use crate::sample::caches::Caches;
    use crate::sample::places::{CpuPlace, CpuPlaces};
    use crate::sampler::OpenEvents;
    use scxprof_base::cpus::MAX_CPUS;
    use scxprof_perf::format::feature;
    use scxprof_perf::reader::PerfData;
    use scxprof_perf::topology::places;
    use scxprof_perf::writer::{finished_round, PerfDataWriter};

    fn sections(roots: &Roots) -> [Option<Vec<u8>>; 3] {
        let online = topology::online_cpus(roots).unwrap();
        let possible = topology::possible_cpus(roots).unwrap();
        [cpu_topology(roots, &online, possible.len()), numa_topology(roots), caches(roots, &online)]
    }

    static WHOLE: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        sections(&fake_sysfs(dir.path())).map(Option::unwrap_or_default)
    });

    /// Writes a perf.data with these sections and reads it.
    fn written(sections: [Option<Vec<u8>>; 3]) -> (CpuPlaces, Option<Caches>) {
        let attr = perf_event_open_sys::bindings::perf_event_attr::default();
        let events = [OpenEvents { name: "x".into(), attr, ids: vec![1], is_aside: false }];
        let mut writer =
            PerfDataWriter::new(tempfile::tempfile().unwrap(), events.iter().map(OpenEvents::desc).collect()).unwrap();
        writer.write(&finished_round()).unwrap();
        let bits = [feature::CPU_TOPOLOGY, feature::NUMA_TOPOLOGY, feature::CACHE];
        let sections = bits.into_iter().zip(sections).filter_map(|(bit, bytes)| Some((bit, bytes?))).collect();
        let mut file = writer.finish(sections).unwrap();
        file.rewind().unwrap();
        let mut read = PerfData::open(file).unwrap();
        (read.places(), Caches::of(&read.caches()))
    }

    #[test]
    fn the_places_that_are_written_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let fake = fake_sysfs(dir.path());
        assert_eq!(topology::places(&fake, &[5]).get(5), Some(CpuPlace { core: 5, llc: 4, node: 3 }));
        for roots in [fake.clone(), Roots::default()] {
            let online = topology::online_cpus(&roots).unwrap();
            let read = (topology::places(&roots, &online), topology::caches(&roots, &online));
            assert_eq!(written(sections(&roots)), read);
        }
        assert_eq!(written(sections(&fake)).1, Some(Caches { count: 4, turns: 2 }));
        let [cpus, nodes, caches] = sections(&fake);
        let of_14 = |sections| written(sections).0.get(14);
        assert_eq!(of_14([cpus.clone(), nodes.clone(), None]), Some(CpuPlace { core: 6, llc: 4, node: 3 }));
        assert_eq!(of_14([cpus.clone(), None, caches.clone()]), Some(CpuPlace { core: 6, llc: 6, node: 0 }));
        assert_eq!(of_14([cpus, Some(vec![0; 4]), caches.clone()]), None, "in no node");
        assert_eq!(of_14([None, nodes, caches]), None);
    }

    proptest! {
        #[test]
        fn damaged_sections_give_places_or_none(
            damage in prop::collection::vec((0usize..3, any::<prop::sample::Index>(), any::<u8>()), 0..10),
            lens in prop::array::uniform3(any::<prop::sample::Index>()),
        ) {
            let mut sections = WHOLE.clone();
            for (section, at, byte) in damage {
                let at = at.index(sections[section].len());
                sections[section][at] = byte;
            }
            for (section, len) in sections.iter_mut().zip(lens) {
                section.truncate(len.index(section.len() + 1));
            }
            let [cpus, nodes, caches] = &sections;
            for (_, place) in places(cpus, Some(nodes), caches, false).iter() {
                prop_assert!(place.core < MAX_CPUS && place.llc < MAX_CPUS);
            }
        }
    }
}
