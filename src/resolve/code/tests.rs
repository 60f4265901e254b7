//! Tests of the code cache: on a made-up procfs, and on this process.

use std::fs::File;
use std::os::unix::fs::{symlink, FileExt, MetadataExt};

use proptest::prelude::*;
use tempfile::TempDir;

use super::pages::{APART, PIECE, SETTLED, SETTLED_AGAIN};
use super::*;

const SECOND: u64 = 1_000_000_000;

/// A procfs in which processes share a root directory that contains `/lib/x`.
struct Host {
    dir: TempDir,
    bytes: Vec<u8>,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..0x5000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::create_dir_all(dir.path().join("fs/lib")).unwrap();
        std::fs::write(dir.path().join("fs/lib/x"), &bytes).unwrap();
        Self { dir, bytes }
    }

    fn process(&self, pid: u32, root: &str) -> PathBuf {
        let path = self.dir.path().join(pid.to_string());
        std::fs::create_dir_all(path.join("map_files")).unwrap();
        symlink(self.dir.path().join(root), path.join("root")).unwrap();
        path
    }

    /// Writes to a process's memory at an address.
    fn poke(&self, pid: u32, addr: u64, bytes: &[u8]) {
        let path = self.dir.path().join(pid.to_string()).join("mem");
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.write_all_at(bytes, addr).unwrap();
        let end = (addr + bytes.len() as u64).next_multiple_of(PAGE);
        if file.metadata().unwrap().len() < end {
            file.set_len(end).unwrap();
        }
    }

    fn cache(&self) -> CodeCache {
        CodeCache::new(
            self.dir.path(),
            Limits { files: 8, bytes: 16 * PAGE as usize, around: 160, ..Limits::default() },
        )
    }

    fn mapping(&self) -> Mapping<'static> {
        let metadata = std::fs::metadata(self.dir.path().join("fs/lib/x")).unwrap();
        Mapping {
            start: 0x70_0000,
            end: 0x70_4000,
            offset: 0x1000,
            dev: metadata.dev(),
            ino: metadata.ino(),
            writable: false,
            shared: false,
            build_id: None,
            path: b"/lib/x",
        }
    }
}

fn at(pid: u32, ip: u64) -> At {
    At { pid, space: pid, ip, time: u64::MAX / 2 }
}

#[test]
fn a_file_serves_all_its_processes_at_any_address() {
    let host = Host::new();
    host.process(42, "fs");
    host.process(43, "fs");
    let mut cache = host.cache();
    let mapping = host.mapping();
    let window = cache.window(at(42, 0x70_0ff0), &mapping, 0).unwrap();
    assert_eq!((window.start, window.origin), (0x70_0ff0 - 160, Origin::File));
    assert_eq!(window.bytes[..], host.bytes[0x1ff0 - 160..0x1ff0 + 160]);
    let moved = Mapping { start: 0x90_0000, end: 0x90_4000, ..mapping };
    assert_eq!(cache.window(at(43, 0x90_0ff0), &moved, 5).unwrap().key, window.key);
    assert_eq!(cache.window(at(43, 0x90_0ff1), &moved, 5).unwrap().bias, window.bias + 0x20_0000);
    let counts = cache.counts();
    assert_eq!((counts.by_path, counts.from_files, counts.no_elf), (1, 3, 1));
    // Neighbours too where the file system has no quick way (tmpfs).
    assert!((3..=4).contains(&counts.file_pages), "{counts:?}");
}

#[test]
fn windows_end_with_their_mapping_and_their_file() {
    let host = Host::new();
    host.process(42, "fs");
    let mut cache = host.cache();
    let mapping = host.mapping();
    let first = cache.window(at(42, 0x70_0010), &mapping, 0).unwrap();
    assert_eq!((first.start, first.bytes.len()), (0x70_0000, 0x10 + 160));
    let last = cache.window(at(42, 0x70_3ff0), &mapping, 0).unwrap();
    assert_eq!(last.bytes[..], host.bytes[0x4ff0 - 160..]);
    assert!(matches!(cache.window(at(42, 0x70_4000), &mapping, 0), Err(CodeError::Outside { .. })));
    let longer = Mapping { end: 0x70_8000, ..mapping };
    assert_eq!(cache.window(at(42, 0x70_3ff0), &longer, 0).unwrap().bytes[..], host.bytes[0x4ff0 - 160..]);
    assert!(cache.window(at(42, 0x70_5000), &longer, 0).is_err(), "no memory file, and beyond the end of the file");
}

