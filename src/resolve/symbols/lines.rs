//! Source lines and inlined functions, from the debug information (DWARF) of a file.
//!
//! blazesym reads it. A hostile file could make it take unbounded memory, recurse until the stack overflows, crash because the
//! file is truncated while it is mapped, and open files that it names. So it runs in a separate process, `scxprof` with
//! [`ARGUMENT`], which has the file as its stdin, little memory and time, and no other file in its root directory. If that
//! process dies, there are no source lines, and nothing else is affected.
//!
//! Compressed debug information is inflated by the same process, into memory that it gives blazesym in place of the file:
//! blazesym makes room for as many bytes as a section claims, and knows no old compressed sections.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use blazesym::symbolize::source::{Elf as ElfFile, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::process::{setrlimit, DumpableBehavior, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};

use super::demangle::demangle;
use crate::sample::printable;
use scxprof_base::source_file::is_of_library;
use scxprof_elf::Elf;

/// The first argument of the process; hexadecimal addresses follow.
pub const ARGUMENT: &str = "source-lines";
/// Larger files of debug information are not read.
const MAX_FILE: u64 = 256 << 20;
/// Nor those that are larger without compression.
pub(super) const MAX_UNPACKED: u64 = 384 << 20;
/// Addresses of one process, which each reads the file anew, and how long to start more of them.
const MAX_ADDRESSES: usize = 4096;
const MORE: Duration = Duration::from_secs(2);
/// Bytes of the process's address space, into which the file is mapped, and seconds of CPU.
const MAX_MEMORY: u64 = 768 << 20;
const MAX_SECONDS: u64 = 3;
/// Bytes of its answer, and functions that may be inlined at one address.
const MAX_ANSWER: u64 = 16 << 20;
const MAX_INLINED: usize = 16;

/// The source location of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceLine {
    /// `FILE:LINE`, as far as known.
    pub source: Option<String>,
    /// Where `source` is code of a library that was inlined: the location of the innermost function around it that is not.
    pub caller: Option<String>,
    /// The functions that were inlined around it, the outermost first.
    pub inlined: Vec<String>,
}

/// Runs `program` for the lines of addresses in `file`, one for each; fewer if there is no time for all. `None` if the debug
/// information cannot be read.
pub(super) fn ask(program: &Path, file: &File, addresses: &[u64]) -> Option<Vec<Option<SourceLine>>> {
    let mut lines = Vec::new();
    if file.metadata().map_or(true, |metadata| metadata.len() > MAX_FILE) {
        return None;
    }
    let begin = Instant::now();
    for some in addresses.chunks(MAX_ADDRESSES) {
        let Some(file) = file.try_clone().ok().filter(|_| begin.elapsed() < MORE) else { break };
        let mut found = ask_once(program, file, some)?;
        found.resize(some.len(), None);
        lines.append(&mut found);
    }
    Some(lines)
}

fn ask_once(program: &Path, file: File, addresses: &[u64]) -> Option<Vec<Option<SourceLine>>> {
    let addresses = addresses.iter().map(|address| format!("{address:x}"));
    let mut command = Command::new(program);
    command.arg(ARGUMENT).args(addresses).env_clear().current_dir("/");
    let mut child = command.stdin(file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = stdout.take(MAX_ANSWER).read_to_end(&mut answer);
    }
    // It has answered, or written too much.
    let _ = child.kill();
    let _ = child.wait();
    serde_json::from_slice(&answer).ok()
}

/// The code of the process: prints the lines of `addresses` in the file that is stdin, as JSON. False on failure.
#[must_use]
pub fn answer(addresses: impl Iterator<Item = OsString>) -> bool {
    let addresses =
        addresses.map(|address| u64::from_str_radix(address.to_str()?, 16).ok()).collect::<Option<Vec<_>>>();
    let Some((addresses, descriptors)) = addresses.zip(confine()) else { return false };
    let Ok(stdin) = std::io::stdin().as_fd().try_clone_to_owned() else { return false };
    let Some(file) = unpacked(File::from(stdin)) else { return false };
    let file = format!("{descriptors}/{}", file.as_raw_fd());
    let builder = Symbolizer::builder().enable_demangling(false).set_debug_dirs::<[&Path; 0], _>(Some([]));
    let symbolizer = builder.build();
    let lines = symbolizer.symbolize(&Source::Elf(ElfFile::new(file)), Input::VirtOffset(&addresses));
    let Ok(lines) = lines else { return false };
    let lines: Vec<Option<SourceLine>> = lines.iter().map(line).collect();
    serde_json::to_writer(std::io::stdout(), &lines).is_ok()
}

/// The file, or a copy of it without compression if its debug information is compressed. `None` if it cannot be read.
fn unpacked(file: File) -> Option<File> {
    let elf = Elf::parse(&mut &file).ok()?;
    if elf.packing(&mut &file).is_none() {
        return Some(file);
    }
    let copy = File::from(memfd_create("unpacked", MemfdFlags::CLOEXEC).ok()?);
    elf.unpack(&file, &copy, MAX_UNPACKED)?;
    Some(copy)
}

/// Takes from this process all that it does not need, and returns the path of its descriptors. `None` if something that could
/// do harm is left.
fn confine() -> Option<&'static str> {
    let limit = |resource, value| setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).ok();
    limit(Resource::As, MAX_MEMORY)?;
    limit(Resource::Cpu, MAX_SECONDS)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).ok()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok()?;
    // Only descriptors can be opened in a root directory of our descriptors; the working directory must be there too
    // (chroot(2)). Without the right to do this, only files that the user can open anyway are left.
    match rustix::process::chroot("/proc/self/fd") {
        Ok(()) => rustix::process::chdir("/").is_ok().then_some(""),
        Err(_) if rustix::process::geteuid().is_root() => None,
        Err(_) => Some("/proc/self/fd"),
    }
}

/// The location in the innermost function, which contains the instruction; the others have the location of the call.
fn line(symbol: &Symbolized<'_>) -> Option<SourceLine> {
    let Symbolized::Sym(Sym { code_info, inlined, .. }) = symbol else { return None };
    let location = |info: Option<&CodeInfo<'_>>| {
        let info = info?;
        Some(format!("{}:{}", printable(info.to_path().as_os_str().as_bytes()), info.line?))
    };
    let mut outward = inlined.iter().rev().map(|inlined| inlined.code_info.as_ref()).chain([code_info.as_deref()]);
    let source = outward.next().and_then(location);
    let is_inlined = source.as_deref().is_some_and(is_of_library);
    let caller = if is_inlined { outward.filter_map(location).find(|caller| !is_of_library(caller)) } else { None };
    let inlined: Vec<String> = inlined.iter().take(MAX_INLINED).map(|function| demangle(&function.name)).collect();
    (source.is_some() || !inlined.is_empty()).then_some(SourceLine { source, caller, inlined })
}
