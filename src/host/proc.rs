//! The one door to the files of procfs that show a process or thread (stat, statm, status and comm) and the memory (meminfo), and
//! lines of `name: value` in other files.
//!
//! The crate procfs-core parses stat and statm, which are the same on every kernel. status and meminfo are looked through for the
//! one line that is wanted: the crate refuses the whole file if one of many lines is missing or another one is not as it expects.
//! gVisor's status has no `Uid`, `Groups` or `SigIgn` and its meminfo no `Slab`, but they have `CapEff`, `Seccomp` and `MemAvailable`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use procfs_core::process::{Stat, StatM};
use procfs_core::FromRead;

use super::{number, Roots};
use crate::sample::Comm;

/// Bytes of a file that are read. The longest is a status with 65,536 groups (`NGROUPS_MAX` in linux/limits.h) of 11 bytes.
const MAX_BYTES: u64 = 1 << 20;

/// At most 1 MiB of a file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    super::read_part(path, MAX_BYTES)
}

/// The `stat` of the process or thread that this directory of procfs shows; `None` if it has ended.
pub(crate) fn stat(task: &Path) -> Option<Stat> {
    parse_stat(&read(&task.join("stat")).ok()?)
}

/// A `stat` file (proc_pid_stat(5)); `None` for other text. The name in it may hold any byte.
#[must_use]
pub fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(bytes);
    let line = text.trim();
    // The crate cuts off one byte before the name and one behind it without a look, and panics where they are not there.
    let (begin, end) = (line.find('(')?, line.rfind(')')?);
    let is_name = begin < end && line.get(..begin)?.ends_with(' ') && line.get(end + 1..)?.starts_with(' ');
    is_name.then(|| Stat::from_read(line.as_bytes()).ok())?
}

/// Bytes of resident memory of this process.
pub(crate) fn resident_bytes(roots: &Roots) -> Option<u64> {
    let statm = read(&roots.proc.join("self/statm")).ok()?;
    Some(StatM::from_read(&*statm).ok()?.resident.saturating_mul(rustix::param::page_size() as u64))
}

/// A field of the `status` of the process or thread that this directory shows (proc_pid_status(5)).
pub(crate) fn status(task: &Path, name: &str) -> Option<Vec<u8>> {
    Some(field(&read(&task.join("status")).ok()?, name)?.to_vec())
}

/// The whole `status`.
pub(crate) fn whole_status(task: &Path) -> Option<Vec<u8>> {
    read(&task.join("status")).ok()
}

/// A field of the `status` that begins with a number which fits into 32 bits: an id.
pub(crate) fn status_id(task: &Path, name: &str) -> Option<u32> {
    u32::try_from(first_number(&status(task, name)?)?).ok()
}

/// A field of our own `status`.
pub(crate) fn own_status(roots: &Roots, name: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&status(&roots.proc.join("self"), name)?).into_owned())
}

/// A bit mask of our own `status`, such as `CapEff` (linux/capability.h) or `SigIgn`; `None` if procfs does not show it.
pub(crate) fn own_mask(roots: &Roots, name: &str) -> Option<u64> {
    number(own_status(roots, name)?.as_bytes(), 16)
}

/// The capabilities that we have, by their bits; `None` if procfs does not show them.
pub(crate) fn capabilities(roots: &Roots) -> Option<u64> {
    own_mask(roots, "CapEff")
}

/// A figure of `meminfo`, in KiB.
pub(crate) fn memory(roots: &Roots, name: &str) -> Option<u64> {
    first_number(field(&read(&roots.proc.join("meminfo")).ok()?, name)?)
}

/// The name of the process or thread that this directory shows, as records have it.
pub(crate) fn comm(task: &Path) -> Option<Comm> {
    let mut buffer = [0; 128];
    Some(parse_comm(comm_file(task, &mut buffer)?))
}

/// True if procfs shows the process or thread of this directory with this name.
pub(crate) fn has_name(task: &Path, name: Comm) -> bool {
    comm_file(task, &mut [0; 128]).and_then(|text| text.strip_suffix(b"\n")) == Some(name.as_bytes())
}

