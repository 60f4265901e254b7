//! Address spaces against made trees and against this machine.

use std::io::BufRead;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::process::Stdio;

use super::super::mapping::parse_line;
use super::super::mapping::BuildId;
use super::*;
use crate::sample::Comm;

impl Maps {
    /// The number that a place in the process's address space has.
    fn space(&mut self, pid: u32) -> u32 {
        match self.place(pid, USER_END - 1) {
            Some(Place::Private { space, .. }) => space,
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

fn line(text: &str) -> Mapping {
    parse_line(text.as_bytes()).unwrap()
}

fn shared(ino: u64, offset: u64) -> Place {
    Place::Shared { dev: libc::makedev(0, 1), ino, offset }
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
    maps.seed_all().unwrap();
    assert_eq!(maps.place(10, 0x2010), Some(shared(7, 0x1010)));
    assert_eq!(maps.place(11, 0x8010), Some(shared(7, 0x1010)));
    let (one, two) = (maps.space(10), maps.space(11));
    assert_ne!(one, two);
    assert_eq!(maps.place(10, 0x5000), Some(Place::Private { space: one, addr: 0x5000 }));
    assert_eq!(maps.place(11, 0x9000), Some(Place::Private { space: two, addr: 0x9000 }));
    assert_eq!(maps.counts().read, 2);
}

#[test]
fn what_is_no_user_memory_has_no_place() {
    let mut maps = Maps::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() }, LIMIT);
    for (pid, addr) in
        [(10, 0), (10, USER_END), (10, 0xffff_8880_0000_0000), (10, u64::MAX), (0, 0x1000), (u32::MAX, 0x1000)]
    {
        assert_eq!(maps.place(pid, addr), None, "{pid} {addr:x}");
    }
    // A process that cannot be read is private, and is asked for once.
    let space = maps.space(10);
    assert_eq!(maps.place(10, USER_END - 1), Some(Place::Private { space, addr: USER_END - 1 }));
    maps.place(10, 0x1000);
    assert_eq!(maps.counts(), MapCounts { read: 1, unreadable: 1, ..MapCounts::default() });
    assert!(matches!(maps.seed_all(), Err(Error::Read { .. })));
}

#[test]
fn records_change_what_was_seeded() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    let mut maps = Maps::new(&roots, LIMIT);
    maps.seed_all().unwrap();
    // No record tells of an munmap: private memory in the middle is all there is to see.
    maps.mmap(10, &line("2000-3000 rw-p 00000000 00:00 0 //anon"));
    assert_eq!(maps.place(10, 0x1fff), Some(shared(7, 0xfff)));
    assert!(matches!(maps.place(10, 0x2000), Some(Place::Private { .. })));
    assert_eq!(maps.place(10, 0x3000), Some(shared(7, 0x2000)));
    maps.mmap(10, &line("7000-8000 r-xp 00005000 fe:00 3 /bin/a b"));
    assert_eq!(
        maps.find(10, 0x7fff).map(|mapping| (mapping.pgoff, mapping.path.to_vec())),
        Some((0x5000, b"/bin/a b".to_vec()))
    );
    let before = maps.space(10);
    maps.exec(10);
    assert_ne!(maps.space(10), before);
    assert_eq!(maps.find(10, 0x7fff), None);
    assert!(matches!(maps.place(10, 0x1000), Some(Place::Private { space, .. }) if space != before));
}

#[test]
fn a_fork_shares_the_table_until_it_changes() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 7 /dev/shm/x\n");
    let mut maps = Maps::new(&roots, LIMIT);
    maps.seed_all().unwrap();
    let bytes = maps.bytes;
    maps.fork(20, 10);
    assert_eq!(maps.bytes, bytes);
    assert_eq!(maps.place(20, 0x1000), Some(shared(7, 0)));
    assert_ne!(maps.space(20), maps.space(10));
    maps.mmap(20, &line("1000-2000 rw-p 00000000 00:00 0 //anon"));
    assert!(maps.bytes > bytes);
    assert!(matches!(maps.place(20, 0x1000), Some(Place::Private { .. })));
    assert_eq!(maps.place(10, 0x1000), Some(shared(7, 0)));
    maps.fork(30, 20);
    for pid in [10, 20, 30] {
        maps.exit(pid);
    }
    assert_eq!((maps.bytes, maps.processes.len()), (0, 0));
    // The child of an unknown parent is read when it is needed.
    set_maps(&dir, 50, "1000-4000 rw-s 00000000 00:01 8 /dev/shm/y\n");
    maps.fork(50, 49);
    assert_eq!(maps.place(50, 0x1000), Some(shared(8, 0)));
}

