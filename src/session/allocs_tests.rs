//! A capture in its steady state allocates nothing for a sample: from the bytes of a ring to the sketch, recovery included.

#![allow(clippy::unwrap_used)] // It is a test, which clippy does not see by the condition of this module.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError};

use super::inlet::Inlet;
use super::namer::{Accesses, Namer, Recoverer};
use super::order::Order;
use super::origin::{Ending, Filled, Origin};
use super::pipeline::{self, Pipeline};
use super::stop::StopPoll;
use crate::config::{CellOptions, CellSpecs};
use crate::decider::Decider;
use crate::host::clock::monotonic_ns;
use crate::host::Roots;
use crate::outcome::Outcome;
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::Source;
use crate::sampler::intake::Intake;
use crate::sampler::loss::Loss;
use crate::sampler::plan::AddressFrom;
use crate::sampler::pool::Pool;
use crate::sampler::Identity;
use scxprof_perf::encode::encode;
use scxprof_perf::record::{sample_type, Layout, Record, Registers, SampleId, SampleRecord, Words};
use scxprof_recover::REGS_MASK;

/// Counts what the calling thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: all is left to the system's allocator; the count allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(memory) }
    }

    unsafe fn alloc_zeroed(&self, memory: Memory) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(memory) }
    }

    unsafe fn dealloc(&self, at: *mut u8, memory: Memory) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, memory) }
    }

    unsafe fn realloc(&self, at: *mut u8, memory: Memory, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, memory, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

// Code of a program that loads and stores, with what it loads as an address too.
std::arch::global_asm!(
    ".text",
    ".globl scxprof_allocs_code",
    ".type scxprof_allocs_code, @function",
    "scxprof_allocs_code:",
    "mov rax, [rdi]",
    "add rax, [rsi + 8]",
    "mov [rdx], rax",
    "mov r8, [rbx + 16]",
    "mov [r8], r8",
    "cmp qword ptr [rdi + 0x3000], 0", // unknown, so both ways are followed
    "je 2f",
    "mov [rsi + 64], rax",
    "mov [rdx + 128], rsi",
    "2:",
    "nop",
    "jmp scxprof_allocs_code",
    ".size scxprof_allocs_code, . - scxprof_allocs_code",
);

// SAFETY: it is defined above.
unsafe extern "C" {
    /// Never called.
    fn scxprof_allocs_code();
}

/// Bytes from its beginning to instructions.
const SITES: [u64; 3] = [0, 7, 14];

/// Samples of a round, and nanoseconds between two.
const ROUND: u64 = 64;
const APART: u64 = 250_000;
/// Rounds before the steady state, and those that are counted: 3 s and 5 s.
const WARM: u64 = 190;
const COUNTED: u64 = 310;

/// Allocations that are not for a sample: the counts of threads over time have a list for each of up to 240 steps, and a file is
/// looked at, and the tables are measured, once a second.
const ALLOWED: u64 = 900;

/// The records of a ring, again and again, as a worker reads them.
struct Rings {
    intake: Intake,
    batches: Receiver<Batch>,
    pool: Pool,
    layout: Layout,
    records: Vec<Vec<u8>>,
    /// Where the time is in a record.
    time_at: usize,
    time: u64,
    round: u64,
    allocated: u64,
}

impl Origin for Rings {
    type Sample = PendingSample;

    fn fill(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Filled {
        if self.round == WARM {
            self.allocated = ALLOCATED.get();
        }
        if self.round == WARM + COUNTED {
            self.allocated = ALLOCATED.get() - self.allocated;
            return Filled::End;
        }
        for at in 0..ROUND as usize {
            let count = self.records.len();
            let record = &mut self.records[at % count];
            self.time += APART;
            record[self.time_at..self.time_at + 8].copy_from_slice(&self.time.to_ne_bytes());
            self.intake.take(record, &self.layout);
        }
        self.intake.batch().complete_until = self.time;
        self.intake.send();
        match self.batches.try_recv() {
            Ok(batch) => self.pool.put_list(inlet.push(batch)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => panic!("a batch was sent"),
        }
        self.round += 1;
        Filled::More
    }

    fn loss(&self) -> Loss {
        self.intake.loss()
    }

    fn end(self, outcome: &mut Outcome, _: Ending<PendingSample>) {
        outcome.notes = vec![self.allocated.to_string()];
    }
}

/// Records of our own process in [`scxprof_allocs_code`], with registers that point into `values`; with the memory there.
fn records(layout: &Layout, values: &[u64], with_memory: bool) -> Vec<Vec<u8>> {
    let lines = 32;
    let base = values.as_ptr() as u64 / 64 * 64 + 64;
    let mut memory: Vec<u8> = [0, 0, lines].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    for line in 0..lines {
        memory.extend((base + line * 64).to_le_bytes());
        memory.extend(base.to_le_bytes().repeat(8));
    }
    // With its size of 4 bytes it takes whole words.
    memory.extend([0; 4]);
    let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let of = |ip: u64| {
        let value = |bit: u64| match bit {
            7 => base + 64 * 40,
            8 => ip,
            9 => 0x202,
            bit => base + bit * 64,
        };
        let bits = (0..64).filter(|bit| REGS_MASK >> bit & 1 == 1);
        let words: Vec<u8> = bits.flat_map(|bit| value(bit).to_ne_bytes()).collect();
        let sample = SampleRecord {
            ip,
            pid,
            tid,
            time: u64::MAX - 1,
            raw: if with_memory { &memory } else { &[] },
            regs_user: Registers { abi: 2, mask: REGS_MASK, values: Words(&words) },
            stack_user: &[0; 512],
            stack_user_size: 512,
            ..SampleRecord::default()
        };
        let mut bytes = Vec::new();
        assert!(encode(&Record::Sample(sample), &SampleId::default(), 2, layout, &mut bytes));
        bytes
    };
    SITES.iter().map(|site| of(scxprof_allocs_code as *const () as u64 + site)).collect()
}

/// The allocations of the counted rounds, and the accesses that all rounds gave.
fn allocations(with_memory: bool) -> (u64, Outcome) {
    use sample_type as t;
    let raw = if with_memory { t::RAW } else { 0 };
    let sample_type = t::IP | t::TID | t::TIME | t::CPU | t::REGS_USER | t::STACK_USER | raw;
    let layout = Layout { sample_type, regs_user: REGS_MASK, ..Layout::default() };
    let values: Vec<u64> = (0..4096).collect();
    let records = records(&layout, &values, with_memory);
    let time_at = records[0].windows(8).position(|it| it == (u64::MAX - 1).to_ne_bytes()).unwrap();
    let (out, batches) = crossbeam_channel::bounded(8);
    let pool = Pool::default();
    let identity = Identity { own_pid: 0, child_pid_namespace: false, without_profilers: false };
    let intake = Intake::of_ring(identity, AddressFrom::UserByMode, out, pool.clone());
    let roots = Roots::default();
    let accesses = Accesses::Recovered(Box::new(Recoverer::new(&roots.proc, 8 << 20, None, None)));
    let namer = Namer::of_host(&roots, 8 << 20, false, accesses, None).with_pool(pool.clone());
    let (time, round, allocated) = (monotonic_ns(), 0, 0);
    let origin = Rings { intake, batches, pool, layout, records, time_at, time, round, allocated };
    let pipeline = Pipeline::new(Order::new(1, 1 << 12), namer);
    let mut decider = Decider::new(CellSpecs::new(&CellOptions::default()).unwrap(), Source::Timer, 8 << 20);
    let outcome =
        pipeline::run_in_turn(pipeline, origin, &mut decider, &mut StopPoll::new(Instant::now(), &mut |_| false));
    (outcome.notes[0].parse().unwrap(), outcome)
}

#[test]
fn a_sample_allocates_nothing_from_the_ring_to_the_sketch() {
    let samples = ROUND * COUNTED;
    const { assert!(ALLOWED * 20 < ROUND * COUNTED) };
    for with_memory in [false, true] {
        // A file that could not be looked at in time, on a busy machine, is opened and decoded anew.
        let passed = (0..5).any(|_| {
            let (allocations, outcome) = allocations(with_memory);
            println!("{allocations} allocations for {samples} samples, {} accesses", outcome.accesses);
            assert_eq!(outcome.samples, ROUND * (WARM + COUNTED));
            outcome.accesses >= outcome.samples && allocations <= ALLOWED
        });
        assert!(passed, "with memory: {with_memory}");
    }
}
