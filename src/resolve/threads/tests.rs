//! Tests of the thread table on made-up trees and on this machine.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;

use proptest::prelude::*;

use super::*;
use crate::host::tasks::snapshot;
use crate::host::Error;

fn seen(pid: u32, tid: u32, comm: &str) -> TaskSeen {
    TaskSeen { pid, tid, comm: Comm::from(comm) }
}

fn name(threads: &Threads, pid: u32, tid: u32) -> Option<Comm> {
    threads.get(pid, tid).map(|thread| thread.comm)
}

fn made_tree() -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots { proc: dir.path().into(), ..Roots::default() };
    (dir, roots)
}

fn add_task(dir: &tempfile::TempDir, pid: u32, tid: u32, comm: &[u8]) -> PathBuf {
    let task = dir.path().join(format!("{pid}/task/{tid}"));
    fs::create_dir_all(&task).unwrap();
    fs::write(task.join("comm"), comm).unwrap();
    task
}

#[test]
fn names_are_read_whole() {
    let (dir, roots) = made_tree();
    add_task(&dir, 10, 10, b"job 3/4\n");
    add_task(&dir, 10, 11, b"a\nb\n\n");
    add_task(&dir, 10, 12, b"\xff\xfe (x) \n");
    add_task(&dir, 2, 2, b"\n");
    fs::create_dir(dir.path().join("self")).unwrap();
    fs::create_dir(dir.path().join("99")).unwrap();
    fs::write(dir.path().join("uptime"), "1").unwrap();
    let mut all = snapshot(&roots).unwrap();
    all.sort_by_key(|task| task.tid);
    let names: Vec<_> = all.iter().map(|task| (task.pid, task.tid, task.comm.as_bytes().to_vec())).collect();
    assert_eq!(
        names,
        [
            (2, 2, b"".to_vec()),
            (10, 10, b"job 3/4".to_vec()),
            (10, 11, b"a\nb\n".to_vec()),
            (10, 12, b"\xff\xfe (x) ".to_vec())
        ]
    );
    let gone = Roots { proc: dir.path().join("none"), ..Roots::default() };
    assert!(matches!(snapshot(&gone), Err(Error::Read { .. })));
}

#[test]
fn children_inherit_and_rename() {
    let mut threads = Threads::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() });
    threads.seed(&[seen(10, 10, "web"), seen(10, 11, "web worker")]);
    threads.seed(&[seen(10, 10, "later")]);
    assert_eq!(name(&threads, 10, 10), Some("web".into()));
    threads.fork(20, 20, 10, 11);
    assert_eq!(name(&threads, 20, 20), Some("web worker".into()));
    threads.comm(20, 20, "cat".into(), true);
    assert_eq!(name(&threads, 20, 20), Some("cat".into()));
    assert_eq!(name(&threads, 10, 11), Some("web worker".into()));
    // A thread of another process with the same tid is another thread.
    assert_eq!(name(&threads, 21, 20), None);
}

#[test]
fn a_reused_tid_is_a_new_thread() {
    let mut threads = Threads::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() });
    threads.seed(&[seen(10, 10, "a")]);
    threads.fork(20, 20, 10, 10);
    threads.comm(20, 20, "old".into(), false);
    let old = threads.get(20, 20).unwrap().index;
    assert!(threads.exit(20, 20));
    // A little late is still in time.
    assert_eq!(name(&threads, 20, 20), Some("old".into()));
    threads.fork(20, 20, 10, 10);
    let new = *threads.get(20, 20).unwrap();
    assert_ne!(new.index, old);
    assert_eq!(new.comm, "a".into());
    // The same tid under an unknown parent: the old name must not stay.
    threads.fork(20, 20, 77, 77);
    assert_eq!(name(&threads, 20, 20), None);
    assert_eq!(threads.resolve(20, 20), None);
}

#[test]
fn the_last_thread_ends_the_process() {
    let mut threads = Threads::new(&Roots::default());
    threads.seed(&[seen(10, 10, "a"), seen(10, 11, "b")]);
    assert!(!threads.exit(10, 10));
    assert!(!threads.exit(10, 10));
    assert!(threads.exit(10, 11));
    assert!(threads.exit(50, 50));
}

