//! Functions of the kernel and its modules, from `/proc/kallsyms` in one pass; and the build id of the kernel.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;

use super::Named;
use crate::host::{kallsyms, number, read, Roots};
use scxprof_perf::buildid::BuildId;

/// The end of the kernel's own code; what follows it is freed after boot, or is no code.
const END: &[u8] = b"_etext";
/// Code outside modules has no end either (`[bpf]`, trampolines): symbols farther away are not trusted.
const NEAR: u64 = 4096;

/// The best symbol so far for an address: the nearest before it.
#[derive(Debug, Clone, Default)]
struct Best {
    address: u64,
    name: Vec<u8>,
    module: Option<Vec<u8>>,
}

/// Names for sorted addresses. There are none if kallsyms hides its addresses.
pub(super) fn names(roots: &Roots, addresses: &[u64]) -> Vec<Option<Named>> {
    let Some(kallsyms) = open(roots) else { return Vec::new() };
    let modules = read(&roots.proc.join("modules")).unwrap_or_default();
    parse(kallsyms, &modules, addresses)
}

/// The same for addresses of another boot of this kernel, in which `symbol` was at `address`. Modules may be elsewhere now, so
/// only the kernel's own code is named.
pub(super) fn names_of_another_boot(
    roots: &Roots,
    addresses: &[u64],
    symbol: &[u8],
    address: u64,
) -> Vec<Option<Named>> {
    let Some(now) = address_of(roots, symbol) else { return Vec::new() };
    let Some(kallsyms) = open(roots) else { return Vec::new() };
    let before = addresses.partition_point(|&other| other < address);
    let behind = addresses.get(before..).unwrap_or_default();
    let moved: Vec<u64> = behind.iter().map_while(|other| (other - address).checked_add(now)).collect();
    let own = |name: &Named| name.dso.is_none();
    let names = parse(kallsyms, b"", &moved).into_iter().map(|name| name.filter(own));
    std::iter::repeat_n(None, before).chain(names).collect()
}

/// The address of a kernel symbol; `None` if there is none of that name, or if kallsyms hides its addresses.
pub(super) fn address_of(roots: &Roots, symbol: &[u8]) -> Option<u64> {
    let is_it = |found: &kallsyms::Symbol<'_>| match found.module {
        None if found.name == symbol => ControlFlow::Break(found.address),
        _ => ControlFlow::Continue(()),
    };
    kallsyms::each(open(roots)?, is_it).ok()?.filter(|&address| address != 0)
}

/// The build id of the running kernel.
pub(super) fn build_id(roots: &Roots) -> Option<BuildId> {
    let notes = read(&roots.sys.join("kernel/notes")).ok()?;
    scxprof_elf::build_id(&mut &notes[..], 0, notes.len() as u64).as_deref().map(BuildId::new)
}

fn open(roots: &Roots) -> Option<BufReader<File>> {
    kallsyms::open(&roots.proc).ok()
}

fn parse(text: impl BufRead, modules: &[u8], addresses: &[u64]) -> Vec<Option<Named>> {
    // A symbol is kept for the first address that is not below it; the addresses after that look back.
    let mut best: Vec<Best> = vec![Best::default(); addresses.len()];
    let mut end = 0;
    // Symbols that can no longer be read are missing.
    let _ = kallsyms::each(text, |symbol| -> ControlFlow<()> {
        let kallsyms::Symbol { address, kind, name, module } = *symbol;
        if name == END && module.is_none() {
            end = address;
        }
        let is_code = address != 0 && matches!(kind, b't' | b'T' | b'w' | b'W');
        let best = best.get_mut(addresses.partition_point(|&wanted| wanted < address)).filter(|_| is_code);
        // Of several names of one address the last, as in perf: __x64_sys_fork and not __ia32_sys_fork.
        if let Some(best) = best.filter(|best| address >= best.address) {
            *best = Best { address, name: name.to_owned(), module: module.map(<[u8]>::to_owned) };
        }
        ControlFlow::Continue(())
    });
    let mut nearest: Option<Best> = None;
    let mut names = Vec::with_capacity(addresses.len());
    for (best, &address) in best.into_iter().zip(addresses) {
        if best.address > nearest.as_ref().map_or(0, |nearest| nearest.address) {
            nearest = Some(best);
        }
        names.push(nearest.as_ref().and_then(|nearest| named(nearest, address, end, modules)));
    }
    names
}

