//! Recordings with the layouts of perf on real machines: with the fields, events and ids of published ones, and their unusual
//! samples. perf reads them in the same way.

use scxprof::testing::sampler::record::sample_type as t;

use super::made::{self, Order};
use super::perf::{compare, installed};
use super::replayed;

const ORDER: Order = Order { big: false };
const SAMPLES: u64 = 200;

/// What perf requested.
struct Recording {
    sample_type: u64,
    /// Bytes of an attr; shorter in old perfs.
    attr_size: usize,
    /// Config and name of each event.
    events: &'static [(u64, &'static str)],
    /// CPUs, each with an id of each event.
    cpus: u64,
    /// Mappings have an inode.
    mmap2: bool,
}

/// `perf c2c record` 6.2 on a Comet Lake laptop.
const C2C: Recording = Recording {
    sample_type: t::IP
        | t::TID
        | t::TIME
        | t::ADDR
        | t::ID
        | t::CPU
        | t::PERIOD
        | t::DATA_SRC
        | t::PHYS_ADDR
        | t::WEIGHT_STRUCT,
    attr_size: 120,
    events: &[(0x1cd, "cpu/mem-loads,ldlat=30/P"), (0x82d0, "cpu/mem-stores/P"), (9, "dummy:HG")],
    cpus: 8,
    mmap2: true,
};
/// Load latency on a Skylake server with Linux 4.15.
const SERVER: Recording = Recording {
    sample_type: t::IP | t::TID | t::TIME | t::ADDR | t::ID | t::CPU | t::DATA_SRC | t::WEIGHT_STRUCT,
    attr_size: 112,
    events: &[(0x1cd, "MEM_TRANS_RETIRED:LOAD_LATENCY")],
    cpus: 112,
    mmap2: true,
};
/// `perf mem record` of Linux 2.6.32, backported, on an Ivy Bridge server.
const OLD: Recording = Recording {
    sample_type: t::IP | t::TID | t::TIME | t::ADDR | t::WEIGHT | t::DATA_SRC,
    attr_size: 96,
    events: &[(0x1cd, "cpu/mem-loads/pp")],
    cpus: 0,
    mmap2: false,
};