#[test]
fn another_file_at_the_path_is_not_taken_for_the_mapped_one() {
    let host = Host::new();
    host.process(42, "fs");
    let mapping = host.mapping();
    let lib = host.dir.path().join("fs/lib");
    std::fs::rename(lib.join("x"), lib.join("old")).unwrap();
    std::fs::write(lib.join("x"), vec![0xcc; 0x5000]).unwrap();
    host.poke(42, 0x70_0000, &host.bytes[0x1000..0x5000]);
    let mut cache = host.cache();
    let window = cache.window(at(42, 0x70_0800), &mapping, 0).unwrap();
    assert_eq!((window.origin, &*window.bytes), (Origin::Memory, &host.bytes[0x1000..0x2000 + 160]));
    let counts = cache.counts();
    assert_eq!((counts.files_missed, counts.from_memory), (1, 1));
    assert_eq!(counts.errors, BTreeMap::from([(libc::ESTALE, 1)]));
    // The kernel's own link still leads to the deleted file; the failure is cached for a second.
    symlink(lib.join("old"), host.dir.path().join("42/map_files/700000-704000")).unwrap();
    assert_eq!(cache.window(at(42, 0x70_0800), &mapping, 0).unwrap().origin, Origin::Memory);
    let window = cache.window(at(42, 0x70_0800), &mapping, SECOND).unwrap();
    assert_eq!((window.origin, &*window.bytes), (Origin::File, &host.bytes[0x1800 - 160..0x1800 + 160]));
    assert_eq!(cache.counts().by_map_files, 1);
}

#[test]
fn the_file_of_a_process_that_is_gone_is_found_where_we_see_it() {
    let host = Host::new();
    host.process(1, "fs");
    symlink("1", host.dir.path().join("self")).unwrap();
    let mapping = host.mapping();
    let window = host.cache().window(at(42, 0x70_0ff0), &mapping, 0).unwrap();
    assert_eq!(window.origin, Origin::File);
    let another = Mapping { ino: mapping.ino + 1, ..mapping };
    assert!(host.cache().window(at(42, 0x70_0ff0), &another, 0).is_err(), "a file of another inode is another file");
}

#[test]
fn a_container_has_its_own_files_behind_the_same_path() {
    let host = Host::new();
    host.process(42, "fs");
    host.process(50, "container");
    let lib = host.dir.path().join("container/lib");
    std::fs::create_dir_all(&lib).unwrap();
    std::fs::write(lib.join("x"), vec![0x90; 0x5000]).unwrap();
    let metadata = std::fs::metadata(lib.join("x")).unwrap();
    let mut cache = host.cache();
    let mapping = host.mapping();
    let inside = Mapping { dev: metadata.dev(), ino: metadata.ino(), ..mapping };
    let outer = cache.window(at(42, 0x70_0800), &mapping, 0).unwrap();
    let inner = cache.window(at(50, 0x70_0800), &inside, 0).unwrap();
    assert_eq!(inner.bytes[..], [0x90; 320]);
    assert_ne!(inner.key, outer.key);
    assert_eq!(cache.window(at(42, 0x70_0800), &mapping, 0).unwrap(), outer);
}

#[test]
fn a_file_that_cannot_be_proven_serves_its_process_only() {
    let host = Host::new();
    host.process(42, "nowhere");
    host.process(43, "nowhere");
    symlink(host.dir.path().join("fs/lib/x"), host.dir.path().join("42/map_files/700000-704000")).unwrap();
    let mut cache = host.cache();
    let mapping = Mapping { ino: 1, ..host.mapping() };
    let window = cache.window(at(42, 0x70_0800), &mapping, 0).unwrap();
    assert_eq!((window.origin, cache.counts().unproven), (Origin::File, 1));
    assert!(cache.window(at(43, 0x70_0800), &mapping, 0).is_err());
}

