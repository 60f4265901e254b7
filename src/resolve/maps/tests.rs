//! Tests of address spaces on made-up trees and on this machine.

use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::process::Stdio;

use super::super::mapping::parse_line;
use super::*;
use crate::sample::{Comm, MemoryScope};
use scxprof_perf::buildid::BuildId;

impl Maps {
    /// The number of the process's address space.
    fn space(&mut self, pid: u32) -> u32 {
        match self.memory(pid, USER_END - 1, 0) {
            Some(MemoryId::Private { space, .. }) => space,
            other => panic!("{other:?}"),
        }
    }
}

const LIMIT: usize = 1 << 20;

fn made_tree() -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots { proc: dir.path().into(), ..Roots::default() };
    (dir, roots)
}

fn set_maps(dir: &tempfile::TempDir, pid: u32, text: &str) {
    fs::create_dir_all(dir.path().join(pid.to_string())).unwrap();
    fs::write(dir.path().join(format!("{pid}/maps")), text).unwrap();
}

/// Reads the mappings of all processes of the tree.
fn read(maps: &mut Maps, dir: &tempfile::TempDir) {
    for entry in fs::read_dir(dir.path()).unwrap() {
        if let Ok(pid) = entry.unwrap().file_name().to_str().unwrap().parse() {
            maps.table(pid);
        }
    }
}

fn line(text: &str) -> Mapping {
    parse_line(text.as_bytes()).unwrap()
}

fn shared(ino: u64, offset: u64) -> MemoryId {
    MemoryId::Shared { scope: MemoryScope::device(libc::makedev(0, 1), 0), ino, offset }
}

#[test]
fn shared_memory_has_one_place_and_private_memory_many() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-3000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n5000-6000 rw-p 00000000 00:00 0\n");
    set_maps(
        &dir,
        11,
        "8000-9000 rw-s 00001000 00:01 7 /dev/zero (deleted)\n9000-a000 rw-s 00000000 00:0e 9 anon_inode:[io_uring]\n",
    );
    let mut maps = Maps::new(&roots, LIMIT);
    read(&mut maps, &dir);
    assert_eq!(maps.memory(10, 0x2010, 0), Some(shared(7, 0x1010)));
    assert_eq!(maps.memory(11, 0x8010, 0), Some(shared(7, 0x1010)));
    let (one, two) = (maps.space(10), maps.space(11));
    assert_ne!(one, two);
    assert_eq!(maps.memory(10, 0x5000, 0), Some(MemoryId::Private { space: one, addr: 0x5000 }));
    assert_eq!(maps.memory(11, 0x9000, 0), Some(MemoryId::Private { space: two, addr: 0x9000 }));
    assert_eq!(maps.counts().read, 2);
}

#[test]
fn what_is_no_user_memory_has_no_place() {
    let mut maps = Maps::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() }, LIMIT);
    for (pid, addr) in
        [(10, 0), (10, USER_END), (10, 0xffff_8880_0000_0000), (10, u64::MAX), (0, 0x1000), (u32::MAX, 0x1000)]
    {
        assert_eq!(maps.memory(pid, addr, 0), None, "{pid} {addr:x}");
    }
    // A process that cannot be read is private, and is read once.
    let space = maps.space(10);
    assert_eq!(maps.memory(10, USER_END - 1, 0), Some(MemoryId::Private { space, addr: USER_END - 1 }));
    maps.memory(10, 0x1000, 0);
    assert_eq!(maps.counts(), MapCounts { read: 1, unreadable: 1, ..MapCounts::default() });
}

#[test]
fn records_change_what_was_seeded() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    let mut maps = Maps::new(&roots, LIMIT);
    read(&mut maps, &dir);
    // munmap leaves no record: only private memory in the middle shows it.
    maps.mmap(10, &line("2000-3000 rw-p 00000000 00:00 0 //anon"));
    assert_eq!(maps.memory(10, 0x1fff, 0), Some(shared(7, 0xfff)));
    assert!(matches!(maps.memory(10, 0x2000, 0), Some(MemoryId::Private { .. })));
    assert_eq!(maps.memory(10, 0x3000, 0), Some(shared(7, 0x2000)));
    maps.mmap(10, &line("7000-8000 r-xp 00005000 fe:00 3 /bin/a b"));
    assert_eq!(
        maps.find(10, 0x7fff).map(|mapping| (mapping.pgoff, mapping.path.to_vec())),
        Some((0x5000, b"/bin/a b".to_vec()))
    );
    let before = maps.space(10);
    maps.exec(10);
    assert_ne!(maps.space(10), before);
    assert_eq!(maps.find(10, 0x7fff), None);
    assert!(matches!(maps.memory(10, 0x1000, 0), Some(MemoryId::Private { space, .. }) if space != before));
}

