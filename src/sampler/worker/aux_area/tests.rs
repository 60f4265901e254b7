//! Tests with synthetic AUX areas and rings.

use super::*;
use crate::sampler::ring::TimeConversion;
use scxprof_perf::record::sample_type;
use scxprof_perf::spe::{encode as spe_encode, event, Record as SpeRecord};

const LAYOUT: Layout = Layout {
    sample_type: sample_type::IDENTIFIER
        | sample_type::IP
        | sample_type::TID
        | sample_type::TIME
        | sample_type::ADDR
        | sample_type::CPU
        | sample_type::PERIOD
        | sample_type::WEIGHT_STRUCT
        | sample_type::DATA_SRC
        | sample_type::PHYS_ADDR,
    read_format: 0,
    branch_sample_type: 0,
    regs_user: 0,
    regs_intr: 0,
    sample_id_all: true,
};
/// 40 ns per count, beginning at 1,000 ns.
const CONVERSION: TimeConversion = TimeConversion { zero: 1_000, mult: 40 << 8, shift: 8 };
const CPU: u32 = 3;

/// A ring with an AUX area, and what was read from them.
struct Made {
    ring: Ring,
    aux: CpuAux,
    got: Vec<(u64, u32, u32, u64, u64, u64, u64)>,
    lost: Loss,
}

impl Made {
    fn new(position: u64) -> Self {
        let mut ring = Ring::in_memory(4, 0).unwrap().with_aux_in_memory(2, position).unwrap();
        ring.set_time_conversion(CONVERSION);
        let cores = Cores::of(0x413f_d0c1);
        let aux = CpuAux::new(CPU, 77, cores, CountClock::exact(CONVERSION), false, Arc::default());
        Self { ring, aux, got: Vec::new(), lost: Loss::default() }
    }

    fn record(&mut self, record: &Record<'_>, pid: u32, tid: u32, time: u64) {
        let mut bytes = Vec::new();
        let id = SampleId { pid, tid, time, cpu: CPU, ..SampleId::default() };
        assert!(encode(record, &id, 0, &LAYOUT, &mut bytes));
        assert!(self.ring.replay(&bytes));
    }

    fn switch_to(&mut self, pid: u32, tid: u32, time: u64) {
        let switch = Record::SwitchCpuWide { out: false, preempt: false, next_prev_pid: 0, next_prev_tid: 0 };
        self.record(&switch, pid, tid, time);
    }

    /// Reads as a worker does in a round.
    fn read(&mut self) -> Result<(), Corrupt> {
        let Self { ring, aux, got, lost } = self;
        let head = ring.aux_head().unwrap();
        ring.drain(&mut Vec::new(), |bytes| aux.note(bytes, &LAYOUT)).unwrap();
        aux.drain(ring, head, &LAYOUT, lost, &mut |bytes| {
            let (header, record, _) = decode(bytes, &LAYOUT).unwrap();
            let Record::Sample(it) = record else { panic!("{record:?}") };
            assert_eq!((it.identifier, it.cpu, header.cpu_mode()), (77, CPU, CpuMode::User));
            got.push((it.time, it.pid, it.tid, it.ip, it.addr, it.phys_addr, it.weight));
        })
    }

    fn threads(&mut self) -> Vec<(u32, u32)> {
        self.got.drain(..).map(|it| (it.1, it.2)).collect()
    }
}

/// The record of a load at a count of the timer, and its bytes.
fn load(count: u64, context: Option<u32>) -> (SpeRecord, Vec<u8>) {
    let record = SpeRecord {
        ip: 0x40_0000 + count * 4,
        level: Some(0),
        operation: Some((1, 0)),
        addr: Some(0x7000_0000 + count * 8),
        phys: 0x1_0000_0000 + count * 8,
        events: event::RETIRED | event::L1D_ACCESS,
        source: Some(0),
        latency: 20,
        context,
        timestamp: Some(count),
        ..SpeRecord::default()
    };
    let mut bytes = Vec::new();
    spe_encode::record(&record, &mut bytes);
    (record, bytes)
}