/// What the `comm` of the directory holds. The buffer is longer than any name with the work that procfs appends to it, 64 bytes
/// (`proc_task_name` in fs/proc/array.c); procfs gives all of it at once, and at the start each thread's is read.
fn comm_file<'a>(task: &Path, buffer: &'a mut [u8; 128]) -> Option<&'a [u8]> {
    let mut file = File::open(task.join("comm")).ok()?;
    loop {
        match file.read(buffer) {
            Ok(len) => return buffer.get(..len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// The value of the first line `name: value`, without the blanks around it.
#[must_use]
pub fn field<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let at = line.iter().position(|&byte| byte == b':')?;
        let (key, value) = line.split_at(at);
        (key.trim_ascii() == name.as_bytes()).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// The model of the first processor, by the content of `cpuinfo`. Arm's have numbers there and no name: of those that servers have, the
/// name that Arm and the vendors give them (MIDR_EL1; the parts in arch/arm64/include/asm/cputype.h).
#[must_use]
pub fn cpu_model(cpuinfo: &[u8]) -> Option<String> {
    let text = |name| field(cpuinfo, name).map(|value| String::from_utf8_lossy(value).into_owned());
    if let Some(model) = text("model name").filter(|model| !model.is_empty()) {
        return Some(model);
    }
    let (implementer, part) = (text("CPU implementer")?, text("CPU part")?);
    let name = match (implementer.as_str(), part.as_str()) {
        ("0x41", "0xd08") => "Cortex-A72",
        ("0x41", "0xd0c") => "Neoverse-N1",
        ("0x41", "0xd40") => "Neoverse-V1",
        ("0x41", "0xd49") => "Neoverse-N2",
        ("0x41", "0xd4f") => "Neoverse-V2",
        ("0x41", "0xd84") => "Neoverse-V3",
        ("0x41", "0xd8e") => "Neoverse-N3",
        ("0x48", "0xd01") => "Kunpeng 920",
        ("0x6d", "0xd49") => "Azure Cobalt 100",
        ("0xc0", "0xac3" | "0xac4") => "AmpereOne",
        _ => return Some(format!("CPU implementer {implementer}, part {part}")),
    };
    Some(name.to_owned())
}

/// The number at the beginning of a value: a figure of meminfo, in KiB, or the first of several.
#[must_use]
pub fn first_number(value: &[u8]) -> Option<u64> {
    number(value.split(u8::is_ascii_whitespace).next()?, 10)
}

/// The name in a `comm` file, without the newline at its end.
///
/// procfs shows a workqueue worker with its current work, "kworker/0:1-events" or "kworker/0:1+events". The thread's name,
/// which records contain and schedulers match, is the part before it (`wq_worker_comm` in kernel/workqueue.c).
fn parse_comm(text: &[u8]) -> Comm {
    let mut name = text.strip_suffix(b"\n").unwrap_or(text);
    if name.starts_with(b"kworker/") {
        let colon = name.iter().position(|&byte| byte == b':').unwrap_or(name.len());
        let work = name.iter().skip(colon).position(|&byte| byte == b'-' || byte == b'+');
        name = work.and_then(|at| name.get(..colon + at)).unwrap_or(name);
    }
    Comm::new(name)
}

#[cfg(test)]
pub(crate) mod tests {
    use procfs_core::process::Status;
    use procfs_core::{FromBufRead, Meminfo};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_found_whatever_bytes_are_beside_them() {
        let status = b"Name:\ta: b\xff\nUid:\t1000\t0\t0\t0\nNSpid:\t77\t5\nCapEff:\t000001ffffffffff\n";
        assert_eq!(field(status, "Name"), Some(&b"a: b\xff"[..]));
        assert_eq!(field(status, "Uid").and_then(first_number), Some(1000));
        assert_eq!(field(status, "pid"), None);
        assert_eq!(field(b"model name\t: A\nmodel\t\t: 5\n", "model"), Some(&b"5"[..]));
        assert_eq!(field(b"MemTotal:       16316452 kB\n", "MemTotal").and_then(first_number), Some(16_316_452));
    }

    #[test]
    fn processors_have_a_model_by_name_or_by_number() {
        let model = |text: &str| cpu_model(text.as_bytes());
        assert_eq!(model("processor\t: 0\nmodel name\t: A B\n").as_deref(), Some("A B"));
        let arm = |implementer, part| {
            model(&format!(
                "processor\t: 0\nCPU implementer\t: {implementer}\nCPU variant\t: 0x3\nCPU part\t: {part}\n"
            ))
        };
        assert_eq!(arm("0x41", "0xd0c").as_deref(), Some("Neoverse-N1"));
        assert_eq!(arm("0x41", "0xfff").as_deref(), Some("CPU implementer 0x41, part 0xfff"));
        assert_eq!(model(""), None);
    }

    /// The `stat` of a process, whole.
    pub(crate) fn stat_text(pid: u32, name: &str, parent: u32) -> String {
        format!("{pid} ({name}) S {parent}{}\n", " 0".repeat(48))
    }

    #[test]
    fn kworkers_are_named_without_their_work() {
        assert_eq!(parse_comm(b"kworker/0:1-events\n"), Comm::from("kworker/0:1"));
        assert_eq!(parse_comm(b"kworker/u8:1+flush-254:0\n"), Comm::from("kworker/u8:1"));
        assert_eq!(parse_comm(b"kworker/R-xfs-a\n"), Comm::from("kworker/R-xfs-a"));
        assert_eq!(parse_comm(b"web-1:2-x\n"), Comm::from("web-1:2-x"));
    }

    /// What the crate says of this process's whole files, and what a look-up finds there, is the same.
    #[test]
    fn whole_files_say_the_same_to_the_crate() {
        let roots = Roots::default();
        let own = roots.proc.join("self");
        let status = Status::from_buf_read(&*read(&own.join("status")).unwrap());
        let meminfo = Meminfo::from_buf_read(&*read(&roots.proc.join("meminfo")).unwrap());
        let (Ok(status), Ok(meminfo)) = (status, meminfo) else {
            return println!("SKIP: whole_files_say_the_same_to_the_crate: the files of this kernel are not whole");
        };
        assert_eq!(status_id(&own, "Tgid"), u32::try_from(status.tgid).ok());
        assert_eq!(status_id(&own, "Uid"), Some(status.ruid));
        assert_eq!(own_mask(&roots, "CapEff"), Some(status.capeff));
        assert_eq!(own_mask(&roots, "SigIgn"), Some(status.sigign));
        assert_eq!(own_status(&roots, "Seccomp"), status.seccomp.map(|mode| mode.to_string()));
        // The crate has bytes.
        assert_eq!(memory(&roots, "MemTotal").map(|kib| kib * 1024), Some(meminfo.mem_total));
        assert_eq!(memory(&roots, "MemAvailable").is_some(), meminfo.mem_available.is_some());
        let stat = stat(&own).unwrap();
        assert_eq!((stat.pid, stat.ppid), (status.pid, status.ppid));
        assert!(resident_bytes(&roots).unwrap() > 0);
    }

    #[test]
    fn partial_files_say_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let own = dir.path().join("self");
        std::fs::create_dir(&own).unwrap();
        // As gVisor writes them.
        let status = "Name:\tx\nState:\tR (running)\nTgid:\t7\nPid:\t7\nCapEff:\t00000000a80425fb\nSeccomp:\t0\n";
        let meminfo = "MemTotal:        2097152 kB\nMemAvailable:    1048576 kB\nSwapCache:             0 kB\n";
        assert!(
            Status::from_buf_read(status.as_bytes()).is_err() && Meminfo::from_buf_read(meminfo.as_bytes()).is_err()
        );
        std::fs::write(own.join("status"), status).unwrap();
        std::fs::write(dir.path().join("meminfo"), meminfo).unwrap();
        assert_eq!((capabilities(&roots), status_id(&own, "Tgid")), (Some(0xa804_25fb), Some(7)));
        assert_eq!((own_status(&roots, "Seccomp").as_deref(), status_id(&own, "Uid")), (Some("0"), None));
        assert_eq!((memory(&roots, "MemAvailable"), memory(&roots, "MemTotal")), (Some(1 << 20), Some(2 << 20)));
    }

    #[test]
    fn a_stat_without_a_name_is_none() {
        for text in
            ["", "(x) S 1", "1(x) S 1", "é(x) S 1", "1 (x)", "1 (x)é", "1 )x( S 1", "1 ( S", "1 ) S", "1 (x) S 1"]
        {
            assert!(parse_stat(text.as_bytes()).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_file_without_an_end_is_read_in_part() {
        assert_eq!(read(Path::new("/dev/zero")).unwrap().len() as u64, MAX_BYTES);
    }

    proptest! {
        #[test]
        fn any_stat_is_one_or_none(stat in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_stat(&stat);
        }

        #[test]
        fn a_changed_stat_is_one_or_none(
            (mut at, mut to) in (0..140usize, proptest::collection::vec(any::<u8>(), 0..4)),
            cut in 0..140usize,
        ) {
            let mut stat = stat_text(7, "a b) (", 1).into_bytes();
            at = at.min(stat.len());
            stat.splice(at..stat.len().min(at + 1), to.drain(..));
            let _ = parse_stat(&stat);
            let _ = parse_stat(stat.get(..cut).unwrap_or(&stat));
            let _ = parse_stat(stat.get(cut..).unwrap_or(&stat));
        }

        #[test]
        fn any_name_leaves_a_stat_whole(name in "[^\0]{0,15}", parent in 0..1u32 << 22) {
            prop_assert_eq!(parse_stat(stat_text(7, &name, parent).as_bytes()).map(|stat| stat.ppid as u32), Some(parent));
        }

        #[test]
        fn any_name_is_read_back(comm in proptest::collection::vec(1u8.., 0..15)) {
            prop_assume!(!comm.starts_with(b"kworker/"));
            let mut text = comm.clone();
            text.push(b'\n');
            let parsed = parse_comm(&text);
            prop_assert_eq!(parsed.as_bytes(), &comm[..]);
        }

        #[test]
        fn any_bytes_have_a_field_or_none(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = field(&text, "Uid").and_then(first_number);
        }
    }
}
