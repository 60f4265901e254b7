use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::resolve::Mapping;
use crate::sample::MemoryScope;

/// A host of files under a directory, with the test's own program at `/bin/prog` and one process that maps it.
struct Host {
    _dir: tempfile::TempDir,
    roots: Roots,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("files");
        fs::create_dir_all(files.join("bin")).unwrap();
        fs::copy("/proc/self/exe", files.join("bin/prog")).unwrap();
        let roots = Roots { proc: dir.path().join("proc"), files, ..Roots::default() };
        let own = roots.proc.join("self");
        fs::create_dir_all(&own).unwrap();
        std::os::unix::fs::symlink("/proc/self/fd", own.join("fd")).unwrap();
        Self { _dir: dir, roots }
    }

    fn map(&self, pid: u32, dev: u64, ino: u64) {
        let process = self.roots.proc.join(pid.to_string());
        fs::create_dir_all(&process).unwrap();
        let (major, minor) = (libc::major(dev), libc::minor(dev));
        let text = format!("10000000-50000000 r-xp 00000000 {major:02x}:{minor:02x} {ino} /bin/prog\n");
        fs::write(process.join("maps"), text).unwrap();
    }

    fn file(&self) -> std::path::PathBuf {
        self.roots.files.join("bin/prog")
    }

    fn options(&self, begin: Option<SystemTime>) -> SymbolOptions {
        SymbolOptions { roots: self.roots.clone(), begin, cache: Some(self.roots.files.join("cache")), lines: None }
    }

    fn later() -> SystemTime {
        SystemTime::now() + std::time::Duration::from_secs(60)
    }
}

/// The offset of this function in the file.
#[inline(never)]
extern "C" fn a_function_to_be_found(seed: u64) -> u64 {
    std::hint::black_box(seed).rotate_left(7) ^ 0x5eed
}

fn offset_of_the_function() -> u64 {
    let address = a_function_to_be_found as *const () as usize as u64;
    let maps = fs::read("/proc/self/maps").unwrap();
    let mapping = maps
        .split(|&byte| byte == b'\n')
        .filter_map(super::super::mapping::parse_line)
        .find(|mapping| mapping.start <= address && address < mapping.end())
        .unwrap();
    address - mapping.start + mapping.pgoff
}

fn name_of(host: &Host, pid: u32, begin: Option<SystemTime>) -> Symbol {
    let mut maps = Maps::new(&host.roots, 1 << 20);
    let mut modules = Modules::new();
    let code = modules.locate(&mut maps, pid, CpuMode::User, 0x1000_0000 + offset_of_the_function()).unwrap();
    modules.finish(&maps);
    symbolize(&modules, [code, code], &host.options(begin)).get(code).unwrap().clone()
}

#[test]
fn a_file_is_read_where_it_is_the_one_that_was_mapped() {
    let host = Host::new();
    let metadata = fs::metadata(host.file()).unwrap();
    host.map(40, metadata.dev(), metadata.ino());
    let symbol = name_of(&host, 40, Some(Host::later()));
    let (name, offset) = symbol.function.clone().expect("named");
    assert!(name.contains("a_function_to_be_found"), "{symbol}");
    assert_eq!(offset, 0);
    assert!(symbol.to_string().ends_with("+0x0 (prog)"), "{symbol}");

    assert_eq!(name_of(&host, 40, None).function, None, "an inode says nothing on another host");
    host.map(40, metadata.dev(), metadata.ino() + 1);
    let other = name_of(&host, 40, Some(Host::later()));
    assert_eq!(other.function, None, "another inode");
    assert_eq!(other.to_string(), format!("prog+{:#x}", offset_of_the_function()));
}

