//! Call stacks of samples: each is kept once, with the location of each frame in its file.

use std::sync::Arc;

use perf_event_open_sys::bindings as sys;
use rustc_hash::FxHashMap;

use super::symbols::KERNEL;
use super::{Maps, Modules, Unwinder};
use crate::sample::batch::UserContext;
use crate::sample::{CodeAddr, CpuMode, StackId};
use scxprof_base::tables::Tables;

/// Different stacks that are kept; samples of later ones have none.
const MAX_STACKS: usize = 1 << 18;
/// The frames of all of them, of 16 bytes each.
const MAX_FRAMES: usize = 4 << 20;
/// Frames of one stack that are kept, of which the kernel gives 127 (`kernel.perf_event_max_stack`) and unwinding more.
const MAX_DEPTH: usize = 1024;

/// The stacks of a capture.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    list: Vec<Arc<[Option<CodeAddr>]>>,
    numbers: FxHashMap<Arc<[Option<CodeAddr>]>, StackId>,
    frames: usize,
    left_out: u64,
    scratch: Vec<Option<CodeAddr>>,
}

impl Stacks {
    /// The frames of a stack, the innermost first: the location of the sampled instruction, and of the call in each caller. `None`
    /// is a frame in no known object.
    #[must_use]
    pub fn frames(&self, stack: StackId) -> &[Option<CodeAddr>] {
        self.list.get(stack.0 as usize).map_or(&[], |frames| frames)
    }

    /// All stacks, by their number.
    pub fn iter(&self) -> impl Iterator<Item = (StackId, &[Option<CodeAddr>])> {
        (0..).map(StackId).zip(self.list.iter().map(|frames| &**frames))
    }

    /// The locations of all frames, some of them several times.
    pub fn codes(&self) -> impl Iterator<Item = CodeAddr> + '_ {
        self.list.iter().flat_map(|frames| frames.iter().copied().flatten())
    }

    /// The number of stacks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Samples whose stack was not kept, as there was no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The number of the stack of a sample at `ip` with the call chain of its context, which has the kernel's marks (`PERF_CONTEXT_*` in
    /// linux/perf_event.h): after each the addresses are of another mode. User code is unwound
    /// from registers, if the context has them and there is an unwinder.
    pub(crate) fn intern(
        &mut self,
        modules: &mut Modules,
        maps: &mut Maps,
        unwinder: Option<&mut Unwinder>,
        (pid, mode, ip): (u32, CpuMode, u64),
        context: Option<&UserContext>,
    ) -> Option<StackId> {
        let callchain = context.map_or(&[][..], |context| &context.callchain);
        let unwinder = unwinder.zip(context.filter(|context| !context.regs.is_empty()));
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        let mut mode = mode;
        // The first address is that of the sample, the others are where a call returns to: the call is before that, which may be
        // another function or line.
        let mut is_innermost = true;
        for &address in callchain {
            match context_mode(address) {
                Some(other) => mode = other,
                None if mode == CpuMode::User && unwinder.is_some() => {}
                None if frames.len() < MAX_DEPTH => {
                    let at = if is_innermost || is_entry(&frames, mode) { address } else { address.wrapping_sub(1) };
                    // The kernel follows a register that a function without a frame pointer uses otherwise: what it finds
                    // there as user code may be anything, also 0 or an address of the kernel.
                    let is_wrong = mode == CpuMode::User && at >= KERNEL;
                    frames.push(if is_wrong { None } else { modules.locate(maps, pid, mode, at) });
                    is_innermost = false;
                }
                None => {}
            }
        }
        if let Some((unwinder, context)) = unwinder {
            unwinder.unwind(modules, maps, pid, context, &mut frames);
        }
        if frames.is_empty() {
            frames.push(modules.locate(maps, pid, mode, ip));
        }
        let known = self.numbers.get(&*frames).copied();
        let stack = known.or_else(|| self.add(&frames));
        self.left_out += u64::from(stack.is_none());
        self.scratch = frames;
        stack
    }

    fn add(&mut self, frames: &[Option<CodeAddr>]) -> Option<StackId> {
        if self.list.len() >= MAX_STACKS || self.frames + frames.len() > MAX_FRAMES {
            return None;
        }
        let stack = StackId(self.list.len() as u32);
        let frames: Arc<[Option<CodeAddr>]> = frames.into();
        self.frames += frames.len();
        self.list.push(Arc::clone(&frames));
        self.numbers.insert(frames, stack);
        Some(stack)
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let frames = self.frames * size_of::<Option<CodeAddr>>();
        let room = self.numbers.capacity();
        tables.set_map::<(Arc<[u64]>, StackId)>("call stacks", self.list.len(), room, frames);
    }
}

