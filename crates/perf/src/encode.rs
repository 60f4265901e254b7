//! Encodes records: the inverse of [`record`](super::record), for replay, tests and benchmarks.

use perf_event_open_sys::bindings as sys;

use super::record::{
    sample_type, Layout, MappedFile, Record, Registers, SampleId, SampleRecord, BRANCH_COUNTERS, BRANCH_HW_INDEX,
    HEADER_SIZE,
};

/// Appends `record` as the kernel would write it under `layout` to `out`.
///
/// `misc` is the header's; bits implied by the record (exec, data mapping, build id, switch out) are added. For a record of
/// more than 65,528 bytes, which does not fit the header's size, it returns false and writes nothing.
pub fn encode(record: &Record<'_>, id: &SampleId, misc: u16, layout: &Layout, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_SIZE]);
    let (kind, implied) = body(record, layout, out);
    if kind != sys::PERF_RECORD_SAMPLE && layout.sample_id_all {
        trailer(id, layout.sample_type, out);
    }
    let Some(size) = u16::try_from(out.len() - start).ok().filter(|size| size.is_multiple_of(8)) else {
        out.truncate(start);
        return false;
    };
    let header = [&kind.to_ne_bytes()[..], &(misc | implied).to_ne_bytes(), &size.to_ne_bytes()].concat();
    for (to, from) in out.iter_mut().skip(start).zip(header) {
        *to = from;
    }
    true
}

fn u64s(out: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        out.extend_from_slice(&value.to_ne_bytes());
    }
}

fn u32s(out: &mut Vec<u8>, values: &[u32]) {
    for value in values {
        out.extend_from_slice(&value.to_ne_bytes());
    }
}

fn u16s(out: &mut Vec<u8>, values: &[u16]) {
    for value in values {
        out.extend_from_slice(&value.to_ne_bytes());
    }
}

/// A string with the kernel's padding: at least one NUL, to a multiple of 8.
fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.resize(out.len() + 8 - text.len() % 8, 0);
}

fn registers(out: &mut Vec<u8>, registers: &Registers<'_>) {
    u64s(out, &[registers.abi]);
    if registers.abi != 0 {
        out.extend_from_slice(registers.values.0);
    }
}

fn body(record: &Record<'_>, layout: &Layout, out: &mut Vec<u8>) -> (u32, u16) {
    match *record {
        Record::Mmap { pid, tid, addr, len, pgoff, data, filename } => {
            u32s(out, &[pid, tid]);
            u64s(out, &[addr, len, pgoff]);
            string(out, filename);
            (sys::PERF_RECORD_MMAP, u16::from(data) << 13)
        }
        Record::Lost { id, lost } => {
            u64s(out, &[id, lost]);
            (sys::PERF_RECORD_LOST, 0)
        }
        Record::Comm { pid, tid, exec, comm } => {
            u32s(out, &[pid, tid]);
            string(out, comm);
            (sys::PERF_RECORD_COMM, u16::from(exec) << 13)
        }
        Record::Exit { pid, ppid, tid, ptid, time } => {
            u32s(out, &[pid, ppid, tid, ptid]);
            u64s(out, &[time]);
            (sys::PERF_RECORD_EXIT, 0)
        }
        Record::Fork { pid, ppid, tid, ptid, time } => {
            u32s(out, &[pid, ppid, tid, ptid]);
            u64s(out, &[time]);
            (sys::PERF_RECORD_FORK, 0)
        }
        Record::Read { pid, tid, values } => {
            u32s(out, &[pid, tid]);
            out.extend_from_slice(values.0);
            (sys::PERF_RECORD_READ, 0)
        }
        Record::Sample(ref fields) => {
            sample(fields, layout, out);
            (sys::PERF_RECORD_SAMPLE, 0)
        }
        Record::Mmap2 { pid, tid, addr, len, pgoff, file, prot, flags, data, filename } => {
            u32s(out, &[pid, tid]);
            u64s(out, &[addr, len, pgoff]);
            let by_build_id = mapped_file(file, out);
            u32s(out, &[prot, flags]);
            string(out, filename);
            (sys::PERF_RECORD_MMAP2, (u16::from(data) << 13) | (u16::from(by_build_id) << 14))
        }
        Record::Namespaces { pid, tid, links } => {
            u32s(out, &[pid, tid]);
            u64s(out, &[links.len() as u64 / 2]);
            out.extend_from_slice(links.0);
            (sys::PERF_RECORD_NAMESPACES, 0)
        }
        Record::Cgroup { id, path } => {
            u64s(out, &[id]);
            string(out, path);
            (sys::PERF_RECORD_CGROUP, 0)
        }
        Record::Unknown { kind } => (kind, 0),
        ref event => event_body(event, out),
    }
}

