//! `sym` and `dso` of lines. They are known only when all lines are written: until then the code of each is kept aside, and
//! then the lines are written once more with them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use rustc_hash::FxHashSet;

use super::Meta;
use crate::resolve::Symbols;
use crate::sample::{printable, CodeAddr};
use crate::sampler::open::monotonic_ns;

/// Different instructions that are named; a name takes some 200 bytes.
const MAX_CODES: usize = 1 << 17;
/// By so much the clocks of one boot may have been set apart.
const SAME_BOOT: f64 = 2.0;

/// The code of each line, in their order.
#[derive(Debug)]
pub struct Codes {
    file: BufWriter<File>,
    unique: FxHashSet<CodeAddr>,
    /// Lines whose instruction was one too many.
    pub unlisted: u64,
}

impl Codes {
    /// Kept in `file`, which is empty.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file: BufWriter::new(file), unique: FxHashSet::default(), unlisted: 0 }
    }

    /// The next line's.
    ///
    /// # Errors
    /// The file's.
    pub fn push(&mut self, code: Option<CodeAddr>) -> io::Result<()> {
        let known = code.filter(|code| self.unique.contains(code) || self.unique.len() < MAX_CODES);
        self.unlisted += u64::from(code.is_some() && known.is_none());
        self.unique.extend(known);
        let (module, offset) = known.map_or((0, 0), |code| (code.module.get(), code.offset));
        self.file.write_all(&module.to_le_bytes())?;
        self.file.write_all(&offset.to_le_bytes())
    }

    /// Each instruction once.
    pub fn unique(&self) -> impl Iterator<Item = CodeAddr> + '_ {
        self.unique.iter().copied()
    }

    /// Writes the lines with `sym` and `dso` where they are known: `dso` alone where the function has no name.
    ///
    /// # Errors
    /// Those of the files.
    pub fn insert(self, mut lines: impl BufRead, symbols: &Symbols, mut out: impl Write) -> io::Result<()> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        let mut codes = BufReader::new(file);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            let (mut module, mut offset) = ([0; 4], [0; 8]);
            codes.read_exact(&mut module)?;
            codes.read_exact(&mut offset)?;
            let code = NonZeroU32::new(u32::from_le_bytes(module))
                .map(|module| CodeAddr { module, offset: u64::from_le_bytes(offset) });
            if let (Some(symbol), Some(fields)) = (code.and_then(|code| symbols.get(code)), line.strip_suffix(b"}\n")) {
                out.write_all(fields)?;
                if let Some((name, _)) = &symbol.function {
                    out.write_all(b",\"sym\":")?;
                    serde_json::to_writer(&mut out, &**name)?;
                }
                out.write_all(b",\"dso\":")?;
                serde_json::to_writer(&mut out, &printable(&symbol.dso))?;
                out.write_all(b"}\n")?;
            } else {
                out.write_all(&line)?;
            }
            line.clear();
        }
        out.flush()
    }
}

/// When the recording began, where it was made on this host since it booted; `None` elsewhere.
#[must_use]
pub fn recorded_here(meta: &Meta, host: &str) -> Option<SystemTime> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
    // CLOCK_MONOTONIC counts from the boot on, so this is when the host booted.
    let booted = now - monotonic_ns() as f64 / 1e9;
    let booted_then = meta.begin_unix - meta.begin as f64 / 1e9;
    let here = meta.host.name == host && (booted - booted_then).abs() < SAME_BOOT;
    let begin = Duration::try_from_secs_f64(meta.begin_unix).ok()?;
    here.then_some(begin).and_then(|begin| SystemTime::UNIX_EPOCH.checked_add(begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{jsonl, quick};
    use crate::resolve::{symbolize, Maps, Modules, Roots, SymbolOptions};
    use crate::sample::{CpuMode, Sample, Source};

    #[test]
    fn names_are_put_into_the_lines_that_they_are_of() {
        let mut modules = Modules::new();
        let mut maps = Maps::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() }, 1 << 20);
        let kernel = modules.locate(&mut maps, 1, CpuMode::Kernel, u64::MAX - 15);
        let mut codes = Codes::new(tempfile::tempfile().unwrap());
        for code in [kernel, None, kernel] {
            codes.push(code).unwrap();
        }
        assert_eq!(codes.unique().count(), 1);
        let symbols = symbolize(&modules, codes.unique(), &SymbolOptions::default());
        let mut out = Vec::new();
        codes.insert(&b"{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n"[..], &symbols, &mut out).unwrap();
        let expected = "{\"a\":1,\"dso\":\"[kernel.kallsyms]\"}\n{\"b\":2}\n{\"c\":3,\"dso\":\"[kernel.kallsyms]\"}\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn lines_with_names_are_read_as_those_without() {
        let mut modules = Modules::new();
        let mut maps = Maps::new(&Roots { proc: "/nonexistent".into(), ..Roots::default() }, 1 << 20);
        let sample = Sample { comm: Some("web".into()), pid: 3, time: 5, record: 1, ..Sample::default() };
        let mut plain = Vec::new();
        jsonl::Writer::new(&mut plain, Source::Faults).write(&sample, Some(b"/a")).unwrap();
        let mut codes = Codes::new(tempfile::tempfile().unwrap());
        codes.push(modules.locate(&mut maps, 1, CpuMode::Kernel, u64::MAX - 15)).unwrap();
        let symbols = symbolize(&modules, codes.unique(), &SymbolOptions::default());
        let mut named = Vec::new();
        codes.insert(&plain[..], &symbols, &mut named).unwrap();
        assert!(named.len() > plain.len());
        let read = quick::parse(&named).unwrap();
        assert_eq!(read.sample, quick::parse(&plain).unwrap().sample);
    }
}