/// Keeps the conversion fixed: tests do not use this host's clock, so times can be compared only without a refresh.
fn freeze(made: &mut Made) {
    made.ring.set_time_conversion(TimeConversion { zero: 0, mult: 0, shift: 64 });
}

#[test]
fn every_record_becomes_a_sample_wherever_the_area_wraps_and_pieces_end() {
    for position in [0, 64, 8191, 8192 - 30, u64::MAX - 100] {
        for piece in [1, 17, 64, 500, 4000] {
            let mut made = Made::new(position);
            freeze(&mut made);
            made.switch_to(7, 8, 900);
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for count in 1..300 {
                let (record, of_record) = load(count, None);
                bytes.extend_from_slice(&of_record);
                let addr = record.addr.unwrap();
                expected.push((1_000 + count * 40, 7, 8, record.ip, addr, record.phys, 20));
            }
            for part in bytes.chunks(piece) {
                assert!(made.ring.replay_aux(part));
                made.read().unwrap();
            }
            assert_eq!(made.got, expected, "at {position:#x} in pieces of {piece}");
            assert_eq!((made.lost, made.aux.count.load(Ordering::Relaxed)), (Loss::default(), 299));
        }
    }
}

#[test]
fn threads_are_those_that_the_switches_say() {
    let mut made = Made::new(0);
    freeze(&mut made);
    let write = |made: &mut Made, count| assert!(made.ring.replay_aux(&load(count, None).1));
    // Times are 1,000 + 40 * count.
    write(&mut made, 10);
    made.record(&Record::ItraceStart { pid: 5, tid: 6 }, 0, 0, 1_450);
    write(&mut made, 20);
    made.switch_to(7, 8, 1_900);
    write(&mut made, 30);
    made.switch_to(0, 0, 2_300);
    write(&mut made, 40);
    made.read().unwrap();
    assert_eq!(made.threads(), [UNKNOWN, (5, 6), (7, 8), (0, 0)]);
    // Records were lost at some time after 2,300: until the next context switch, the thread is unknown.
    write(&mut made, 50);
    made.record(&Record::Lost { id: 77, lost: 9 }, 0, 0, 3_100);
    write(&mut made, 60);
    made.switch_to(9, 9, 3_500);
    write(&mut made, 70);
    made.read().unwrap();
    assert_eq!(made.threads(), [UNKNOWN, UNKNOWN, (9, 9)]);
}

#[test]
fn context_packets_say_more_exactly_who_ran() {
    for child in [false, true] {
        let mut made = Made::new(0);
        freeze(&mut made);
        made.aux.child_pid_namespace = child;
        made.switch_to(7, 8, 1_100);
        made.switch_to(7, 9, 1_200);
        for (count, context) in [(3, 8), (6, 8), (7, 9), (8, 1234), (9, 0)] {
            assert!(made.ring.replay_aux(&load(count, Some(context)).1));
        }
        made.read().unwrap();
        // In another pid namespace than the host's, the packets' thread ids mean nothing.
        let expected =
            if child { [(7, 8), (7, 9), (7, 9), (7, 9), (7, 9)] } else { [(7, 8), (7, 8), (7, 9), UNKNOWN, (0, 0)] };
        assert_eq!(made.threads(), expected);
    }
}

