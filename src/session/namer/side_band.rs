//! Side-band records that change the names of samples: tasks, mappings, hints.

use super::accesses::Accesses;
use super::namer::Namer;
use crate::profile::hints::HintRecord;
use crate::resolve::identity::scope;
use crate::resolve::Mapping;
use crate::sample::{FileId, SideBand};
use scxprof_perf::buildid::BuildId;

impl Namer {
    /// Takes an event that changes names.
    pub(super) fn side_band(&mut self, what: SideBand) {
        if let Accesses::OfWakeups(wakeups) = &mut self.accesses {
            wakeups.side_band(&what);
        }
        match what {
            SideBand::Comm { pid, tid, exec, comm } => {
                self.threads.comm(pid, tid, comm, exec);
                if exec {
                    self.end_space(pid);
                    self.maps.exec(pid);
                }
            }
            SideBand::Fork { pid, ppid, tid, ptid } => {
                self.threads.fork(pid, tid, ppid, ptid);
                if let Some(hints) = &mut self.hints {
                    hints.fork(tid);
                }
                if let Some(cgroups) = &mut self.cgroups_of_threads {
                    if let (Some(parent), Some(child)) = (self.threads.get(ppid, ptid), self.threads.get(pid, tid)) {
                        cgroups.fork(parent.index, child.index);
                    }
                }
                if pid != ppid {
                    self.maps.fork(pid, ppid);
                }
            }
            SideBand::Exit { pid, tid } => {
                if self.threads.exit(pid, tid) {
                    self.end_space(pid);
                    self.maps.exit(pid);
                }
            }
            SideBand::Mmap { pid, addr, len, pgoff, file, prot, flags, filename } => {
                let (dev, ino, generation, build_id) = match file {
                    FileId::Inode { dev, ino, generation } => (dev, ino, generation, None),
                    FileId::BuildId(build_id) => (0, 0, 0, Some(BuildId::new(&build_id))),
                };
                let scope = scope(dev, &filename);
                let (start, path) = (addr, filename.into());
                let mapping = Mapping { start, len, pgoff, prot, flags, dev, ino, generation, scope, build_id, path };
                if let Some(modules) = self.modules.as_mut().filter(|_| pid == u32::MAX) {
                    modules.kernel_mapping(&mapping.path, pgoff);
                }
                self.maps.mmap(pid, &mapping);
            }
            SideBand::Ipc { pid, namespace } => self.maps.ipc_namespace(pid, namespace),
            // Paths are looked up where samples are passed on.
            SideBand::Cgroup { .. } => {}
            SideBand::ThreadCgroup { pid, tid, id } => {
                if let Some(cgroups) = &mut self.cgroups_of_threads {
                    cgroups.set(self.threads.get(pid, tid).map(|thread| thread.index), (pid, tid), id);
                }
            }
            SideBand::Hint { time, pid, tid, hint } => {
                if let Some(hints) = &mut self.hints {
                    hints.event(time, pid, tid, hint);
                }
                if let Some(recorder) = &self.recorder {
                    recorder.hint(&HintRecord { tid, pid, hint, time, snapshot: false });
                }
            }
            SideBand::Lost { lost, .. } => {
                self.is_suspect = true;
                self.timeline.lost(lost);
            }
        }
    }

    /// The address space of a process ends.
    fn end_space(&mut self, pid: u32) {
        if let (Accesses::Recovered(recoverer), Some(space)) = (&mut self.accesses, self.maps.known_generation(pid)) {
            recoverer.forget(space);
        }
    }
}
