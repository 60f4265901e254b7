//! Where CPUs are, from the sections of a perf.data (tools/perf/util/header.c).

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::section::Cursor;
use scxprof_base::cpus::{cpu_ranges, holds_data};
use scxprof_base::sample::places::{CpuPlace, CpuPlaces};

/// CPUs in all lists of one kind, at most: a file may name the same ones in millions of lists. The largest host has 65,536, in one
/// list of each level of its caches.
const MAX_LISTED: usize = 1 << 20;
/// Bytes of a list of CPUs, at most: 65,536 numbers of up to 5 digits with commas have less.
const MAX_LIST: usize = 1 << 19;

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
        let ranges = list.and_then(cpu_ranges).unwrap_or_default();
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

/// Where CPUs are, from the sections `HEADER_CPU_TOPOLOGY`, `HEADER_NUMA_TOPOLOGY` and `HEADER_CACHE`. Damaged sections count as far as they can be read.
#[must_use]
pub fn places(cpus: &[u8], nodes: Option<&[u8]>, caches: &[u8], swapped: bool) -> CpuPlaces {
    let [mut packages, mut cores, mut node_of] = [(); 3].map(|()| Shared::new());
    let llc = last_level(caches, swapped);
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

/// The last-level cache that each CPU uses, by its lowest CPU, from the section `HEADER_CACHE`, in the order of the CPUs. None that
/// has no cache there is among them.
#[must_use]
pub fn caches(caches: &[u8], swapped: bool) -> Vec<u32> {
    let of_cpus: BTreeMap<u32, (u32, u32)> = last_level(caches, swapped).numbers.into_iter().collect();
    of_cpus.into_values().map(|(_, cache)| cache).collect()
}

fn last_level(caches: &[u8], swapped: bool) -> Shared {
    let mut llc = Shared::new();
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
        if holds_data(kind) {
            llc.add(list, level, None);
        }
    }
    llc
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            assert_eq!(super::caches(&caches.0, swapped), [0, 0, 2, 2]);
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
            let _ = (places(cpus, Some(nodes), caches, swapped), super::caches(caches, swapped));
        }
    }
}