/// True for the first frame of user code above kernel code: the address is where the program entered the kernel, and is no return
/// address.
fn is_entry(frames: &[Option<CodeAddr>], mode: CpuMode) -> bool {
    let is_kernel = |frame: &Option<CodeAddr>| frame.is_some_and(|code| code.offset >= KERNEL);
    mode == CpuMode::User && frames.last().is_some_and(is_kernel)
}

/// For a mark: the mode of the addresses after it.
fn context_mode(address: u64) -> Option<CpuMode> {
    match address {
        sys::PERF_CONTEXT_KERNEL => Some(CpuMode::Kernel),
        sys::PERF_CONTEXT_USER => Some(CpuMode::User),
        sys::PERF_CONTEXT_HV => Some(CpuMode::Hypervisor),
        sys::PERF_CONTEXT_GUEST | sys::PERF_CONTEXT_GUEST_KERNEL => Some(CpuMode::GuestKernel),
        sys::PERF_CONTEXT_GUEST_USER => Some(CpuMode::GuestUser),
        sys::PERF_CONTEXT_MAX.. => Some(CpuMode::Unknown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::{identity, Mapping};

    const KERNEL_MARK: u64 = sys::PERF_CONTEXT_KERNEL;
    const USER_MARK: u64 = sys::PERF_CONTEXT_USER;

    fn context(chain: &[u64]) -> UserContext {
        UserContext { callchain: chain.into(), ..UserContext::default() }
    }

    fn process() -> (Modules, Maps) {
        let mut maps = Maps::recorded(1 << 20);
        let (prot, flags) = ((libc::PROT_READ | libc::PROT_EXEC) as u32, libc::MAP_PRIVATE as u32);
        let path = b"/bin/app".as_slice().into();
        let (dev, ino, generation, scope) = (1, 1, 0, identity::scope(1, b"/bin/app"));
        let mapping = Mapping {
            start: 0x1000,
            len: 0x9000,
            pgoff: 0,
            prot,
            flags,
            dev,
            ino,
            generation,
            scope,
            build_id: None,
            path,
        };
        maps.mmap(7, &mapping);
        (Modules::new(), maps)
    }

    #[test]
    fn callers_are_located_at_their_call() {
        let ((mut modules, mut maps), mut stacks) = (process(), Stacks::default());
        let kernel = 0xffff_ffff_8100_0000;
        let mut intern = |mode, ip, chain: &[u64]| {
            let stack = stacks.intern(&mut modules, &mut maps, None, (7, mode, ip), Some(&context(chain))).unwrap();
            let frames = stacks.frames(stack).iter().map(|frame| frame.map(|code| code.offset)).collect::<Vec<_>>();
            (stack, frames)
        };
        let user = [USER_MARK, 0x1500, 0x1600, 0x1700, 0xbad_0000];
        let (first, frames) = intern(CpuMode::User, 0x1500, &user);
        assert_eq!(frames, [Some(0x500), Some(0x5ff), Some(0x6ff), None]);
        let both = [KERNEL_MARK, kernel, kernel + 16, USER_MARK, 0x1500, 0x1600];
        let (second, frames) = intern(CpuMode::Kernel, kernel, &both);
        assert_eq!(frames, [Some(kernel), Some(kernel + 15), Some(0x500), Some(0x5ff)]);
        // Another process with the same file has the same stack; here it is the same.
        assert_eq!(intern(CpuMode::User, 0x1500, &user).0, first);
        assert_ne!(first, second);
        // The kernel could not walk the stack.
        assert_eq!(intern(CpuMode::User, 0x1502, &[]).1, [Some(0x502)]);
        // What is no frame, above a function that has none.
        let junk = [USER_MARK, 0x1500, 0, kernel, 0x1600];
        assert_eq!(intern(CpuMode::User, 0x1500, &junk).1, [Some(0x500), None, None, Some(0x5ff)]);
        assert_eq!((stacks.len(), stacks.left_out()), (4, 0));
    }

    #[test]
    fn stacks_are_bounded() {
        let ((mut modules, mut maps), mut stacks) = (process(), Stacks::default());
        let long: Vec<u64> = (0..5000).map(|at| 0x1000 + at % 0x8000).collect();
        let stack = stacks.intern(&mut modules, &mut maps, None, (7, CpuMode::User, 0), Some(&context(&long))).unwrap();
        assert_eq!(stacks.frames(stack).len(), MAX_DEPTH);
        for number in 0..2 * MAX_FRAMES as u64 / MAX_DEPTH as u64 {
            let chain: Vec<u64> =
                (0..MAX_DEPTH as u64).map(|at| 0x1000 + (at * number) % 0x8000 + number % 7).collect();
            stacks.intern(&mut modules, &mut maps, None, (7, CpuMode::User, 0), Some(&context(&chain)));
        }
        assert!(stacks.frames <= MAX_FRAMES && stacks.left_out() > 0);
    }
}