#[test]
fn a_fork_shares_the_table_until_it_changes() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    let mut maps = Maps::new(&roots, LIMIT);
    read(&mut maps, &dir);
    let bytes = maps.bytes;
    maps.fork(20, 10);
    assert_eq!(maps.bytes, bytes);
    assert_eq!(maps.memory(20, 0x1000, 0), Some(shared(7, 0)));
    assert_ne!(maps.space(20), maps.space(10));
    maps.mmap(20, &line("1000-2000 rw-p 00000000 00:00 0 //anon"));
    assert!(maps.bytes > bytes);
    assert!(matches!(maps.memory(20, 0x1000, 0), Some(MemoryId::Private { .. })));
    assert_eq!(maps.memory(10, 0x1000, 0), Some(shared(7, 0)));
    maps.fork(30, 20);
    for pid in [10, 20, 30] {
        maps.exit(pid);
    }
    // What is gone is kept for its names, until there is too much of it.
    assert_eq!((maps.ended.len(), maps.processes.len()), (2, 0), "two had samples in private memory");
    maps.forget_ended();
    maps.forget_ended();
    assert_eq!(maps.bytes, 0);
    // The child of an unknown parent is read when needed.
    set_maps(&dir, 50, "1000-4000 rw-s 00000000 00:01 8 /dev/shm/y\n");
    maps.fork(50, 49);
    assert_eq!(maps.memory(50, 0x1000, 0), Some(shared(8, 0)));
}

#[test]
fn a_parent_that_never_ran_is_read_before_its_child_may_have_ended() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    set_maps(&dir, 2, "");
    let mut maps = Maps::new(&roots, LIMIT);
    maps.fork(20, 10);
    // Neither is there any more.
    fs::remove_dir_all(dir.path().join("10")).unwrap();
    assert_eq!(maps.memory(20, 0x1000, 0), Some(shared(7, 0)));
    assert_eq!(maps.memory(10, 0x1000, 0), Some(shared(7, 0)));
    maps.fork(30, 10);
    assert_eq!((maps.memory(30, 0x2000, 0), maps.counts().read), (Some(shared(7, 0x1000)), 1));
    // Which processes are the kernel's is read too.
    set_maps(&dir, 40, "1000-4000 r-xp 00000000 00:01 9 /bin/x\n");
    maps.fork(42, 2);
    assert_eq!([2, 40, 41, 42].map(|pid| maps.has_process(pid)), [false, true, false, false]);
}

#[test]
fn a_record_with_a_build_id_gets_its_inode_from_procfs() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "");
    let mut maps = Maps::new(&roots, LIMIT);
    read(&mut maps, &dir);
    let mut record = line("1000-3000 rw-s 00002000 00:00 0 /lib/x");
    record.build_id = Some(BuildId::new(&[1; 20]));
    maps.mmap(10, &record);
    record.start = 0x9000;
    maps.mmap(10, &record);
    set_maps(&dir, 10, "1000-3000 rw-s 00002000 00:01 5 /lib/x\n");
    assert_eq!(maps.memory(10, 0x2000, 0), Some(shared(5, 0x3000)));
    assert_eq!(maps.find(10, 0x1000).unwrap().build_id, Some(BuildId::new(&[1; 20])));
    // What procfs does not know is private, and is not looked up again.
    assert!(matches!(maps.memory(10, 0x9000, 0), Some(MemoryId::Private { .. })));
    assert!(matches!(maps.memory(10, 0x9000, 0), Some(MemoryId::Private { .. })));
    assert_eq!(maps.counts(), MapCounts { read: 2, without_inode: 1, ..MapCounts::default() });
}

