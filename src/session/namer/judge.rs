//! Decides which accesses of kernel code tell the thread's work.

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::bpf::{FilePage, Owned};
use crate::resolve::code::kernel::FunctionKind;
use crate::resolve::frames::{FrameFlags, Frames};
use crate::sample::{MemoryId, LINE_SIZE, PAGE_SIZE};
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;
use scxprof_recover::{Unrecovered, KERNEL_HALF};

/// Tasks, and pages of bookkeeping, that are distinguished.
const MAX_TASKS: usize = 1 << 16;
/// The owner of an object that has none.
pub(super) const NOBODY: (u64, u64) = (0, 0);
/// An object counts from this access on: what is made and ended all the time seldom lives to have as many.
const PROVEN: u8 = 3;

/// The place of an access of kernel code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory of the process.
    User,
    /// The kernel's, at this physical address; with its identity if it is of a file in memory or of an object.
    Kernel(u64, Option<MemoryId>),
    /// Memory that does not tell the thread's work.
    Nobodys(Nobodys),
}

/// Why memory does not tell the thread's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nobodys {
    /// Per-CPU memory.
    PerCpu,
    /// A `task_struct`.
    Task,
    /// The stacks, the kernel's image and its modules, and what is mapped elsewhere a second time.
    NotMapped,
    /// Memory of the allocators, and of the accounting of memory.
    Allocators,
    /// Memory that was taken at boot.
    Reserved,
    /// Memory that no second CPU has accessed so far.
    OneCpu,
    /// An object that is being made, or is too new to tell whether it stays.
    New,
    /// Memory that belongs to a thread for one message or call, or is used by all threads.
    Common,
    /// An object that was another's before.
    Reused,
}

impl Place {
    /// The kernel's memory that is meant, if any; `has_stores` is false if loads alone are sampled.
    pub(super) fn memory(self, has_stores: bool) -> Option<MemoryId> {
        match self {
            Self::Kernel(_, Some(memory)) => Some(memory),
            // Pages pass from one thread to the next, as those with a message's bytes do. That is only seen where they are written.
            Self::Kernel(phys, None) if has_stores => Some(MemoryId::kernel(phys)),
            Self::Kernel(_, None) | Self::User | Self::Nobodys(_) => None,
        }
    }
}

impl Nobodys {
    /// A short name.
    pub(super) fn name(self) -> &'static str {
        match self {
            // As the one by gs.
            Self::PerCpu => Unrecovered::PerCpu.name(),
            Self::Task => "a task",
            Self::NotMapped => "the kernel's image or stack",
            Self::Allocators => "the allocators",
            Self::Reserved => "taken at boot",
            Self::OneCpu => "one CPU only",
            Self::New => "a new object",
            Self::Common => "messages, routes and names",
            Self::Reused => "an object that was another's",
        }
    }
}

/// Tells what accesses mean.
#[derive(Debug)]
pub(super) struct Judge {
    pub(super) frames: Frames,
    /// The addresses of the tasks that were sampled. Whoever runs before or after a thread accesses its `task_struct`.
    tasks: BTreeSet<u64>,
    /// Bytes of one.
    task_size: u64,
    /// Pages with data of the allocators.
    bookkeeping: FxHashSet<u64>,
    /// The users of an object, or of a page outside the page cache, by its physical address.
    users: Cache<u64, Users>,
    /// The objects in pages, by the address of their `struct page`, and when that was looked up.
    pub(super) slabs: Cache<u64, (u64, Option<Slab>)>,
    /// The files of pages, by the address of their `struct page`, and when that was looked up.
    pub(super) files: Cache<u64, (u64, Option<FilePage>)>,
    /// Where the root of the file system of a device is mounted, at the beginning.
    pub(super) mounts: FxHashMap<u64, Vec<u8>>,
}

/// The user of memory at an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    pub(super) thread: u32,
    pub(super) cpu: u32,
}

/// The past users of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Users {
    /// The CPU that accessed it first; `None` if another one did too.
    cpu: Option<u32>,
    /// The thread that accessed it last, and the one before it; 0 if there is none.
    threads: [u32; 2],
    /// A thread has come back to it after another one.
    is_shared: bool,
    /// Whose it was, where objects of the kind tell that.
    owner: Option<(u64, u64)>,
    /// The number of accesses since it was made; counted only up to what matters.
    accesses: u8,
    fate: Fate,
}

