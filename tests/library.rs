//! The library's front as a program that embeds it uses it: values in, values out.

#![allow(clippy::unwrap_used)] // A test that cannot go on must fail.

use std::time::Duration;

use scxprof::config::GroupOptions;
use scxprof::resolve::{Cgroups, Roots};
use scxprof::sample::{Sample, Source};
use scxprof::sampler::{Batch, Captured, SideBand, TimedSideBand};
use scxprof::session::{CaptureError, Feed, Sink, StopHandle};
use scxprof::Session;

/// Two threads that write to the same pages, for `left` batches; it stops its capture in the middle where it has a handle.
struct Pair {
    left: u64,
    stop: Option<StopHandle>,
}

impl Feed for Pair {
    fn next_batch(&mut self) -> Option<Batch> {
        self.left = self.left.checked_sub(1)?;
        let time = 1_000_000_000_000 - self.left * 1_000_000;
        let mut batch = Batch { complete_until: time, ..Batch::default() };
        for tid in [7, 8] {
            let comm = if tid == 7 { "reader" } else { "writer" }.into();
            batch.side_band.push(TimedSideBand { time, what: SideBand::Comm { pid: 7, tid, exec: false, comm } });
            let sample = Sample { time, pid: 7, tid, addr: 0x1000 + self.left % 512 * 64, ..Sample::default() };
            batch.samples.push(Captured { sample, context: None });
        }
        if let Some(stop) = self.stop.take() {
            stop.stop();
            // It is looked at every 50 ms.
            std::thread::sleep(Duration::from_millis(60));
        }
        Some(batch)
    }
}

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn sample(&mut self, sample: &Sample, _cgroups: &mut Cgroups) {
        assert!(sample.comm.is_some() && sample.place.is_some());
        self.0 += 1;
    }
}

#[test]
fn a_source_and_sinks_of_ones_own() {
    let (mut one, mut two) = (Count::default(), Count::default());
    let found =
        Session::builder().feed(&mut Pair { left: 500, stop: None }).sink(&mut one).sink(&mut two).run().unwrap();
    assert_eq!((one.0, two.0, found.outcome.samples, found.outcome.accesses), (1000, 1000, 1000, 1000));
    assert_eq!((found.source, found.outcome.loss.lost()), (None, 0));
    let json: serde_json::Value = serde_json::from_str(&found.mitosis().unwrap()).unwrap();
    assert!(json.is_array());
    assert!(found.layered().unwrap().0.starts_with('['));
    let threads: usize = found.report.cells.iter().flat_map(|cell| &cell.subcells).map(|it| it.threads.len()).sum();
    assert_eq!(threads, 2);
}

#[test]
fn a_handle_stops_a_source_of_ones_own() {
    let builder = Session::builder();
    let mut feed = Pair { left: 500, stop: Some(builder.stop_handle()) };
    let found = builder.feed(&mut feed).run().unwrap();
    assert_eq!(found.outcome.samples, 2, "one batch of two");
}

#[test]
fn errors_have_types() {
    let wrong = GroupOptions { cells: vec!["x=(".to_owned()], ..GroupOptions::default() };
    let error = Session::builder().groups(wrong).feed(&mut Pair { left: 1, stop: None }).run().unwrap_err();
    assert!(matches!(error, CaptureError::Groups(_)), "{error}");
    let error = Session::builder().feed(&mut Pair { left: 0, stop: None }).run().unwrap_err();
    assert!(matches!(error, CaptureError::NoSamples { .. }), "{error}");
    let error = Session::builder().pids(&[u32::MAX - 1]).run().unwrap_err();
    assert!(matches!(error, CaptureError::NoProcess(ref gone) if gone.pid == 4_294_967_294), "{error}");
    let nowhere = Roots { proc: "/nonexistent".into(), sys: "/nonexistent".into(), ..Roots::default() };
    let error = Session::builder().roots(nowhere).run().unwrap_err();
    assert!(matches!(error, CaptureError::Host(_)), "{error}");
}

#[test]
fn a_handle_stops_a_capture_from_another_thread() {
    let test = "a_handle_stops_a_capture_from_another_thread";
    let mut count = CountAny(0);
    let builder = Session::builder().sources(&[Source::Faults]).sink(&mut count);
    let stop = builder.stop_handle();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let stopper = std::thread::spawn(move || {
        // The capture has begun, or could not.
        let _ = told.recv();
        stop.stop();
    });
    // Another process's page faults, which every start of a program has.
    let found = builder.run_with(|_| {
        let _ = std::process::Command::new("true").status();
        let _ = tell.send(());
    });
    drop(tell);
    stopper.join().unwrap();
    match found {
        Err(CaptureError::Start(error)) => println!("SKIP: {test}: {error}"),
        // Nobody may have run for as long.
        Err(CaptureError::NoSamples { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(found) => {
            assert_eq!(found.source, Some(Source::Faults));
            assert!(found.mitosis().unwrap().starts_with('['));
            assert_eq!(count.0, found.outcome.accesses);
        }
    }
}

struct CountAny(u64);

impl Sink for CountAny {
    fn sample(&mut self, _sample: &Sample, _cgroups: &mut Cgroups) {
        self.0 += 1;
    }
}
