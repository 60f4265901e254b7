//! The CPUs of the host and where they are, and lists of CPUs as the kernel writes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{number, read, Error, Roots};
use crate::sample::caches::Caches;
use crate::sample::places::{CpuPlace, CpuPlaces};
use crate::sample::LINE_SIZE;
use scxprof_base::cpus::{cpu_ranges, holds_data, parse_cpu_list};

/// The CPUs that are online.
///
/// # Errors
/// `sys/devices/system/cpu/online` cannot be read or is no CPU list.
pub fn online_cpus(roots: &Roots) -> Result<Vec<u32>, Error> {
    cpu_list(&roots.sys.join("devices/system/cpu/online"))
}

/// The CPUs that can ever be online.
///
/// # Errors
/// `sys/devices/system/cpu/possible` cannot be read or is no CPU list.
pub(crate) fn possible_cpus(roots: &Roots) -> Result<Vec<u32>, Error> {
    cpu_list(&roots.sys.join("devices/system/cpu/possible"))
}

fn cpu_list(path: &Path) -> Result<Vec<u32>, Error> {
    let text = read(path)?;
    parse_cpu_list(&text).filter(|cpus| !cpus.is_empty()).ok_or_else(|| Error::Parse {
        path: path.to_owned(),
        text: String::from_utf8_lossy(&text).trim().to_owned(),
        reason: "expected a list of CPUs such as 0-3,7",
    })
}

/// Where CPUs are in the machine. A CPU has no place if sysfs does not name its core.
///
/// A kernel without NUMA has no nodes; all CPUs are in node 0 then. Without caches, as in some virtual machines, the CPUs of
/// a package count as sharing one.
#[must_use]
pub fn places(roots: &Roots, cpus: &[u32]) -> CpuPlaces {
    let nodes = nodes(roots);
    let mut places = CpuPlaces::default();
    for &cpu in cpus {
        let dir = roots.sys.join(format!("devices/system/cpu/cpu{cpu}"));
        let lowest = |names: [&str; 2]| names.iter().find_map(|name| lowest(&dir.join("topology").join(name)));
        let place = || {
            Some(CpuPlace {
                core: lowest(["core_cpus_list", "thread_siblings_list"])?,
                llc: last_level_cache(&dir).or_else(|| lowest(["package_cpus_list", "core_siblings_list"]))?,
                node: nodes.as_ref().map_or(Some(0), |nodes| nodes.get(&cpu).copied())?,
            })
        };
        if let Some(place) = place() {
            places.set(cpu, place);
        }
    }
    places
}

/// The last-level caches of these CPUs, as sysfs describes them; `None` if it does not for one of them, or if they are irregular.
///
/// A package does not stand for a cache here: virtual machines often have one for each CPU.
#[must_use]
pub fn caches(roots: &Roots, cpus: &[u32]) -> Option<Caches> {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    let cache = |cpu: &u32| last_level_cache(&roots.sys.join(format!("devices/system/cpu/cpu{cpu}")));
    Caches::of(&cpus.iter().map(cache).collect::<Option<Vec<u32>>>()?)
}

/// The lowest CPU of a list in a file.
fn lowest(path: &Path) -> Option<u32> {
    cpu_ranges(&read(path).ok()?)?.iter().map(|range| *range.start()).min()
}

/// perf looks at as many (`MAX_CACHE_LVL`, tools/perf/util/header.c, for the levels).
const MAX_CACHES: u32 = 10;

/// The lowest CPU that shares the highest cache for data with the CPU of this directory.
fn last_level_cache(dir: &Path) -> Option<u32> {
    let shared = |(level, dir): (u64, PathBuf)| Some((level, lowest(&dir.join("shared_cpu_list"))?));
    data_caches(dir).filter_map(shared).max().map(|(_, cpu)| cpu)
}

/// The caches for data that the CPU of this directory uses: the level and the directory of each.
fn data_caches(dir: &Path) -> impl Iterator<Item = (u64, PathBuf)> + '_ {
    let caches = (0..MAX_CACHES).map_while(|index| {
        let dir = dir.join(format!("cache/index{index}"));
        let level = number(read(&dir.join("level")).ok()?.trim_ascii(), 10)?;
        Some((level, dir))
    });
    caches.filter(|(_, dir)| read(&dir.join("type")).is_ok_and(|kind| holds_data(kind.trim_ascii())))
}

