//! Records of what existed when a recording began, so that a profile is self-contained; and again after records were lost.
//!
//! perf writes the same records (tools/perf/util/synthetic-events.c): a name for each thread, a fork for each thread except the
//! first of its process, the mappings of each process, the cgroups. At the beginning their time is 0, before all others.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustc_hash::FxHashSet;

use crate::host::{tasks, Error, Roots};
use crate::resolve::identity::{self, is_sysv};
use crate::resolve::maps::check::read_lines;
use crate::resolve::{symbols, Cgroups};
use scxprof_perf::encode::encode;
use scxprof_perf::record::{Layout, MappedFile, Record, SampleId, Words, MISC_FORK_EXEC};

/// `PERF_RECORD_MISC_KERNEL` and `PERF_RECORD_MISC_USER`.
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;
/// `PROT_EXEC` (asm-generic/mman-common.h).
const PROT_EXEC: u32 = 4;

/// Makes records and passes them on process by process, with their time.
pub(crate) struct Snapshot<'a> {
    pub layout: Layout,
    /// Returns false if no more records are wanted.
    pub out: &'a mut dyn FnMut(&[u8], u64) -> bool,
}

impl Snapshot<'_> {
    /// The range of the kernel's own code, which changes at its next boot. Nothing if kallsyms hides it.
    pub(crate) fn kernel(&mut self, roots: &Roots) {
        let Some(code) = symbols::kernel_code(roots) else { return };
        let record = Record::Mmap {
            pid: u32::MAX,
            tid: 0,
            addr: code.start,
            len: code.end - code.start,
            pgoff: code.start,
            data: false,
            filename: b"[kernel.kallsyms]_text",
        };
        let mut bytes = Vec::new();
        self.encode(&record, MISC_KERNEL, 0, &mut bytes);
        (self.out)(&bytes, 0);
    }

    /// The cgroups that are known.
    pub(crate) fn cgroups(&mut self, cgroups: &Cgroups) {
        let mut bytes = Vec::new();
        for (id, path) in cgroups.known() {
            self.encode(&Record::Cgroup { id, path }, 0, 0, &mut bytes);
        }
        (self.out)(&bytes, 0);
    }

    /// The processes with one of `tids` among their threads; all processes if that is empty. `now` is called before each is
    /// read: changes during the reading have a later time and are not undone by the result.
    ///
    /// # Errors
    /// The directory of processes cannot be read. A process that ends meanwhile is left out.
    pub(crate) fn processes(
        &mut self,
        roots: &Roots,
        tids: Option<&[u32]>,
        now: &dyn Fn() -> u64,
    ) -> Result<(), Error> {
        let tids: Option<FxHashSet<u32>> = tids.map(|tids| tids.iter().copied().collect());
        for pid in tasks::processes(roots)? {
            if !self.process(roots, pid, tids.as_ref(), now) {
                break;
            }
        }
        Ok(())
    }

    /// As [`Snapshot::processes`], for one process; false if no more records are wanted.
    pub(crate) fn process(
        &mut self,
        roots: &Roots,
        pid: u32,
        tids: Option<&FxHashSet<u32>>,
        now: &dyn Fn() -> u64,
    ) -> bool {
        let time = now();
        let mut process = tasks::of_process(roots, pid);
        if tids.is_some_and(|tids| !process.iter().any(|task| tids.contains(&task.tid))) {
            return true;
        }
        process.sort_by_key(|task| (task.tid != pid, task.tid));
        let mut bytes = Vec::new();
        for task in &process {
            let tid = task.tid;
            if tid != pid {
                let fork = Record::Fork { pid, ppid: pid, tid, ptid: pid, time };
                self.encode(&fork, MISC_FORK_EXEC, time, &mut bytes);
            }
            self.encode(&Record::Comm { pid, tid, exec: false, comm: task.comm.as_bytes() }, 0, time, &mut bytes);
        }
        if !process.is_empty() {
            self.mappings(&roots.proc, pid, time, &mut bytes);
        }
        (self.out)(&bytes, time)
    }

    /// The ends of those of `alive` (process and thread, process by process) that have exited: their records are lost, or are
    /// the same. `now` is called before each process is looked up, as above.
    pub(crate) fn ends(&mut self, roots: &Roots, alive: &[(u32, u32)], now: &dyn Fn() -> u64) {
        for process in alive.chunk_by(|(pid, _), (other, _)| pid == other) {
            let time = now();
            let mut bytes = Vec::new();
            for &(pid, tid) in process {
                let found = fs::metadata(roots.proc.join(format!("{pid}/task/{tid}")));
                if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                    self.encode(&Record::Exit { pid, ppid: 0, tid, ptid: 0, time }, 0, time, &mut bytes);
                }
            }
            if !bytes.is_empty() && !(self.out)(&bytes, time) {
                break;
            }
        }
    }

    fn mappings(&self, proc: &Path, pid: u32, time: u64, bytes: &mut Vec<u8>) {
        let mut in_ipc_namespace = false;
        // A process that cannot be read has none.
        let _ = read_lines(&proc.join(format!("{pid}/maps")), |mapping| {
            if !in_ipc_namespace && is_sysv(mapping.dev, &mapping.path) {
                in_ipc_namespace = true;
                self.ipc_namespace(proc, pid, time, bytes);
            }
            let file = MappedFile::Inode {
                major: libc::major(mapping.dev),
                minor: libc::minor(mapping.dev),
                inode: mapping.ino,
                generation: 0,
            };
            let record = Record::Mmap2 {
                pid,
                tid: pid,
                addr: mapping.start,
                len: mapping.len,
                pgoff: mapping.pgoff,
                file,
                prot: mapping.prot,
                flags: mapping.flags,
                data: mapping.prot & PROT_EXEC == 0,
                filename: if mapping.path.is_empty() { b"//anon" } else { &mapping.path },
            };
            self.encode(&record, MISC_USER, time, bytes);
        });
    }

    /// The process's namespaces that are needed: the IPC namespace of its SysV shared memory.
    pub(crate) fn ipc_namespace(&self, proc: &Path, pid: u32, time: u64, bytes: &mut Vec<u8>) {
        let Some(namespace) = identity::ipc_namespace(proc, pid) else { return };
        // Network, UTS, IPC (the enum of NET_NS_INDEX in linux/perf_event.h), device and inode of each.
        let mut links = [0; 6];
        links[5] = u64::from(namespace);
        let links: Vec<u8> = links.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.encode(&Record::Namespaces { pid, tid: pid, links: Words(&links) }, 0, time, bytes);
    }

    fn encode(&self, record: &Record<'_>, misc: u16, time: u64, bytes: &mut Vec<u8>) {
        // A path has at most 4 KiB, which fits into a record.
        encode(record, &SampleId { time, ..SampleId::default() }, misc, &self.layout, bytes);
    }
}
