//! A cache of the decoded code of all processes, looked up by address.

use std::sync::Arc;

use super::insn::Insn;
use super::memo::{CacheCounts, Entry, Key, Memo, MemoKind};
use super::region::{self, Region};
use super::semantics::Semantics;
use super::window::{self, Backward, CodeSource, FunctionMap};

/// The most pieces of code outside a function that it branches to and that are searched for branches back into it.
const MAX_PIECES: usize = 16;

/// The piece of code around an address, without its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here {
    key: u64,
    pub(super) bias: u64,
    base: u64,
    len: u64,
}

/// Decoded code, within a bound.
#[derive(Debug)]
pub(super) struct Decoded<I: Semantics> {
    cache: Memo<I>,
    decoder: I::Decoder,
}

impl<I: Semantics> Decoded<I> {
    /// `budget`: bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self { cache: Memo::new(budget), decoder: I::decoder() }
    }

    pub(super) fn counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    /// Returns the identity of the code at `ip`; looks it up only if `ip` is outside the previous piece.
    fn locate(code: &mut dyn CodeSource, ip: u64, here: &mut Option<Here>) -> Option<Here> {
        let inside = |here: &Here| ip.wrapping_sub(here.base) < here.len;
        if !here.as_ref().is_some_and(inside) {
            let window = code.window(ip)?;
            *here =
                Some(Here { key: window.key, bias: window.bias, base: window.base, len: window.bytes.len() as u64 });
        }
        (*here).filter(inside)
    }

    /// The instructions from `ip` on.
    pub(super) fn line(
        &mut self,
        code: &mut dyn CodeSource,
        ip: u64,
        here: &mut Option<Here>,
    ) -> Option<Arc<[Insn<I>]>> {
        let at = Self::locate(code, ip, here)?;
        let key: Key = (at.key, ip.wrapping_sub(at.bias), MemoKind::Forward);
        if let Some(Entry::Forward(insns)) = self.cache.get(&key) {
            return Some(insns);
        }
        let insns: Arc<[Insn<I>]> = window::forward(&code.window(ip)?, ip, &mut self.decoder).into();
        self.cache.insert(key, Entry::Forward(Arc::clone(&insns)));
        Some(insns)
    }

    /// The instructions before `ip`.
    pub(super) fn window(
        &mut self,
        code: &mut dyn CodeSource,
        ip: u64,
        here: &mut Option<Here>,
    ) -> Option<Arc<Backward<I>>> {
        let at = Self::locate(code, ip, here)?;
        let key: Key = (at.key, ip.wrapping_sub(at.bias), MemoKind::Backward);
        if let Some(Entry::Backward(window)) = self.cache.get(&key) {
            return Some(window);
        }
        let map = self.function(code, ip);
        let window = Arc::new(window::backward(&code.window(ip)?, map.as_deref(), ip, &mut self.decoder));
        self.cache.insert(key, Entry::Backward(Arc::clone(&window)));
        Some(window)
    }

    /// What lies between the conditional branch at `ip` and the point at which its two paths meet, if they do.
    pub(super) fn region(
        &mut self,
        code: &mut dyn CodeSource,
        ip: u64,
        here: &mut Option<Here>,
    ) -> Option<Arc<Region>> {
        let at = Self::locate(code, ip, here)?;
        let key: Key = (at.key, ip.wrapping_sub(at.bias), MemoKind::Region);
        if let Some(Entry::Region(region)) = self.cache.get(&key) {
            return region;
        }
        let region = region::find::<I>(&code.window(ip)?, ip, &mut self.decoder).map(Arc::new);
        self.cache.insert(key, Entry::Region(region.clone()));
        region
    }

    /// The map of the function around `ip`, if its range is known.
    fn function(&mut self, code: &mut dyn CodeSource, ip: u64) -> Option<Arc<FunctionMap>> {
        let window = code.window(ip)?;
        let (code_key, bias) = (window.key, window.bias);
        let range = window.function.clone().filter(|range| range.contains(&ip))?;
        let range = range.start.wrapping_sub(bias)..range.end.wrapping_sub(bias);
        let key: Key = (code_key, range.start, MemoKind::Function);
        if let Some(Entry::Function(map)) = self.cache.get(&key) {
            return Some(map);
        }
        let mut map = FunctionMap::new::<I>(&window)?;
        let mut outside = std::mem::take(&mut map.outside);
        outside.sort_unstable();
        let (mut looked_at, mut pieces) = (0..0, 0);
        for target in outside {
            if looked_at.contains(&target) {
                continue;
            }
            pieces += 1;
            match code.window(target.wrapping_add(bias)) {
                Some(other) if other.bias == bias && pieces <= MAX_PIECES => {
                    looked_at = map.add_branches_from::<I>(&other, target, &range);
                }
                _ => {
                    map.open();
                    break;
                }
            }
        }
        let map = Arc::new(map);
        self.cache.insert(key, Entry::Function(Arc::clone(&map)));
        Some(map)
    }
}
