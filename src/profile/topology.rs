//! The host's CPUs, nodes and caches in the format of perf.data sections (tools/perf/util/header.c).

use std::fs;
use std::path::Path;

use super::features::Builder;
use crate::host::{proc, topology, Roots};

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