#[test]
fn a_record_with_a_build_id_gets_its_inode_from_procfs() {
    let (dir, roots) = made_tree();
    set_maps(&dir, 10, "");
    let mut maps = Maps::new(&roots, LIMIT);
    maps.seed_all().unwrap();
    let mut record = line("1000-3000 rw-s 00002000 00:00 0 /lib/x");
    record.build_id = Some(BuildId::new(&[1; 20]));
    maps.mmap(10, &record);
    record.start = 0x9000;
    maps.mmap(10, &record);
    set_maps(&dir, 10, "1000-3000 rw-s 00002000 00:01 5 /lib/x\n");
    assert_eq!(maps.place(10, 0x2000), Some(shared(5, 0x3000)));
    assert_eq!(maps.find(10, 0x1000).unwrap().build_id, Some(BuildId::new(&[1; 20])));
    // What procfs does not know is private, and is not looked for again.
    assert!(matches!(maps.place(10, 0x9000), Some(Place::Private { .. })));
    assert!(matches!(maps.place(10, 0x9000), Some(Place::Private { .. })));
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
        assert_eq!(maps.place(pid, 0x1000), Some(shared(u64::from(pid) * 100 + 1, 0)));
        assert!(maps.bytes() <= limit, "{} bytes after {pid}", maps.bytes());
    }
    let counts = maps.counts();
    assert!(counts.dropped > 0 && counts.unreadable == 0);
    let space = maps.space(1);
    assert_eq!(maps.place(1, 0x2000), Some(shared(102, 0)));
    assert_eq!((maps.counts().read, maps.space(1)), (counts.read + 1, space));
    let sum: usize = maps.processes.values().filter_map(|process| Some(process.table.as_ref()?.bytes())).sum();
    assert_eq!(maps.bytes, sum);
}

#[test]
fn names_without_end_are_bounded_too() {
    let mut maps = Maps::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() }, 64 << 10);
    for pid in 1..20_000 {
        maps.place(pid, 0x1000);
    }
    assert!(maps.bytes() <= 64 << 10, "{}", maps.bytes());
    maps.seed_all().unwrap_err();
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
    maps.seed_all().unwrap();
    let space = maps.space(10);
    set_maps(&dir, 10, "1000-4000 rw-s 00000000 00:01 8 /dev/shm/y\n");
    maps.reseed(&[TaskSeen { pid: 10, tid: 10, comm: Comm::from("x") }]);
    assert_eq!(maps.place(10, 0x1000), Some(shared(8, 0)));
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
    // SAFETY: the file is ours, and nobody cuts it short while it is mapped.
    let map = unsafe { memmap2::MmapOptions::new().len(8192).map_mut(file.as_file()).unwrap() };
    let ours = map.as_ptr() as u64;
    let mut maps = Maps::new(&Roots::default(), 64 << 20);
    let place = maps.place(std::process::id(), ours + 0x1008);
    assert_eq!(maps.place(child.id(), theirs + 0x1008), place);
    assert!(
        matches!(place, Some(Place::Shared { ino, offset: 0x1008, .. }) if ino == file.as_file().metadata().unwrap().ino())
    );
    // Their stack is theirs, our code is found.
    assert!(matches!(maps.place(child.id(), 0x7fff_0000_0000), Some(Place::Private { .. })));
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
    assert_eq!(maps.place(10, 0x2000), Some(shared(5, 0x3000)));
    assert_eq!(maps.place(11, 0x2000), Some(shared(5, 0x3000)));
}

#[test]
fn one_process_has_no_more_than_half_of_the_room() {
    let mut maps = Maps::recorded(LIMIT);
    maps.mmap(7, &line("1000-2000 rw-s 00000000 00:01 7 /dev/shm/x"));
    let mapping = |at: u64, path: usize| Mapping {
        path: format!("/{at}{}", "x".repeat(path)).into_bytes().into(),
        ..line(&format!("{:x}-{:x} r-xp 00000000 00:01 8 x", at * 0x2000, at * 0x2000 + 0x1000))
    };
    // Many, and then with paths that are longer than the rest of them.
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
    // What it lies over is gone all the same.
    let before = maps.counts().left_out;
    maps.mmap(10, &mapping(1, 4000));
    assert!(maps.counts().left_out == before + 1 && maps.find(10, 0x2000).is_none());
    assert!(maps.find(7, 0x1000).is_some(), "and nobody else's");
}
