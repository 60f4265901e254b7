//! What records tell about address spaces: which memory is shared, which is code, and when a process gets a new one.

use scxprof::resolve::Cgroups;
use scxprof::sample::{MemoryId, Sample};
use scxprof::session::Sink;

use super::made::{self, Order};
use crate::support::replay::replay;

const ORDER: Order = Order { big: false };
/// `PROT_READ` and `PROT_WRITE`, `PROT_READ` and `PROT_EXEC`; `MAP_SHARED`, `MAP_PRIVATE`.
const DATA: u32 = 3;
const CODE: u32 = 5;
const SHARED: u32 = 1;
const PRIVATE: u32 = 2;
/// `PERF_RECORD_MISC_MMAP_DATA`, `PERF_RECORD_MISC_COMM_EXEC` and `PERF_RECORD_MISC_FORK_EXEC` are one bit.
const MISC: u16 = 1 << 13;

/// Also requests the location of code.
#[derive(Default)]
struct WithCode(Vec<Sample>);

impl Sink for WithCode {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        self.0.push(*sample);
    }

    fn wants_code(&self) -> bool {
        true
    }
}

/// Whether the sample after these records is in shared memory, whether its code is known, and its thread's name.
fn after(records: &[Vec<u8>]) -> (bool, bool, Vec<u8>) {
    let begin = [made::comm(ORDER, 0, 1, 1, b"init"), made::comm(ORDER, 0, 100, 100, b"web")];
    let sample = made::sample(ORDER, 1000, 100, 100, 0x1_0040, 5, 4096);
    let (_dir, path) = made::write(&made::file(ORDER, &[&begin, records, &[sample]].concat()));
    let mut sink = WithCode::default();
    let mut profile = scxprof::profile::Profile::open(&path).unwrap();
    replay(&mut profile, 64 << 20, &mut sink);
    let [Sample { memory, code, comm, .. }] = sink.0[..] else { panic!("{} samples", sink.0.len()) };
    let name = comm.map_or_else(Vec::new, |comm| comm.as_bytes().to_vec());
    (matches!(memory, Some(MemoryId::Shared { .. })), code.is_some(), name)
}

/// At the address or the ip of the sample.
const AT_DATA: [u64; 3] = [0x1_0000, 0x1000, 0];
const AT_CODE: [u64; 3] = [0x40_1000, 0x1000, 0];

fn mapping(memory: [u64; 3], prot: u32, flags: u32) -> Vec<u8> {
    made::mapping(ORDER, 0, 100, memory, [prot, flags], b"/usr/bin/x")
}

/// Before Linux 3.12: of data where the bit says so, else of code.
fn old_mapping(memory: [u64; 3], misc: u16) -> Vec<u8> {
    let ids = [ORDER.u32(100), ORDER.u32(100)].concat();
    let memory = memory.map(|word| ORDER.u64(word)).concat();
    made::record(ORDER, 1, misc | 2, &[ids, memory, made::text(b"/usr/bin/x"), made::trailer(ORDER, 0)])
}

#[test]
fn flags_say_what_is_shared_and_what_is_code() {
    for (record, shared, code) in [
        (mapping(AT_DATA, DATA, SHARED), true, false),
        (mapping(AT_DATA, DATA, PRIVATE), false, false),
        (mapping(AT_DATA, CODE, PRIVATE), false, false),
        (mapping(AT_CODE, CODE, PRIVATE), false, true),
        (mapping(AT_CODE, DATA, PRIVATE), false, false),
        (mapping(AT_CODE, DATA, SHARED), false, false),
        (old_mapping(AT_DATA, MISC), false, false),
        (old_mapping(AT_CODE, 0), false, true),
        (old_mapping(AT_CODE, MISC), false, false),
    ] {
        let (is_shared, has_code, _) = after(std::slice::from_ref(&record));
        assert_eq!((is_shared, has_code), (shared, code), "{record:x?}");
    }
}

#[test]
fn a_process_that_executes_or_ends_has_no_mappings() {
    let shared = || mapping(AT_DATA, DATA, SHARED);
    let name = |misc| {
        let ids = [ORDER.u32(100), ORDER.u32(100)].concat();
        made::record(ORDER, 3, misc, &[ids, made::text(b"new"), made::trailer(ORDER, 500)])
    };
    assert_eq!(after(&[shared(), name(0)]), (true, false, b"new".to_vec()), "only another name");
    assert_eq!(after(&[shared(), name(MISC)]), (false, false, b"new".to_vec()), "another program");
    let exit = |tid| {
        let ids = [100, 1, tid, 1].map(|id| ORDER.u32(id)).concat();
        made::record(ORDER, 4, 0, &[ids, ORDER.u64(500), made::trailer(ORDER, 500)])
    };
    assert_eq!(after(&[shared(), exit(100)]), (false, false, b"web".to_vec()), "what comes late still has its name");
    let thread = made::comm(ORDER, 0, 100, 101, b"other");
    assert_eq!(after(&[shared(), thread, exit(101)]), (true, false, b"web".to_vec()), "only a thread ended");
}

#[test]
fn what_perf_found_at_its_start_was_not_forked_then() {
    let fork = |misc| {
        let ids = [100, 1, 100, 1].map(|id| ORDER.u32(id)).concat();
        made::record(ORDER, 7, misc, &[ids, ORDER.u64(500), made::trailer(ORDER, 500)])
    };
    let shared = || mapping(AT_DATA, DATA, SHARED);
    assert_eq!(after(&[shared(), fork(MISC)]), (true, false, b"web".to_vec()));
    assert_eq!(after(&[shared(), fork(0)]), (false, false, b"init".to_vec()), "a new process of that number");
}
