//! Decodes records. The byte order is the machine's own, as in a ring.

use perf_event_open_sys::bindings as sys;

use super::{
    read_format, sample_type, Branches, Header, Layout, Malformed, MappedFile, Record, Registers, SampleId,
    SampleRecord, Words, BRANCH_COUNTERS, BRANCH_HW_INDEX, HEADER_SIZE, MISC_COMM_EXEC, MISC_MMAP_BUILD_ID,
    MISC_MMAP_DATA, MISC_SWITCH_OUT, MISC_SWITCH_OUT_PREEMPT,
};

/// Reads fields from the front of a record.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    bytes: &'a [u8],
    kind: u32,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn short(&self) -> Malformed {
        Malformed::Short { kind: self.kind }
    }

    #[inline]
    fn bytes(&mut self, count: u64) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(count).map_err(|_| self.short())?;
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(taken)
    }

    #[inline]
    fn u64(&mut self) -> Result<u64, Malformed> {
        let (taken, rest) = self.bytes.split_first_chunk::<8>().ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(u64::from_ne_bytes(*taken))
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, Malformed> {
        let (taken, rest) = self.bytes.split_first_chunk::<4>().ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(u32::from_ne_bytes(*taken))
    }

    #[inline]
    fn u16(&mut self) -> Result<u16, Malformed> {
        let (taken, rest) = self.bytes.split_first_chunk::<2>().ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(u16::from_ne_bytes(*taken))
    }

    /// Two 32-bit fields that share a word.
    #[inline]
    fn pair(&mut self) -> Result<(u32, u32), Malformed> {
        Ok((self.u32()?, self.u32()?))
    }

    fn words(&mut self, count: u64) -> Result<Words<'a>, Malformed> {
        let size = count.checked_mul(8).ok_or_else(|| self.short())?;
        self.bytes(size).map(Words)
    }

    /// A string that fills the rest, padded with NULs.
    fn string(&mut self) -> &'a [u8] {
        let rest = std::mem::take(&mut self.bytes);
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    fn registers(&mut self, mask: u64) -> Result<Registers<'a>, Malformed> {
        let abi = self.u64()?;
        let count = if abi == 0 { 0 } else { u64::from(mask.count_ones()) };
        Ok(Registers { abi, mask, values: self.words(count)? })
    }

    fn read_values(&mut self, format: u64) -> Result<Words<'a>, Malformed> {
        let bits = |bits: u64| u64::from((format & bits).count_ones());
        let times = bits(read_format::TOTAL_TIME_ENABLED | read_format::TOTAL_TIME_RUNNING);
        let each = 1 + bits(read_format::ID | read_format::LOST);
        if format & read_format::GROUP == 0 {
            return self.words(times + each);
        }
        let mut ahead = *self;
        let events = ahead.u64()?;
        let words =
            events.checked_mul(each).and_then(|words| words.checked_add(1 + times)).ok_or_else(|| self.short())?;
        self.words(words)
    }

    fn branches(&mut self, branch_sample_type: u64) -> Result<Branches<'a>, Malformed> {
        let count = self.u64()?;
        let hw_index = if branch_sample_type & BRANCH_HW_INDEX != 0 { self.u64()? } else { 0 };
        let entries = self.words(count.checked_mul(3).ok_or_else(|| self.short())?)?;
        let counters = if branch_sample_type & BRANCH_COUNTERS != 0 { self.words(count)? } else { Words::default() };
        Ok(Branches { hw_index, entries, counters })
    }
}

