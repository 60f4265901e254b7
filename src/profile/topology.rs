//! The host's CPUs, nodes and caches in the format of perf.data sections (tools/perf/util/header.c).

use std::fs;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::section::{Builder, Cursor};
use crate::host::{proc, topology, Roots};
use crate::sample::places::{CpuPlace, CpuPlaces};

/// CPUs in all lists of one kind, at most: a file may name the same ones in millions of lists. The largest host has 65,536, in one
/// list of each level of its caches.
const MAX_LISTED: usize = 1 << 20;
/// Bytes of a list of CPUs, at most: 65,536 numbers of up to 5 digits with commas have less.
const MAX_LIST: usize = 1 << 19;

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
    let online = topology::parse_cpu_list(&fs::read(nodes.join("online")).ok()?)?;
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

/// Numbers of CPUs, from lists of CPUs that share something.
struct Shared {
    /// By CPU, with the level.
    numbers: FxHashMap<u32, (u32, u32)>,
    /// CPUs that lists may still have.
    left: usize,
}

impl Shared {
    fn new() -> Self {
        Self { numbers: FxHashMap::default(), left: MAX_LISTED }
    }

    /// The CPUs of the list share what has this number, or that of the lowest of them; of several, the highest level counts.
    fn add(&mut self, list: &[u8], level: u32, number: Option<u32>) {
        let list = Some(list).filter(|list| list.len() <= MAX_LIST);
        let ranges = list.and_then(topology::cpu_ranges).unwrap_or_default();
        let Some(number) = number.or_else(|| ranges.iter().map(|range| *range.start()).min()) else { return };
        for cpu in ranges.into_iter().flatten() {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            let known = self.numbers.entry(cpu).or_insert((level, number));
            if level > known.0 {
                *known = (level, number);
            }
        }
    }

    fn get(&self, cpu: u32) -> Option<u32> {
        self.numbers.get(&cpu).map(|(_, number)| *number)
    }
}