#[test]
fn an_exec_by_another_thread_takes_the_leaders_tid() {
    let mut threads = Threads::new(&Roots::default());
    threads.seed(&[seen(10, 10, "a"), seen(10, 11, "b"), seen(12, 12, "c")]);
    threads.exit(10, 10);
    threads.comm(10, 10, "new".into(), true);
    assert_eq!(name(&threads, 10, 10), Some("new".into()));
    assert!(threads.get(10, 11).unwrap().exited && !threads.get(12, 12).unwrap().exited);
    assert!(threads.exit(10, 10));
}

#[test]
fn a_thread_that_begins_or_ends_beside_a_snapshot_is_one() {
    let mut threads = Threads::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() });
    threads.seed(&[seen(10, 10, "a"), seen(10, 11, "b"), seen(12, 12, "c")]);
    threads.begin_reseed();
    threads.fork(10, 13, 10, 10);
    threads.exit(10, 11);
    let before: Vec<_> = [11, 13].map(|tid| threads.get(10, tid).unwrap().index).into();
    // It was read before one thread began and the other ended.
    threads.reseed(&[seen(10, 10, "a"), seen(10, 11, "b")]);
    threads.comm(10, 13, "renamed".into(), false);
    let after: Vec<_> = [11, 13].map(|tid| threads.get(10, tid).unwrap().index).into();
    assert_eq!(before, after);
    assert_eq!(threads.alive(), [(10, 10), (10, 13)], "12 is gone, and was so when the snapshot began");
}

#[test]
fn after_a_loss_procfs_is_the_truth() {
    let mut threads = Threads::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() });
    threads.seed(&[seen(10, 10, "a"), seen(11, 11, "b"), seen(12, 12, "c")]);
    assert_eq!(threads.resolve(13, 13), None);
    threads.fork(10, 9, 10, 10);
    threads.exit(11, 11);
    assert_eq!(threads.alive(), [(10, 9), (10, 10), (12, 12)]);
    threads.reseed(&[seen(10, 10, "new"), seen(13, 13, "d"), seen(14, 12, "reused")]);
    assert_eq!(name(&threads, 10, 10), Some("new".into()));
    assert_eq!(threads.get(10, 10).unwrap().index, 0);
    assert!(threads.get(11, 11).unwrap().exited);
    assert_eq!(name(&threads, 13, 13), Some("d".into()));
    assert_eq!((name(&threads, 12, 12), name(&threads, 14, 12)), (None, Some("reused".into())));
}

#[test]
fn procfs_is_asked_once() {
    let (dir, roots) = made_tree();
    add_task(&dir, 10, 11, b"late\n");
    let mut threads = Threads::new(&roots);
    assert_eq!(threads.resolve(10, 11).unwrap().comm, "late".into());
    assert_eq!(threads.resolve(10, 12), None);
    add_task(&dir, 10, 12, b"too late\n");
    assert_eq!(threads.resolve(10, 12), None);
    for (pid, tid) in [(0, 0), (0, 5), (u32::MAX, u32::MAX)] {
        threads.comm(pid, tid, "nobody".into(), false);
        assert_eq!(threads.resolve(pid, tid), None);
    }
}

#[test]
fn exited_threads_are_bounded() {
    let mut threads = Threads::new(&Roots::default());
    threads.seed(&[seen(1, 1, "init")]);
    for tid in 2..20_000 {
        threads.fork(tid, tid, 1, 1);
        threads.exit(tid, tid);
    }
    assert_eq!(threads.by_tid.len(), 1 + MAX_EXITED);
    assert_eq!(threads.alive.len(), 1);
}

#[test]
fn threads_are_bounded_and_those_that_are_there_stay() {
    let mut threads = Threads::recorded();
    threads.seed(&[seen(1, 1, "init")]);
    let last = MAX_THREADS as u32 + 100;
    for tid in 2..=last {
        threads.comm(tid / 64 + 1, tid, "x".into(), false);
    }
    assert_eq!((threads.by_tid.len(), threads.alive.len()), (MAX_THREADS, MAX_THREADS));
    assert_eq!(threads.left_out, 100);
    assert_eq!(
        threads.left_out().unwrap(),
        "100 names were left out, of more threads than the 262144 that are told apart"
    );
    assert!(threads.get(1, 1).is_some() && threads.get(last / 64 + 1, last).is_none());
    // Exited threads make room when their names are not needed any more.
    for tid in 2..=2 + MAX_EXITED as u32 {
        threads.exit(tid / 64 + 1, tid);
    }
    threads.comm(7, last, "y".into(), false);
    assert!(threads.get(7, last).is_some());
}

