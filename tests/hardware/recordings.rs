//! The decoder and a worker on recordings of PEBS from real machines, made by others.
//!
//! They are not part of the project. `SCXPROF_FIXTURES` names a directory with `perf-data/*.perf.data`.
#![allow(clippy::verbose_bit_mask)]

use scxprof::sample::{Access, CpuMode, DataSource, Sample};
use scxprof::testing::sampler::intake::Intake;
use scxprof::testing::sampler::loss::Loss;
use scxprof::testing::sampler::plan::AddressFrom;
use scxprof::testing::sampler::record::{decode, Record, SampleRecord};
use scxprof::testing::sampler::Identity;

use crate::support::perfdata::{recording, Attr, PerfData};

/// No process of a recording is ourselves.
const NOBODY: u32 = 0xffff_fff0;
/// As pebs reads its samples, including those of the kernel.
const PEBS: AddressFrom = AddressFrom::Hardware { user_only: false, ops: false, ldlat: None };

/// The samples of the file with their attrs; every record must decode to its end.
fn samples(data: &PerfData) -> Vec<(&Attr, SampleRecord<'_>)> {
    let mut samples = Vec::new();
    for bytes in data.records() {
        let attr = &data.attrs[0];
        let (_, record, _) = decode(bytes, &attr.layout).unwrap();
        if let Record::Sample(sample) = record {
            let attr = data.attrs.iter().find(|attr| attr.ids.contains(&sample.id)).unwrap_or(attr);
            samples.push((attr, sample));
        }
    }
    samples
}

/// A worker's result for these records.
fn taken<'a>(
    records: impl Iterator<Item = &'a [u8]>,
    data: &PerfData,
    address_from: AddressFrom,
) -> (Vec<Sample>, Loss) {
    let mut intake =
        Intake::new(Identity { own_pid: NOBODY, child_pid_namespace: false, without_profilers: false }, address_from);
    for record in records {
        intake.take(record, &data.attrs[0].layout);
    }
    let samples = intake.batch().samples.iter().map(|sample| Sample::from(sample.raw)).collect();
    (samples, intake.loss())
}

fn non_zero<'a>(samples: &[(&Attr, SampleRecord<'a>)], field: impl Fn(&SampleRecord<'a>) -> u64) -> usize {
    samples.iter().filter(|(_, sample)| field(sample) != 0).count()
}

