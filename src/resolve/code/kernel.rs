//! The kernel's code, as it runs: from its memory.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use regex::bytes::RegexSet;

use super::{Origin, Window};
use crate::bpf::KernelMemory;
use crate::host::kallsyms::{self, KallsymsError};
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;
use scxprof_recover::LEADER_SPAN;

/// The kernel's image and its modules are in the highest 2 GiB (Documentation/arch/x86/x86_64/mm.rst).
pub const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// How long code counts as unchanged, ns: static keys and tracers patch it.
const CODE_LIFE: u64 = 5_000_000_000;
/// Of a longer function only the code around the address is read.
const LONG: u64 = 64 << 10;
/// Bytes after an address that its instruction may have.
const INSN: u64 = 16;
/// Programs that the kernel's compiler wrote: they come and go without a trace in the symbols that we have read.
const BPF: &[u8] = b"bpf";

/// The names of functions that take and give back memory, and count it for cgroups: mm/slub.c, mm/page_alloc.c, mm/memcontrol.c,
/// mm/page_counter.c, kernel/cgroup/rstat.c and their headers. Whoever needs memory in a cgroup accesses what all others there do.
const BOOKKEEPING: &str =
    "slab|kmem_cache|kmalloc|kfree|rmqueue|alloc_pages|free_pages|frozen_page|page_from_freelist|memcg\
                           |mem_cgroup|obj_cgroup|objcg|obj_stock|charge|page_counter|protected_usage|rstat";

/// The names of functions that make an object or end it, or a part of one, and of those that fill memory with zeros: lib/, mm/,
/// kernel/locking/, net/core/sock.c, net/unix/af_unix.c, fs/inode.c, fs/dcache.c, fs/file_table.c, fs/pipe.c.
const MAKING: &str = r"^(memset\w*|clear_page\w*|__mutex_init|\w*init_key|__init_\w+|\w+_init_once|\w*_init_always\w*|sk_alloc|sk_prot_alloc|sk_clone\w*|sock_init_data\w*|unix_create1|unix_release_sock|\w*sk_destruct|sk_free|inet_csk_clone_lock|tcp_create_openreq_child|alloc_inode|destroy_inode|__d_alloc|init_file|alloc_empty_file|alloc_pipe_info|free_pipe_info|ep_alloc|dup_fd|dup_mm|copy_process|copy_signal)$";

/// The names of functions that work with what threads use for a moment, or what all of them use: messages, routes and devices of the
/// network (net/core/skbuff.c, net/core/dev.c, net/core/dst.c, net/core/neighbour.c, net/ipv4), the directories and mounts on
/// the way to a file (fs/namei.c, fs/dcache.c, fs/namespace.c), and what a file system has for all of its files: blocks, journals,
/// directories (fs/buffer.c, fs/jbd2, fs/ext4/namei.c, fs/ext4/ialloc.c, fs/ext4/mballoc.c, fs/xfs, fs/btrfs/ctree.c).
const COMMON: &str = r"^((__)?alloc_skb\w*|(__)?skb_clone|__copy_skb_header|skb_release_\w+|(__)?kfree_skb\w*|consume_skb|skb_copy_\w+|__skb_datagram_iter|napi_\w+|dst_\w+|\w+_dst_check|ipv[46]_mtu|ip6?_(mtu|skb_dst_mtu|finish_output\w*|output|rcv\w*|local_deliver\w*|forward)|(__)?(neigh|fib|dev|netif|netdev|qdisc|nf)_\w+|validate_xmit_\w+|loopback_xmit|eth_\w+|process_backlog|enqueue_to_backlog|mntget|mntput\w*|(__)?d_\w+|dput|dget\w*|lockref_\w+|link_path_walk\w*|\w+_permission|may_open|lookup_\w+|path_\w+|walk_component|step_into\w*|pick_link|filename_\w+|find_get_block\w*|(__)?(find_get_block|bread|brelse|bforget)\w*|mark_buffer_\w+|(__)?jbd2_\w+|start_this_handle|(__)?ext4_(journal|handle_dirty|new_inode|find|add|search|check|insert|delete|generic_delete|lookup|create|unlink|mkdir|rmdir|rename|link|orphan|free|get_group|inode_table|get_inode_loc|mb|has_free|claim_free|evict)\w*|add_dirent_to_buf|recently_deleted|xlog_\w+|xfs_(trans|log|buf|da|dir|ialloc|alloc|inobt|perag|iunlink|create|remove|lookup)\w*|btrfs_(search|insert|del|release|lock|unlock|transaction|join|commit|lookup|create|unlink)\w*)$";

/// How a function uses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionKind {
    /// It works with it.
    Work,
    /// It makes an object or ends it.
    Making,
    /// It works with what is a thread's for a moment, or what all threads use.
    Common,
    /// It takes memory and gives it back, or counts it.
    Bookkeeping,
}

