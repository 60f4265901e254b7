//! Removes the memory around the registers from samples before they are written: it contains the threads' data.

use scxprof_perf::format::records;
use scxprof_perf::record::{decode, Layout, Record};
use scxprof_recover::is_of_kernel;

/// The rest of a sample's raw data: the header of `struct snapshot` (operand.bpf.c), and padding so that it and the length
/// before it fill whole words.
const HEADER: usize = 24;
const LEFT: u32 = 28;
/// The offsets of the number of lines and of the mode in the header.
const COUNT: usize = 16;
const MODE: usize = 20;

/// The records of `bytes`, their samples without lines of memory.
pub(super) fn without(bytes: &[u8], layout: &Layout) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for record in records(bytes) {
        if short(record, layout, &mut out).is_none() {
            out.extend_from_slice(record);
        }
    }
    out
}

/// Appends the record without its lines; returns `None` and appends nothing if it has none.
fn short(record: &[u8], layout: &Layout, out: &mut Vec<u8>) -> Option<()> {
    let Ok((_, Record::Sample(sample), _)) = decode(record, layout) else { return None };
    // The raw data is a part of the record.
    let at = sample.raw.as_ptr().addr().checked_sub(record.as_ptr().addr())?;
    let header = sample.raw.get(..HEADER)?;
    let lines = sample.raw.len().checked_sub(LEFT as usize).filter(|&lines| lines > 0)?;
    let (before, rest) = (record.get(..at.checked_sub(4)?)?, record.get(at + sample.raw.len()..)?);
    let size = u16::try_from(record.len().checked_sub(lines)?).ok()?;
    let begin = out.len();
    out.extend_from_slice(before);
    out.extend_from_slice(&LEFT.to_ne_bytes());
    let left = out.len();
    out.extend_from_slice(&[0; LEFT as usize]);
    let left = out.get_mut(left..)?;
    left.get_mut(MODE..HEADER)?.copy_from_slice(header.get(MODE..)?);
    // Of kernel code there are addresses of the kernel instead.
    if !is_of_kernel(header) {
        left.get_mut(..COUNT)?.copy_from_slice(header.get(..COUNT)?);
    }
    out.extend_from_slice(rest);
    // struct perf_event_header: u32 type, u16 misc, u16 size.
    out.get_mut(begin + 6..begin + 8)?.copy_from_slice(&size.to_ne_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::attr::{layout, sampling, EventSpec, Features, Scope};
    use scxprof_perf::encode::encode;
    use scxprof_perf::record::{sample_type, Registers, SampleId, SampleRecord, Words};

    fn timer() -> Layout {
        let mut attr = sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 0);
        attr.sample_type |= sample_type::RAW | sample_type::REGS_USER | sample_type::STACK_USER;
        attr.sample_regs_user = 1;
        attr.sample_stack_user = 64;
        layout(&attr)
    }

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(encode(record, &SampleId::default(), 2, &timer(), &mut bytes));
        bytes
    }

    fn sample(raw: &[u8]) -> Vec<u8> {
        let regs_user = Registers { abi: 2, mask: 1, values: Words(&[7; 8]) };
        encoded(&Record::Sample(SampleRecord {
            pid: 3,
            tid: 4,
            time: 5,
            raw,
            regs_user,
            stack_user: &[6; 64],
            stack_user_size: 64,
            ..SampleRecord::default()
        }))
    }

    #[test]
    fn the_lines_go_and_all_else_stays() {
        // The base of fs, the stack pointer, two lines; then the lines, and padding.
        let mut raw = [8u64.to_ne_bytes(), 9u64.to_ne_bytes(), 2u64.to_ne_bytes()].concat();
        raw.extend([0xee; 2 * 72 + 4]);
        let comm = encoded(&Record::Comm { pid: 3, tid: 4, exec: false, comm: b"web" });
        let small = sample(&[0xee; 12]);
        let bytes = [&comm[..], &sample(&raw), &small, &comm].concat();
        let kept = without(&bytes, &timer());
        let split: Vec<&[u8]> = records(&kept).collect();
        assert_eq!([split[0], split[2], split[3]], [&comm[..], &small, &comm]);
        let Record::Sample(mut left) = decode(split[1], &timer()).unwrap().1 else { panic!("no sample") };
        assert_eq!(left.raw, [&raw[..16], &[0; 12]].concat());
        let whole = sample(&raw);
        let Record::Sample(whole) = decode(&whole, &timer()).unwrap().1 else { panic!("no sample") };
        left.raw = whole.raw;
        assert_eq!(left, whole);
        assert!(!split[1].contains(&0xee));
        // Of kernel code only that it is.
        (raw[16], raw[20]) = (0, 1);
        let kept = without(&sample(&raw), &timer());
        let Record::Sample(left) = decode(&kept, &timer()).unwrap().1 else { panic!("no sample") };
        assert!(is_of_kernel(left.raw) && left.raw.iter().map(|byte| u32::from(*byte)).sum::<u32>() == 1);
        // The result equals a sample that never had any.
        assert_eq!(without(split[1], &timer()), split[1]);
    }
}
