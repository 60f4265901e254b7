//! Tests of a recording that is fed by hand: no event is opened, so that they run everywhere.

use std::sync::Arc;

use super::*;
use crate::profile::{Item, PerfData};
use crate::sampler::attr::{sampling, side_band, EventSpec, Features, Scope};
use crate::sampler::encode::encode;
use crate::sampler::record::{decode, Record, SampleId, SampleRecord};

const OWN: u64 = 11;

/// Minor faults and the side-band on two CPUs.
fn events() -> Vec<OpenEvents> {
    let faults = sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 0);
    let side_band = side_band(Features::all(), Scope::default(), 0);
    [("minor-faults", faults, [OWN, 12]), ("dummy", side_band, [21, 22])]
        .map(|(name, attr, ids)| OpenEvents { name: Arc::from(name), attr, ids: ids.to_vec() })
        .into()
}

fn recorder(dir: &Path) -> Recorder {
    let identity = Identity { own_pid: 1, child_pid_namespace: false };
    Recorder::of(events(), identity, Reading::Fault, 1, dir).unwrap()
}

/// A sample, or any other record, as a ring has it.
fn bytes(recorder: &Recorder, record: &Record<'_>, time: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let id = SampleId { time, identifier: 22, ..SampleId::default() };
    assert!(encode(record, &id, 2, &recorder.layout, &mut bytes));
    bytes
}

fn fault(id: u64, time: u64) -> Record<'static> {
    Record::Sample(SampleRecord { identifier: id, pid: 7, tid: 7, time, addr: 0x1000, ..SampleRecord::default() })
}

#[test]
fn a_sample_with_the_id_of_another_profiler_gets_ours() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let ring = [
        bytes(&recorder, &fault(OWN, 10), 10),
        bytes(&recorder, &fault(999, 20), 20),
        bytes(&recorder, &Record::Comm { pid: 7, tid: 7, exec: false, comm: b"web" }, 25),
        bytes(&recorder, &fault(12, 30), 30),
        bytes(&recorder, &fault(u64::MAX, 40), 40),
    ];
    recorder.records(&ring.concat(), 40);
    recorder.finish(&Roots::default()).unwrap();
    let mut file = PerfData::open(File::open(dir.path().join("perf.data")).unwrap()).unwrap();
    let mut ids = Vec::new();
    let mut kinds = Vec::new();
    while let Some(item) = file.next_item().unwrap() {
        let Item::Record { bytes, event, layout } = item else { continue };
        let expected = &ring[kinds.len()];
        match decode(bytes, layout).unwrap().1 {
            Record::Sample(sample) => {
                ids.push((sample.identifier, event));
                assert_eq!((&bytes[..8], &bytes[16..]), (&expected[..8], &expected[16..]), "all else is as it was");
            }
            _ => assert_eq!(bytes, expected),
        }
        kinds.push(event);
    }
    assert_eq!(ids, [(OWN, 0), (OWN, 0), (12, 0), (OWN, 0)]);
    assert_eq!(kinds.len(), ring.len());
}
