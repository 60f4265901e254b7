//! The code of a process: bytes from `/proc/PID/mem`, function ranges from `readelf`.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;

use scxprof_recover::{CodeSource, CodeWindow};

struct Text {
    path: String,
    base: u64,
    bias: u64,
    bytes: Vec<u8>,
    functions: Vec<Range<u64>>,
}

/// The executable mappings of a process.
pub struct Code {
    memory: File,
    /// Mapped files that the process may read only.
    constant: Vec<Range<u64>>,
    texts: Vec<Text>,
    /// Whether to give the functions, or to let the recovery work without them.
    pub with_functions: bool,
}

/// One line of `/proc/PID/maps`.
pub struct Mapping {
    pub range: Range<u64>,
    pub perms: String,
    pub offset: u64,
    pub path: String,
}

pub fn mappings(pid: i32) -> Vec<Mapping> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let hex = |word: &str| u64::from_str_radix(word, 16).ok();
            let (start, end) = (hex(start)?, hex(end)?);
            let perms = words.next()?.to_owned();
            let offset = hex(words.next()?)?;
            let path = words.nth(2).unwrap_or_default().to_owned();
            Some(Mapping { range: start..end, perms, offset, path })
        })
        .collect()
}

/// Function ranges in the file's own addresses, from its `.eh_frame`.
fn functions(path: &str) -> Vec<Range<u64>> {
    // What readelf says of a program that was built for a machine without one.
    let text = if std::env::var_os("SCXPROF_BUILT").is_some() {
        std::fs::read_to_string(format!("{path}.frames")).unwrap_or_default()
    } else {
        let Ok(output) = Command::new("readelf").args(["--debug-dump=frames", path]).output() else {
            return Vec::new();
        };
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mut ranges: Vec<Range<u64>> = text
        .lines()
        .filter_map(|line| {
            let (start, end) = line.split_once(" pc=")?.1.split_once("..")?;
            let hex = |word: &str| u64::from_str_radix(word.trim(), 16).ok();
            Some(hex(start)?..hex(end)?)
        })
        .collect();
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// The load bias of a file's executable segment that is mapped at `mapping`.
fn bias(mapping: &Mapping) -> Option<u64> {
    let output = Command::new("readelf").args(["-lW", &mapping.path]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let (kind, offset, vaddr) = (words.first()?, hex(words.get(1)?)?, hex(words.get(2)?)?);
        (*kind == "LOAD" && offset & !0xfff == mapping.offset).then(|| mapping.range.start.wrapping_sub(vaddr & !0xfff))
    })
}

impl Code {
    pub fn of(pid: i32) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).expect("/proc/PID/mem");
        let mut known: HashMap<String, Vec<Range<u64>>> = HashMap::new();
        let mut texts = Vec::new();
        for mapping in mappings(pid).into_iter().filter(|mapping| mapping.perms.contains('x')) {
            let mut bytes = vec![0; (mapping.range.end - mapping.range.start) as usize];
            if memory.read_exact_at(&mut bytes, mapping.range.start).is_err() {
                continue;
            }
            let bias = bias(&mapping).unwrap_or(0);
            let functions = known.entry(mapping.path.clone()).or_insert_with(|| functions(&mapping.path)).clone();
            texts.push(Text { path: mapping.path, base: mapping.range.start, bias, bytes, functions });
        }
        let constant = mappings(pid)
            .into_iter()
            .filter(|mapping| mapping.perms.starts_with("r-") && mapping.perms.ends_with('p'))
            .filter(|mapping| mapping.path.starts_with('/'))
            .map(|mapping| mapping.range)
            .collect();
        Self { memory, constant, texts, with_functions: true }
    }

    /// All functions of the process.
    pub fn functions(&self) -> Vec<Range<u64>> {
        let moved = |text: &Text| {
            let bias = text.bias;
            text.functions
                .iter()
                .map(move |range| range.start.wrapping_add(bias)..range.end.wrapping_add(bias))
                .collect::<Vec<_>>()
        };
        self.texts.iter().filter(|text| text.path.contains("libc")).flat_map(moved).collect()
    }
}

impl CodeSource for Code {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        let (index, text) =
            self.texts.iter().enumerate().find(|(_, text)| ip.wrapping_sub(text.base) < text.bytes.len() as u64)?;
        let own = ip.wrapping_sub(text.bias);
        let after = text.functions.partition_point(|range| range.start <= own);
        let function = after
            .checked_sub(1)
            .and_then(|at| text.functions.get(at))
            .filter(|range| self.with_functions && range.contains(&own))
            .map(|range| range.start.wrapping_add(text.bias)..range.end.wrapping_add(text.bias));
        Some(CodeWindow {
            key: index as u64 * 2 + u64::from(self.with_functions),
            bias: text.bias,
            base: text.base,
            bytes: &text.bytes,
            function,
            jit: false,
        })
    }

    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        self.constant.iter().find(|range| range.contains(&addr))?;
        let mut bytes = [0; 8];
        self.memory.read_exact_at(bytes.get_mut(..size as usize)?, addr).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}
