//! The kernel's symbols, from `/proc/kallsyms`, and the functions among them that the timer source needs.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::number;

/// Functions that the tick's hrtimer calls: `tick_nohz_handler` since Linux 6.8, `tick_sched_timer` before
/// (kernel/time/tick-sched.c). Before 6.8 there was a `tick_nohz_handler` too, but no hrtimer calls that one.
const HANDLERS: [&str; 2] = ["tick_nohz_handler", "tick_sched_timer"];

/// The code through which a timer's interrupt enters the kernel (arch/x86/include/asm/idtentry.h): the local APIC, the clocks
/// of Hyper-V and Xen, any other device (HPET, PIT), and both entries of CPUs with FRED. FRED's user entry is also that of
/// system calls. On arm64 the vectors of interrupts, of either kind, from user code and
/// from the kernel (arch/arm64/kernel/entry.S).
const ENTRIES: [&str; 12] = [
    "asm_sysvec_apic_timer_interrupt",
    "asm_sysvec_hyperv_stimer0",
    "asm_sysvec_hyperv_callback",
    "asm_sysvec_xen_hvm_callback",
    "asm_exc_xen_hypervisor_callback",
    "asm_common_interrupt",
    "asm_fred_entrypoint_user",
    "asm_fred_entrypoint_kernel",
    "el0t_64_irq",
    "el0t_64_fiq",
    "el1h_64_irq",
    "el1h_64_fiq",
];

/// Why the kernel's symbols could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KallsymsError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Every address is shown as zero (`kernel.kptr_restrict`, no `CAP_SYSLOG`).
    #[error("{} hides the kernel's addresses (kernel.kptr_restrict, CAP_SYSLOG)", path.display())]
    Hidden {
        /// The file.
        path: PathBuf,
    },
}

/// What was read, and below which directory.
static KNOWN: Mutex<Option<(PathBuf, Kallsyms)>> = Mutex::new(None);

/// The symbols that the timer source needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kallsyms {
    /// Addresses of the tick's handler; several if both names exist.
    pub handlers: Vec<u64>,
    /// The code of the interrupt entries, each up to the next symbol.
    pub entries: Vec<Range<u64>>,
    /// BPF programs find the registers that an interrupt saved: `__irq_regs`, which is no function, and is here only where the kernel
    /// has the symbols of its data too (`CONFIG_KALLSYMS_ALL`).
    pub has_irq_regs: bool,
    /// The function that runs softirqs in the task that raised them, at once (kernel/softirq.c).
    pub softirq: Option<Range<u64>>,
}

impl Kallsyms {
    /// Reads `kallsyms` under `procfs` (`/proc`).
    ///
    /// # Errors
    /// The file cannot be read or shows zeros for addresses.
    pub fn read(procfs: &Path) -> Result<Self, KallsymsError> {
        let path = procfs.join("kallsyms");
        match open(procfs).and_then(Self::parse) {
            Ok(Some(symbols)) => Ok(symbols),
            Ok(None) => Err(KallsymsError::Hidden { path }),
            Err(source) => Err(KallsymsError::Read { path, source }),
        }
    }

    /// As [`Kallsyms::read`], but a process reads them only once: they do not change until the next boot, and who samples in many
    /// short slices would spend more on them than on sampling.
    ///
    /// # Errors
    /// As there.
    pub fn read_once(procfs: &Path) -> Result<Self, KallsymsError> {
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, symbols)) = known().as_ref().filter(|it| it.0 == procfs) {
            return Ok(symbols.clone());
        }
        let symbols = Self::read(procfs)?;
        *known() = Some((procfs.to_owned(), symbols.clone()));
        Ok(symbols)
    }

    /// Reads the symbols; `None` if every address is zero.
    fn parse(lines: impl BufRead) -> io::Result<Option<Self>> {
        let mut symbols = Self::default();
        let mut starts = Vec::new();
        let mut softirq = None;
        let mut addresses = Vec::new();
        each(lines, |symbol| -> ControlFlow<()> {
            let Symbol { address, kind, name, module } = *symbol;
            symbols.has_irq_regs |= address != 0 && name == b"__irq_regs" && module.is_none();
            if address == 0 || !kind.eq_ignore_ascii_case(&b't') || module.is_some() {
                return ControlFlow::Continue(());
            }
            addresses.push(address);
            if name == b"do_softirq" || name.starts_with(b"do_softirq.") {
                // The compiler may divide it; the part does the work.
                softirq = softirq.filter(|_| name == b"do_softirq").or(Some(address));
            }
            if HANDLERS.iter().any(|handler| handler.as_bytes() == name) {
                symbols.handlers.push(address);
            }
            if ENTRIES.iter().any(|entry| entry.as_bytes() == name) {
                starts.push(address);
            }
            ControlFlow::Continue(())
        })?;
        if addresses.is_empty() {
            return Ok(None);
        }
        addresses.sort_unstable();
        // The file is not sorted by address, and one address may have several names.
        let up_to_next = |start: u64| {
            let end = addresses.get(addresses.partition_point(|&address| address <= start))?;
            Some(start..*end)
        };
        symbols.entries = starts.into_iter().filter_map(up_to_next).collect();
        symbols.softirq = softirq.and_then(up_to_next);
        Ok(Some(symbols))
    }
}