/// Reads the record that fills `bytes`.
///
/// The [`SampleId`] of a sample is empty: the sample itself has these fields.
///
/// # Errors
/// [`Malformed`] if the header or a field contradicts the number of bytes.
#[inline]
pub fn decode<'a>(bytes: &'a [u8], layout: &Layout) -> Result<(Header, Record<'a>, SampleId), Malformed> {
    let (header, body) = split(bytes)?;
    let mut cursor = Cursor { bytes: body, kind: header.kind };
    if header.kind == sys::PERF_RECORD_SAMPLE {
        let mut fields = SampleRecord::default();
        sample(&mut cursor, layout, &mut fields)?;
        return Ok((header, Record::Sample(fields), SampleId::default()));
    }
    let (fields, trailer) = body
        .len()
        .checked_sub(layout.trailer_size())
        .and_then(|at| body.split_at_checked(at))
        .ok_or_else(|| cursor.short())?;
    cursor.bytes = fields;
    let record = other(&mut cursor, header, layout)?;
    if matches!(record, Record::Unknown { .. }) {
        return Ok((header, record, SampleId::default()));
    }
    let id = sample_id(&mut Cursor { bytes: trailer, kind: header.kind }, layout)?;
    Ok((header, record, id))
}

/// The header, and the bytes after it.
#[inline]
pub(super) fn split(bytes: &[u8]) -> Result<(Header, &[u8]), Malformed> {
    let header = Header::read(bytes).ok_or(Malformed::Header { size: 0 })?;
    if !header.is_sane() || usize::from(header.size) != bytes.len() {
        return Err(Malformed::Header { size: header.size });
    }
    Ok((header, bytes.get(HEADER_SIZE..).unwrap_or_default()))
}

/// As [`decode`], for a sample; `None` for any other record.
///
/// # Errors
/// The record is malformed.
#[inline]
pub fn decode_sample<'a>(bytes: &'a [u8], layout: &Layout) -> Result<Option<(Header, SampleRecord<'a>)>, Malformed> {
    let (header, body) = split(bytes)?;
    if header.kind != sys::PERF_RECORD_SAMPLE {
        return Ok(None);
    }
    let mut fields = SampleRecord::default();
    sample(&mut Cursor { bytes: body, kind: header.kind }, layout, &mut fields)?;
    Ok(Some((header, fields)))
}

/// The fields in the order of `perf_output_sample()` (kernel/events/core.c).
#[inline]
fn sample<'a>(cursor: &mut Cursor<'a>, layout: &Layout, sample: &mut SampleRecord<'a>) -> Result<(), Malformed> {
    use sample_type as t;
    let has = |bit: u64| layout.sample_type & bit != 0;
    if has(t::IDENTIFIER) {
        sample.identifier = cursor.u64()?;
    }
    if has(t::IP) {
        sample.ip = cursor.u64()?;
    }
    if has(t::TID) {
        (sample.pid, sample.tid) = cursor.pair()?;
    }
    if has(t::TIME) {
        sample.time = cursor.u64()?;
    }
    if has(t::ADDR) {
        sample.addr = cursor.u64()?;
    }
    if has(t::ID) {
        sample.id = cursor.u64()?;
    }
    if has(t::STREAM_ID) {
        sample.stream_id = cursor.u64()?;
    }
    if has(t::CPU) {
        (sample.cpu, _) = cursor.pair()?;
    }
    if has(t::PERIOD) {
        sample.period = cursor.u64()?;
    }
    if has(t::READ) {
        sample.read = cursor.read_values(layout.read_format)?;
    }
    if has(t::CALLCHAIN) {
        let count = cursor.u64()?;
        sample.callchain = cursor.words(count)?;
    }
    if has(t::RAW) {
        let size = cursor.u32()?;
        sample.raw = cursor.bytes(u64::from(size))?;
    }
    if has(t::BRANCH_STACK) {
        sample.branches = cursor.branches(layout.branch_sample_type)?;
    }
    if has(t::REGS_USER) {
        sample.regs_user = cursor.registers(layout.regs_user)?;
    }
    if has(t::STACK_USER) {
        sample.stack_user_size = cursor.u64()?;
        if sample.stack_user_size != 0 {
            let copied = cursor.bytes(sample.stack_user_size)?;
            let dyn_size = usize::try_from(cursor.u64()?).map_err(|_| cursor.short())?;
            sample.stack_user = copied.get(..dyn_size).ok_or_else(|| cursor.short())?;
        }
    }
    if has(t::WEIGHT | t::WEIGHT_STRUCT) {
        sample.weight = cursor.u64()?;
    }
    if has(t::DATA_SRC) {
        sample.data_src = cursor.u64()?;
    }
    if has(t::TRANSACTION) {
        sample.transaction = cursor.u64()?;
    }
    if has(t::REGS_INTR) {
        sample.regs_intr = cursor.registers(layout.regs_intr)?;
    }
    if has(t::PHYS_ADDR) {
        sample.phys_addr = cursor.u64()?;
    }
    if has(t::CGROUP) {
        sample.cgroup = cursor.u64()?;
    }
    if has(t::DATA_PAGE_SIZE) {
        sample.data_page_size = cursor.u64()?;
    }
    if has(t::CODE_PAGE_SIZE) {
        sample.code_page_size = cursor.u64()?;
    }
    if has(t::AUX) {
        let size = cursor.u64()?;
        sample.aux = cursor.bytes(size)?;
    }
    Ok(())
}