/// Records about the events themselves, tracing hardware, and the kernel's code; nothing for those that [`body`] writes.
fn event_body(record: &Record<'_>, out: &mut Vec<u8>) -> (u32, u16) {
    let switch = |going_out: bool, preempt: bool| (u16::from(going_out) << 13) | (u16::from(preempt) << 14);
    match *record {
        Record::Throttle { time, id, stream_id } => {
            u64s(out, &[time, id, stream_id]);
            (sys::PERF_RECORD_THROTTLE, 0)
        }
        Record::Unthrottle { time, id, stream_id } => {
            u64s(out, &[time, id, stream_id]);
            (sys::PERF_RECORD_UNTHROTTLE, 0)
        }
        Record::Aux { offset, size, flags } => {
            u64s(out, &[offset, size, flags]);
            (sys::PERF_RECORD_AUX, 0)
        }
        Record::ItraceStart { pid, tid } => {
            u32s(out, &[pid, tid]);
            (sys::PERF_RECORD_ITRACE_START, 0)
        }
        Record::LostSamples { lost } => {
            u64s(out, &[lost]);
            (sys::PERF_RECORD_LOST_SAMPLES, 0)
        }
        Record::Switch { out: going_out, preempt } => (sys::PERF_RECORD_SWITCH, switch(going_out, preempt)),
        Record::SwitchCpuWide { out: going_out, preempt, next_prev_pid, next_prev_tid } => {
            u32s(out, &[next_prev_pid, next_prev_tid]);
            (sys::PERF_RECORD_SWITCH_CPU_WIDE, switch(going_out, preempt))
        }
        Record::Ksymbol { addr, len, ksym_type, flags, name } => {
            u64s(out, &[addr]);
            u32s(out, &[len]);
            u16s(out, &[ksym_type, flags]);
            string(out, name);
            (sys::PERF_RECORD_KSYMBOL, 0)
        }
        Record::BpfEvent { event, flags, id, tag } => {
            u16s(out, &[event, flags]);
            u32s(out, &[id]);
            out.extend_from_slice(&tag);
            (sys::PERF_RECORD_BPF_EVENT, 0)
        }
        Record::TextPoke { addr, old, new } => {
            u64s(out, &[addr]);
            u16s(out, &[old.len() as u16, new.len() as u16]);
            out.extend_from_slice(old);
            out.extend_from_slice(new);
            out.resize(out.len().next_multiple_of(8), 0);
            (sys::PERF_RECORD_TEXT_POKE, 0)
        }
        Record::AuxOutputHwId { hw_id } => {
            u64s(out, &[hw_id]);
            (sys::PERF_RECORD_AUX_OUTPUT_HW_ID, 0)
        }
        Record::CallchainDeferred { cookie, ips } => {
            u64s(out, &[cookie, ips.len() as u64]);
            out.extend_from_slice(ips.0);
            (sys::PERF_RECORD_CALLCHAIN_DEFERRED, 0)
        }
        Record::Mmap { .. }
        | Record::Lost { .. }
        | Record::Comm { .. }
        | Record::Exit { .. }
        | Record::Fork { .. }
        | Record::Read { .. }
        | Record::Sample(_)
        | Record::Mmap2 { .. }
        | Record::Namespaces { .. }
        | Record::Cgroup { .. }
        | Record::Unknown { .. } => (0, 0),
    }
}