impl Recording {
    fn has(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    fn attr(&self, config: u64) -> Vec<u8> {
        // Type RAW, size; the period, then the fields; sample_id_all.
        let mut attr = [ORDER.u32(4), ORDER.u32(self.attr_size as u32)].concat();
        attr.extend([config, 1000, self.sample_type, 0, 1 << 18].map(|word| ORDER.u64(word)).concat());
        attr.resize(self.attr_size, 0);
        attr
    }

    /// From 1 on, event by event, CPU by CPU.
    fn id(&self, event: usize, cpu: u64) -> u64 {
        1 + event as u64 * self.cpus + cpu
    }

    /// The end of a record that is no sample.
    fn trailer(&self, pid: u32, time: u64) -> Vec<u8> {
        let ids = [ORDER.u32(pid), ORDER.u32(pid)].concat();
        let all =
            [(t::TID, ids), (t::TIME, ORDER.u64(time)), (t::ID, ORDER.u64(self.id(0, 0))), (t::CPU, ORDER.u64(0))];
        self.those_there(all).concat()
    }

    /// Those of the fields that its records have.
    fn those_there<const N: usize>(&self, fields: [(u64, Vec<u8>); N]) -> Vec<Vec<u8>> {
        fields.into_iter().filter(|(bit, _)| self.has(*bit)).map(|(_, bytes)| bytes).collect()
    }

    fn comm(&self, pid: u32, name: &[u8]) -> Vec<u8> {
        made::record(ORDER, 3, 0, &[ORDER.u32(pid), ORDER.u32(pid), made::text(name), self.trailer(pid, 1)])
    }

    /// Code at the ips of the samples.
    fn mapping(&self, pid: u32) -> Vec<u8> {
        let ids = [pid, pid].map(|id| ORDER.u32(id)).concat();
        let memory = [0x40_0000, 0x10_0000, 0].map(|word| ORDER.u64(word)).concat();
        let inode = [ORDER.u32(8), ORDER.u32(1), ORDER.u64(9), ORDER.u64(0), ORDER.u32(5), ORDER.u32(2)].concat();
        let inode = if self.mmap2 { inode } else { Vec::new() };
        let kind = if self.mmap2 { 10 } else { 1 };
        made::record(ORDER, kind, 2, &[ids, memory, inode, made::text(b"/no such/program"), self.trailer(pid, 1)])
    }

    /// One of each kind in turn; most are plain.
    fn sample(&self, index: u64) -> Vec<u8> {
        // Any bits, the same each time.
        let bits = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let process = 100 + (bits >> 60) as u32 % 2;
        let (mut pid, mut tid) = (process, process);
        let (mut ip, mut addr) = (0x40_0000 + bits % 0x10_0000, 0x7f00_0000_0000 + (bits >> 20) % 0x10_0000);
        let mut phys = (bits >> 40 << 12) | (addr % 4096);
        let event = (bits >> 8) as usize % self.events.len().min(2);
        // A load from the L1 cache, with a latency; a store has none.
        let (data_src, weight) = if event == 0 { (0x6810_0142, 30 + bits % 500) } else { (0x0508_0144, 0) };
        match index % 20 {
            // The kernel's memory, beyond what has a frame.
            3 | 7 => (ip, addr, phys) = (0xffff_ffff_8100_0000 + bits % 4096, 0xffff_c900_0000_0000 + bits % 4096, 0),
            // Data that the hardware could not provide.
            5 => (ip, addr, phys) = (0, 0, 0),
            // A task that is gone.
            9 => (pid, tid) = (u32::MAX, u32::MAX),
            _ => {}
        }
        if index % 20 == 7 {
            // The idle task.
            (pid, tid) = (0, 0);
        }
        let cpu = (bits >> 12) % self.cpus.max(1);
        let fields = [
            (t::IP, ORDER.u64(ip)),
            (t::TID, [ORDER.u32(pid), ORDER.u32(tid)].concat()),
            // Sometimes out of order, because rings are read one after the other.
            (t::TIME, ORDER.u64(5_000_000_000 + (index ^ 1) * 1_234_567)),
            (t::ADDR, ORDER.u64(addr)),
            (t::ID, ORDER.u64(self.id(event, cpu))),
            (t::CPU, ORDER.u64(cpu)),
            (t::PERIOD, ORDER.u64(1 + bits % 10_000)),
            (t::WEIGHT, ORDER.u64(weight)),
            (t::WEIGHT_STRUCT, [ORDER.u32(weight as u32), ORDER.u16(bits as u16), ORDER.u16(0)].concat()),
            (t::DATA_SRC, ORDER.u64(data_src)),
            (t::PHYS_ADDR, ORDER.u64(phys)),
        ];
        let misc = if ip >> 63 == 1 { 1 } else { 2 };
        made::record(ORDER, 9, misc, &self.those_there(fields))
    }

    fn file(&self) -> Vec<u8> {
        let ids = |event| (0..self.cpus).map(|cpu| self.id(event, cpu)).collect::<Vec<_>>();
        let events: Vec<_> =
            self.events.iter().enumerate().map(|(at, &(config, _))| (self.attr(config), ids(at))).collect();
        let mut names = [ORDER.u32(self.events.len() as u32), ORDER.u32(self.attr_size as u32)].concat();
        for (at, &(config, name)) in self.events.iter().enumerate() {
            let (name, ids) = (made::text(name.as_bytes()), ids(at));
            names.extend([self.attr(config), ORDER.u32(ids.len() as u32), ORDER.u32(name.len() as u32), name].concat());
            names.extend(ids.into_iter().flat_map(|id| ORDER.u64(id)));
        }
        let mut records = Vec::new();
        for (pid, name) in [(100, &b"job 3/4"[..]), (101, b"other")] {
            records.extend([self.comm(pid, name), self.mapping(pid)]);
        }
        records.extend((0..SAMPLES).map(|index| self.sample(index)));
        // EVENT_DESC.
        made::of_events(ORDER, &events, &records, &[(12, names)])
    }
}

#[test]
fn recordings_laid_out_as_real_ones_are_read_as_perf_reads_them() {
    let test = "recordings_laid_out_as_real_ones_are_read_as_perf_reads_them";
    let with_perf = installed(test);
    for (recording, has_phys) in [(C2C, true), (SERVER, false), (OLD, false)] {
        let (_dir, path) = made::write(&recording.file());
        let (collect, outcome, damage) = replayed(&path);
        assert_eq!(damage, Vec::<String>::new());
        let loss = outcome.loss;
        let odd = SAMPLES / 20;
        assert_eq!((loss.idle, loss.exiting, loss.bogus, loss.malformed), (odd, odd, odd, 0));
        assert_eq!(collect.samples.len() as u64, SAMPLES - 3 * odd);
        assert!(collect
            .samples
            .iter()
            .all(|sample| (sample.raw.phys != 0) == (has_phys && sample.raw.addr >> 63 == 0)));
        assert!(!with_perf || compare(&path), "the text was not compared");
    }
}
