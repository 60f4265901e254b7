//! Unwinds user stacks from registers and a copy of the stack, by the call frame information of files: for code without frame
//! pointers. Code that has no such information (of JIT compilers) is unwound by frame pointers.
//!
//! All registers that a rule may name are followed, so stacks go on through signal handlers and functions that align their
//! frames. Files are read as for names: only if they are those that were mapped, in pieces, and never without a time limit.

mod step;

use std::num::NonZeroU32;
use std::sync::Arc;

use crossbeam_channel::{bounded, Receiver, TryRecvError};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::symbols::{Image, KERNEL};
use super::{Maps, Modules, SymbolOptions};
use crate::host::aside::{self, NoAnswer};
use crate::sample::batch::UserContext;
use crate::sample::{CodeAddr, CpuMode};
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;
use scxprof_elf::UnwindRule;
use scxprof_perf::buildid::BuildId;
use scxprof_recover::{regs_mask, Regs, RegsError};
use step::{Copied, Registers, Step};

/// Frames of a stack.
const MAX_DEPTH: usize = 1024;
/// Bytes of what is kept of files, and at least as many for each: 128 files are open.
const MAX_IMAGES: usize = 64 << 20;
const IMAGE: usize = 512 << 10;
/// Time-outs of a file before it is given up.
const MAX_LATE: u32 = 5;
/// How long to wait for a file while samples wait.
pub(crate) const UNWIND_LIMIT: std::time::Duration = aside::SHORT;
/// Instructions with a known rule.
const MAX_RULES: usize = 1 << 15;

/// How stacks ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnwindCounts {
    /// At the first function of their thread.
    pub complete: u64,
    /// At the end of the copied part of the stack.
    pub cut: u64,
    /// At the innermost function: nothing was copied, as the page at the stack pointer was not in memory. A function that makes
    /// room for its frame does not touch it at once.
    #[serde(default)]
    pub no_copy: u64,
    /// Where the caller was not found: code without call frame information and frame pointers, or a file that could not be read.
    pub broken: u64,
    /// Where a file was not read in time.
    #[serde(default)]
    pub timed_out: u64,
    /// Of 32-bit programs, which are not unwound.
    pub compat: u64,
}

impl UnwindCounts {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.complete + self.cut + self.no_copy + self.broken + self.timed_out + self.compat
    }
}

/// Unwinds the stacks of a capture.
#[derive(Debug)]
pub(crate) struct Unwinder {
    options: SymbolOptions,
    /// The build ids of paths in a recording.
    build_ids: FxHashMap<Vec<u8>, BuildId>,
    images: Cache<NonZeroU32, Option<Arc<Image>>>,
    rules: Cache<CodeAddr, Option<Arc<UnwindRule>>>,
    /// Look-ups of each file that had no answer in time.
    late: FxHashMap<NonZeroU32, u32>,
    /// Where files come that were not opened in time.
    opening: FxHashMap<NonZeroU32, Receiver<Option<Image>>>,
    pub(crate) counts: UnwindCounts,
}

impl Unwinder {
    /// Reads files with these options. `build_ids` are those of a recording's files, each path once.
    pub(crate) fn new(options: SymbolOptions, build_ids: FxHashMap<Vec<u8>, BuildId>) -> Self {
        Self {
            options,
            build_ids,
            images: Cache::new(MAX_IMAGES),
            rules: Cache::new(MAX_RULES),
            late: FxHashMap::default(),
            opening: FxHashMap::default(),
            counts: UnwindCounts::default(),
        }
    }

