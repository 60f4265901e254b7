//! The state of a recorder: what it has written, and what is still to be written.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use perf_event_open_sys::bindings as sys;
use rustc_hash::{FxHashMap, FxHashSet};

use super::MAX_CGROUPS;
use crate::profile::code_files::CodeFiles;
use crate::profile::recovered::RecoveredWriter;
use scxprof_perf::format::records;
use scxprof_perf::record::{decode, Header, Layout, Record, MISC_MMAP_BUILD_ID};
use scxprof_perf::writer::PerfDataWriter;

/// The files being written.
#[derive(Debug)]
pub(super) struct OpenFiles {
    pub(super) layout: Layout,
    /// `None` when it is finished.
    pub(super) writer: Option<PerfDataWriter<BufWriter<File>>>,
    /// Holds the rings' records while the snapshot is written before them.
    pub(super) spool: Option<BufWriter<File>>,
    /// For each worker, the time up to which it has passed on everything.
    pub(super) complete: Vec<u64>,
    /// The time from which a process is being recorded again.
    pub(super) renewing: u64,
    /// The latest time of a record.
    pub(super) newest: u64,
    /// The newest time at the last mark.
    pub(super) marked: u64,
    /// The ids that records may have, each with the one that is written for it: perf rejects a file with an id that its header
    /// lacks, and the header is written first. The first of them is for all others.
    pub(super) ids: FxHashMap<u64, u64>,
    pub(super) first_id: u64,
    pub(super) cgroups: FxHashSet<u64>,
    /// Cgroups that were found later, without a record.
    pub(super) late_cgroups: Vec<(u64, Vec<u8>)>,
    /// Files; their build ids are looked up at the end.
    pub(super) files: CodeFiles,
    /// Cgroups that did not fit.
    pub(super) left_out: u64,
    /// hints.jsonl, if hints are followed.
    pub(super) hints: Option<BufWriter<File>>,
    /// cgroups.jsonl, if samples have no cgroup.
    pub(super) thread_cgroups: Option<BufWriter<File>>,
    /// recovered.jsonl, if addresses are recovered.
    pub(super) recovered: Option<RecoveredWriter<BufWriter<File>>>,
    pub(super) failed: Option<io::Error>,
}

/// The processing of records before they are written.
pub(super) struct Noted {
    /// The words to replace so that perf can read the file, with their positions.
    pub(super) strange: Vec<(usize, [u8; 8])>,
    /// Processes that map SysV shared memory, and when: a record must give their IPC namespace.
    pub(super) segments: Vec<(u32, u64)>,
}

impl OpenFiles {
    pub(super) fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let result = match (&mut self.spool, &mut self.writer) {
            (Some(spool), _) => spool.write_all(bytes),
            (None, Some(writer)) => writer.write(bytes),
            (None, None) => Ok(()),
        };
        self.check(result);
    }

    /// Writes a part of the snapshot.
    pub(super) fn write_front(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.note(bytes);
        let result = self.writer.as_mut().map_or(Ok(()), |writer| writer.write(bytes));
        self.check(result);
    }

    /// Appends the waiting records after the snapshot.
    pub(super) fn unspool(&mut self) {
        let Some(spool) = self.spool.take() else { return };
        let result = (|| {
            let mut file = spool.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.seek(SeekFrom::Start(0))?;
            let mut buffer = vec![0; 1 << 18];
            loop {
                let read = file.read(&mut buffer)?;
                let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
                if let Some(writer) = &mut self.writer {
                    writer.write(bytes)?;
                }
            }
        })();
        self.check(result);
    }

    /// The id to write for that of a record.
    pub(super) fn written_id(&self, id: u64) -> u64 {
        self.ids.get(&id).copied().unwrap_or(self.first_id)
    }

    /// Notes the code files and the cgroups in the records.
    ///
    /// If another profiler samples the same software event, the kernel can write its id into our sample (observed on 6.18;
    /// perf_prepare_sample() fills the fields once for all events), and perf then rejects the whole file. If another profiler
    /// requests build ids, our mappings can be marked as having one ([`MISC_MMAP_BUILD_ID`]), and perf aborts.
    pub(super) fn note(&mut self, bytes: &[u8]) -> Noted {
        let (mut strange, mut segments) = (Vec::new(), Vec::new());
        let mut end = 0;
        for record in records(bytes) {
            let begin = end;
            end += record.len();
            let Some(header) = Header::read(record) else { continue };
            let word =
                |at: usize| record.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().unwrap_or_default();
            // All our samples begin with their id, and all other records end with it (PERF_SAMPLE_IDENTIFIER).
            let is_sample = header.kind == sys::PERF_RECORD_SAMPLE;
            let at = if is_sample { 8 } else { record.len().saturating_sub(8) };
            let id = record.get(at..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |id| u64::from_ne_bytes(*id));
            // Records of the snapshot have no id.
            let written = self.written_id(id);
            if (is_sample || id != 0) && written != id {
                strange.push((begin + at, written.to_ne_bytes()));
            }
            if header.kind == sys::PERF_RECORD_MMAP2 && header.misc & MISC_MMAP_BUILD_ID != 0 {
                let Header { kind, misc, size } = header;
                let misc = misc & !MISC_MMAP_BUILD_ID;
                let mut word = [0; 8];
                let fields = [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes()].concat();
                word.copy_from_slice(&fields);
                strange.push((begin, word));
            }
            // The offset of the name is 72.
            if header.kind == sys::PERF_RECORD_MMAP2 && record.get(72..).is_some_and(|name| name.starts_with(b"/SYSV"))
            {
                if let Ok((_, Record::Mmap2 { pid, .. }, id)) = decode(record, &self.layout) {
                    segments.push((pid, id.time));
                }
            }
            match header.kind {
                // The offset of prot is 64 (struct perf_record_mmap2).
                sys::PERF_RECORD_MMAP2 if u32::from_ne_bytes(word(64)) & 4 != 0 => {
                    self.files.note(record, &self.layout);
                }
                sys::PERF_RECORD_CGROUP => {
                    if let Some(id) = record.get(8..).and_then(|rest| rest.first_chunk::<8>()) {
                        // A cgroup that does not fit is at worst recorded twice.
                        if self.cgroups.len() < MAX_CGROUPS {
                            self.cgroups.insert(u64::from_ne_bytes(*id));
                        }
                    }
                }
                _ => {}
            }
        }
        Noted { strange, segments }
    }
}
