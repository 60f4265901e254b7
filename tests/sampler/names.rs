//! The sampler and its names on a live kernel: each test knows what its child did and compares.
//!
//! A child is this binary again, which runs the test `child` with its orders in the environment. The tests need root (or
//! CAP_PERFMON); otherwise each prints SKIP.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support::capture::{capture_until, options, Collect};
use scxprof::host::Roots;
use scxprof::resolve::Cgroups;
use scxprof::sample::{MemoryId, Sample, Source};
use scxprof::session::{HostOptions, Outcome};
use scxprof::testing::host::clock::monotonic_ns;
use scxprof::testing::sampler::attr::{Feature, Features};
use scxprof::testing::sampler::Target;

const PAGE: usize = 4096;

/// Captures while `work` runs; `None`, with the reason printed, if this machine does not allow it.
fn capture(test: &str, target: Target, mmap_pages: usize, work: impl FnOnce() + Send) -> Option<(Collect, Outcome)> {
    capture_with(test, options(Source::Faults, target, mmap_pages), work)
}

fn capture_with(test: &str, options: HostOptions, work: impl FnOnce() + Send) -> Option<(Collect, Outcome)> {
    std::thread::scope(|scope| {
        // The work starts when the session first asks whether to stop: by then it samples.
        let (go, begin) = std::sync::mpsc::channel();
        let work = scope.spawn(move || {
            if begin.recv().is_ok() {
                work();
            }
        });
        capture_until(test, options, move |_| {
            let _ = go.send(());
            work.is_finished()
        })
    })
}