/// The trailer in the order of `__perf_event__output_id_sample()` (kernel/events/core.c).
fn sample_id(cursor: &mut Cursor<'_>, layout: &Layout) -> Result<SampleId, Malformed> {
    use sample_type as t;
    let has = |bit: u64| layout.sample_id_all && layout.sample_type & bit != 0;
    let mut id = SampleId::default();
    if has(t::TID) {
        (id.pid, id.tid) = cursor.pair()?;
    }
    if has(t::TIME) {
        id.time = cursor.u64()?;
    }
    if has(t::ID) {
        id.id = cursor.u64()?;
    }
    if has(t::STREAM_ID) {
        id.stream_id = cursor.u64()?;
    }
    if has(t::CPU) {
        (id.cpu, _) = cursor.pair()?;
    }
    if has(t::IDENTIFIER) {
        id.identifier = cursor.u64()?;
    }
    Ok(id)
}

fn other<'a>(cursor: &mut Cursor<'a>, header: Header, layout: &Layout) -> Result<Record<'a>, Malformed> {
    Ok(match header.kind {
        sys::PERF_RECORD_MMAP => {
            let (pid, tid) = cursor.pair()?;
            Record::Mmap {
                pid,
                tid,
                addr: cursor.u64()?,
                len: cursor.u64()?,
                pgoff: cursor.u64()?,
                data: header.misc & MISC_MMAP_DATA != 0,
                filename: cursor.string(),
            }
        }
        sys::PERF_RECORD_LOST => Record::Lost { id: cursor.u64()?, lost: cursor.u64()? },
        sys::PERF_RECORD_COMM => {
            let (pid, tid) = cursor.pair()?;
            Record::Comm { pid, tid, exec: header.misc & MISC_COMM_EXEC != 0, comm: cursor.string() }
        }
        sys::PERF_RECORD_EXIT | sys::PERF_RECORD_FORK => {
            let ((pid, ppid), (tid, ptid)) = (cursor.pair()?, cursor.pair()?);
            let time = cursor.u64()?;
            if header.kind == sys::PERF_RECORD_FORK {
                Record::Fork { pid, ppid, tid, ptid, time }
            } else {
                Record::Exit { pid, ppid, tid, ptid, time }
            }
        }
        sys::PERF_RECORD_THROTTLE => {
            Record::Throttle { time: cursor.u64()?, id: cursor.u64()?, stream_id: cursor.u64()? }
        }
        sys::PERF_RECORD_UNTHROTTLE => {
            Record::Unthrottle { time: cursor.u64()?, id: cursor.u64()?, stream_id: cursor.u64()? }
        }
        sys::PERF_RECORD_READ => {
            let (pid, tid) = cursor.pair()?;
            Record::Read { pid, tid, values: cursor.read_values(layout.read_format)? }
        }
        sys::PERF_RECORD_MMAP2 => mmap2(cursor, header)?,
        sys::PERF_RECORD_AUX => Record::Aux { offset: cursor.u64()?, size: cursor.u64()?, flags: cursor.u64()? },
        sys::PERF_RECORD_ITRACE_START => {
            let (pid, tid) = cursor.pair()?;
            Record::ItraceStart { pid, tid }
        }
        sys::PERF_RECORD_LOST_SAMPLES => Record::LostSamples { lost: cursor.u64()? },
        sys::PERF_RECORD_SWITCH => Record::Switch {
            out: header.misc & MISC_SWITCH_OUT != 0,
            preempt: header.misc & MISC_SWITCH_OUT_PREEMPT != 0,
        },
        sys::PERF_RECORD_SWITCH_CPU_WIDE => {
            let (next_prev_pid, next_prev_tid) = cursor.pair()?;
            Record::SwitchCpuWide {
                out: header.misc & MISC_SWITCH_OUT != 0,
                preempt: header.misc & MISC_SWITCH_OUT_PREEMPT != 0,
                next_prev_pid,
                next_prev_tid,
            }
        }
        sys::PERF_RECORD_NAMESPACES => {
            let (pid, tid) = cursor.pair()?;
            let count = cursor.u64()?;
            let words = count.checked_mul(2).ok_or_else(|| cursor.short())?;
            Record::Namespaces { pid, tid, links: cursor.words(words)? }
        }
        sys::PERF_RECORD_KSYMBOL => Record::Ksymbol {
            addr: cursor.u64()?,
            len: cursor.u32()?,
            ksym_type: cursor.u16()?,
            flags: cursor.u16()?,
            name: cursor.string(),
        },
        sys::PERF_RECORD_BPF_EVENT => {
            let (event, flags, id) = (cursor.u16()?, cursor.u16()?, cursor.u32()?);
            Record::BpfEvent { event, flags, id, tag: cursor.u64()?.to_ne_bytes() }
        }
        sys::PERF_RECORD_CGROUP => Record::Cgroup { id: cursor.u64()?, path: cursor.string() },
        sys::PERF_RECORD_TEXT_POKE => {
            let (addr, old_len, new_len) = (cursor.u64()?, cursor.u16()?, cursor.u16()?);
            Record::TextPoke { addr, old: cursor.bytes(u64::from(old_len))?, new: cursor.bytes(u64::from(new_len))? }
        }
        sys::PERF_RECORD_AUX_OUTPUT_HW_ID => Record::AuxOutputHwId { hw_id: cursor.u64()? },
        sys::PERF_RECORD_CALLCHAIN_DEFERRED => {
            let (cookie, count) = (cursor.u64()?, cursor.u64()?);
            Record::CallchainDeferred { cookie, ips: cursor.words(count)? }
        }
        kind => Record::Unknown { kind },
    })
}