#[test]
fn a_cut_record_joins_no_other_and_is_counted() {
    let mut made = Made::new(0);
    freeze(&mut made);
    made.switch_to(7, 8, 900);
    let whole = load(1, None).1;
    // The hardware had written a part of the second record when it ran out of space; the kernel pads the rest.
    let mut bytes = whole.clone();
    bytes.extend_from_slice(&load(2, None).1[..30]);
    let size = bytes.len() as u64;
    bytes.resize(128, 0);
    bytes.extend_from_slice(&load(3, None).1);
    assert!(made.ring.replay_aux(&bytes));
    made.record(&Record::Aux { offset: 0, size, flags: AUX_TRUNCATED | AUX_PARTIAL }, 0, 0, 2_000);
    made.read().unwrap();
    let times = |made: &mut Made| made.got.drain(..).map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(times(&mut made), [1_040, 1_120]);
    assert_eq!(made.lost, Loss { malformed: 1, ..Loss::default() });
    // Without the flag, the cut is unknown, and data that is read together is taken for one record.
    let mut made = Made::new(0);
    freeze(&mut made);
    assert!(made.ring.replay_aux(&bytes));
    made.read().unwrap();
    assert_eq!(times(&mut made), [1_040, 1_120]);
    assert_eq!(made.lost, Loss::default());
    // A cut whose data comes in the next round, and a cut exactly at the end of a piece.
    let mut made = Made::new(0);
    freeze(&mut made);
    made.record(&Record::Aux { offset: 0, size: 94, flags: AUX_PARTIAL }, 0, 0, 2_000);
    assert!(made.ring.replay_aux(&bytes[..64]));
    made.read().unwrap();
    assert!(made.ring.replay_aux(&bytes[64..94]));
    made.read().unwrap();
    assert!(made.ring.replay_aux(&bytes[94..]));
    made.read().unwrap();
    assert_eq!((times(&mut made), made.lost.malformed), (vec![1_040, 1_120], 1));
    assert!(made.aux.cuts.is_empty());
}

#[test]
fn bytes_that_make_no_sense_are_counted_and_the_rest_is_read() {
    let mut made = Made::new(0);
    freeze(&mut made);
    let bytes = [load(1, None).1, vec![0x2f, 0x2f, 0xff], load(2, None).1, load(3, None).1].concat();
    assert!(made.ring.replay_aux(&bytes));
    made.read().unwrap();
    assert_eq!(made.got.iter().map(|it| it.0).collect::<Vec<_>>(), [1_040, 1_120]);
    assert!(made.lost.aux_bad_bytes > 0 && made.lost.malformed == 1, "{:?}", made.lost);
}

#[test]
fn packets_of_unknown_kinds_are_counted_and_their_sample_is_read() {
    let mut made = Made::new(0);
    freeze(&mut made);
    assert!(made.ring.replay_aux(&[vec![0x6f, 1, 2, 3, 4], load(1, None).1, load(2, None).1].concat()));
    made.read().unwrap();
    assert_eq!(made.got.len(), 2);
    assert_eq!(made.lost, Loss { aux_unknown: 1, ..Loss::default() });
}

#[test]
fn flags_of_pieces_are_losses() {
    let mut intake = crate::sampler::intake::Intake::new(
        crate::sampler::Identity { own_pid: 1, child_pid_namespace: false, without_profilers: false },
        crate::sampler::AddressFrom::OtherTool,
    );
    for flags in
        [0, AUX_TRUNCATED, AUX_PARTIAL, AUX_TRUNCATED | AUX_PARTIAL, super::super::batch_sink::AUX_COLLISION, 2]
    {
        let mut bytes = Vec::new();
        assert!(encode(&Record::Aux { offset: 0, size: 64, flags }, &SampleId::default(), 0, &LAYOUT, &mut bytes));
        intake.take(&bytes, &LAYOUT);
    }
    let loss = intake.loss();
    assert_eq!((loss.aux_lost, loss.aux_collided), (3, 1));
    assert_eq!(loss.lines().len(), 2, "{:?}", loss.lines());
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..8192),
        position: u64,
        cuts in proptest::collection::vec((0u64..8192, 0u64..8192), 0..4),
    ) {
        let mut made = Made::new(position);
        for (offset, size) in cuts {
            let record = Record::Aux { offset: position.wrapping_add(offset), size, flags: AUX_PARTIAL };
            made.record(&record, 0, 0, 5);
        }
        let head = position.wrapping_add(bytes.len() as u64);
        let Made { ring, aux, .. } = &mut made;
        proptest::prop_assert!(ring.replay_aux(&bytes));
        ring.drain(&mut Vec::new(), |record| aux.note(record, &LAYOUT)).unwrap();
        let mut lost = Loss::default();
        aux.drain(ring, head, &LAYOUT, &mut lost, &mut |record| assert!(decode(record, &LAYOUT).is_ok())).unwrap();
        proptest::prop_assert!(ring.aux_head() == Some(head));
    }
}