/// A child that does `orders` (see [`child`]) once it is told to go.
struct Worker {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn new(orders: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["sampler::names::child", "--exact", "--nocapture", "--test-threads=1"])
            .env("SCXPROF_TEST_ORDERS", orders)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut worker = Self { child, out };
        worker.wait_for("ready");
        worker
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the line that begins with `word`.
    fn wait_for(&mut self, word: &str) -> Vec<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the child ended without saying {word}");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            }
        }
    }

    /// Its threads: the test harness may run a test in a separate thread.
    fn tids(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    /// Lets it execute all its orders; returns the address of the memory that each `touch` touched. It stays alive.
    fn work(&mut self) -> Vec<u64> {
        self.go();
        self.wait_for("touched")
    }

    /// The same, and ends it.
    fn finish(mut self) -> Vec<u64> {
        let touched = self.work();
        self.end();
        touched
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

fn map(pages: usize, flags: i32) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address chosen by the kernel; it replaces none.
    let pointer = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, prot, flags | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(pointer, libc::MAP_FAILED);
    // Huge pages would make one fault of many.
    // SAFETY: the range is what was mapped just now.
    unsafe { libc::madvise(pointer, pages * PAGE, libc::MADV_NOHUGEPAGE) };
    pointer.cast()
}

fn write_to(pointer: *mut u8, pages: usize) {
    for page in 0..pages {
        // SAFETY: callers pass a result of map() with at least this many pages, and nothing else writes there.
        unsafe { pointer.add(page * PAGE + 8).write_volatile(1) };
    }
}

fn rename(name: &[u8]) {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: the name ends with a NUL and outlives the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Not a test by itself: what a [`Worker`] runs. Orders are separated by `;`:
/// `name HEX` renames the thread, `touch N` writes to N fresh pages, `threads N` makes N threads "short-I" that touch a
/// page and exit at once, `fork N` touches N private and N shared pages, forks, and the child touches both again.
#[test]
fn child() {
    let Ok(orders) = std::env::var("SCXPROF_TEST_ORDERS") else { return };
    println!("\nready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let mut touched = Vec::new();
    for order in orders.split(';') {
        let (what, argument) = order.split_once(' ').unwrap();
        match what {
            "name" => {
                let bytes: Vec<u8> = (0..argument.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(&argument[at..at + 2], 16).unwrap())
                    .collect();
                rename(&bytes);
            }
            "touch" => {
                let pages = argument.parse().unwrap();
                let pointer = map(pages, libc::MAP_PRIVATE);
                write_to(pointer, pages);
                touched.push(pointer as u64);
            }
            "threads" => {
                let count: usize = argument.parse().unwrap();
                let pointer = map(count, libc::MAP_PRIVATE) as usize;
                for index in 0..count {
                    std::thread::spawn(move || {
                        rename(format!("short-{index}").as_bytes());
                        write_to((pointer + index * PAGE) as *mut u8, 1);
                    });
                }
                touched.push(pointer as u64);
                std::thread::sleep(Duration::from_millis(100));
            }
            "fork" => {
                let pages = argument.parse().unwrap();
                let (private, shared) = (map(pages, libc::MAP_PRIVATE), map(pages, libc::MAP_SHARED));
                write_to(private, pages);
                write_to(shared, pages);
                touched.extend([private as u64, shared as u64]);
                // SAFETY: the child only writes to mapped memory, and ends without running any of our code.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    write_to(private, pages);
                    write_to(shared, pages);
                    // SAFETY: takes no memory.
                    unsafe { libc::_exit(0) };
                }
                // SAFETY: a null status is allowed.
                unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
                touched.push(pid as u64);
            }
            _ => panic!("unknown order {order}"),
        }
    }
    let touched: Vec<String> = touched.iter().map(u64::to_string).collect();
    println!("\ntouched {}", touched.join(" "));
    let _ = std::io::stdin().read(&mut [0]);
}

fn hex(name: &[u8]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn within(sample: &Sample, begin: u64, pages: usize) -> bool {
    (begin..begin + (pages * PAGE) as u64).contains(&sample.raw.addr)
}

/// One sample for each touched page. Lost ones may belong to any process: the whole host is sampled.
fn assert_one_each(seen: usize, touched: usize, outcome: &Outcome) {
    assert!(seen <= touched, "{seen} samples of {touched} pages: {outcome:?}");
    assert!(seen as u64 + outcome.loss.lost() >= touched as u64, "{seen} samples of {touched} pages: {outcome:?}");
}

#[test]
fn a_fault_has_address_frame_page_size_cgroup_and_time() {
    let worker = Worker::new("touch 64");
    let pid = worker.pid();
    let (begin, mut touched) = (monotonic_ns(), Vec::new());
    let Some((got, outcome)) = capture("fields of a fault", Target::System, 256, || touched = worker.finish()) else {
        return;
    };
    let end = monotonic_ns();
    let mine: Vec<_> =
        got.samples.iter().filter(|sample| sample.raw.pid == pid && within(sample, touched[0], 64)).collect();
    assert_one_each(mine.len(), 64, &outcome);
    let mut pages: Vec<_> = mine.iter().map(|sample| sample.raw.addr & !0xfff).collect();
    pages.dedup();
    assert_eq!(pages.len(), mine.len(), "pages in the order in which they were touched");
    for sample in &mine {
        assert_ne!(sample.raw.phys, 0, "{sample:?}");
        assert_eq!((sample.raw.phys & 0xfff, sample.raw.page_size), (sample.raw.addr & 0xfff, 4096));
        assert!((begin..end).contains(&sample.raw.time));
        assert!(matches!(sample.memory, Some(MemoryId::Private { addr, .. }) if addr == sample.raw.addr));
        assert_ne!(sample.raw.cgroup, 0);
    }
    let times: Vec<_> = got.samples.iter().map(|sample| sample.raw.time).collect();
    assert!(times.is_sorted(), "samples are in order of time over all CPUs");
}

#[test]
fn names_are_those_of_the_moment_whatever_their_bytes() {
    let names: [&[u8]; 6] = [b"before", b"job 3/4", b"a  b", b"caf\xe9 \xff\xfe", b"123456", b"fifteen-bytes-x"];
    let orders: Vec<_> = names.iter().map(|name| format!("name {};touch 16", hex(name))).collect();
    let worker = Worker::new(&orders.join(";"));
    let mut touched = Vec::new();
    let Some((got, outcome)) = capture("names by prctl", Target::System, 256, || touched = worker.finish()) else {
        return;
    };
    for (name, begin) in names.iter().zip(&touched) {
        let comms: Vec<_> =
            got.samples.iter().filter(|sample| within(sample, *begin, 16)).map(|sample| sample.comm).collect();
        assert_one_each(comms.len(), 16, &outcome);
        assert!(comms.iter().all(|comm| comm.is_some_and(|comm| comm.as_bytes() == *name)), "{name:?}: {comms:?}");
    }
}

#[test]
fn exec_changes_the_name_and_the_address_space() {
    let mut pid = 0;
    let Some((got, _)) = capture("exec", Target::System, 256, || {
        let script = "a=1; exec dd if=/dev/zero of=/dev/null bs=1M count=2 status=none";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        pid = child.id();
        child.wait().unwrap();
    }) else {
        return;
    };
    let comms: Vec<_> = got.samples.iter().filter(|sample| sample.raw.pid == pid).collect();
    let first_dd = comms.iter().position(|sample| sample.comm.is_some_and(|comm| comm.as_bytes() == b"dd")).unwrap();
    assert!(first_dd > 0 && comms[first_dd - 1].comm.is_some_and(|comm| comm.as_bytes() == b"sh"));
    assert!(comms[first_dd..].iter().all(|sample| sample.comm.is_some_and(|comm| comm.as_bytes() == b"dd")));
    let space = |sample: &Sample| match sample.memory {
        Some(MemoryId::Private { space, .. }) => Some(space),
        _ => None,
    };
    assert_ne!(space(comms[first_dd - 1]), space(comms[comms.len() - 1]), "exec begins a new address space");
}

#[test]
fn threads_that_are_gone_at_once_are_named_all_the_same() {
    let worker = Worker::new("threads 50");
    let mut touched = Vec::new();
    let Some((got, outcome)) = capture("short threads", Target::System, 256, || touched = worker.finish()) else {
        return;
    };
    for index in 0..50u64 {
        let page = touched[0] + index * PAGE as u64;
        let sample = got.samples.iter().find(|sample| within(sample, page, 1));
        let Some(sample) = sample else {
            assert!(outcome.loss.lost() > 0, "the fault of thread {index} is nowhere");
            continue;
        };
        assert_eq!(sample.comm.unwrap().to_string(), format!("short-{index}"));
    }
}

#[test]
fn forks_share_what_is_mapped_shared_and_nothing_else() {
    let worker = Worker::new("fork 8");
    let pid = worker.pid();
    let mut touched = Vec::new();
    let Some((got, _)) = capture("fork", Target::System, 256, || touched = worker.finish()) else { return };
    let (private, shared, child) = (touched[0], touched[1], touched[2] as u32);
    let places = |pid: u32, begin: u64| -> Vec<MemoryId> {
        let mine = got.samples.iter().filter(|sample| sample.raw.pid == pid && within(sample, begin, 8));
        let mut places: Vec<_> = mine.filter_map(|sample| sample.memory).map(|memory| memory.granule(4096)).collect();
        places.sort();
        places.dedup();
        places
    };
    assert_eq!(places(pid, shared).len(), 8);
    assert_eq!(places(pid, shared), places(child, shared), "shared pages are one memory");
    assert!(matches!(places(pid, shared)[0], MemoryId::Shared { ino, .. } if ino != 0));
    let (mine, its) = (places(pid, private), places(child, private));
    assert_eq!((mine.len(), its.len()), (8, 8), "each has its own copy");
    assert!(mine.iter().all(|memory| !its.contains(memory)), "copy-on-write joins nothing");
}

/// A cgroup of our own below the hierarchy that samples refer to, removed at the end.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new(name: &str) -> std::io::Result<Self> {
        let cgroups = Cgroups::new(&Roots::default()).map_err(std::io::Error::other)?;
        let path = cgroups.mount().point.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        for _ in 0..50 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_cgroup_made_during_the_run_has_its_path_even_when_it_is_gone() {
    let worker = Worker::new("touch 32");
    let pid = worker.pid();
    let (mut touched, mut made) = (Vec::new(), None);
    let Some((got, outcome)) = capture("cgroup during the run", Target::System, 256, || {
        std::thread::sleep(Duration::from_millis(300));
        match TestCgroup::new("scxprof test") {
            Ok(cgroup) => {
                std::fs::write(cgroup.0.join("cgroup.procs"), pid.to_string()).unwrap();
                made = Some((cgroup.0.file_name().unwrap().to_owned(), cgroup.0.metadata().unwrap().ino()));
                touched = worker.finish();
            }
            Err(error) => println!("SKIP: cgroup during the run: cannot make a cgroup: {error}"),
        }
    }) else {
        return;
    };
    let Some((name, id)) = made else { return };
    let expected = [b"/", name.as_encoded_bytes()].concat();
    let mut seen = 0;
    let mine = |sample: &Sample| sample.raw.pid == pid && within(sample, touched[0], 32);
    for (sample, path) in got.samples.iter().zip(&got.paths).filter(|(sample, _)| mine(sample)) {
        assert_eq!(sample.raw.cgroup, id);
        assert_eq!(path.as_deref(), Some(&expected[..]));
        seen += 1;
    }
    assert_one_each(seen, 32, &outcome);
}

#[test]
fn a_cgroup_alone_is_sampled_with_its_children_and_nobody_else() {
    let Ok(cgroup) = TestCgroup::new("scxprof-only") else {
        println!("SKIP: --cgroup: cannot make a cgroup");
        return;
    };
    let inner = cgroup.0.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let (inside, outside) = (Worker::new("touch 32"), Worker::new("touch 32"));
    std::fs::write(inner.join("cgroup.procs"), inside.pid().to_string()).unwrap();
    let (pid, other) = (inside.pid(), outside.pid());
    let directory = std::fs::File::open(&cgroup.0).unwrap();
    let result = capture("--cgroup", Target::Cgroup(Arc::new(directory.into())), 256, || {
        inside.finish();
        outside.finish();
    });
    std::fs::remove_dir(&inner).unwrap();
    let Some((got, _)) = result else { return };
    assert!(got.samples.iter().filter(|sample| sample.raw.pid == pid).count() >= 32);
    assert!(got.samples.iter().all(|sample| sample.raw.pid != other));
}

#[test]
fn a_full_ring_loses_what_it_says_it_lost() {
    let worker = Worker::new("touch 20000;touch 20000;touch 20000");
    let target = Target::Tasks { tids: worker.tids(), enable_on_exec: false };
    let Some((got, outcome)) = capture("full ring", target, 1, || drop(worker.finish())) else { return };
    assert!(outcome.loss.ring_full > 0, "60,000 faults fitted a ring of one page: {outcome:?}");
    assert_eq!(
        outcome.events,
        outcome.samples + outcome.loss.lost(),
        "each event was read or counted as lost: {outcome:?}"
    );
    assert_eq!(outcome.samples as usize, got.samples.len());
    assert!(outcome.loss.percent() > 0.0);
}

#[test]
fn a_process_is_sampled_with_the_threads_it_makes() {
    let worker = Worker::new("touch 100;threads 20;fork 8");
    let (pid, tids) = (worker.pid(), worker.tids());
    let target = Target::Tasks { tids, enable_on_exec: false };
    let mut touched = Vec::new();
    let Some((got, outcome)) = capture("-p with threads", target, 256, || touched = worker.finish()) else { return };
    let child = touched[4] as u32;
    assert_eq!(outcome.events, outcome.samples + outcome.loss.lost(), "{outcome:?}");
    assert!(got.samples.iter().all(|sample| sample.raw.pid == pid || sample.raw.pid == child));
    assert!(got.samples.iter().filter(|sample| within(sample, touched[1], 20)).all(|sample| sample.raw.tid != pid));
    assert!(got.samples.iter().filter(|sample| within(sample, touched[1], 20)).count() >= 20);
    assert!(got.samples.iter().any(|sample| sample.raw.pid == child));
}

#[test]
fn an_older_kernel_gives_the_same_names() {
    let Ok(cgroup) = TestCgroup::new("scxprof-old") else {
        println!("SKIP: older kernel: cannot make a cgroup");
        return;
    };
    let mut worker = Worker::new("touch 32");
    let pid = worker.pid();
    std::fs::write(cgroup.0.join("cgroup.procs"), pid.to_string()).unwrap();
    let id = cgroup.0.metadata().unwrap().ino();
    let newer = [Feature::FormatLost, Feature::WeightStruct, Feature::DataPageSize, Feature::Cgroup];
    let features = newer.into_iter().fold(Features::all(), Features::less);
    let options = HostOptions { features, ..options(Source::Faults, Target::System, 256) };
    let mut touched = Vec::new();
    // It lives until procfs was read: only procfs knows its cgroup.
    let captured = capture_with("older kernel", options, || touched = worker.work());
    worker.end();
    let Some((got, outcome)) = captured else { return };
    let mine: Vec<_> =
        got.samples.iter().filter(|sample| sample.raw.pid == pid && within(sample, touched[0], 32)).collect();
    assert_one_each(mine.len(), 32, &outcome);
    assert!(mine.iter().all(|sample| sample.raw.cgroup == id), "the cgroup comes from procfs");
    assert!(mine.iter().all(|sample| sample.raw.phys != 0 && sample.raw.page_size == 0 && sample.comm.is_some()));
    assert!(outcome.notes.iter().any(|note| note.contains("PERF_SAMPLE_CGROUP")), "{:?}", outcome.notes);
}