#[test]
fn memory_is_bounded_and_dropped_tables_come_back() {
    let (dir, roots) = made_tree();
    for pid in 1..=200 {
        let lines = (1..=50).map(|page| {
            format!("{page:x}000-{page:x}800 rw-s 00000000 00:01 {} /dev/shm/{pid}/{page}", pid * 100 + page)
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        set_maps(&dir, pid, &text);
    }
    let limit = 256 << 10;
    let mut maps = Maps::new(&roots, limit);
    for pid in 1..=200 {
        assert_eq!(maps.memory(pid, 0x1000, 0), Some(shared(u64::from(pid) * 100 + 1, 0)));
        assert!(maps.bytes() <= limit, "{} bytes after {pid}", maps.bytes());
    }
    let counts = maps.counts();
    assert!(counts.dropped > 0 && counts.unreadable == 0);
    let space = maps.space(1);
    assert_eq!(maps.memory(1, 0x2000, 0), Some(shared(102, 0)));
    assert_eq!((maps.counts().read, maps.space(1)), (counts.read + 1, space));
    let sum: usize = maps.processes.values().filter_map(|process| Some(process.table.as_ref()?.bytes())).sum();
    assert_eq!(maps.bytes, sum);
}

#[test]
fn names_without_end_are_bounded_too() {
    let mut maps = Maps::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() }, 64 << 10);
    for pid in 1..20_000 {
        maps.memory(pid, 0x1000, 0);
    }
    assert!(maps.bytes() <= 64 << 10, "{}", maps.bytes());
    for number in 0..20_000u64 {
        let mut mapping = line("1000-2000 rw-s 00000000 00:01 5 /x");
        mapping.path = format!("/a/path/that/is/new/{number}").into_bytes().into();
        maps.mmap(19_999, &mapping);
        assert!(maps.bytes() <= 64 << 10, "{}", maps.bytes());
    }
}

#[test]
fn after_a_loss_procfs_is_read_again() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    set_maps(&dir, 11, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    let mut maps = Maps::new(&roots, LIMIT);
    read(&mut maps, &dir);
    let space = maps.space(10);
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 8 /dev/shm/y\n");
    maps.reseed(&[TaskSeen { pid: 10, tid: 10, comm: Comm::from("x") }]);
    assert_eq!(maps.memory(10, 0x1000, 0), Some(shared(8, 0)));
    assert_eq!((maps.space(10), maps.processes.len()), (space, 1));
}

/// Prints the address of its shared memory and waits for its end.
const MAPS_SHARED_MEMORY: &str = "import mmap,ctypes,sys\n\
    f=open(sys.argv[1],'r+b')\n\
    m=mmap.mmap(f.fileno(),8192)\n\
    print(ctypes.addressof(ctypes.c_char.from_buffer(m)),flush=True)\n\
    sys.stdin.read()";

#[test]
fn live_two_processes_share_a_place() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8192).unwrap();
    let child = Command::new("python3")
        .args(["-c", MAPS_SHARED_MEMORY])
        .arg(file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("SKIP: live_two_processes_share_a_place: no python3");
        return;
    };
    let mut text = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut text).unwrap();
    let theirs: u64 = text.trim().parse().unwrap();
    // SAFETY: the file is ours, and is not truncated while it is mapped.
    let map = unsafe { memmap2::MmapOptions::new().len(8192).map_mut(file.as_file()).unwrap() };
    let ours = map.as_ptr() as u64;
    let mut maps = Maps::new(&Roots::default(), 64 << 20);
    let memory = maps.memory(std::process::id(), ours + 0x1008, 0);
    assert_eq!(maps.memory(child.id(), theirs + 0x1008, 0), memory);
    assert!(
        matches!(memory, Some(MemoryId::Shared { ino, offset: 0x1008, .. }) if ino == file.as_file().metadata().unwrap().ino())
    );
    // Their stack is private, our code is found.
    assert!(matches!(maps.memory(child.id(), 0x7fff_0000_0000, 0), Some(MemoryId::Private { .. })));
    let code = maps.find(std::process::id(), live_two_processes_share_a_place as fn() as usize as u64).unwrap();
    assert!(code.is_executable() && code.path.starts_with(b"/"));
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn the_records_of_a_process_that_ended_before_it_was_read_are_kept() {
    let (_dir, roots) = made_tree();
    let mut maps = Maps::new(&roots, LIMIT);
    maps.mmap(10, &line("1000-3000 rw-s 00002000 00:01 5 /dev/shm/x"));
    maps.fork(11, 10);
    assert_eq!(maps.memory(10, 0x2000, 0), Some(shared(5, 0x3000)));
    assert_eq!(maps.memory(11, 0x2000, 0), Some(shared(5, 0x3000)));
}