#[test]
fn comet_lake_loads_and_stores() {
    let Some(data) = recording("comet lake", "intel-cometlake-i5-10210U-k6.2-c2c.perf.data") else { return };
    let configs: Vec<_> = data.attrs.iter().map(|attr| (attr.config, attr.config1, attr.ids.len())).collect();
    assert_eq!(configs, [(0x1cd, 0x1f, 8), (0x82d0, 0, 8), (9, 0, 8)]);
    let all = samples(&data);
    let of = |config| all.iter().filter(|(attr, _)| attr.config == config).copied().collect::<Vec<_>>();
    let (loads, stores) = (of(0x1cd), of(0x82d0));
    assert_eq!((all.len(), loads.len(), stores.len()), (3189, 47, 3142));
    let counts = |samples: &[(&Attr, SampleRecord<'_>)]| {
        [
            non_zero(samples, |sample| sample.addr),
            non_zero(samples, |sample| sample.phys_addr),
            non_zero(samples, |sample| sample.weight & 0xffff_ffff),
        ]
    };
    assert_eq!(counts(&loads), [47, 38, 47]);
    assert_eq!(counts(&stores), [3142, 3111, 0]);
    for (attr, sample) in &all {
        assert!(sample.phys_addr == 0 || (sample.phys_addr ^ sample.addr) & 0xfff == 0, "{sample:?}");
        assert!(sample.cpu < 8 && attr.ids.contains(&sample.id));
        assert!(sample.phys_addr != 0 || sample.addr >> 63 != 0, "no frame for a user address: {sample:?}");
    }
    // perf ORed the 30 with sysfs's 3.
    assert!(loads.iter().all(|(_, load)| load.weight as u32 > 30));
    // mem_lvl_num (linux/perf_event.h): L1, L2, L3, line fill buffer, memory; and one line that another core had modified.
    let level = |level| loads.iter().filter(|(_, load)| load.data_src >> 33 & 0xf == level).count();
    assert_eq!([1, 2, 3, 0xc, 0xd].map(level), [9, 1, 15, 18, 4]);
    assert_eq!(loads.iter().filter(|(_, load)| DataSource(load.data_src).is_hitm()).count(), 1);

    // Accesses of the idle task belong to no process, and a task that had lost its pid has no name.
    let (taken_samples, loss) = taken(data.records(), &data, PEBS);
    assert_eq!((taken_samples.len(), loss.samples, loss.bogus, loss.malformed), (3178, 3178, 0, 0));
    assert_eq!((loss.idle, loss.exiting), (10, 1));
    let access = |access| taken_samples.iter().filter(|sample| sample.raw.access == access).count();
    assert_eq!((access(Access::Load) + access(Access::Store), access(Access::Unknown)), (3178, 0));
    let user = taken_samples.iter().filter(|sample| sample.raw.mode == CpuMode::User).count();
    assert_eq!(user, 3098);
    let user_only = AddressFrom::Hardware { user_only: true, ops: false, ldlat: None };
    let (taken_samples, loss) = taken(data.records(), &data, user_only);
    assert_eq!((taken_samples.len(), loss.in_kernel, loss.idle), (3098, 80, 10));
    // Loads of 60 cycles and more, filtered in user space: stores have no latency and stay.
    let fast =
        |load: &&(&Attr, SampleRecord<'_>)| load.1.pid != 0 && load.1.tid != u32::MAX && (load.1.weight as u32) < 60;
    let fast = loads.iter().filter(fast).count();
    let filter = AddressFrom::Hardware { user_only: false, ops: true, ldlat: Some(60) };
    let (taken_samples, loss) = taken(data.records(), &data, filter);
    assert_eq!((taken_samples.len(), loss.below_ldlat), (3178 - fast, fast as u64));
    assert!((1..47).contains(&fast));
}

#[test]
fn samples_without_instruction_and_address_are_dropped_and_counted() {
    let Some(data) = recording("bogus", "intel-cometlake-i5-10210U-k6.2-c2c.perf.data") else { return };
    // Such samples occur now and then; every seventh of these is made one.
    let (ip, addr) = (8..16, 32..40);
    let pid_of = |record: &[u8]| <[u8; 4]>::try_from(&record[16..20]).unwrap();
    let tid_of = |record: &[u8]| <[u8; 4]>::try_from(&record[20..24]).unwrap();
    let mut count = 0;
    let records: Vec<Vec<u8>> = data
        .records()
        .map(|record| {
            let mut record = record.to_vec();
            if record[..4] == 9u32.to_ne_bytes() && pid_of(&record) != [0; 4] && tid_of(&record) != [0xff; 4] {
                count += 1;
                if count % 7 == 0 {
                    record[ip.clone()].fill(0);
                    record[addr.clone()].fill(0);
                }
            }
            record
        })
        .collect();
    let (samples, loss) = taken(records.iter().map(Vec::as_slice), &data, PEBS);
    assert_eq!((samples.len(), loss.samples, loss.bogus), (3178 - 454, 3178 - 454, 454));
    assert!(samples.iter().all(|sample| sample.raw.addr != 0), "none is taken for page 0");
    assert!(loss.left_out().iter().any(|line| line.starts_with("454 ")), "{:?}", loss.left_out());
}

#[test]
fn skylake_server_loads_of_64_cycles() {
    let Some(data) = recording("skylake", "intel-skylakesp-8173M-k4.15.perf.data") else { return };
    assert_eq!((data.attrs[0].config, data.attrs[0].config1, data.attrs[0].ids.len()), (0x1cd, 64, 112));
    let all = samples(&data);
    assert_eq!(all.len(), 14);
    for (_, sample) in &all {
        assert!(sample.addr != 0 && sample.ip != 0 && sample.phys_addr == 0);
        assert!(sample.weight as u32 >= 64, "{sample:?}");
        assert_eq!(sample.data_src & 0x1f, 2, "a load");
    }
    let kinds = |wanted: fn(&Record<'_>) -> bool| {
        let of = |bytes| decode(bytes, &data.attrs[0].layout).unwrap().1;
        data.records().map(of).filter(wanted).count()
    };
    assert_eq!(kinds(|record| matches!(record, Record::Mmap2 { .. })), 6930);
    assert_eq!(kinds(|record| matches!(record, Record::Comm { .. })), 2959);
    assert_eq!(kinds(|record| matches!(record, Record::Fork { .. })), 2955);
    let (samples, loss) = taken(data.records(), &data, PEBS);
    assert_eq!((samples.len(), loss.idle, loss.malformed), (12, 2, 0));
    assert!(samples.iter().all(|sample| sample.raw.latency >= 64 && sample.raw.access == Access::Load));
}

#[test]
fn ivy_bridge_with_a_weight_of_64_bits() {
    let Some(data) = recording("ivy bridge", "intel-ivybridge-E5-2650v2-k2.6.32.perf.data") else { return };
    let all = samples(&data);
    assert_eq!((all.len(), data.attrs[0].layout.sample_type), (253, 0xc00f));
    assert_eq!(
        [non_zero(&all, |s| s.addr), non_zero(&all, |s| s.weight), non_zero(&all, |s| s.phys_addr)],
        [253, 253, 0]
    );
    let (samples, loss) = taken(data.records(), &data, PEBS);
    assert_eq!((samples.len(), loss.bogus, loss.malformed), (253, 0, 0));
    assert!(samples.iter().zip(&all).all(|(sample, (_, record))| u64::from(sample.raw.latency) == record.weight));
}