/// A line `ADDRESS TYPE NAME`, with `[MODULE]` if the symbol belongs to one. A hidden address is 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol<'a> {
    pub address: u64,
    pub kind: u8,
    pub name: &'a [u8],
    /// Without the brackets.
    pub module: Option<&'a [u8]>,
}

/// The text of `kallsyms` under `procfs`.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open(procfs: &Path) -> io::Result<BufReader<File>> {
    File::open(procfs.join("kallsyms")).map(|file| BufReader::with_capacity(1 << 16, file))
}

/// Passes each symbol to `take`, in the order of the file, which is not that of addresses, until it breaks.
///
/// # Errors
/// The text cannot be read to its end.
pub(crate) fn each<T>(
    mut text: impl BufRead,
    mut take: impl FnMut(&Symbol<'_>) -> ControlFlow<T>,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if let Some(ControlFlow::Break(found)) = split(&line).as_ref().map(&mut take) {
            return Ok(Some(found));
        }
    }
}

fn split(line: &[u8]) -> Option<Symbol<'_>> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let address = number(words.next()?, 16)?;
    let &[kind] = words.next()? else { return None };
    let name = words.next()?;
    let module =
        words.next().map(|word| word.strip_prefix(b"[").and_then(|word| word.strip_suffix(b"]")).unwrap_or(word));
    Some(Symbol { address, kind, name, module })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Option<Kallsyms> {
        Kallsyms::parse(text).unwrap()
    }

    #[test]
    fn a_process_reads_them_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kallsyms");
        std::fs::write(&path, "0000000000000000 t tick_nohz_handler\n").unwrap();
        assert!(Kallsyms::read_once(dir.path()).is_err());
        std::fs::write(&path, "ffffffff81000000 t tick_nohz_handler\n").unwrap();
        let read = Kallsyms::read_once(dir.path()).unwrap();
        assert_eq!(read.handlers, [0xffff_ffff_8100_0000]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Kallsyms::read_once(dir.path()).unwrap(), read);
        assert!(Kallsyms::read_once(&dir.path().join("elsewhere")).is_err());
    }

    #[test]
    fn finds_handler_and_entry_in_an_unsorted_file() {
        let symbols = parse(
            b"ffffffff814332e0 t tick_nohz_handler\n\
              ffffffff81000e10 T asm_sysvec_x86_platform_ipi\n\
              ffffffff81000e00 D a_datum\n\
              ffffffff81000df0 T asm_sysvec_apic_timer_interrupt\n\
              ffffffff81000df0 T an_alias\n\
              ffffffff81000a00 T asm_common_interrupt\n\
              ffffffffc0001000 t tick_sched_timer\t[a_module]\n",
        )
        .unwrap();
        assert_eq!(symbols.handlers, [0xffff_ffff_8143_32e0]);
        let [timer, device] =
            [0xffff_ffff_8100_0df0..0xffff_ffff_8100_0e10, 0xffff_ffff_8100_0a00..0xffff_ffff_8100_0df0];
        assert_eq!(symbols.entries, [timer, device]);
    }

    #[test]
    fn finds_where_softirqs_run_and_registers_are() {
        let symbols = parse(
            b"ffffffff81000200 T do_softirq\n\
              ffffffff81000100 t do_softirq.part.0\n\
              ffffffff81000180 T __do_softirq\n\
              ffffffff81000300 t other\n\
              ffffffff82000000 d __irq_regs\n",
        )
        .unwrap();
        assert_eq!(symbols.softirq, Some(0xffff_ffff_8100_0100..0xffff_ffff_8100_0180), "the part does the work");
        assert!(symbols.has_irq_regs);
        let symbols = parse(b"ffffffff81000200 T do_softirq\nffffffff81000300 t other\n").unwrap();
        assert_eq!(symbols.softirq, Some(0xffff_ffff_8100_0200..0xffff_ffff_8100_0300));
        assert!(!symbols.has_irq_regs);
    }

    #[test]
    fn zeros_are_hidden_addresses() {
        assert_eq!(parse(b"0000000000000000 t tick_nohz_handler\n0000000000000000 T _text\n"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn says_which_file_it_could_not_read() {
        let error = Kallsyms::read(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/kallsyms"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = parse(&text);
        }
    }
}