/// A function, up to the next one of its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    /// Distance from [`IMAGE`].
    start: u32,
    /// The number of its module.
    module: u16,
    kind: FunctionKind,
}

/// The kernel's functions, in order.
#[derive(Debug, Default)]
struct Functions(Vec<Function>);

impl Functions {
    fn read(procfs: &Path) -> Result<Self, KallsymsError> {
        let failed = |source| KallsymsError::Read { path: procfs.join("kallsyms"), source };
        let sets = RegexSet::new([MAKING, COMMON, BOOKKEEPING]).map_err(|error| failed(io::Error::other(error)))?;
        let mut functions = Vec::new();
        let mut modules: Vec<Box<[u8]>> = Vec::new();
        let text = kallsyms::open(procfs).map_err(failed)?;
        let read = kallsyms::each(text, |symbol| -> ControlFlow<()> {
            let is_code = matches!(symbol.kind, b't' | b'T' | b'w' | b'W');
            let start = symbol.address.checked_sub(IMAGE).and_then(|distance| u32::try_from(distance).ok());
            let Some(start) = start.filter(|_| is_code) else { return ControlFlow::Continue(()) };
            let module = symbol.module.unwrap_or_default();
            // Those of a module follow each other.
            if modules.last().is_none_or(|last| &**last != module) {
                modules.push(module.into());
            }
            let module = if module == BPF { u16::MAX } else { u16::try_from(modules.len()).unwrap_or(u16::MAX) };
            let kind = match sets.matches(symbol.name).iter().next() {
                Some(0) => FunctionKind::Making,
                Some(1) => FunctionKind::Common,
                Some(_) => FunctionKind::Bookkeeping,
                None => FunctionKind::Work,
            };
            functions.push(Function { start, module, kind });
            ControlFlow::Continue(())
        });
        read.map_err(failed)?;
        if functions.is_empty() {
            // Hidden addresses are 0.
            return Err(KallsymsError::Hidden { path: procfs.join("kallsyms") });
        }
        functions.sort_unstable();
        functions.dedup_by_key(|function| function.start);
        Ok(Self(functions))
    }

    /// The function with that address, and the one after it.
    fn find(&self, ip: u64) -> Option<(Function, Function)> {
        let distance = u32::try_from(ip.checked_sub(IMAGE)?).ok()?;
        let next = self.0.partition_point(|function| function.start <= distance);
        let (function, next) = (self.0.get(next.checked_sub(1)?)?, self.0.get(next)?);
        (function.module == next.module && function.module != u16::MAX).then_some((*function, *next))
    }

    /// The addresses of the function around an address.
    fn around(&self, ip: u64) -> Option<Range<u64>> {
        let (function, next) = self.find(ip)?;
        Some(IMAGE + u64::from(function.start)..IMAGE + u64::from(next.start))
    }
}

/// The kernel's code, cached for a while.
#[derive(Debug)]
pub struct KernelCode {
    memory: KernelMemory,
    functions: Functions,
    /// By the address of the function, or of the page in a long one, and when it was read.
    windows: Cache<u64, (u64, Option<Window>)>,
    keys: RandomState,
}

impl KernelCode {
    /// Reads through `memory`, and caches about `bytes`. The symbols are those under `procfs`.
    ///
    /// # Errors
    /// The symbols cannot be read, or have no addresses.
    pub(crate) fn new(memory: KernelMemory, procfs: &Path, bytes: usize) -> Result<Self, KallsymsError> {
        let functions = Functions::read(procfs)?;
        Ok(Self { memory, functions, windows: Cache::new(bytes), keys: RandomState::new() })
    }

    /// The code around `ip`, `now` in ns; `None` if it is that of no known function.
    pub fn window(&mut self, ip: u64, now: u64) -> Option<Window> {
        let function = self.functions.around(ip)?;
        let is_long = function.end - function.start > LONG;
        let at = if is_long { ip & !(LEADER_SPAN as u64 - 1) } else { function.start };
        if let Some((since, window)) = self.windows.get(&at) {
            if now.saturating_sub(*since) < CODE_LIFE {
                return window.clone();
            }
        }
        let span = LEADER_SPAN as u64;
        let around = if is_long { at - span..at.saturating_add(2 * span) } else { function.clone() };
        let window = self.read(around, function);
        let bytes = window.as_ref().map_or(0, |window| window.bytes.len());
        self.windows.insert_weighted(at, (now, window.clone()), bytes + 2 * size_of::<(u64, Window)>());
        window
    }

    /// The kernel's memory, which the code is read from.
    pub(crate) fn memory(&mut self) -> &mut KernelMemory {
        &mut self.memory
    }