/// True if the mapping contains a build id.
fn mapped_file(file: MappedFile<'_>, out: &mut Vec<u8>) -> bool {
    match file {
        MappedFile::Inode { major, minor, inode, generation } => {
            u32s(out, &[major, minor]);
            u64s(out, &[inode, generation]);
            false
        }
        MappedFile::BuildId(build_id) => {
            let mut field = [0; 24];
            field[0] = build_id.len().min(20) as u8;
            for (to, &from) in field.iter_mut().skip(4).zip(build_id) {
                *to = from;
            }
            out.extend_from_slice(&field);
            true
        }
    }
}

fn sample(fields: &SampleRecord<'_>, layout: &Layout, out: &mut Vec<u8>) {
    use sample_type as t;
    let has = |bit: u64| layout.sample_type & bit != 0;
    let scalar = |bit: u64, value: u64, out: &mut Vec<u8>| {
        if has(bit) {
            u64s(out, &[value]);
        }
    };
    scalar(t::IDENTIFIER, fields.identifier, out);
    scalar(t::IP, fields.ip, out);
    if has(t::TID) {
        u32s(out, &[fields.pid, fields.tid]);
    }
    scalar(t::TIME, fields.time, out);
    scalar(t::ADDR, fields.addr, out);
    scalar(t::ID, fields.id, out);
    scalar(t::STREAM_ID, fields.stream_id, out);
    if has(t::CPU) {
        u32s(out, &[fields.cpu, 0]);
    }
    scalar(t::PERIOD, fields.period, out);
    if has(t::READ) {
        out.extend_from_slice(fields.read.0);
    }
    if has(t::CALLCHAIN) {
        u64s(out, &[fields.callchain.len() as u64]);
        out.extend_from_slice(fields.callchain.0);
    }
    if has(t::RAW) {
        u32s(out, &[fields.raw.len() as u32]);
        out.extend_from_slice(fields.raw);
    }
    if has(t::BRANCH_STACK) {
        u64s(out, &[fields.branches.entries.len() as u64 / 3]);
        if layout.branch_sample_type & BRANCH_HW_INDEX != 0 {
            u64s(out, &[fields.branches.hw_index]);
        }
        out.extend_from_slice(fields.branches.entries.0);
        if layout.branch_sample_type & BRANCH_COUNTERS != 0 {
            out.extend_from_slice(fields.branches.counters.0);
        }
    }
    if has(t::REGS_USER) {
        registers(out, &fields.regs_user);
    }
    if has(t::STACK_USER) {
        u64s(out, &[fields.stack_user_size]);
        if fields.stack_user_size != 0 {
            let end = out.len() + fields.stack_user_size as usize;
            out.extend_from_slice(fields.stack_user);
            out.resize(end, 0);
            u64s(out, &[fields.stack_user.len() as u64]);
        }
    }
    scalar(t::WEIGHT | t::WEIGHT_STRUCT, fields.weight, out);
    scalar(t::DATA_SRC, fields.data_src, out);
    scalar(t::TRANSACTION, fields.transaction, out);
    if has(t::REGS_INTR) {
        registers(out, &fields.regs_intr);
    }
    scalar(t::PHYS_ADDR, fields.phys_addr, out);
    scalar(t::CGROUP, fields.cgroup, out);
    scalar(t::DATA_PAGE_SIZE, fields.data_page_size, out);
    scalar(t::CODE_PAGE_SIZE, fields.code_page_size, out);
    if has(t::AUX) {
        u64s(out, &[fields.aux.len() as u64]);
        out.extend_from_slice(fields.aux);
    }
}

fn trailer(id: &SampleId, bits: u64, out: &mut Vec<u8>) {
    use sample_type as t;
    let has = |bit: u64| bits & bit != 0;
    if has(t::TID) {
        u32s(out, &[id.pid, id.tid]);
    }
    for (bit, value) in [(t::TIME, id.time), (t::ID, id.id), (t::STREAM_ID, id.stream_id)] {
        if has(bit) {
            u64s(out, &[value]);
        }
    }
    if has(t::CPU) {
        u32s(out, &[id.cpu, 0]);
    }
    if has(t::IDENTIFIER) {
        u64s(out, &[id.identifier]);
    }
}
