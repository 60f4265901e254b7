//! Assigns numbers to the threads and cgroups in the lines of a recording.

use rustc_hash::FxHashMap;

use crate::sample::{SideBand, ThreadIndex};

/// The most threads, the most cgroups, and the most bytes of cgroup paths that have numbers.
const MAX_NUMBERED: usize = 1 << 20;
const MAX_PATH_BYTES: usize = crate::resolve::cgroups::MAX_PATH_BYTES;
/// The numbers of threads and cgroups in lines.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    threads: FxHashMap<(u32, u32), ThreadIndex>,
    cgroups: FxHashMap<Vec<u8>, u64>,
    path_bytes: usize,
    /// How often all numbers of threads or of cgroups were dropped.
    forgotten: u64,
    /// The last cgroup and its number, which is not 0.
    last_cgroup: (Vec<u8>, u64),
    next: u64,
}

impl Numbers {
    /// The thread with that tid; a tid that is used again gets the same number.
    pub(super) fn thread(&mut self, pid: u32, tid: u32) -> ThreadIndex {
        if self.threads.len() >= MAX_NUMBERED {
            self.threads.clear();
            self.forgotten += 1;
        }
        let next = &mut self.next;
        *self.threads.entry((pid, tid)).or_insert_with(|| {
            *next += 1;
            *next as ThreadIndex
        })
    }

    /// The number of the cgroup with that path. For a new one, `told` gets the side-band that names it, before its
    /// first sample.
    pub(super) fn cgroup(&mut self, path: &[u8], told: &mut dyn FnMut(SideBand)) -> u64 {
        if self.last_cgroup.0 != path || self.last_cgroup.1 == 0 {
            self.last_cgroup = (path.to_vec(), self.other_cgroup(path, told));
        }
        self.last_cgroup.1
    }

    fn other_cgroup(&mut self, path: &[u8], told: &mut dyn FnMut(SideBand)) -> u64 {
        if let Some(&id) = self.cgroups.get(path) {
            return id;
        }
        if self.cgroups.len() >= MAX_NUMBERED || self.path_bytes + path.len() > MAX_PATH_BYTES {
            self.cgroups.clear();
            self.path_bytes = 0;
            self.forgotten += 1;
        }
        self.path_bytes += path.len();
        self.next += 1;
        self.cgroups.insert(path.to_vec(), self.next);
        told(SideBand::Cgroup { id: self.next, path: path.into() });
        self.next
    }

    /// A sentence on numbers that were dropped at the bound.
    pub(super) fn left_out(&self) -> Option<String> {
        (self.forgotten > 0).then(|| {
            format!(
                "{} times there were more threads or cgroups than are told apart ({MAX_NUMBERED}, and paths of {} MiB): those that \
                 came again count as others",
                self.forgotten,
                MAX_PATH_BYTES >> 20
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_have_numbers_are_bounded() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.left_out(), None);
        for number in 0..MAX_PATH_BYTES / 60_000 * 3 {
            let path = [number.to_string().as_bytes(), &vec![b'x'; 60_000][..]].concat();
            let mut told = 0;
            let id = numbers.cgroup(&path, &mut |_| told += 1);
            assert_eq!(numbers.cgroup(&path, &mut |_| told += 1), id);
            assert_eq!(told, 1);
            assert!(numbers.path_bytes <= MAX_PATH_BYTES);
        }
        assert_eq!(numbers.cgroups.keys().map(Vec::len).sum::<usize>(), numbers.path_bytes);
        assert!(numbers.left_out().unwrap().starts_with(&format!("{} times", numbers.forgotten)));
    }
}
