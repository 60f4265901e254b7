//! Tests of a worker's output for given records.

use super::batch_sink::MAX_WAITING_BATCHES;
use super::*;
use crate::sampler::waker::Waker;
use scxprof_perf::encode::encode;
use scxprof_perf::record::{sample_type, Record, SampleId, SampleRecord};

const LAYOUT: Layout = Layout {
    sample_type: sample_type::TID | sample_type::TIME | sample_type::ADDR,
    read_format: 0,
    branch_sample_type: 0,
    regs_user: 0,
    regs_intr: 0,
    sample_id_all: true,
};

fn outlet(to: Sender<Batch>) -> Outlet {
    Outlet { to, pool: Pool::default(), room: QUEUE, waker: WakesAtEnd(Waker::default()) }
}

fn sink(out: Sender<Batch>, child_pid_namespace: bool) -> BatchSink {
    let identity = Identity { own_pid: 1000, child_pid_namespace, without_profilers: false };
    BatchSink::new(0, Some(outlet(out)), identity, AddressFrom::Fault)
}

fn sample(pid: u32, misc: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let record = SampleRecord { pid, tid: pid, time: 5, addr: 0x1000, ..SampleRecord::default() };
    assert!(encode(&Record::Sample(record), &SampleId::default(), misc, &LAYOUT, &mut bytes));
    bytes
}

#[test]
fn a_full_channel_drops_samples_in_the_end_and_never_side_band() {
    let (out, session) = crossbeam_channel::bounded(1);
    let mut sink = sink(out, false);
    let mut comm = Vec::new();
    let record = Record::Comm { pid: 7, tid: 7, exec: false, comm: b"web" };
    assert!(encode(&record, &SampleId { time: 3, ..SampleId::default() }, 0, &LAYOUT, &mut comm));
    for _ in 0..3 {
        sink.take(&comm, &LAYOUT);
        sink.take(&sample(7, 2), &LAYOUT);
        sink.send();
    }
    assert_eq!((sink.batch.samples.len(), sink.loss.channel_full), (2, 0), "a short wait costs nothing");
    while sink.loss.channel_full == 0 {
        sink.take(&sample(7, 2), &LAYOUT);
    }
    sink.take(&sample(7, 2), &LAYOUT);
    let first = session.recv().unwrap();
    sink.send_last();
    let last = session.recv().unwrap();
    assert_eq!((first.samples.len(), first.side_band.len()), (1, 1));
    assert_eq!((last.samples.len(), last.side_band.len()), (1, 2), "both names waited for room");
    assert_eq!(sink.loss.channel_full, (MAX_WAITING_BATCHES * BATCH) as u64);
    assert_eq!(sink.loss.samples, sink.loss.channel_full + 2);
}

#[test]
fn the_queue_grows_with_the_workers_within_its_bytes() {
    const MIB: usize = 1 << 20;
    let rooms = |bytes, has_contexts| [1, 2, 4, 32].map(|workers| queue(workers, bytes, has_contexts));
    assert_eq!(rooms(256 * MIB, false), [48, 96, 192, 1536]);
    assert_eq!(rooms(16 * MIB, false), [48, 96, 157, 157]);
    assert_eq!(rooms(256 * MIB, true), [48, 96, 192, 341]);
    assert_eq!(rooms(0, true), [48; 4], "as many as ever on a small host");
}

#[test]
fn a_worker_keeps_to_the_room_of_the_queue() {
    let (out, session) = crossbeam_channel::bounded(10);
    let mut sink = sink(out, false);
    if let Some(out) = &mut sink.out {
        out.room = 3;
    }
    for _ in 0..5 {
        sink.take(&sample(7, 2), &LAYOUT);
        sink.send();
    }
    assert_eq!((session.len(), sink.batch.samples.len()), (3, 2));
}

#[test]
fn ourselves_idle_strangers_and_the_dead_are_told_apart() {
    let (out, _session) = crossbeam_channel::bounded(1);
    let mut host = sink(out.clone(), false);
    for (pid, misc) in [(1000, 2), (0, 1), (u32::MAX, 2), (9, 2)] {
        host.take(&sample(pid, misc), &LAYOUT);
    }
    let Loss { own, idle, outside_pid_namespace, exiting, samples, .. } = host.loss;
    assert_eq!((own, idle, outside_pid_namespace, exiting, samples), (1, 0, 1, 1, 1), "idle makes no fault");
    let mut timer = sink(out.clone(), false);
    timer.address_from = AddressFrom::UserByMode;
    timer.take(&sample(0, 1), &LAYOUT);
    timer.take(&sample(0, 2), &LAYOUT);
    assert_eq!((timer.loss.idle, timer.loss.outside_pid_namespace), (1, 1), "idle runs no user code");
    let mut recorded = sink(out.clone(), false);
    recorded.address_from = AddressFrom::OtherTool;
    recorded.take(&sample(0, 1), &LAYOUT);
    recorded.take(&sample(0, 2), &LAYOUT);
    let Loss { idle, outside_pid_namespace, samples, .. } = recorded.loss;
    assert_eq!((idle, outside_pid_namespace, samples), (1, 0, 1), "of another program's recording nobody knows");
    let mut child = sink(out, true);
    child.take(&sample(0, 1), &LAYOUT);
    assert_eq!((child.loss.idle, child.loss.outside_pid_namespace), (0, 1));
}