/// The id of the CPU's cache of this level for data, and the lowest CPU that shares it.
pub(crate) fn cache_of_level(roots: &Roots, cpu: u32, level: u64) -> Option<(u32, u32)> {
    let dir = roots.sys.join(format!("devices/system/cpu/cpu{cpu}"));
    let (_, cache) = data_caches(&dir).find(|(its, _)| *its == level)?;
    let id = number(read(&cache.join("id")).ok()?.trim_ascii(), 10)?;
    Some((u32::try_from(id).ok()?, lowest(&cache.join("shared_cpu_list"))?))
}

/// A note if these CPUs have larger cache lines than those that are counted, as some of arm64 do (128 bytes, or 256).
pub(crate) fn large_lines(roots: &Roots, cpus: &[u32]) -> Option<String> {
    let size = |cpu: &u32| {
        let (_, cache) = data_caches(&roots.sys.join(format!("devices/system/cpu/cpu{cpu}"))).next()?;
        number(read(&cache.join("coherency_line_size")).ok()?.trim_ascii(), 10)
    };
    let largest = cpus.iter().filter_map(size).max().filter(|size| *size > LINE_SIZE)?;
    Some(format!(
        "the cache lines of this host have {largest} bytes, and scxprof counts lines of {LINE_SIZE}: threads that share a line but no \
         {LINE_SIZE} bytes of it are not seen to share it"
    ))
}