#[test]
fn segment_0_is_shared_within_its_ipc_namespace_only() {
    let (dir, roots) = made_tree();
    for (pid, namespace) in [(10, 1), (11, 1), (12, 2)] {
        set_maps(&dir, pid, "1000-3000 rw-s 00000000 00:01 0 /SYSV00000000 (deleted)\n");
        let ns = dir.path().join(format!("{pid}/ns"));
        fs::create_dir(&ns).unwrap();
        std::os::unix::fs::symlink(format!("ipc:[{namespace}]"), ns.join("ipc")).unwrap();
    }
    let mut maps = Maps::new(&roots, LIMIT);
    let memory = maps.memory(10, 0x1010, 0);
    assert!(matches!(memory, Some(MemoryId::Shared { ino: 0, offset: 0x10, .. })), "{memory:?}");
    assert_eq!(maps.memory(11, 0x1010, 0), memory);
    let other = maps.memory(12, 0x1010, 0);
    assert!(matches!(other, Some(MemoryId::Shared { .. })) && other != memory, "{other:?}");
    // A child has its parent's mapping, and attaches others in its own namespace.
    maps.fork(13, 10);
    assert_eq!(maps.memory(13, 0x1010, 0), memory);
    // In a recording without namespaces only the frame identifies it.
    let mut maps = Maps::recorded(LIMIT);
    maps.ipc_namespace(20, 1);
    for pid in [20, 21, 22] {
        maps.mmap(pid, &line("1000-3000 rw-s 00000000 00:01 0 /SYSV00000000 (deleted)"));
    }
    assert_eq!(maps.memory(20, 0x1010, 0x9010), memory);
    assert_eq!(maps.memory(21, 0x1010, 0x9010), Some(MemoryId::Frame { phys: 0x9010 }));
    assert!(matches!(maps.memory(22, 0x1010, 0), Some(MemoryId::Private { .. })));
    // Threads of a namespace in its build-id form have no inode at all.
    maps.mmap(
        20,
        &Mapping {
            dev: 0,
            ino: 0,
            scope: Some(MemoryScope::device(0, 0)),
            ..line("5000-6000 rw-s 00000000 00:01 0 /SYSV00000000")
        },
    );
    assert!(matches!(maps.memory(20, 0x5000, 0), Some(MemoryId::Private { .. })));
}

#[test]
fn mappings_that_no_record_ended_are_noticed_by_their_pages() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-3000 rw-s 00000000 00:01 7 /memfd:x\n5000-6000 r--p 00000000 08:01 9 /lib/x\n");
    set_maps(&dir, 11, "1000-3000 rw-p 00000000 00:00 0\n");
    let mut maps = Maps::new(&roots, LIMIT);
    let second = 1_000_000_000;
    let look = |maps: &mut Maps, now| {
        let due = maps.due(now);
        for &pid in &due {
            maps.refresh(pid, now);
        }
        due
    };
    assert_eq!(maps.place_of_page(10, 0x1010, 0, Some(true)), (Some(shared(7, 0x10)), None));
    let (memory, other) = maps.place_of_page(10, 0x5010, 0, Some(true));
    assert!(matches!(memory, Some(MemoryId::Private { .. })) && other.is_none(), "a private mapping of a file");
    assert_eq!(maps.place_of_page(10, 0x2010, 0, None), (Some(shared(7, 0x1010)), None), "no page is known");
    maps.memory(11, 0x1010, 0);
    assert!(look(&mut maps, second).is_empty(), "they were just read");
    // The memfd is unmapped, and anonymous memory moves there; the rest of it moves elsewhere.
    set_maps(&dir, 10, "1000-3000 rw-p 00000000 00:00 0\n8000-c000 rw-s 00000000 00:01 7 /memfd:x\n");
    let (memory, contradicts) = maps.place_of_page(10, 0x1010, 0, Some(false));
    assert!(matches!(memory, Some(MemoryId::Private { .. })) && contradicts == Some(false), "{memory:?}");
    assert_eq!(look(&mut maps, second + 100_000_000), [10]);
    assert!(matches!(maps.memory(10, 0x1010, 0), Some(MemoryId::Private { .. })));
    assert_eq!(maps.place_of_page(10, 0xb010, 0, Some(true)), (Some(shared(7, 0x3010)), None));
    // It grows, which only pages beyond the known ones show.
    set_maps(&dir, 10, "1000-3000 rw-p 00000000 00:00 0\n8000-f000 rw-s 00000000 00:01 7 /memfd:x\n");
    assert_eq!(maps.place_of_page(10, 0xe010, 0, Some(true)), (None, Some(true)), "it may be shared");
    assert_eq!(look(&mut maps, second + 400_000_000), [10]);
    assert_eq!(maps.memory(10, 0xe010, 0), Some(shared(7, 0x6010)));
    let counts = maps.counts();
    assert_eq!((counts.refreshed, counts.corrected), (2, 2));
    // A file is mapped as private memory: the mappings that matter stay the same.
    set_maps(&dir, 10, "8000-f000 rw-s 00000000 00:01 7 /memfd:x\n20000-21000 r--p 00000000 08:01 9 /lib/y\n");
    assert_eq!(maps.place_of_page(10, 0x20010, 0, Some(true)), (None, Some(true)));
    assert_eq!(look(&mut maps, second + 800_000_000), [10]);
    assert!(matches!(maps.place_of_page(10, 0x20010, 0, Some(true)), (Some(MemoryId::Private { .. }), None)));
    assert_eq!(maps.counts().corrected, 2);
    // What is private is not known of a process that has too many files.
    let files = (0..70_000u64)
        .map(|at| format!("{:x}-{:x} r--p 00000000 08:01 9 /lib/y\n", 0x10_0000 + at * 8192, 0x10_1000 + at * 8192));
    set_maps(&dir, 10, &format!("8000-f000 rw-s 00000000 00:01 7 /memfd:x\n{}", files.collect::<String>()));
    maps.place_of_page(10, 0x30010, 0, Some(true));
    assert_eq!(look(&mut maps, second + 4_000_000_000), [10]);
    assert_eq!(maps.place_of_page(10, 0x20010, 0, Some(true)), (None, Some(true)), "it may be shared");
}