fn named(best: &Best, address: u64, end: u64, modules: &[u8]) -> Option<Named> {
    let offset = address - best.address;
    let holds = match &best.module {
        None => address < end,
        Some(module) => match range(modules, module) {
            Some((start, size)) => address.wrapping_sub(start) < size && best.address >= start,
            None => offset < NEAR,
        },
    };
    let name = String::from_utf8(best.name.clone()).ok()?;
    let dso = best.module.as_ref().map(|module| [b"[", &module[..], b"]"].concat());
    holds.then_some(Named { name, offset, dso })
}

/// The range of a module, from a line `NAME SIZE REFCOUNT DEPENDENCIES STATE ADDRESS` of `/proc/modules`.
fn range(modules: &[u8], name: &[u8]) -> Option<(u64, u64)> {
    modules.split(|&byte| byte == b'\n').find_map(|line| {
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        if words.next()? != name {
            return None;
        }
        let size = number(words.next()?, 10)?;
        let address = words.nth(3)?.strip_prefix(b"0x")?;
        Some((number(address, 16)?, size)).filter(|&(start, _)| start != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KALLSYMS: &[u8] = b"ffffffff81002000 T later\n\
        ffffffff81000000 T _stext\n\
        ffffffff81001000 t __local\n\
        ffffffff81001000 T __x_global_of_more\n\
        ffffffff81001000 T global\n\
        ffffffff81001800 D data\n\
        ffffffff81003000 T _etext\n\
        ffffffff82000000 T _sinittext\n\
        ffffffffc0001000 t of_module\t[a_module]\n\
        ffffffffc0008000 t bpf_prog_1\t[bpf]\n";

    fn name(address: u64) -> Option<(String, u64, Option<Vec<u8>>)> {
        let names = parse(KALLSYMS, b"a_module 16384 0 - Live 0xffffffffc0000000\n", &[0xffff_ffff_8000_0000, address]);
        names[1].clone().map(|named| (named.name, named.offset, named.dso))
    }

    #[test]
    fn the_nearest_function_before_an_address_is_its() {
        assert_eq!(name(0xffff_ffff_8100_1900), Some(("global".to_owned(), 0x900, None)));
        assert_eq!(name(0xffff_ffff_8100_2000), Some(("later".to_owned(), 0, None)));
        assert_eq!(name(0xffff_ffff_c000_1004), Some(("of_module".to_owned(), 4, Some(b"[a_module]".to_vec()))));
        assert_eq!(name(0xffff_ffff_c000_8010), Some(("bpf_prog_1".to_owned(), 16, Some(b"[bpf]".to_vec()))));
    }

    #[test]
    fn what_is_beyond_known_code_has_no_name() {
        for address in [0xffff_ffff_8100_3000, 0xffff_ffff_8200_0010, 0xffff_ffff_c000_4000, 0xffff_ffff_c000_9000] {
            assert_eq!(name(address), None, "{address:#x}");
        }
        let zeros =
            parse(&b"0000000000000000 T _stext\n0000000000000000 T _etext\n"[..], b"", &[0xffff_ffff_8100_0000]);
        assert_eq!(zeros, [None]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(text in prop::collection::vec(any::<u8>(), 0..500), modules in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text[..], &modules, &[0, 5, u64::MAX]);
        }

        #[test]
        fn many_addresses_get_what_one_gets(mut addresses in prop::collection::vec(0xffff_ffff_80ff_f000u64..0xffff_ffff_8100_4000, 1..50)) {
            addresses.sort_unstable();
            addresses.dedup();
            let all = parse(KALLSYMS, b"", &addresses);
            for (named, &address) in all.iter().zip(&addresses) {
                prop_assert_eq!(named, &parse(KALLSYMS, b"", &[address])[0]);
            }
        }
    }
}