#[test]
fn what_hardware_samples_say_nothing_of_is_left_out_and_counted() {
    const LOAD: u64 = 0x2;
    const STORE: u64 = 0x4;
    const NOT_AVAILABLE: u64 = 0x1;
    let layout = Layout {
        sample_type: LAYOUT.sample_type | sample_type::IP | sample_type::WEIGHT_STRUCT | sample_type::DATA_SRC,
        ..LAYOUT
    };
    let (out, session) = crossbeam_channel::bounded(1);
    let mut sink = sink(out, false);
    sink.address_from = AddressFrom::Hardware { user_only: true, ops: true, ldlat: Some(30) };
    for (ip, addr, misc, data_src, weight) in [
        (0x400, 0x1000, 2, LOAD, 0x7_0000_001e),
        (0x400, 0x1008, 2, LOAD, 0),
        (0x400, 0x1010, 2, STORE, 5),
        (0x400, 0x1018, 2, LOAD, 0x63_0000_001d),
        (0, 0, 2, LOAD, 0),
        (0x400, 0, 2, NOT_AVAILABLE, 0),
        (0x400, 0x1020, 1, LOAD, 90),
    ] {
        let record = SampleRecord { ip, addr, data_src, weight, pid: 7, tid: 7, time: 5, ..SampleRecord::default() };
        let mut bytes = Vec::new();
        assert!(encode(&Record::Sample(record), &SampleId::default(), misc, &layout, &mut bytes));
        sink.take(&bytes, &layout);
    }
    let Loss { samples, bogus, no_memory_op, below_ldlat, in_kernel, .. } = sink.loss;
    assert_eq!((samples, bogus, no_memory_op, below_ldlat, in_kernel), (3, 1, 1, 1, 1));
    sink.send_last();
    let batch = session.recv().unwrap();
    let got: Vec<_> = batch.samples.iter().map(|sample| (sample.raw.addr, sample.raw.latency)).collect();
    assert_eq!(got, [(0x1000, 30), (0x1008, 0), (0x1010, 5)]);
}

#[test]
fn broken_records_are_counted() {
    let (out, _session) = crossbeam_channel::bounded(1);
    let mut sink = sink(out, false);
    let mut cut = sample(7, 2)[..16].to_vec();
    cut[6..8].copy_from_slice(&16u16.to_ne_bytes());
    sink.take(&cut, &LAYOUT);
    assert_eq!((sink.loss.malformed, sink.loss.samples), (1, 0));
    for record in [Record::Lost { id: 1, lost: u64::MAX }, Record::LostSamples { lost: u64::MAX }].repeat(2) {
        let mut bytes = Vec::new();
        assert!(encode(&record, &SampleId { time: 1, ..SampleId::default() }, 0, &LAYOUT, &mut bytes));
        sink.take(&bytes, &LAYOUT);
    }
    assert_eq!((sink.loss.ring_full, sink.loss.hardware), (u64::MAX, u64::MAX));
}

/// A recording that fails on any input.
#[derive(Debug, Default)]
struct Fails(std::sync::Mutex<Vec<u64>>);

impl Tee for Fails {
    fn records(&self, _: &[u8], _: u64, _: bool) {
        panic!("the tee of a test");
    }

    fn opened(&self, _: u64, _: Option<u64>) {}

    fn complete(&self, _: usize, until: u64) {
        self.0.lock().unwrap().push(until);
    }
}

#[test]
fn a_worker_that_dies_says_so_and_holds_nothing_up() {
    let (out, session) = crossbeam_channel::bounded(4);
    let mut ring = Ring::in_memory(1, 0).unwrap();
    let mut records = Vec::new();
    let comm = Record::Comm { pid: 7, tid: 7, exec: false, comm: b"web" };
    assert!(encode(&comm, &SampleId { time: 3, ..SampleId::default() }, 0, &LAYOUT, &mut records));
    assert!(ring.replay(&[&records[..], &sample(7, 2), &sample(7, 2)].concat()));
    let tee = Arc::new(Fails::default());
    let worker = Worker {
        index: 0,
        rings: vec![CpuRing { ring, layout: LAYOUT, corrupt: false, offset: None, kind: RingKind::Source, aux: None }],
        wake: Vec::new(),
        buffered: Vec::new(),
        realtime: None,
        inbox: Arc::default(),
        identity: Identity { own_pid: 1000, child_pid_namespace: false, without_profilers: false },
        address_from: AddressFrom::Fault,
        out: outlet(out),
        stop: Arc::default(),
        tee: Some(Arc::clone(&tee) as Arc<dyn Tee>),
    };
    let (loss, _) = worker.run();
    assert_eq!((loss.dead_workers, loss.abandoned, loss.samples, loss.lost()), (1, 2, 2, 2));
    let said = loss.lines().join("; ");
    assert!(
        said.contains("1 time a reader thread died") && said.contains("2 samples lost with a reader thread that died"),
        "{said}"
    );
    let last = session.iter().last().unwrap();
    assert_eq!((last.samples.len(), last.side_band.len(), last.complete_until), (0, 1, u64::MAX));
    assert_eq!(*tee.0.lock().unwrap(), [u64::MAX], "a recording does not wait for it either");
}

#[test]
fn a_worker_that_takes_more_than_half_a_cpu_exceeds_its_budget() {
    const MS: u64 = 1_000_000;
    let exceeded = |steps: &[(u64, u64)]| {
        let mut budget = Budget::default();
        steps.iter().map(|&(now, used)| budget.is_exceeded(now * MS, used * MS)).collect::<Vec<_>>()
    };
    assert_eq!(exceeded(&[(1000, 50), (1100, 60), (1300, 80), (1400, 120), (1700, 200)]), [false; 5]);
    assert_eq!(exceeded(&[(1000, 50), (1050, 100), (1130, 180)]), [false, false, true], "before its window is over");
    assert_eq!(exceeded(&[(1000, 50), (1300, 220)]), [false, true], "170 of 300 ms");
    assert_eq!(exceeded(&[(1000, 50), (2000, 250), (2100, 345)]), [false; 3], "what was before the window is over");
}