#[test]
fn a_page_of_a_file_is_never_private_memory_before_the_files_are_known() {
    let mut maps = Maps::recorded(LIMIT);
    maps.mmap(10, &line("1000-3000 rw-s 00000000 00:01 7 /memfd:x"));
    assert_eq!(maps.place_of_page(10, 0x5010, 0, Some(true)), (None, Some(true)), "it may be shared");
    assert!(matches!(maps.place_of_page(10, 0x5010, 0, Some(false)), (Some(MemoryId::Private { .. }), None)));
    assert_eq!(maps.due(1), [10], "it is read at once");
    maps.set_private_files(10, Some(vec![(0x5000, 0x6000)]));
    assert!(matches!(maps.place_of_page(10, 0x5010, 0, Some(true)), (Some(MemoryId::Private { .. }), None)));
    assert_eq!(maps.place_of_page(10, 0x7010, 0, Some(true)), (None, Some(true)));
}

#[test]
fn busy_processes_that_share_are_read_again_now_and_then() {
    let (dir, roots) = made_tree();
    for pid in [10, 11, 12] {
        set_maps(&dir, pid, "1000-3000 rw-s 00000000 00:01 7 /memfd:x\n");
    }
    set_maps(&dir, 13, "1000-3000 rw-p 00000000 00:00 0\n");
    let mut maps = Maps::new(&roots, LIMIT);
    let second = 1_000_000_000;
    read(&mut maps, &dir);
    let sample = |maps: &mut Maps| {
        for (pid, count) in [(10, 1), (11, 5), (13, 9)] {
            for _ in 0..count {
                maps.memory(pid, 0x1000, 0);
            }
        }
    };
    sample(&mut maps);
    assert!(maps.due(second).is_empty());
    assert_eq!(maps.due(3 * second), [11, 10], "the busiest first; 12 has no samples, 13 shares nothing");
    set_maps(&dir, 11, "2000-3000 rw-s 00000000 00:01 7 /memfd:x\n");
    for pid in [10, 11] {
        maps.refresh(pid, 3 * second);
    }
    assert_eq!(maps.memory(11, 0x2000, 0), Some(shared(7, 0)));
    sample(&mut maps);
    assert!(maps.due(3 * second + second / 2).is_empty());
    assert_eq!(maps.due(5 * second).len(), 2);
    assert_eq!(maps.counts().corrected, 1);
}