    /// Adds the user frames of a sample to `frames`, the innermost first: the interrupted instruction, then calls.
    pub(crate) fn unwind(
        &mut self,
        modules: &mut Modules,
        maps: &mut Maps,
        pid: u32,
        context: &UserContext,
        frames: &mut Vec<Option<CodeAddr>>,
    ) {
        let regs = match Regs::from_perf(context.arch, context.abi, regs_mask(context.arch), &context.regs) {
            Ok(regs) => regs,
            Err(RegsError::Compat32) => {
                self.counts.compat += 1;
                return;
            }
            // A thread of the kernel.
            Err(RegsError::Missing) => return,
        };
        let stack = Copied { start: regs.sp(), bytes: &context.stack };
        let mut regs = Registers::new(&regs);
        if context.stack.is_empty() {
            frames.push(modules.locate(maps, pid, CpuMode::User, regs.ip()));
            self.counts.no_copy += 1;
            return;
        }
        // What a call returns to is after the call, which may be another function.
        let mut is_exact = true;
        let mut is_late = false;
        let end = loop {
            let address = if is_exact { regs.ip() } else { regs.ip().wrapping_sub(1) };
            // What a damaged stack has may be anything, also an address of the kernel.
            let is_user = address < KERNEL;
            let mut code = if is_user { modules.locate(maps, pid, CpuMode::User, address) } else { None };
            let mut locate = |ip: u64| modules.locate(maps, pid, CpuMode::User, ip.wrapping_sub(1));
            if code.is_none() && !is_exact && regs.narrow(|ip| locate(ip).is_some()) {
                code = locate(regs.ip());
            }
            frames.push(code);
            if frames.len() >= MAX_DEPTH {
                break Step::Wrong;
            }
            // Outside of executable memory it is no address of code.
            let Some(code) = code else { break Step::Wrong };
            let Ok(rule) = self.rule(modules, code) else {
                is_late = true;
                break Step::Wrong;
            };
            if let (true, Some(frame)) = (rule.as_ref().is_some_and(|rule| rule.is_signal), frames.last_mut()) {
                // The kernel made it return to the first instruction of the function, whose rule begins before it for this reason.
                *frame = modules.locate(maps, pid, CpuMode::User, regs.ip());
            }
            let step = match &rule {
                Some(rule) => regs.step(rule, stack),
                None => regs.step_by_frame_pointer(stack),
            };
            if step != Step::Caller {
                break step;
            }
            is_exact = rule.is_some_and(|rule| rule.is_signal);
        };
        match end {
            Step::End => self.counts.complete += 1,
            Step::Beyond => self.counts.cut += 1,
            Step::Caller | Step::Wrong if is_late => self.counts.timed_out += 1,
            Step::Caller | Step::Wrong => self.counts.broken += 1,
        }
    }

    /// The rule of an instruction; an error if its file was not read in time.
    fn rule(&mut self, modules: &Modules, code: CodeAddr) -> Result<Option<Arc<UnwindRule>>, NoAnswer> {
        if let Some(rule) = self.rules.get(&code) {
            return Ok(rule.clone());
        }
        let Some(wanted) = modules.wanted(code.module, |path| self.build_ids.get(path).copied()) else {
            return Ok(None);
        };
        let about = wanted.about();
        let options = self.options.clone();
        let image = self.image(code.module, about, move || wanted.open(&options))?;
        let rule = match image {
            Some(image) => self.in_time(code.module, about, move || image.unwind_rule(code.offset))?.map(Arc::new),
            None => None,
        };
        self.rules.insert(code, rule.clone());
        Ok(rule)
    }

    /// The file, which `open` opens. One that is opened too late, as its frame descriptions are many, is there for a later stack.
    fn image(
        &mut self,
        module: NonZeroU32,
        about: u64,
        open: impl FnOnce() -> Option<Image> + Send + 'static,
    ) -> Result<Option<Arc<Image>>, NoAnswer> {
        if let Some(image) = self.images.get(&module) {
            return Ok(image.clone());
        }
        let late = self.opening.get(&module).and_then(|opening| opening.try_recv().ok());
        let image = if let Some(image) = late {
            image
        } else {
            let (opened, opening) = bounded(1);
            let _ = self.in_time(module, about, move || drop(opened.send(open())));
            match opening.try_recv() {
                Ok(image) => image,
                Err(error) => {
                    // One that was not asked has nothing to wait for.
                    if error == TryRecvError::Empty {
                        self.opening.insert(module, opening);
                    }
                    return Err(NoAnswer);
                }
            }
        };
        self.opening.remove(&module);
        let image = image.map(Arc::new);
        let weight = IMAGE + image.as_ref().map_or(0, |image| image.bytes());
        self.images.insert_weighted(module, image.clone(), weight);
        Ok(image)
    }

    /// Asks a file, and again at a later stack if there is no answer in time: a busy disk answers then. A file that was late too
    /// often is not asked again, so that it does not hold up the rest.
    fn in_time<T: Send + 'static>(
        &mut self,
        module: NonZeroU32,
        about: u64,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        if self.late.get(&module).is_some_and(|late| *late >= MAX_LATE) {
            return Err(NoAnswer);
        }
        // While an earlier call hangs, nothing is asked, which takes no time.
        let is_stuck = aside::is_stuck(about);
        let answer = aside::within(about, UNWIND_LIMIT, ask);
        if answer.is_err() && !is_stuck {
            *self.late.entry(module).or_default() += 1;
        }
        answer
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let images = self.images.weight().saturating_sub(IMAGE * self.images.len());
        tables.set("files with call frame information", self.images.len(), self.images.bytes() + images);
        let rules = self.rules.len() * size_of::<UnwindRule>();
        tables.set("unwind rules", self.rules.len(), self.rules.bytes() + rules);
    }
}

