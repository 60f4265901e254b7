//! Loads the sched_ext scheduler of tests/vm/scheduler, and compares what scxprof says of its dispatch queues with its own counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use libbpf_rs::{MapCore, MapFlags, ObjectBuilder};
use serde_json::Value;

/// The ids of the scheduler's queues begin here.
const FIRST: u64 = 0x10;

static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: i32) {
    ENDED.store(true, Ordering::Relaxed);
}

/// `FILE.bpf.o`: schedules until SIGTERM, then prints a line `QUEUE COUNT` for each queue.
pub fn run(arguments: &[String]) -> Result<()> {
    let [path] = arguments else { bail!("scheduler FILE.bpf.o") };
    let handler = end as extern "C" fn(i32);
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
    let mut object = ObjectBuilder::default().open_file(path)?.load()?;
    let mut queues = object.maps_mut().find(|map| map.name() == "queues").context("no map queues")?;
    let _link = queues.attach_struct_ops()?;
    while !ENDED.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
    let inserted = object.maps().find(|map| map.name() == "inserted").context("no map inserted")?;
    for at in 0..inserted.max_entries() {
        let value = inserted.lookup(&at.to_ne_bytes(), MapFlags::ANY)?.context("no element")?;
        let count = u64::from_ne_bytes(value.as_slice().try_into()?);
        println!("{:#x} {count}", FIRST + u64::from(at));
    }
    Ok(())
}

/// `JSON COUNTS`: what `scxprof sched --by dsq --json` says of the queues of the tests' threads is what the scheduler counted.
pub fn check(arguments: &[String]) -> Result<()> {
    let [json, counts] = arguments else { bail!("dsq JSON COUNTS") };
    let document: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    let lines = document["dsqs"].as_array().context("no dsqs")?;
    let counts = std::fs::read_to_string(counts)?;
    let mut said = Vec::new();
    for id in ["0x10", "0x11"] {
        let count = counts.lines().find_map(|line| line.strip_prefix(id)).context("no count")?;
        let count: u64 = count.trim().parse()?;
        let line = lines.iter().find(|line| line["id"] == id).with_context(|| format!("no line of {id}"))?;
        let number = |field: &str| line[field].as_u64().unwrap_or(u64::MAX);
        let [inserted, dispatched, left, depth] = ["inserted", "dispatched", "left", "depth"].map(number);
        if count < 1000 || inserted != count {
            bail!("queue {id}: {inserted} were inserted, and the scheduler counted {count}");
        }
        if number("by_kernel").saturating_add(inserted) != dispatched.saturating_add(left).saturating_add(depth) {
            bail!("queue {id}: {line}");
        }
        // Each thread of the tests ends, so it was given a CPU.
        if depth > 0 || left > 0 {
            bail!("queue {id}: {line}");
        }
        // As the scheduler gives it, and what is left of it later.
        let slice = line["slice"]["max_ns"].as_u64().unwrap_or(0);
        if slice != 5_000_000 {
            bail!("queue {id}: the longest slice is {slice} ns");
        }
        said.push(format!("{id}: {count}"));
    }
    println!("{}", said.join(", "));
    Ok(())
}