#[test]
fn a_process_with_endless_mappings_takes_its_part_and_no_more() {
    let (dir, roots) = made_tree();
    let long = "x".repeat(4000);
    let text: String = (1..5000)
        .map(|at| format!("{:x}-{:x} rw-s 00000000 00:01 {at} /{at}{long}\n", at * 0x1000, at * 0x1000 + 0x1000))
        .collect();
    set_maps(&dir, 10, &text);
    set_maps(&dir, 11, "1000-3000 rw-s 00000000 00:01 7 /memfd:x\n");
    let mut maps = Maps::new(&roots, LIMIT);
    assert_eq!(maps.memory(11, 0x1000, 0), Some(shared(7, 0)));
    assert_eq!(maps.memory(10, 0x1000, 0), Some(shared(1, 0)));
    assert!(maps.bytes() < LIMIT / 4 * 3, "{}", maps.bytes());
    assert!(maps.counts().left_out > 3500, "{:?}", maps.counts());
    assert_eq!(maps.counts().dropped, 0, "it drops nobody else's");
    // The time is bounded too.
    let line = format!("{}\n", "y".repeat(1 << 20));
    set_maps(&dir, 12, &(line.repeat(40) + "1000-2000 rw-s 00000000 00:01 7 /x\n"));
    let before = maps.counts().left_out;
    assert!(matches!(maps.memory(12, 0x1000, 0), Some(MemoryId::Private { .. })), "beyond what is read");
    assert!(maps.counts().left_out >= before + 10);
    set_maps(&dir, 14, &(line.clone() + "1000-2000 rw-s 00000000 00:01 7 /x"));
    assert_eq!(maps.memory(14, 0x1000, 0), Some(shared(7, 0)), "a line after one that is too long, and without an end");
}

#[test]
fn one_process_has_no_more_than_half_of_the_room() {
    let mut maps = Maps::recorded(LIMIT);
    maps.mmap(7, &line("1000-2000 rw-s 00000000 00:01 7 /dev/shm/x"));
    let mapping = |at: u64, path: usize| Mapping {
        path: format!("/{at}{}", "x".repeat(path)).into_bytes().into(),
        ..line(&format!("{:x}-{:x} r-xp 00000000 00:01 8 x", at * 0x2000, at * 0x2000 + 0x1000))
    };
    // Many mappings, then mappings with long paths.
    for path in [10, 4000] {
        for at in 1..20_000 {
            maps.mmap(10, &mapping(at, path));
            assert!(maps.bytes() <= LIMIT, "{} bytes", maps.bytes());
        }
    }
    let left_out = maps.counts().left_out;
    assert!(left_out > 20_000, "{left_out}");
    assert!(
        maps.left_out().iter().any(|line| line.starts_with(&format!("{left_out} mappings"))),
        "{:?}",
        maps.left_out()
    );
    // What it overlaps is removed anyway.
    let before = maps.counts().left_out;
    maps.mmap(10, &mapping(1, 4000));
    assert!(maps.counts().left_out == before + 1 && maps.find(10, 0x2000).is_none());
    assert!(maps.find(7, 0x1000).is_some(), "and nobody else's");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Mappings, forks, execs and ends between look-ups; tables are dropped on the way, as there is little room.
    #[test]
    fn what_was_found_before_is_what_is_found(
        steps in proptest::collection::vec((0u8..12, 1u32..6, 0u64..24, 1u64..4, 0u64..3), 1..400),
    ) {
        let (mut fast, mut plain) = (Maps::recorded(6_000), Maps::recorded(6_000));
        for (what, pid, page, pages, file) in steps {
            for maps in [&mut fast, &mut plain] {
                match what {
                    0 | 1 => {
                        let (start, end, shared) = (page << 12, (page + pages) << 12, if what == 0 { 's' } else { 'p' });
                        let text = format!("{start:x}-{end:x} rw-{shared} {:08x} 00:01 {file} /dev/shm/{file}", page << 12);
                        maps.mmap(pid, &line(&text));
                    }
                    2 => maps.fork(pid % 5 + 1, pid),
                    3 if file == 0 => maps.exec(pid),
                    3 => maps.exit(pid),
                    _ => {}
                }
            }
            plain.spots.clear();
            let addr = (page << 12) + 0x123;
            proptest::prop_assert_eq!(fast.memory(pid, addr, file), plain.memory(pid, addr, file));
        }
        proptest::prop_assert_eq!(fast.counts.dropped, plain.counts.dropped);
    }
}