/// Where CPUs are, from the sections [`cpu_topology`], [`numa_topology`] and [`caches`]; as [`topology::places`] of the recorded
/// host. Damaged sections count as far as they can be read.
pub(super) fn places(cpus: &[u8], nodes: Option<&[u8]>, caches: &[u8], swapped: bool) -> CpuPlaces {
    let [mut packages, mut cores, mut node_of, mut llc] = [(); 4].map(|()| Shared::new());
    let mut cursor = Cursor { bytes: cpus, swapped };
    for lists in [&mut packages, &mut cores] {
        let count = cursor.u32().unwrap_or_default();
        for list in (0..count).map_while(|_| cursor.string()) {
            lists.add(list, 0, None);
        }
    }
    let mut cursor = Cursor { bytes: nodes.unwrap_or_default(), swapped };
    let count = cursor.u32().unwrap_or_default();
    for _ in 0..count {
        let mut next = || {
            let number = cursor.u32()?;
            // The memory of the node.
            cursor.skip(16)?;
            Some((number, cursor.string()?))
        };
        let Some((number, list)) = next() else { break };
        node_of.add(list, 0, Some(number));
    }
    let mut cursor = Cursor { bytes: caches, swapped };
    let (_version, count) = (cursor.u32(), cursor.u32().unwrap_or_default());
    for _ in 0..count {
        let mut next = || {
            let level = cursor.u32()?;
            // Line size, sets and ways.
            cursor.skip(12)?;
            let (kind, _size) = (cursor.string()?, cursor.string()?);
            Some((level, kind, cursor.string()?))
        };
        let Some((level, kind, list)) = next() else { break };
        if topology::holds_data(kind) {
            llc.add(list, level, None);
        }
    }
    let mut places = CpuPlaces::default();
    for (&cpu, &(_, core)) in &cores.numbers {
        let llc = llc.get(cpu).or_else(|| packages.get(cpu));
        let node = if nodes.is_some() { node_of.get(cpu) } else { Some(0) };
        if let (Some(llc), Some(node)) = (llc, node) {
            places.set(cpu, CpuPlace { core, llc, node });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::super::format::feature;
    use super::super::reader::PerfData;
    use super::super::writer::{finished_round, PerfDataWriter};
    use super::*;
    use crate::host::topology::tests::fake_sysfs;
    use crate::sampler::OpenEvents;

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
    fn written(sections: [Option<Vec<u8>>; 3]) -> CpuPlaces {
        let attr = perf_event_open_sys::bindings::perf_event_attr::default();
        let events = [OpenEvents { name: "x".into(), attr, ids: vec![1], is_aside: false }];
        let mut writer = PerfDataWriter::new(tempfile::tempfile().unwrap(), &events).unwrap();
        writer.write(&finished_round()).unwrap();
        let bits = [feature::CPU_TOPOLOGY, feature::NUMA_TOPOLOGY, feature::CACHE];
        let sections = bits.into_iter().zip(sections).filter_map(|(bit, bytes)| Some((bit, bytes?))).collect();
        let mut file = writer.finish(sections).unwrap();
        file.rewind().unwrap();
        PerfData::open(file).unwrap().places()
    }

    #[test]
    fn the_places_that_are_written_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let fake = fake_sysfs(dir.path());
        assert_eq!(topology::places(&fake, &[5]).get(5), Some(CpuPlace { core: 5, llc: 4, node: 3 }));
        for roots in [fake.clone(), Roots::default()] {
            let online = topology::online_cpus(&roots).unwrap();
            assert_eq!(written(sections(&roots)), topology::places(&roots, &online));
        }
        let [cpus, nodes, caches] = sections(&fake);
        let of_14 = |sections| written(sections).get(14);
        assert_eq!(of_14([cpus.clone(), nodes.clone(), None]), Some(CpuPlace { core: 6, llc: 4, node: 3 }));
        assert_eq!(of_14([cpus.clone(), None, caches.clone()]), Some(CpuPlace { core: 6, llc: 6, node: 0 }));
        assert_eq!(of_14([cpus, Some(vec![0; 4]), caches.clone()]), None, "in no node");
        assert_eq!(of_14([None, nodes, caches]), None);
    }

    /// A section of numbers and texts in either byte order.
    struct Words(Vec<u8>, bool);

    impl Words {
        fn u32(mut self, value: u32) -> Self {
            let value = if self.1 { value.swap_bytes() } else { value };
            self.0.extend(value.to_ne_bytes());
            self
        }

        fn text(self, text: &str) -> Self {
            let mut words = self.u32(16);
            words.0.extend(text.bytes());
            words.0.resize(words.0.len() + 16 - text.len(), 0);
            words
        }
    }

    #[test]
    fn both_byte_orders_are_read() {
        for swapped in [false, true] {
            let words = || Words(Vec::new(), swapped);
            let cpus = words().u32(1).text("0-3").u32(2).text("0,2").text("1,3").u32(0).u32(0);
            let nodes = words().u32(1).u32(7).u32(0).u32(0).u32(0).u32(0).text("0-3");
            let cache = |words: Words, level, kind: &str, list: &str| {
                words.u32(level).u32(64).u32(1).u32(1).text(kind).text("1K").text(list)
            };
            let caches = cache(words().u32(1).u32(3), 3, "Unified", "2-3");
            let caches = cache(cache(caches, 2, "Unified", "0-3"), 1, "Instruction", "1");
            let found = places(&cpus.0, Some(&nodes.0), &caches.0, swapped);
            let of = |cpu| found.get(cpu).map(|place| (place.core, place.llc, place.node));
            assert_eq!([0, 1, 2, 3].map(of), [Some((0, 0, 7)), Some((1, 0, 7)), Some((0, 2, 7)), Some((1, 2, 7))]);
            let wrong = places(&cpus.0, Some(&nodes.0), &caches.0, !swapped);
            assert!(wrong.is_empty());
        }
    }

    #[test]
    fn lists_that_name_the_same_cpus_again_and_again_are_bounded() {
        let mut lists = Shared::new();
        for _ in 0..100 {
            lists.add(b"0-65535", 0, None);
        }
        assert_eq!((lists.numbers.len(), lists.left), (65_536, 0));
        let mut lists = Shared::new();
        lists.add(&b"1,".repeat(MAX_LIST)[..=MAX_LIST], 0, None);
        assert_eq!(lists.left, MAX_LISTED);
    }

    proptest! {
        #[test]
        fn any_bytes_give_places_or_none(
            sections in prop::array::uniform3(prop::collection::vec(any::<u8>(), 0..300)), swapped in any::<bool>(),
        ) {
            let [cpus, nodes, caches] = &sections;
            places(cpus, Some(nodes), caches, swapped);
        }

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
                prop_assert!(place.core < topology::MAX_CPUS && place.llc < topology::MAX_CPUS);
            }
        }
    }
}