#[test]
fn a_path_to_anything_but_a_file_is_not_opened() {
    let host = Host::new();
    host.process(42, "fs");
    let lib = host.dir.path().join("fs/lib");
    std::fs::remove_file(lib.join("x")).unwrap();
    std::fs::create_dir(lib.join("x")).unwrap();
    let metadata = std::fs::metadata(lib.join("x")).unwrap();
    let mapping = Mapping { dev: metadata.dev(), ino: metadata.ino(), ..host_mapping_of_dir() };
    let mut cache = host.cache();
    assert!(cache.window(at(42, 0x70_0800), &mapping, 0).is_err());
    assert_eq!(cache.counts().errors.get(&0), Some(&1));
}

fn host_mapping_of_dir() -> Mapping<'static> {
    Mapping {
        start: 0x70_0000,
        end: 0x70_4000,
        offset: 0,
        dev: 0,
        ino: 0,
        writable: false,
        shared: false,
        build_id: None,
        path: b"/lib/x",
    }
}

#[test]
fn a_file_that_is_written_to_gets_another_key() {
    let host = Host::new();
    host.process(42, "fs");
    let mut cache = host.cache();
    let mapping = host.mapping();
    let before = cache.window(at(42, 0x70_0800), &mapping, 0).unwrap();
    let file = File::options().write(true).open(host.dir.path().join("fs/lib/x")).unwrap();
    file.write_all_at(&vec![0xaa; 0x6000], 0).unwrap();
    assert_eq!(cache.window(at(42, 0x70_0800), &mapping, 1).unwrap(), before, "believed for a second");
    let after = cache.window(at(42, 0x70_0800), &mapping, SECOND).unwrap();
    assert_eq!(after.bytes[..], [0xaa; 320]);
    assert_ne!(after.key, before.key);
    assert_eq!(cache.counts().changed, 1);
}

#[test]
fn jit_code_is_believed_once_it_stays_the_same_and_known_by_its_bytes() {
    let host = Host::new();
    host.process(42, "fs");
    let mut cache = host.cache();
    let jit = Mapping { dev: 0, ino: 0, path: b"", writable: true, ..host.mapping() };
    let mut now = SECOND;
    // Reads this number of times for a sample shortly before; returns the last result.
    let mut look = |cache: &mut CodeCache, times: u32| {
        let mut last = None;
        for _ in 0..times {
            now += APART;
            last = cache.window(At { time: now - 5, ..at(42, 0x70_0ff0) }, &jit, now).ok();
        }
        last
    };
    host.poke(42, 0x70_0000, &[0x90; 0x2000]);
    assert_eq!(look(&mut cache, SETTLED - 1), None);
    let first = look(&mut cache, 1).unwrap();
    assert_eq!((first.bytes.len(), first.origin, first.function), (4096 + 160, Origin::Memory, None));
    // Changed code is neither the old nor the new one.
    host.poke(42, 0x70_0ff0, &[0xcc; 4]);
    assert_eq!(look(&mut cache, SETTLED_AGAIN - 1), None);
    let second = look(&mut cache, 1).unwrap();
    assert_ne!(second.key, first.key);
    host.poke(42, 0x70_0ff0, &[0x90; 4]);
    assert_eq!(look(&mut cache, SETTLED_AGAIN).unwrap().key, first.key);
    let counts = cache.counts();
    assert_eq!(counts.unsettled, u64::from(SETTLED - 1 + 2 * (SETTLED_AGAIN - 1)));
    assert_eq!(counts.failed, counts.unsettled);
    // A sample from before the first reading.
    assert!(matches!(cache.window(At { time: 5, ..at(42, 0x70_0ff0) }, &jit, now), Err(CodeError::Unsettled { .. })));
}