/// The known life of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// As far as known, it existed before and stays.
    Stays,
    /// It was made since it was first seen.
    Made,
    /// It was made again, or became another's.
    Reused,
    /// A function accessed it that works with what is common.
    Common,
}

/// Objects in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slab {
    /// The number of their cache.
    pub(super) cache: u64,
    pub(super) kind: Kind,
    /// The place of the page in its slab, in pages.
    pub(super) index: u64,
    /// Bytes of an object.
    pub(super) size: u64,
}

/// The kind of objects in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A thread's for one message or one call, or used by all threads.
    Common,
    /// They belong to something with a number.
    Owned(Owned),
    Other,
}

impl Kind {
    /// By the name of the cache: kernel/fork.c, net/core/skbuff.c, net/core/sock.c, net/socket.c, fs/file_table.c, fs/namei.c,
    /// block/bio.c, lib/sg_pool.c. A cache can have the name of another one with objects of the same size, never of these with owners.
    pub(super) fn of(cache: &str) -> Self {
        const COMMON: [&str; 11] = [
            "skbuff_",
            "request_sock_",
            "tw_sock_",
            "names_cache",
            "bio-",
            "biovec-",
            "sgpool-",
            "io_kiocb",
            "dentry",
            "mnt_cache",
            "task_struct",
        ];
        match cache {
            "TCP" | "TCPv6" | "UDP" | "UDPv6" | "UNIX" | "UNIX-STREAM" | "MPTCP" | "MPTCPv6" => {
                Self::Owned(Owned::Sock)
            }
            "sock_inode_cache" => Self::Owned(Owned::Socket),
            "filp" => Self::Owned(Owned::OpenFile),
            _ if COMMON.iter().any(|start| cache.starts_with(start)) => Self::Common,
            _ => Self::Other,
        }
    }
}

/// An object, or a page that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Object {
    /// Its begin, a physical address.
    pub(super) start: u64,
    /// Bytes.
    pub(super) size: u64,
    /// The number of its cache, 0 if it has none.
    pub(super) cache: u64,
    pub(super) kind: Kind,
    /// Whose it is now.
    pub(super) owner: Option<(u64, u64)>,
}

impl Object {
    /// The substitute for an unknown object at a physical address: its line, or its page if the page has no objects.
    pub(super) fn unknown(phys: u64, flags: FrameFlags) -> Self {
        let size = if flags.is_slab() { LINE_SIZE } else { PAGE_SIZE };
        Self { start: phys & !(size - 1), size, cache: 0, kind: Kind::Other, owner: None }
    }

    /// Its identity, for an access to a byte of it. An object is one line, as the whole of it is one thing's; of a large one its
    /// lines are what counts.
    fn memory(&self, phys: u64) -> Option<MemoryId> {
        let at = if self.size > PAGE_SIZE { phys } else { self.start };
        (self.cache > 0).then_some(MemoryId::kernel_object(self.cache, at))
    }
}

impl Slab {
    /// The object with that byte.
    pub(super) fn object(&self, phys: u64) -> Option<Object> {
        let first = (phys / PAGE_SIZE).checked_sub(self.index)?.checked_mul(PAGE_SIZE)?;
        let within = phys.checked_sub(first)?;
        let start = phys.checked_sub(within.checked_rem(self.size)?)?;
        Some(Object { start, size: self.size, cache: self.cache, kind: self.kind, owner: None })
    }
}

impl Judge {
    /// With tables of about `memory` bytes. `mounts` says where the root of the file system of each device is mounted.
    pub(super) fn new(frames: Frames, task_size: u64, memory: usize, mounts: FxHashMap<u64, Vec<u8>>) -> Self {
        Self {
            frames,
            tasks: BTreeSet::new(),
            task_size,
            bookkeeping: FxHashSet::default(),
            users: Cache::new(memory / 80 / 2),
            slabs: Cache::new(memory / 80 / 4),
            files: Cache::new(memory / 64 / 4),
            mounts,
        }
    }