/// The node of each CPU; `None` if there are no nodes.
fn nodes(roots: &Roots) -> Option<BTreeMap<u32, u32>> {
    let dir = roots.sys.join("devices/system/node");
    let online = parse_cpu_list(&read(&dir.join("online")).ok()?)?;
    let mut nodes = BTreeMap::new();
    for node in online {
        let cpus = read(&dir.join(format!("node{node}/cpulist"))).ok().and_then(|text| parse_cpu_list(&text));
        nodes.extend(cpus.unwrap_or_default().into_iter().map(|cpu| (cpu, node)));
    }
    Some(nodes)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use scxprof_base::cpus::format_cpu_list;

    #[test]
    fn cpus_are_read_under_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sys: dir.path().into(), ..Roots::default() };
        assert!(matches!(online_cpus(&roots), Err(Error::Read { .. })));
        fs::create_dir_all(dir.path().join("devices/system/cpu")).unwrap();
        fs::write(dir.path().join("devices/system/cpu/online"), "0-1,4\n").unwrap();
        fs::write(dir.path().join("devices/system/cpu/possible"), "0-7\n").unwrap();
        assert_eq!(online_cpus(&roots).unwrap(), [0, 1, 4]);
        assert_eq!(possible_cpus(&roots).unwrap().len(), 8);
        fs::write(dir.path().join("devices/system/cpu/online"), "none\n").unwrap();
        assert!(online_cpus(&roots).unwrap_err().to_string().contains("\"none\""));
    }

    #[test]
    fn this_host_has_cpus() {
        let roots = Roots::default();
        let online = online_cpus(&roots).unwrap();
        assert!(!online.is_empty() && possible_cpus(&roots).unwrap().len() >= online.len());
    }

    /// A sysfs with 16 CPUs: CPU n and n + 8 are of one core; two cores share an L3, four are a package and node of its own.
    pub(crate) fn fake_sysfs(dir: &Path) -> Roots {
        let write = |path: String, text: String| {
            let path = dir.join("devices/system").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        };
        // The CPUs of the block of cores that contains this core.
        let cores = |core: u32, count: u32| {
            let first = core / count * count;
            let last = first + count - 1;
            format_cpu_list(&(first..=last).chain(first + 8..=last + 8).collect::<Vec<_>>())
        };
        write("cpu/online".into(), "0-15".into());
        write("cpu/possible".into(), "0-15".into());
        write("node/online".into(), "0,3".into());
        write("node/node0/cpulist".into(), cores(0, 4));
        write("node/node3/cpulist".into(), cores(4, 4));
        for cpu in 0..16 {
            let core = cpu % 8;
            for (name, text) in [
                ("core_cpus_list", cores(core, 1)),
                ("package_cpus_list", cores(core, 4)),
                ("core_id", core.to_string()),
                ("physical_package_id", (core / 4).to_string()),
            ] {
                write(format!("cpu/cpu{cpu}/topology/{name}"), text);
            }
            let caches = [("1", "Data", 1), ("9", "Instruction", 8), ("3", "Unified", 2), ("2", "Unified", 1)];
            for (index, (level, kind, shared)) in caches.into_iter().enumerate() {
                for (name, text) in
                    [("level", level.into()), ("type", kind.into()), ("shared_cpu_list", cores(core, shared))]
                {
                    write(format!("cpu/cpu{cpu}/cache/index{index}/{name}"), text);
                }
            }
        }
        Roots { sys: dir.into(), ..Roots::default() }
    }

    #[test]
    fn the_caches_of_cpus_are_not_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let roots = fake_sysfs(dir.path());
        let of = |cpus: &[u32]| caches(&roots, cpus);
        let all: Vec<u32> = (0..16).collect();
        assert_eq!(of(&all), Some(Caches { count: 4, turns: 2 }));
        let backwards: Vec<u32> = (0..16).rev().collect();
        assert_eq!(of(&backwards), Some(Caches { count: 4, turns: 2 }));
        assert_eq!(of(&[0, 1, 2, 3]), Some(Caches::side_by_side(2)));
        assert_eq!(of(&[8, 9]), Some(Caches::side_by_side(1)));
        assert_eq!((of(&[0, 1, 2]), of(&[]), of(&[0, 16])), (None, None, None));
        let without =
            |cpu: u32| fs::remove_dir_all(dir.path().join(format!("devices/system/cpu/cpu{cpu}/cache"))).unwrap();
        without(14);
        assert_eq!((of(&all), of(&[0, 1, 2, 3])), (None, Some(Caches::side_by_side(2))));
        // Their packages are known and regular, and do not stand for caches.
        (0..14).chain([15]).for_each(without);
        let packages: Vec<u32> = places(&roots, &all).iter().map(|(_, place)| place.llc).collect();
        assert_eq!(packages.len(), 16);
        assert_eq!(of(&all), None);
    }

    #[test]
    fn larger_cache_lines_are_said() {
        let dir = tempfile::tempdir().unwrap();
        let roots = fake_sysfs(dir.path());
        let set = |cpu: u32, size: &str| {
            let cpu = dir.path().join(format!("devices/system/cpu/cpu{cpu}/cache"));
            for cache in fs::read_dir(cpu).unwrap() {
                fs::write(cache.unwrap().path().join("coherency_line_size"), size).unwrap();
            }
        };
        assert_eq!(large_lines(&roots, &[0, 1]), None, "the file does not exist");
        set(0, "64\n");
        set(1, "128\n");
        assert_eq!(large_lines(&roots, &[0]), None);
        assert!(large_lines(&roots, &[0, 1]).is_some_and(|note| note.contains("have 128 bytes")));
    }

    #[test]
    fn the_places_of_cpus() {
        let dir = tempfile::tempdir().unwrap();
        let roots = fake_sysfs(dir.path());
        let of = |cpu: u32| places(&roots, &online_cpus(&roots).unwrap()).get(cpu);
        assert_eq!(of(0), Some(CpuPlace { core: 0, llc: 0, node: 0 }));
        assert_eq!(of(11), Some(CpuPlace { core: 3, llc: 2, node: 0 }));
        assert_eq!(of(14), Some(CpuPlace { core: 6, llc: 6, node: 3 }));
        assert_eq!(of(16), None);
        // The names that older kernels have, and no caches: the package.
        let cpu = dir.path().join("devices/system/cpu/cpu14");
        fs::remove_dir_all(cpu.join("cache")).unwrap();
        for (name, old) in [("core_cpus_list", "thread_siblings_list"), ("package_cpus_list", "core_siblings_list")] {
            fs::rename(cpu.join("topology").join(name), cpu.join("topology").join(old)).unwrap();
        }
        assert_eq!(of(14), Some(CpuPlace { core: 6, llc: 4, node: 3 }));
        fs::remove_file(cpu.join("topology/core_siblings_list")).unwrap();
        assert_eq!(of(14), None, "neither caches nor package");
        // A CPU that is in no node, and a kernel without nodes.
        fs::write(dir.path().join("devices/system/node/node3/cpulist"), "\n").unwrap();
        assert_eq!(of(13), None);
        fs::remove_dir_all(dir.path().join("devices/system/node")).unwrap();
        assert_eq!(of(13), Some(CpuPlace { core: 5, llc: 4, node: 0 }));
        fs::remove_dir_all(dir.path().join("devices/system/cpu/cpu13/topology")).unwrap();
        assert_eq!(of(13), None);
        assert_eq!(of(12), Some(CpuPlace { core: 4, llc: 4, node: 0 }));
    }
}