/// ns of CPU that the thread takes for it.
fn cpu_time(work: impl FnOnce()) -> u64 {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call only fills the structure.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let begin = now();
    work();
    now() - begin
}

#[test]
fn an_exec_looks_at_the_threads_of_its_process_alone() {
    // In each process, a thread other than the leader calls exec and takes over.
    let execs = |count: u32| {
        let mut threads = Threads::recorded();
        cpu_time(|| {
            for pid in 1..=count {
                threads.comm(pid, 1_000_000 + pid, "x".into(), false);
            }
            for pid in 1..=count {
                threads.comm(pid, pid, "y".into(), true);
            }
        })
    };
    execs(2_000);
    let (few, many) = (execs(2_000), execs(20_000));
    assert!(many < few * 40, "10 times as many took {many} ns in place of {few}");
}

#[test]
fn live_threads_are_found_under_their_names() {
    let comms: [&[u8]; 3] = [b"sp ace/1", b"\xff\n)x", b""];
    let (ready, is_ready) = mpsc::channel();
    let mut done = Vec::new();
    let mut handles = Vec::new();
    for comm in comms {
        let ready = ready.clone();
        let (end, ended) = mpsc::channel::<()>();
        done.push(end);
        handles.push(std::thread::spawn(move || {
            rustix::thread::set_name(&std::ffi::CString::new(comm).unwrap()).unwrap();
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            ready.send((tid as u32, comm)).unwrap();
            let _ = ended.recv();
        }));
    }
    let named: Vec<_> = is_ready.iter().take(comms.len()).collect();
    let roots = Roots::default();
    let all = snapshot(&roots).unwrap();
    let mut threads = Threads::new(&roots);
    let pid = std::process::id();
    for (tid, comm) in named {
        let task = all.iter().find(|task| task.pid == pid && task.tid == tid).unwrap();
        assert_eq!(task.comm.as_bytes(), comm);
        assert_eq!(threads.resolve(pid, tid).unwrap().comm.as_bytes(), comm);
        assert_eq!(threads.get(pid, tid).unwrap().index as usize, threads.next as usize - 1);
    }
    drop(done);
    for handle in handles {
        handle.join().unwrap();
    }
}

proptest! {
    #[test]
    fn the_living_are_counted(records in proptest::collection::vec((0u8..5, 0u32..4, 0u32..6, any::<bool>()), 0..60)) {
        let mut threads = Threads::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() });
        for (kind, pid, tid, exec) in records {
            match kind {
                0 => threads.fork(pid, tid, pid, tid.wrapping_sub(1)),
                1 | 2 => threads.comm(pid, tid, "x".into(), exec),
                3 => { threads.exit(pid, tid); }
                _ => threads.reseed(&[seen(pid, tid, "y")]),
            }
            let living = threads.by_tid.values().filter(|thread| !thread.exited);
            let alive: BTreeSet<(u32, u32)> = living.map(|thread| (thread.pid, thread.tid)).collect();
            prop_assert_eq!(&alive, &threads.alive);
        }
    }
}

#[test]
fn a_scxprof_is_known_by_its_main_thread() {
    let mut threads = Threads::recorded();
    threads.seed(&[seen(5, 6, "ring-0"), seen(5, 5, "scxprof"), seen(7, 7, "bash"), seen(7, 8, "scxprof")]);
    assert_eq!([5, 7].map(|pid| threads.is_profiler(pid)), [true, false]);
    // What it starts is one until it is another program.
    threads.fork(9, 9, 5, 5);
    assert!(threads.is_profiler(9));
    threads.comm(9, 9, Comm::from("redis"), true);
    threads.comm(7, 7, Comm::from("scxprof"), true);
    assert_eq!([9, 7].map(|pid| threads.is_profiler(pid)), [false, true]);
    // Late samples of one that has ended are known too; a new process with its number is another one.
    threads.exit(5, 5);
    assert!(threads.is_profiler(5));
    threads.comm(5, 5, Comm::from("sh"), false);
    assert!(!threads.is_profiler(5));
}