#[test]
fn what_changes_elsewhere_on_a_page_only_shortens_the_code() {
    let host = Host::new();
    host.process(42, "fs");
    let mut cache = host.cache();
    let jit = Mapping { dev: 0, ino: 0, path: b"", writable: true, ..host.mapping() };
    let ip = 0x70_0800;
    let now = std::cell::Cell::new(SECOND);
    let look = |cache: &mut CodeCache, ip: u64| {
        now.set(now.get() + APART);
        cache.window(At { time: now.get() - 5, ..at(42, ip) }, &jit, now.get()).ok()
    };
    let bytes: Vec<u8> = (0..0x2000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    host.poke(42, 0x70_0000, &bytes);
    for _ in 0..SETTLED {
        look(&mut cache, ip);
    }
    let whole = look(&mut cache, ip).unwrap();
    assert_eq!(whole.bytes.len(), 4096 + 160);
    // A method is added on either side, then another one each time that somebody looks.
    for round in 0..2 * SETTLED {
        host.poke(42, ip - 3 * PIECE + 5, &[0xcc, round as u8]);
        host.poke(42, ip + 2 * PIECE, &[0xcc, round as u8]);
        let window = look(&mut cache, ip).unwrap();
        assert_eq!((window.start, window.bytes.len() as u64), (ip - 2 * PIECE, 4 * PIECE), "round {round}");
        assert_eq!(window.bytes[..], bytes[0x800 - 0x100..0x800 + 0x100]);
        assert!(look(&mut cache, ip + 2 * PIECE + 1).is_none(), "code that has changed");
        assert!(look(&mut cache, ip + 2 * PIECE - 8).is_none(), "an instruction may reach into code that has changed");
        assert!(look(&mut cache, ip + 2 * PIECE - 15).is_some());
        assert_eq!(look(&mut cache, ip + 3 * PIECE).unwrap().start, ip + 3 * PIECE);
    }
    // What has changed settles, too.
    for _ in 0..SETTLED_AGAIN {
        look(&mut cache, ip);
    }
    assert_eq!(look(&mut cache, ip).unwrap().bytes.len(), 4096 + 160);
}

#[test]
fn shared_and_memfd_text_is_read_from_memory() {
    let mapping = Host::new().mapping();
    assert!(mapping.is_file_text());
    assert!(!Mapping { writable: true, ..mapping }.is_file_text());
    assert!(!Mapping { shared: true, ..mapping }.is_file_text());
    assert!(!Mapping { path: b"/memfd:doublemapper (deleted)", ..mapping }.is_file_text());
    assert!(!Mapping { path: b"[vdso]", ..mapping }.is_file_text());
}

#[test]
fn files_and_pages_stay_within_their_bounds() {
    let host = Host::new();
    host.process(42, "fs");
    let mut cache = host.cache();
    for round in 0..3u64 {
        for index in 0..50u64 {
            let name = format!("/lib/{index}");
            let path = host.dir.path().join("fs").join(&name[1..]);
            if round == 0 {
                std::fs::write(&path, vec![index as u8; 0x3000]).unwrap();
            }
            let metadata = std::fs::metadata(&path).unwrap();
            let mapping = Mapping { dev: metadata.dev(), ino: metadata.ino(), path: name.as_bytes(), ..host.mapping() };
            let window = cache.window(at(42, 0x70_0800), &mapping, round).unwrap();
            assert_eq!(window.bytes[..], [index as u8; 320]);
            assert!(cache.files.len() <= 8 && cache.pages.cache.len() <= 16);
        }
    }
    assert!(cache.counts().evicted > 100, "{:?}", cache.counts());
}

/// Mappings of this process that hold `addr`, as `/proc/self/maps` has them.
fn own_mapping(maps: &str, addr: u64) -> Mapping<'_> {
    maps.lines()
        .find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).ok();
            let (start, end) = (hex(start)?, hex(end)?);
            let perms = words.next()?;
            let offset = hex(words.next()?)?;
            let (major, minor) = words.next()?.split_once(':')?;
            let dev = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
            let ino = words.next()?.parse().ok()?;
            let path = words.next().unwrap_or_default().as_bytes();
            let (writable, shared) = (perms.contains('w'), perms.contains('s'));
            (start..end).contains(&addr).then_some(Mapping {
                start,
                end,
                offset,
                dev,
                ino,
                writable,
                shared,
                build_id: None,
                path,
            })
        })
        .unwrap()
}