fn mmap2<'a>(cursor: &mut Cursor<'a>, header: Header) -> Result<Record<'a>, Malformed> {
    let (pid, tid) = cursor.pair()?;
    let (addr, len, pgoff) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let build_id = if header.misc & MISC_MMAP_BUILD_ID != 0 { build_id(cursor.bytes) } else { None };
    let file = if let Some(build_id) = build_id {
        cursor.bytes(24)?;
        MappedFile::BuildId(build_id)
    } else {
        let (major, minor) = cursor.pair()?;
        MappedFile::Inode { major, minor, inode: cursor.u64()?, generation: cursor.u64()? }
    };
    let (prot, flags) = cursor.pair()?;
    let data = header.misc & MISC_MMAP_DATA != 0;
    Ok(Record::Mmap2 { pid, tid, addr, len, pgoff, file, prot, flags, data, filename: cursor.string() })
}

/// The build id in the 24 bytes at the front of `field`; `None` if they contain a device and an inode. The size precedes the
/// id, and zeros fill the unused bytes.
///
/// The bit in the header is not reliable: if another profiler requests build ids, the kernel also sets it in our records, which
/// have none (observed on 6.18; perf_event_mmap_output() does not reset it between events).
#[must_use]
pub fn build_id(field: &[u8]) -> Option<&[u8]> {
    let (&[size, a, b, c], rest) = field.get(..24)?.split_first_chunk::<4>()?;
    let (id, filling) = rest.split_at_checked(usize::from(size))?;
    let zeros = [a, b, c].iter().chain(filling).all(|&byte| byte == 0);
    (!id.is_empty() && zeros).then_some(id)
}
