//! The format of the Firefox Profiler (<https://profiler.firefox.com>), which shows samples over time.

use std::io;
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle, ReferenceTimestamp, SamplingInterval,
    ThreadHandle, Timestamp,
};
use rustc_hash::FxHashMap;

use super::profile::StackProfile;

/// Writes the samples that the profile has one by one ([`StackProfile::samples`]) as gzipped JSON. A thread that changed its name is
/// several threads.
///
/// # Errors
/// `out` cannot be written.
pub fn firefox(profile: &StackProfile, out: impl io::Write) -> io::Result<()> {
    let begin = Duration::try_from_secs_f64(profile.begin_unix.unwrap_or(0.0)).unwrap_or_default();
    let interval = match (profile.frequency, profile.period) {
        (Some(hz), _) if hz > 0 => SamplingInterval::from_nanos(1_000_000_000 / hz),
        (_, Some(period)) if profile.is_clock => SamplingInterval::from_nanos(period.max(1)),
        _ => SamplingInterval::from_millis(1),
    };
    let reference = ReferenceTimestamp::from_duration_since_unix_epoch(begin);
    let mut whole = fxprof_processed_profile::Profile::new(&format!("scxprof: {}", profile.event), reference, interval);
    whole.set_os_name("Linux");
    // The names are here already.
    whole.set_symbolicated(true);
    let user = whole.add_category("User", CategoryColor::Yellow);
    let kernel = whole.add_category("Kernel", CategoryColor::Orange);
    let first = profile.samples.iter().map(|sample| sample.time).min().unwrap_or(0);
    let since = |time: u64| Timestamp::from_nanos_since_reference(time.saturating_sub(first));
    let mut processes: FxHashMap<u32, ProcessHandle> = FxHashMap::default();
    let mut threads: FxHashMap<u32, ThreadHandle> = FxHashMap::default();
    let mut stacks = FxHashMap::default();
    for sample in &profile.samples {
        let Some(of) = profile.threads.get(sample.thread as usize) else { continue };
        let at = since(sample.time);
        let handle = *threads.entry(sample.thread).or_insert_with(|| {
            let process = *processes.entry(of.pid).or_insert_with(|| {
                let name = if of.process.is_empty() { &of.comm } else { &of.process };
                whole.add_process(name, of.pid, since(first))
            });
            let thread = whole.add_thread(process, of.tid, at, of.pid == of.tid);
            whole.set_thread_name(thread, &of.comm);
            thread
        });
        let stack = *stacks.entry((sample.thread, sample.stack)).or_insert_with(|| {
            let frames: Vec<FrameInfo> = profile
                .frames_of(sample.stack)
                .rev()
                .map(|frame| FrameInfo {
                    frame: Frame::Label(whole.intern_string(&label(frame))),
                    category_pair: if frame.is_kernel { kernel } else { user }.into(),
                    flags: FrameFlags::empty(),
                })
                .collect();
            whole.intern_stack_frames(handle, frames.into_iter())
        });
        let used = if profile.is_clock { CpuDelta::from_nanos(sample.events) } else { CpuDelta::ZERO };
        whole.add_sample(handle, at, stack, used, 1);
    }
    let mut packed = flate2::write::GzEncoder::new(out, flate2::Compression::default());
    serde_json::to_writer(&mut packed, &whole)?;
    io::Write::flush(&mut packed.finish()?)
}

/// The function, and in which file it is.
fn label(frame: &super::Frame) -> String {
    match &frame.function {
        Some(function) if !frame.module.is_empty() => format!("{function} ({})", frame.module_name()),
        _ => frame.name(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::Value;

    use super::super::profile::tests::made;
    use super::super::At;
    use super::*;

    #[test]
    fn each_sample_has_its_thread_time_and_stack() {
        let mut profile = made(&[("web", "main;work", 2), ("db", "main", 1)]);
        (profile.event, profile.is_clock, profile.frequency) = ("cpu-clock".to_owned(), true, Some(1000));
        let at = |time, thread, stack| At { time, cpu: 0, thread, stack, events: 1_000_000 };
        profile.samples = vec![at(5_000_000, 0, 0), at(6_000_000, 1, 1), at(7_000_000, 0, 0)];
        let mut packed = Vec::new();
        firefox(&profile, &mut packed).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&*packed).read_to_string(&mut text).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["meta"]["interval"], 1.0);
        let threads = value["threads"].as_array().unwrap();
        let names: Vec<_> = threads.iter().map(|thread| thread["name"].as_str().unwrap()).collect();
        // The main thread is shown by the name of its process.
        assert_eq!(names, ["app", "db"]);
        let samples = |at: usize| threads[at]["samples"]["length"].as_u64().unwrap();
        assert_eq!([samples(0), samples(1)], [2, 1]);
        assert!(text.contains("work (app)") && text.contains("main (app)"), "{text}");
    }

    #[test]
    fn a_profile_without_samples_is_one() {
        let mut packed = Vec::new();
        firefox(&made(&[]), &mut packed).unwrap();
        assert!(!packed.is_empty());
    }
}