#[test]
fn our_own_code_is_what_we_run() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    let pid = std::process::id();
    let here = our_own_code_is_what_we_run as *const ();
    let ip = here.addr() as u64 + 64;
    let mapping = own_mapping(&maps, ip);
    let window = cache.window(at(pid, ip), &mapping, 0).unwrap();
    // SAFETY: the window lies in a mapping of ours that is readable and stays mapped.
    let memory = unsafe {
        std::slice::from_raw_parts(here.byte_add(64).cast::<u8>().sub((ip - window.start) as usize), window.bytes.len())
    };
    assert_eq!(window.bytes[..], *memory);
    assert_eq!(window.function.as_ref().map(|function| function.start), Some(here.addr() as u64), "{window:?}");
    assert_eq!(
        window.start,
        (here.addr() as u64 - 4096).max(mapping.start),
        "the whole function and what is around it"
    );
    // Half a function, as mprotect(2) can leave it: what starts outside the mapping is not there.
    let cut = here.addr() as u64 + 32 - mapping.start;
    let half = Mapping { start: mapping.start + cut, offset: mapping.offset + cut, ..mapping };
    let half = cache.window(at(pid, ip), &half, 0).unwrap();
    assert_eq!((half.start, half.function), (ip - 32, None));
    // The same code as memory, and the kernel's page without a file.
    let as_memory = (1..=u64::from(SETTLED))
        .find_map(|time| {
            let now = SECOND + time * APART;
            cache.window(At { time: now, ..at(pid, ip) }, &Mapping { writable: true, ..mapping }, now).ok()
        })
        .unwrap();
    let from = (ip, ip + 160);
    let cut =
        |window: &Window| window.bytes[(from.0 - window.start) as usize..(from.1 - window.start) as usize].to_vec();
    assert_eq!((as_memory.origin, cut(&as_memory)), (Origin::Memory, cut(&window)));
    if let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) {
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let vdso = cache.window(at(pid, start), &own_mapping(&maps, start), 0).unwrap();
        assert!(vdso.bytes.starts_with(b"\x7fELF"));
    }
    assert!(cache.counts().errors.is_empty(), "{:?}", cache.counts());
}

#[test]
fn a_process_that_is_gone_is_counted() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut cache = CodeCache::new(Path::new("/proc"), Limits::default());
    let error = cache.window(at(child.id(), 0x70_0800), &host_mapping_of_dir(), 0).unwrap_err();
    assert!(matches!(&error, CodeError::Memory { addr: 0x70_0000, .. }), "{error}");
    assert_eq!((cache.counts().failed, cache.counts().errors), (1, BTreeMap::from([(libc::ENOENT, 2)])));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_mapping_of_any_file_gives_a_window_around_the_ip_or_an_error(
        contents in prop::collection::vec(any::<u8>(), 0..9000),
        elf in any::<bool>(),
        start in prop_oneof![Just(0u64), Just(0x1000), any::<u64>()],
        length in prop_oneof![0..0x5000u64, any::<u64>()],
        offset in prop_oneof![Just(0u64), Just(0x1000), any::<u64>()],
        distance in prop_oneof![0..0x5000u64, any::<u64>()],
        writable in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("7/root")).unwrap();
        let mut contents = contents;
        if elf {
            contents.splice(0..contents.len().min(4), *b"\x7fELF\x02\x01");
        }
        let path = dir.path().join("7/root/x");
        std::fs::write(&path, &contents).unwrap();
        std::fs::write(dir.path().join("7/mem"), &contents).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let mapping = Mapping {
            start, end: start.saturating_add(length), offset, dev: metadata.dev(), ino: metadata.ino(),
            writable, shared: false, build_id: None, path: b"/x",
        };
        let ip = start.saturating_add(distance);
        let mut cache = CodeCache::new(dir.path(), Limits::default());
        if let Ok(window) = cache.window(at(7, ip), &mapping, 0) {
            prop_assert!(window.start >= mapping.start && window.start <= ip);
            prop_assert!(window.bytes.len() as u64 > ip - window.start);
            prop_assert!(window.bytes.len() as u64 - (ip - window.start) <= mapping.end - ip);
        }
    }
}