    /// How the function with that instruction uses memory.
    #[must_use]
    pub fn kind(&self, ip: u64) -> FunctionKind {
        self.functions.find(ip).map_or(FunctionKind::Work, |(function, _)| function.kind)
    }

    fn read(&mut self, around: Range<u64>, function: Range<u64>) -> Option<Window> {
        let page = KernelMemory::PIECE as u64;
        let (first, end) = (around.start & !(page - 1), around.end.saturating_add(INSN));
        let mut bytes = Vec::new();
        for number in 0..(end - first).div_ceil(page) {
            match self.memory.piece(first + number * page) {
                Some(piece) => bytes.extend_from_slice(&piece),
                // The last function of a part may end with its last page.
                None if number > 0 => break,
                None => return None,
            }
        }
        let from = usize::try_from(around.start - first).ok()?;
        let to = usize::try_from(end - first).ok()?.min(bytes.len());
        let bytes: Arc<[u8]> = bytes.get(from..to)?.into();
        let key = self.keys.hash_one((around.start, &bytes));
        let (origin, is_jit) = (Origin::Memory, false);
        Some(Window { start: around.start, bytes, key, bias: 0, function: Some(function), origin, is_jit })
    }

    /// Its sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let functions = &self.functions.0;
        tables.set("functions of the kernel", functions.len(), functions.capacity() * size_of::<Function>());
        tables.set("code of the kernel", self.windows.len(), self.windows.weight());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_their_names() {
        let is = |names: &str, name: &str| RegexSet::new([names]).unwrap().is_match(name.as_bytes());
        for name in
            ["memset_orig", "__mutex_init", "timer_init_key", "inode_init_once", "sock_init_data_uid", "alloc_inode"]
        {
            assert!(is(MAKING, name), "{name}");
        }
        for name in [
            "__alloc_skb",
            "skb_release_data",
            "dst_release",
            "__dev_queue_xmit",
            "ip_finish_output2",
            "__d_lookup_rcu",
            "mntput",
        ] {
            assert!(is(COMMON, name), "{name}");
        }
        // These work with sockets, open files, tables of files and queues.
        for name in [
            "release_sock",
            "sock_alloc_send_pskb",
            "alloc_fd",
            "tcp_sendmsg_locked",
            "skb_set_owner_w",
            "fput",
            "ep_poll",
        ] {
            assert!(!is(MAKING, name) && !is(COMMON, name), "{name}");
        }
    }

    #[test]
    fn a_function_ends_at_the_next_one_of_its_module() {
        let dir = tempfile::tempdir().unwrap();
        let text = "ffffffff81000300 T after\n\
                    ffffffff81000000 T _text\n\
                    ffffffff81000100 t kmem_cache_free\n\
                    ffffffff81000200 D a_datum\n\
                    ffffffffc0001000 t first\t[a]\n\
                    ffffffffc0001100 t second\t[a]\n\
                    ffffffffc0003000 t page_counter_charge\t[b]\n\
                    ffffffffc0003080 t bpf_prog_1\t[bpf]\n\
                    ffffffffc00030c0 t bpf_prog_2\t[bpf]\n\
                    00000000000120c0 A a_constant\n";
        std::fs::write(dir.path().join("kallsyms"), text).unwrap();
        let functions = Functions::read(dir.path()).unwrap();
        let around = |ip| functions.around(ip);
        assert_eq!(around(0xffff_ffff_8100_0010), Some(0xffff_ffff_8100_0000..0xffff_ffff_8100_0100));
        assert_eq!(around(0xffff_ffff_8100_01ff), Some(0xffff_ffff_8100_0100..0xffff_ffff_8100_0300));
        assert_eq!(around(0xffff_ffff_8100_0300), None, "where the image ends is not known");
        assert_eq!(around(0xffff_ffff_c000_1000), Some(0xffff_ffff_c000_1000..0xffff_ffff_c000_1100));
        assert_eq!(around(0xffff_ffff_c000_1100), None, "nor where a module does");
        assert_eq!(around(0xffff_ffff_c000_3080), None, "programs come and go");
        assert_eq!((around(0), around(IMAGE), around(u64::MAX)), (None, None, None));
        std::fs::write(dir.path().join("kallsyms"), "0000000000000000 T _text\n").unwrap();
        let hidden = Functions::read(dir.path()).unwrap_err();
        assert!(hidden.to_string().contains("CAP_SYSLOG"), "{hidden}");
        let kind = |ip| functions.find(ip).map(|(function, _)| function.kind);
        assert_eq!(kind(0xffff_ffff_8100_0100), Some(FunctionKind::Bookkeeping));
        assert_eq!(kind(0xffff_ffff_8100_0000), Some(FunctionKind::Work));
    }
}
