//! The tables of threads and processes, written at the end.

use std::collections::BTreeMap;
use std::io::Write;

use rustc_hash::FxHashMap;

use super::schema::ParquetTable;
use super::write::{Cell, Out};
use super::UNKNOWN;
use scxprof_base::sample::{printable, Comm, Task};

/// Threads that are kept, of about 50 bytes each; later ones are counted.
const MAX_THREADS: usize = 1 << 20;
/// Threads that are kept after another one got their number.
const MAX_BEFORE: usize = 1 << 12;
/// Cgroups whose path is kept.
const MAX_CGROUPS: usize = 1 << 16;

/// The cell and the subcell of a thread, by its cgroup's path and its name; `None` if it is in none.
pub type PlaceOf<'a> = &'a dyn Fn(&Task<'_>) -> Option<(String, Option<String>)>;

/// What is known of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Person {
    /// [`UNKNOWN`] if it is not known.
    pub(super) pid: u32,
    pub(super) comm: Comm,
    /// 0 if it is not known.
    pub(super) cgroup: u64,
    pub(super) hint: Option<u64>,
}

/// The threads that are known, and the paths of their cgroups. Two threads of one number are told apart by their processes.
#[derive(Debug, Default)]
pub(super) struct People {
    threads: FxHashMap<u32, Person>,
    /// Those whose number another one has now.
    before: Vec<(u32, Person)>,
    cgroups: FxHashMap<u64, Option<Box<[u8]>>>,
    pub(super) left_out: u64,
}

impl People {
    /// Takes what is known of a thread; what is not known stays.
    pub(super) fn see(&mut self, tid: u32, seen: Person) {
        if tid == 0 || tid == UNKNOWN {
            return;
        }
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.left_out += 1;
            return;
        }
        let person = self.threads.entry(tid).or_insert(seen);
        let is_known = |pid: u32| pid != UNKNOWN && pid != 0;
        if is_known(seen.pid) && is_known(person.pid) && seen.pid != person.pid {
            let before = std::mem::replace(person, seen);
            let is_new = !self.before.iter().any(|(its, it)| *its == tid && it.pid == before.pid);
            if is_new && self.before.len() < MAX_BEFORE {
                self.before.push((tid, before));
            } else if is_new {
                self.left_out += 1;
            }
            return;
        }
        if seen.pid != UNKNOWN && seen.pid != 0 {
            person.pid = seen.pid;
        }
        if !seen.comm.is_empty() {
            person.comm = seen.comm;
        }
        if seen.cgroup != 0 {
            person.cgroup = seen.cgroup;
        }
        person.hint = seen.hint.or(person.hint);
    }

    /// Takes what is not known yet.
    pub(super) fn fill(&mut self, tid: u32, pid: u32, comm: Comm) {
        let known = self.threads.get(&tid);
        let comm = if known.is_some_and(|known| !known.comm.is_empty()) { Comm::default() } else { comm };
        let pid = self.pid(tid).unwrap_or(pid);
        self.see(tid, Person { pid, comm, cgroup: 0, hint: None });
    }

    /// The hint of a thread was written or deleted.
    pub(super) fn hint(&mut self, tid: u32, hint: Option<u64>) {
        self.see(tid, Person { pid: UNKNOWN, comm: Comm::default(), cgroup: 0, hint });
        if let Some(person) = self.threads.get_mut(&tid) {
            person.hint = hint;
        }
    }

    /// The process of a thread, if it is known.
    pub(super) fn pid(&self, tid: u32) -> Option<u32> {
        Some(self.threads.get(&tid)?.pid).filter(|pid| *pid != UNKNOWN && *pid != 0)
    }

    /// Keeps the path of a cgroup that was not seen before.
    pub(super) fn cgroup(&mut self, id: u64, path: impl FnOnce() -> Option<Box<[u8]>>) {
        if id != 0 && self.cgroups.len() < MAX_CGROUPS {
            let known = self.cgroups.entry(id).or_insert(None);
            if known.is_none() {
                *known = path();
            }
        }
    }

    pub(super) fn write<W: Write + Send>(&self, place_of: Option<PlaceOf<'_>>, out: &mut Out<W>) {
        let path_of = |id: u64| self.cgroups.get(&id).and_then(|path| path.as_deref());
        let now = self.threads.iter().map(|(tid, person)| (*tid, person));
        let is_gone = |(tid, person): &(u32, &Person)| self.threads.get(tid).is_none_or(|now| now.pid != person.pid);
        let before = self.before.iter().map(|(tid, person)| (*tid, person)).filter(is_gone);
        let mut people: Vec<(u32, &Person)> = now.chain(before).collect();
        let has_hints = people.iter().any(|(_, person)| person.hint.is_some());
        people.sort_unstable_by_key(|(tid, person)| (*tid, person.pid));
        // The name, the cgroup and the number of threads of each process.
        let mut processes: BTreeMap<u32, (Comm, u64, i64)> = BTreeMap::new();
        for (tid, person) in people {
            let is_known = person.pid != UNKNOWN && person.pid != 0;
            if is_known {
                let process = processes.entry(person.pid).or_default();
                process.2 += 1;
                if tid == person.pid {
                    (process.0, process.1) = (person.comm, person.cgroup);
                } else if process.1 == 0 {
                    process.1 = person.cgroup;
                }
            }
            let path = path_of(person.cgroup);
            let (cell, subcell) = place_of
                .and_then(|place_of| {
                    let pid = if is_known { person.pid } else { 0 };
                    let task = Task::new(path.unwrap_or_default(), person.comm.as_bytes()).ids(pid, tid);
                    // As the row has it: the last hint.
                    place_of(&if has_hints { task.hinted(person.hint) } else { task })
                })
                .map_or((String::new(), String::new()), |(cell, subcell)| (cell, subcell.unwrap_or_default()));
            out.row(
                ParquetTable::Thread,
                &[
                    Cell::id(tid),
                    if is_known { Cell::id(person.pid) } else { Cell::Null },
                    Cell::text(&printable(person.comm.as_bytes())),
                    if is_known { Cell::Bool(tid == person.pid) } else { Cell::Null },
                    Cell::text(&path.map_or_else(String::new, printable)),
                    Cell::or_null(person.hint.map(Cell::bits)),
                    Cell::text(&printable(cell.as_bytes())),
                    Cell::text(&printable(subcell.as_bytes())),
                ],
            );
        }
        for (pid, (name, cgroup, threads)) in processes {
            let path = path_of(cgroup).map_or_else(String::new, printable);
            let name = printable(name.as_bytes());
            out.row(ParquetTable::Process, &[Cell::id(pid), Cell::text(&name), Cell::text(&path), Cell::Int(threads)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_one_number_are_both_kept() {
        let mut people = People::default();
        for (pid, comm) in [(10, "a"), (UNKNOWN, "b"), (20, "c"), (0, "d"), (20, "e")] {
            people.see(5, Person { pid, comm: Comm::from(comm), cgroup: 0, hint: None });
        }
        let before: Vec<_> = people.before.iter().map(|(tid, person)| (*tid, person.pid, person.comm)).collect();
        assert_eq!(before, [(5, 10, Comm::from("b"))]);
        assert_eq!(people.threads.get(&5).map(|person| (person.pid, person.comm)), Some((20, Comm::from("e"))));
    }
}