#[cfg(test)]
mod tests {
    use scxprof_base::arch::Arch;

    use super::*;
    use crate::resolve::mapping::parse_line;

    /// Long enough for a busy machine.
    const LONG: std::time::Duration = std::time::Duration::from_secs(20);

    fn unwinder() -> Unwinder {
        Unwinder::new(SymbolOptions::default(), FxHashMap::default())
    }

    /// Waits until no look-up about this object goes on.
    fn returned(about: u64) {
        let begin = std::time::Instant::now();
        while aside::is_stuck(about) {
            assert!(begin.elapsed() < LONG, "it came back long ago");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn a_stack_in_a_file_that_is_read_too_late_is_counted_as_such_and_the_file_is_asked_again() {
        let mut maps = Maps::recorded(1 << 20);
        let mapping = parse_line(b"1000-2000 r-xp 00000000 76:54 1 /not-here/program").unwrap();
        maps.mmap(10, &mapping);
        let (mut modules, mut unwinder) = (Modules::new(), unwinder());
        // Each register is 0 but for ip, the ninth: without call frame information, this is the first function.
        let regs = (0..regs_mask(Arch::X86_64).count_ones()).map(|at| if at == 8 { 0x1234 } else { 0 }).collect();
        let context = UserContext { abi: 2, regs, stack: vec![0; 8], ..UserContext::default() };
        let code = modules.locate(&mut maps, 10, CpuMode::User, 0x1234).unwrap();
        let about = modules.wanted(code.module, |_| None).unwrap().about();
        let mut frames = Vec::new();
        // Its device does not answer.
        let (release, wait) = bounded::<()>(0);
        let hangs = move || wait.recv().is_err();
        assert_eq!(aside::within(about, std::time::Duration::from_millis(1), hangs), Err(NoAnswer));
        // More often than a file that is asked may be late.
        for _ in 0..2 * MAX_LATE {
            unwinder.unwind(&mut modules, &mut maps, 10, &context, &mut frames);
        }
        let late = UnwindCounts { timed_out: 2 * u64::from(MAX_LATE), ..UnwindCounts::default() };
        assert_eq!(unwinder.counts, late);
        drop(release);
        returned(about);
        assert_eq!(frames, vec![Some(code); 2 * MAX_LATE as usize]);
        let begin = std::time::Instant::now();
        while unwinder.counts.complete == 0 {
            assert!(begin.elapsed() < LONG && unwinder.counts.broken == 0, "{:?}", unwinder.counts);
            unwinder.unwind(&mut modules, &mut maps, 10, &context, &mut frames);
        }
    }

    #[test]
    fn a_file_that_is_opened_too_late_is_there_for_a_later_stack() {
        let (mut unwinder, module) = (unwinder(), NonZeroU32::MIN);
        let about = aside::about("opened too late");
        let (release, wait) = bounded::<()>(0);
        let opens = move || {
            let _ = wait.recv();
            None
        };
        assert!(matches!(unwinder.image(module, about, opens), Err(NoAnswer)));
        assert!(matches!(unwinder.image(module, about, || None), Err(NoAnswer)), "it is being opened");
        drop(release);
        returned(about);
        for _ in 0..2 {
            assert!(matches!(unwinder.image(module, about, || panic!("it was opened")), Ok(None)));
        }
    }

    #[test]
    fn a_file_that_is_late_too_often_is_not_asked_again() {
        let (mut unwinder, module) = (unwinder(), NonZeroU32::MIN);
        let about = aside::about("late too often");
        for _ in 0..MAX_LATE {
            let (release, wait) = bounded::<()>(0);
            assert_eq!(unwinder.in_time(module, about, move || wait.recv().is_err()), Err(NoAnswer));
            drop(release);
            returned(about);
        }
        assert_eq!(unwinder.in_time(module, about, || 5), Err(NoAnswer));
        let (asked, is_asked) = bounded(1);
        let _ = unwinder.in_time(NonZeroU32::MAX, about, move || asked.send(()));
        assert_eq!(is_asked.recv_timeout(LONG), Ok(()), "another file is");
    }
}