    /// Its sizes.
    pub(super) fn measure(&self, tables: &mut Tables) {
        let Self { frames, tasks, bookkeeping, users, slabs, files, mounts, .. } = self;
        frames.measure(tables);
        tables.set("tasks of the kernel", tasks.len(), tasks.len() * 2 * size_of::<u64>());
        tables.set("users of kernel memory", users.len(), users.bytes());
        tables.set("objects of pages", slabs.len(), slabs.bytes());
        tables.set("files of pages", files.len(), files.bytes());
        tables.set_map::<u64>("pages of the kernel's bookkeeping", bookkeeping.len(), bookkeeping.capacity(), 0);
        let points = mounts.values().map(Vec::capacity).sum();
        tables.set_map::<(u64, Vec<u8>)>("mounts", mounts.len(), mounts.capacity(), points);
    }

    /// A sampled task is at that address; returns all of it.
    pub(super) fn add_task(&mut self, task: u64) -> Range<u64> {
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.clear();
        }
        self.tasks.insert(task);
        task..task.saturating_add(self.task_size)
    }

    /// The physical address of `addr`, and what its frame is used for, unless that already decides the place.
    pub(super) fn frame(&mut self, addr: u64, is_bookkeeping: bool, now: u64) -> Result<(u64, FrameFlags), Place> {
        if addr < KERNEL_HALF {
            return Err(if is_bookkeeping { Place::Nobodys(Nobodys::Allocators) } else { Place::User });
        }
        if self.frames.is_per_cpu(addr) {
            return Err(Place::Nobodys(Nobodys::PerCpu));
        }
        if self.tasks.range(..=addr).next_back().is_some_and(|task| addr - task < self.task_size) {
            return Err(Place::Nobodys(Nobodys::Task));
        }
        let (phys, flags) = self.frames.find(addr, now).ok_or(Place::Nobodys(Nobodys::NotMapped))?;
        let page = phys / PAGE_SIZE;
        if is_bookkeeping && !flags.is_slab() && self.bookkeeping.len() < MAX_TASKS {
            // No object: the zone, or per-CPU memory. Other code takes its locks.
            self.bookkeeping.insert(page);
        }
        if flags.is_reserved() {
            return Err(Place::Nobodys(Nobodys::Reserved));
        }
        if is_bookkeeping || self.bookkeeping.contains(&page) {
            return Err(Place::Nobodys(Nobodys::Allocators));
        }
        Ok((phys, flags))
    }

    /// The place of a thread's access to an object, by a function of that kind.
    pub(super) fn object(&mut self, phys: u64, object: Object, user: User, how: FunctionKind) -> Place {
        let User { thread, cpu } = user;
        let new = Users {
            cpu: Some(cpu),
            threads: [thread, 0],
            is_shared: false,
            owner: object.owner,
            accesses: 0,
            fate: Fate::Stays,
        };
        let before = self.users.get(&object.start).copied();
        let mut users = before.unwrap_or(new);
        if users.owner == Some(NOBODY) && object.owner != users.owner {
            // A connection begins before a process accepts it.
            users = Users { fate: users.fate, ..new };
        }
        // An owner tells more than the functions.
        let is_known = object.owner.is_some_and(|owner| owner != NOBODY);
        let is_made = how == FunctionKind::Making && !is_known;
        let is_common = how == FunctionKind::Common && !is_known || object.kind == Kind::Common;
        users.fate = match users.fate {
            _ if is_common => Fate::Common,
            Fate::Made if is_made && users.accesses > 0 => Fate::Reused,
            Fate::Stays | Fate::Made if users.owner != object.owner => Fate::Reused,
            Fate::Stays if is_made => Fate::Made,
            fate => fate,
        };
        if is_made {
            users = Users { fate: users.fate, ..new };
        } else {
            users.accesses = users.accesses.saturating_add(1).min(PROVEN);
        }
        if users.cpu != Some(cpu) {
            users.cpu = None;
        }
        if users.threads[0] != thread {
            users.is_shared |= users.threads[1] == thread;
            users.threads = [thread, users.threads[0]];
        }
        if before != Some(users) {
            self.users.insert(object.start, users);
        }
        // The allocators give what a CPU has freed to whom it runs next. An owner tells that; else only that another CPU uses it too, and that
        // a thread comes back to it: what a process leaves behind is another's for good.
        match users {
            Users { fate: Fate::Common, .. } => Place::Nobodys(Nobodys::Common),
            Users { fate: Fate::Reused, .. } => Place::Nobodys(Nobodys::Reused),
            Users { cpu: Some(_), .. } if !is_made && !is_known => Place::Nobodys(Nobodys::OneCpu),
            Users { accesses, .. } if accesses < PROVEN => Place::Nobodys(Nobodys::New),
            Users { threads: [_, before], is_shared: false, .. } if before != 0 && !is_known => {
                Place::Nobodys(Nobodys::Reused)
            }
            _ => Place::Kernel(phys, object.memory(phys)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::frames;
    use proptest::prelude::*;

    const BASE: u64 = 0xffff_8880_0000_0000;
    const SLAB: u64 = 1 << 7;
    const LRU: u64 = 1 << 5;
    const RESERVED_FLAG: u64 = 1 << 32;
    const TASK: Place = Place::Nobodys(Nobodys::Task);
    const RESERVED: Place = Place::Nobodys(Nobodys::Reserved);
    const NOT_MAPPED: Place = Place::Nobodys(Nobodys::NotMapped);
    const NEW: Place = Place::Nobodys(Nobodys::New);
    const ONE_CPU: Place = Place::Nobodys(Nobodys::OneCpu);
    const ALLOCATORS: Place = Place::Nobodys(Nobodys::Allocators);

    /// One thread on that CPU.
    fn on(cpu: u32) -> User {
        User { thread: 7, cpu }
    }

    /// On a machine with frames of these uses, run queues in the fifth, and a task in the first.
    fn judge(flags: &[u64]) -> Judge {
        let frames = frames::made(BASE, vec![BASE + 4 * PAGE_SIZE], flags);
        let tasks = BTreeSet::from([BASE]);
        Judge {
            frames,
            tasks,
            task_size: 0x100,
            bookkeeping: FxHashSet::default(),
            users: Cache::new(64),
            slabs: Cache::new(64),
            files: Cache::new(64),
            mounts: FxHashMap::default(),
        }
    }

    /// Without the look-up of objects, for which there is no kernel.
    fn place(judge: &mut Judge, addr: u64, is_bookkeeping: bool, cpu: u32) -> Place {
        match judge.frame(addr, is_bookkeeping, 0) {
            Err(place) => place,
            Ok((phys, flags)) if flags.is_cached_file() => Place::Kernel(phys, None),
            Ok((phys, flags)) => judge.object(phys, Object::unknown(phys, flags), on(cpu), FunctionKind::Work),
        }
    }

    #[test]
    fn what_the_work_accesses_is_kept() {
        let mut judge = judge(&[SLAB, LRU, RESERVED_FLAG, 0]);
        judge.frames = frames::made(BASE, Vec::new(), &[SLAB, LRU, RESERVED_FLAG, 0]);
        let page = |number: u64| BASE + number * PAGE_SIZE;
        let mut place = |addr, cpu| place(&mut judge, addr, false, cpu);
        assert_eq!(place(0x7fff_0000_1000, 0), Place::User);
        assert_eq!(place(page(1), 0), Place::Kernel(PAGE_SIZE, None), "the page cache");
        assert_eq!((place(page(0) + 0x80, 0), place(page(0) + 0x80, 1)), (TASK, TASK), "a task");
        assert_eq!((place(page(2), 0), place(page(2), 1)), (RESERVED, RESERVED), "reserved");
        assert_eq!((place(0xffff_c900_0000_0000, 0), place(u64::MAX, 0)), (NOT_MAPPED, NOT_MAPPED));
        // An object of two CPUs.
        assert_eq!(place(page(0) + 0x208, 0), ONE_CPU);
        assert_eq!(place(page(0) + 0x210, 0), ONE_CPU);
        assert_eq!(place(page(0) + 0x248, 1), ONE_CPU, "another line");
        assert_eq!(place(page(0) + 0x208, 1), Place::Kernel(0x208, None));
        assert_eq!(place(page(0) + 0x208, 0), Place::Kernel(0x208, None));
        // A page that belongs to no file.
        assert_eq!([place(page(3), 0), place(page(3), 1)], [ONE_CPU, NEW]);
        assert_eq!(place(page(3) + 0x800, 1), Place::Kernel(3 * PAGE_SIZE + 0x800, None));
    }

    #[test]
    fn a_page_of_nothing_known_takes_stores_to_mean_something() {
        let memory = MemoryId::kernel_object(3, 0x1000);
        assert_eq!([true, false].map(|has| Place::Kernel(0x1008, Some(memory)).memory(has)), [Some(memory); 2]);
        let page = [true, false].map(|has| Place::Kernel(0x1008, None).memory(has));
        assert_eq!(page, [Some(MemoryId::kernel(0x1008)), None]);
        assert_eq!([Place::User, TASK].map(|place| place.memory(true)), [None; 2]);
    }

    #[test]
    fn what_the_allocators_access_is_not() {
        let mut judge = judge(&[]);
        judge.frames = frames::made(BASE, Vec::new(), &[SLAB, LRU, 0]);
        let page = |number: u64| BASE + number * PAGE_SIZE;
        assert_eq!(place(&mut judge, 0x7fff_0000_1000, true, 0), ALLOCATORS);
        for cpu in 0..3 {
            assert_eq!(place(&mut judge, page(0) + 0x400, true, cpu), ALLOCATORS);
        }
        // An object's line is not the allocators' for that; a zone's page is.
        assert_eq!([0, 1].map(|cpu| place(&mut judge, page(0) + 0x400, false, cpu)), [ONE_CPU, NEW]);
        assert_eq!(place(&mut judge, page(0) + 0x400, false, 1), Place::Kernel(0x400, None));
        assert_eq!(place(&mut judge, page(2), true, 0), ALLOCATORS);
        for cpu in 0..3 {
            assert_eq!(place(&mut judge, page(2) + 0x40, false, cpu), ALLOCATORS, "its lock, taken by other code");
        }
    }

    #[test]
    fn per_cpu_memory_is_nobodys() {
        let mut judge = judge(&[SLAB; 8]);
        for cpu in 0..3 {
            assert_eq!(place(&mut judge, BASE + 4 * PAGE_SIZE + 0x40, false, cpu), Place::Nobodys(Nobodys::PerCpu));
        }
    }

    #[test]
    fn an_object_is_its_owners() {
        let mut judge = judge(&[SLAB; 8]);
        let owner = |number| Some((number, 0));
        let sock = |start, owner| Object { start, size: 0x400, cache: 3, kind: Kind::Owned(Owned::Sock), owner };
        let mut at = |start, owner, cpu| judge.object(start + 0x10, sock(start, owner), on(cpu), FunctionKind::Work);
        let kept = |start: u64| Place::Kernel(start + 0x10, Some(MemoryId::kernel_object(3, start)));
        // Though one CPU alone accesses it.
        assert_eq!(
            [at(0x1000, owner(7), 0), at(0x1000, owner(7), 0), at(0x1000, owner(7), 0)],
            [NEW, NEW, kept(0x1000)]
        );
        assert_eq!(at(0x1000, owner(7), 1), kept(0x1000));
        // Freed, and another thread's from now on, for good.
        let reused = Place::Nobodys(Nobodys::Reused);
        assert_eq!([at(0x1000, owner(8), 0), at(0x1000, owner(8), 1), at(0x1000, owner(8), 0)], [reused; 3]);
        assert_eq!([at(0x2000, owner(7), 0), at(0x2000, Some(NOBODY), 1), at(0x2000, owner(7), 0)][1..], [reused; 2]);
        // A connection that is accepted meanwhile, and then closed.
        assert_eq!(
            [at(0x5000, Some(NOBODY), 0), at(0x5000, owner(9), 1), at(0x5000, owner(9), 1)],
            [ONE_CPU, NEW, NEW]
        );
        assert_eq!(
            [at(0x5000, owner(9), 0), at(0x5000, Some(NOBODY), 0), at(0x5000, owner(9), 0)],
            [kept(0x5000), reused, reused]
        );
        // Functions that make objects, or work with common objects, access it too, and do not take it from its user.
        for how in [FunctionKind::Common, FunctionKind::Making, FunctionKind::Making, FunctionKind::Work] {
            let place = judge.object(0x6010, sock(0x6000, owner(7)), on(0), how);
            assert!([NEW, kept(0x6000)].contains(&place), "{how:?}: {place:?}");
        }
        assert_eq!(judge.object(0x6010, sock(0x6000, owner(7)), on(0), FunctionKind::Work), kept(0x6000));
        let message = Object { start: 0x3000, size: 0x100, cache: 4, kind: Kind::of("skbuff_head_cache"), owner: None };
        for cpu in 0..3 {
            assert_eq!(judge.object(0x3040, message, on(cpu), FunctionKind::Work), Place::Nobodys(Nobodys::Common));
        }
        // One in a cache of another name.
        let message = Object { start: 0x4000, kind: Kind::Other, ..message };
        let mut at = |cpu, how| judge.object(0x4040, message, on(cpu), how);
        assert_eq!([at(0, FunctionKind::Work), at(1, FunctionKind::Work)], [ONE_CPU, NEW]);
        for cpu in 0..4 {
            let how = if cpu == 0 { FunctionKind::Common } else { FunctionKind::Work };
            assert_eq!(at(cpu, how), Place::Nobodys(Nobodys::Common));
        }
    }

    #[test]
    fn an_object_that_is_made_again_and_again_is_nobodys() {
        let mut judge = judge(&[SLAB; 8]);
        let mut at = |start, cpu, is_making| {
            let object = Object { start, size: 0x400, cache: 3, kind: Kind::Other, owner: None };
            judge.object(start, object, on(cpu), if is_making { FunctionKind::Making } else { FunctionKind::Work })
        };
        let kept = |start: u64| Place::Kernel(start, Some(MemoryId::kernel_object(3, start)));
        // Made when it is watched, and then it stays. What makes it takes several accesses.
        assert_eq!([at(0x1000, 0, true), at(0x1000, 0, true), at(0x1000, 0, false)], [NEW, NEW, ONE_CPU]);
        assert_eq!(
            [at(0x1000, 1, false), at(0x1000, 1, false), at(0x1000, 0, false)],
            [NEW, kept(0x1000), kept(0x1000)]
        );
        // Made again.
        let reused = Place::Nobodys(Nobodys::Reused);
        assert_eq!([at(0x1000, 0, true), at(0x1000, 1, false), at(0x1000, 0, false)], [reused; 3]);
    }

    #[test]
    fn an_object_is_shared_once_a_thread_comes_back_to_it() {
        let mut judge = judge(&[SLAB; 8]);
        let mut at = |start, thread, cpu, owner| {
            let object = Object { start, size: 0x400, cache: 3, kind: Kind::Other, owner };
            judge.object(start, object, User { thread, cpu }, FunctionKind::Work)
        };
        let kept = |start: u64| Place::Kernel(start, Some(MemoryId::kernel_object(3, start)));
        let reused = Place::Nobodys(Nobodys::Reused);
        // An object that one process after the other uses belongs to no thread, but to the first one as long as there is no other.
        let one_by_one = [7, 7, 7, 8, 8, 9, 9].map(|thread| at(0x1000, thread, thread % 2, None));
        assert_eq!(one_by_one, [ONE_CPU, ONE_CPU, ONE_CPU, reused, reused, reused, reused]);
        let one = [0, 1, 0, 1].map(|cpu| at(0x2000, 7, cpu, None));
        assert_eq!(one, [ONE_CPU, NEW, kept(0x2000), kept(0x2000)]);
        // What two use in turn is theirs, and a third one's.
        let in_turn = [7, 8, 7, 8, 9].map(|thread| at(0x3000, thread, thread % 2, None));
        assert_eq!(in_turn, [ONE_CPU, NEW, kept(0x3000), kept(0x3000), kept(0x3000)]);
        // Where the owner is known, that tells it.
        let owned = [7, 8, 9].map(|thread| at(0x4000, thread, 0, Some((5, 0))));
        assert_eq!(owned, [NEW, NEW, kept(0x4000)]);
    }

    #[test]
    fn caches_are_known_by_name() {
        let kind = |names: &[&str]| names.iter().map(|name| Kind::of(name)).collect::<Vec<_>>();
        assert_eq!(kind(&["TCP", "UNIX-STREAM", "UDPv6"]), [Kind::Owned(Owned::Sock); 3]);
        assert_eq!(kind(&["sock_inode_cache", "filp"]), [Kind::Owned(Owned::Socket), Kind::Owned(Owned::OpenFile)]);
        assert_eq!(kind(&["skbuff_fclone_cache", "request_sock_TCPv6", "bio-264"]), [Kind::Common; 3]);
        assert_eq!(kind(&["kmalloc-1k", "TCPish", "biosphere", ""]), [Kind::Other; 4]);
    }

    proptest! {
        #[test]
        fn an_object_has_its_byte(index in 0u64..9, size in 0u64..9000, phys in any::<u64>()) {
            let slab = Slab { cache: 1, kind: Kind::Other, index, size };
            if let Some(object) = slab.object(phys) {
                prop_assert!(object.start <= phys && phys - object.start < size);
            } else {
                prop_assert!(size == 0 || phys / PAGE_SIZE < index);
            }
        }
    }
}