#[test]
fn a_file_that_changed_since_is_not_read() {
    let host = Host::new();
    let metadata = fs::metadata(host.file()).unwrap();
    host.map(40, metadata.dev(), metadata.ino());
    let begin = metadata.modified().unwrap() + std::time::Duration::from_secs(5);
    assert!(name_of(&host, 40, Some(begin)).function.is_some());
    let mut file = fs::OpenOptions::new().append(true).open(host.file()).unwrap();
    file.write_all(b"more").unwrap();
    file.set_modified(begin + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(name_of(&host, 40, Some(begin)).function, None);
}

#[test]
fn a_build_id_finds_the_file_of_a_process_that_is_gone() {
    let host = Host::new();
    let id = scxprof_elf::Elf::parse(&mut &fs::File::open(host.file()).unwrap()).unwrap();
    let Some(id) = id.build_id().map(BuildId::new) else {
        println!("SKIP: a_build_id_finds_the_file_of_a_process_that_is_gone: this test has no build id");
        return;
    };
    let name = |id| {
        let mut maps = Maps::new(&host.roots, 1 << 20);
        maps.exec(41);
        let mapping = Mapping {
            start: 0x1000_0000,
            len: 0x4000_0000,
            pgoff: 0,
            prot: 5,
            flags: 2,
            dev: 0,
            ino: 0,
            generation: 0,
            scope: Some(MemoryScope::device(0, 0)),
            build_id: Some(id),
            path: Arc::from(&b"/bin/prog"[..]),
        };
        maps.mmap(41, &mapping);
        let mut modules = Modules::new();
        let code = modules.locate(&mut maps, 41, CpuMode::User, 0x1000_0000 + offset_of_the_function()).unwrap();
        maps.exit(41);
        let symbols = symbolize(&modules, [code], &host.options(None));
        symbols.get(code).unwrap().function.clone()
    };
    assert!(name(id).unwrap().0.contains("a_function_to_be_found"));
    assert_eq!(name(BuildId::new(&[7; 20])), None, "another build");
    // By links to its build id; and if another file has its path.
    let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at(2);
    let kept = host.roots.files.join("kept");
    fs::rename(host.file(), &kept).unwrap();
    fs::write(host.file(), "another").unwrap();
    assert_eq!(name(id), None);
    for (dir, file) in [("usr/lib/debug/.build-id", ""), ("usr/lib/.build-id", ""), ("cache/.build-id", "elf")] {
        let link = host.roots.files.join(dir).join(first).join(rest).join(file);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let link = link.to_str().unwrap().trim_end_matches('/');
        std::os::unix::fs::symlink(&kept, link).unwrap();
        assert!(name(id).is_some(), "{link}");
        fs::remove_file(link).unwrap();
    }
}

/// The inputs of names in a recording.
fn recorded(maps: &mut Maps, codes: &[(u32, u64)], build_ids: &[(&[u8], BuildId)]) -> (Modules, Vec<CodeAddr>) {
    let mut modules = Modules::new();
    let codes = codes.iter().map(|&(pid, ip)| modules.locate(maps, pid, CpuMode::User, ip).unwrap()).collect();
    modules.finish_recorded(build_ids.iter().map(|(path, id)| (path.to_vec(), *id)).collect());
    (modules, codes)
}

#[test]
fn a_build_id_of_one_path_is_not_taken_for_another_file_of_that_path() {
    let host = Host::new();
    host.map(40, 1, 2);
    host.map(41, 1, 3);
    let (one, two) = (BuildId::new(&[1; 20]), BuildId::new(&[2; 20]));
    let ids = |pids: &[u32], build_ids: &[BuildId]| {
        let mut maps = Maps::new(&host.roots, 1 << 20);
        let codes: Vec<_> = pids.iter().map(|&pid| (pid, 0x1000_0010)).collect();
        let build_ids: Vec<_> = build_ids.iter().map(|&id| (&b"/bin/prog"[..], id)).collect();
        let (modules, codes) = recorded(&mut maps, &codes, &build_ids);
        codes.iter().map(|code| modules.get(code.module).unwrap().build_id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&[40], &[one]), [Some(one)]);
    assert_eq!(ids(&[40, 41], &[one]), [None, None], "of which of the two?");
    assert_eq!(ids(&[40, 41], &[one, one]), [Some(one), Some(one)]);
    assert_eq!(ids(&[40, 41], &[one, two]), [None, None]);
    assert_eq!(ids(&[40], &[one, two]), [None]);
}

#[test]
fn damaged_files_give_no_names_and_do_no_harm() {
    let host = Host::new();
    let whole = fs::read(host.file()).unwrap();
    // Section headers are at the end: zeros, noise and a truncation at places spread over the file.
    for step in 0..12u64 {
        let mut bytes = whole.clone();
        let at = (whole.len() as u64 * step / 12) as usize;
        match step % 3 {
            0 => bytes.truncate(at),
            1 => bytes[at..].iter_mut().step_by(97).for_each(|byte| *byte ^= 0x5a),
            _ => bytes.splice(at..(at + 4096).min(whole.len()), []).for_each(drop),
        }
        fs::write(host.file(), bytes).unwrap();
        let metadata = fs::metadata(host.file()).unwrap();
        host.map(40, metadata.dev(), metadata.ino());
        let _ = name_of(&host, 40, Some(Host::later()));
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_read_does_no_harm() {
    let host = Host::new();
    let whole = fs::metadata(host.file()).unwrap();
    host.map(40, whole.dev(), whole.ino());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(host.file()).unwrap();
            // The file is filled with zeros again; its beginning stays, so that it always is a program.
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                file.set_len(4096).unwrap();
                file.set_len(whole.len()).unwrap();
            }
        });
        for _ in 0..300 {
            let _ = name_of(&host, 40, Some(Host::later()));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn code_of_one_file_is_the_same_in_every_process() {
    let host = Host::new();
    host.map(40, 1, 2);
    host.map(41, 1, 2);
    host.map(42, 1, 3);
    let mut maps = Maps::new(&host.roots, 1 << 20);
    let mut modules = Modules::new();
    let mut at = |pid, ip| modules.locate(&mut maps, pid, CpuMode::User, ip);
    assert_eq!(at(40, 0x1000_0010), at(41, 0x1000_0010));
    assert_ne!(at(40, 0x1000_0010), at(42, 0x1000_0010));
    assert_eq!(at(40, 0x6000_0000), None);
    let kernel = modules.locate(&mut maps, 40, CpuMode::Kernel, 0xffff_ffff_8100_0000).unwrap();
    assert_eq!(Some(kernel), modules.locate(&mut maps, 42, CpuMode::Unknown, 0xffff_ffff_8100_0000));
    let symbols = symbolize(&modules, [kernel], &host.options(None));
    assert_eq!(symbols.get(kernel).unwrap().to_string(), "[kernel.kallsyms]+0xffffffff81000000");
}

#[test]
fn what_is_mapped_anew_is_found_anew() {
    let mut maps = Maps::recorded(1 << 20);
    let mut modules = Modules::new();
    let mapping = |path: &[u8], start| Mapping {
        start,
        len: 0x1000,
        pgoff: 0x2000,
        prot: 5,
        flags: 2,
        dev: 1,
        ino: path.len() as u64,
        generation: 0,
        scope: Some(MemoryScope::device(0, 0)),
        build_id: None,
        path: path.into(),
    };
    let mut at = |maps: &mut Maps, pid, ip| {
        let code = modules.locate(maps, pid, CpuMode::User, ip)?;
        let again = modules.locate(maps, pid, CpuMode::User, ip);
        assert_eq!(again, Some(code));
        let path = modules.get(code.module)?.path().to_vec();
        Some((String::from_utf8(path).unwrap(), code.offset))
    };
    let found = |path: &str, offset| Some((path.to_owned(), offset));
    maps.exec(40);
    maps.mmap(40, &mapping(b"/a", 0x1000));
    assert_eq!(at(&mut maps, 40, 0x1010), found("/a", 0x2010));
    assert_eq!(at(&mut maps, 40, 0x1fff), found("/a", 0x2fff));
    assert_eq!(at(&mut maps, 40, 0x2000), None);
    assert_eq!(at(&mut maps, 41, 0x1010), None);
    maps.fork(41, 40);
    assert_eq!(at(&mut maps, 41, 0x1010), found("/a", 0x2010));
    maps.mmap(40, &mapping(b"/bb", 0x1800));
    assert_eq!(at(&mut maps, 40, 0x1010), found("/a", 0x2010));
    assert_eq!(at(&mut maps, 40, 0x1810), found("/bb", 0x2010));
    assert_eq!(at(&mut maps, 41, 0x1810), found("/a", 0x2810));
    // Memory without a file replaces it.
    maps.mmap(40, &Mapping { ino: 0, path: (*b"//anon").into(), ..mapping(b"", 0x1000) });
    assert_eq!(at(&mut maps, 40, 0x1010), found("[anon]", 0x1010));
    maps.exec(41);
    assert_eq!(at(&mut maps, 41, 0x1010), None);
    maps.exit(40);
    assert_eq!(at(&mut maps, 40, 0x1010), None);
}

#[test]
fn the_vdso_is_the_same_everywhere() {
    let mut maps = Maps::new(&Roots::default(), 1 << 20);
    let text = fs::read("/proc/self/maps").unwrap();
    let mut mappings = text.split(|&byte| byte == b'\n').filter_map(super::super::mapping::parse_line);
    let Some(vdso) = mappings.find(|mapping| &*mapping.path == VDSO) else {
        println!("SKIP: the_vdso_is_the_same_everywhere: no vdso here");
        return;
    };
    let mut modules = Modules::new();
    let mut codes = Vec::new();
    for ip in (vdso.start..vdso.end()).step_by(64) {
        codes.extend(modules.locate(&mut maps, std::process::id(), CpuMode::User, ip));
    }
    let named = |modules: &Modules, begin| {
        let options = SymbolOptions { begin, ..SymbolOptions::default() };
        let symbols = symbolize(modules, codes.iter().copied(), &options);
        let names: Vec<_> = symbols.iter().filter_map(|(_, symbol)| symbol.function.as_ref()).collect();
        names.iter().any(|(name, _)| name.contains("clock_gettime"))
    };
    assert!(named(&modules, Some(SystemTime::now())));
    assert!(!named(&modules, None), "of another host");
    let own = host_build_ids(&Roots::default());
    let own: Vec<_> = own.iter().map(|(path, id)| (path.to_vec(), *id)).collect();
    assert!(own.iter().any(|(path, _)| path == VDSO), "{own:?}");
    modules.finish_recorded(own);
    assert!(named(&modules, None), "of a host with the same vdso");
    modules.finish_recorded(vec![(VDSO.to_vec(), BuildId::new(&[7; 20]))]);
    assert!(!named(&modules, None));
}

#[test]
fn the_vdso_of_a_32_bit_program_is_not_ours() {
    let host = Host::new();
    let process = host.roots.proc.join("40");
    fs::create_dir_all(&process).unwrap();
    fs::write(process.join("maps"), "f7f90000-f7f92000 r-xp 00000000 00:00 0   [vdso]\n").unwrap();
    let mut maps = Maps::new(&host.roots, 1 << 20);
    let mut modules = Modules::new();
    let code = modules.locate(&mut maps, 40, CpuMode::User, 0xf7f9_0570).unwrap();
    let symbols = symbolize(&modules, [code], &host.options(Some(Host::later())));
    assert_eq!(symbols.get(code).unwrap().to_string(), "[vdso]+0x570");
}

#[test]
fn the_kernel_is_named_where_it_is_the_same_build() {
    let host = Host::new();
    let sys = host.roots.files.join("sys");
    fs::create_dir_all(sys.join("kernel")).unwrap();
    let roots = Roots { sys: sys.clone(), ..host.roots.clone() };
    let notes = [&[4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[1, 2, 3, 0]].concat();
    fs::write(sys.join("kernel/notes"), notes).unwrap();
    let kallsyms = "ffffffff91000000 T _text\nffffffff91000100 T do_it\nffffffff91000200 T _etext\n";
    fs::write(roots.proc.join("kallsyms"), kallsyms).unwrap();
    let mut maps = Maps::recorded(1 << 20);
    let ips = [0xffff_ffff_8100_0110, 0xffff_ffff_8100_0210, 0xffff_ffff_c000_0110];
    let mut name = |id: &[u8], begin| {
        let codes: Vec<_> = ips.iter().map(|&ip| (40, ip)).collect();
        let (mut modules, codes) = recorded(&mut maps, &codes, &[(KERNEL_NAME, BuildId::new(id))]);
        modules.kernel_mapping(b"/bin/x", 5);
        modules.kernel_mapping(b"[kernel.kallsyms]_text", 0xffff_ffff_8100_0000);
        let options = SymbolOptions { roots: roots.clone(), begin, ..SymbolOptions::default() };
        let symbols = symbolize(&modules, codes.iter().copied(), &options);
        codes.iter().map(|&code| symbols.get(code).unwrap().to_string()).collect::<Vec<_>>()
    };
    let [first, second, module] = ips.map(|ip| format!("[kernel.kallsyms]+{ip:#x}"));
    let expected = ["do_it+0x10 ([kernel.kallsyms])".to_owned(), second.clone(), module.clone()];
    assert_eq!(name(&[1, 2, 3], None), expected, "the same build of another boot");
    let unnamed = [first, second, module];
    assert_eq!(name(&[1, 2, 4], None), unnamed, "another build");
    assert_eq!(name(&[1, 2, 3], Some(SystemTime::now())), unnamed, "of this boot the addresses are what they are");
}

#[test]
fn paths_of_code_are_bounded_in_bytes() {
    let mut maps = Maps::recorded(1 << 20);
    let mut modules = Modules::new();
    let count = MAX_PATH_BYTES as u64 / 4000 + 10;
    for number in 0..count {
        let mapping = Mapping {
            start: 0x1000,
            len: 0x1000,
            pgoff: 0,
            prot: libc::PROT_EXEC as u32,
            flags: libc::MAP_PRIVATE as u32,
            dev: 1,
            ino: number,
            generation: 0,
            scope: Some(MemoryScope::device(0, 0)),
            build_id: None,
            path: format!("/{number:05}{}", "x".repeat(3994)).into_bytes().into(),
        };
        maps.mmap(10, &mapping);
        let found = modules.locate(&mut maps, 10, CpuMode::User, 0x1000);
        assert_eq!(found.is_some(), (number + 1) * 4000 <= MAX_PATH_BYTES as u64);
    }
    assert_eq!(modules.unlisted(), count - MAX_PATH_BYTES as u64 / 4000);
    assert!(modules.left_out().unwrap().starts_with(&format!("the code of {} accesses", modules.unlisted())));
}
