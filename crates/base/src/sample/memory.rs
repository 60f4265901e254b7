//! The identity of memory, whatever samples it and wherever it is mapped.

/// Bytes of a cache line on every machine that scxprof samples.
pub const LINE_SIZE: u64 = 64;
/// The page size by which private memory is identified; larger pages are divided into pieces of this size.
pub const PAGE_SIZE: u64 = 4096;

/// What an inode number of shared memory belongs to: the same number in another scope is other memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryScope {
    /// The files of a device.
    Device {
        /// How often the inode number was given to another file before.
        reuses: u32,
        /// `st_dev` of the file, as `makedev` packs it. Devices have 32 bits (include/linux/kdev_t.h).
        dev: u32,
    },
    /// The SysV shared memory of an IPC namespace, which has this inode number; a segment's inode number is its id.
    Ipc(u32),
    /// No memory: pairs of threads that wake each other, which are numbered.
    Wakeups,
    /// Memory that kernel code accesses for a thread, by its physical address, which is the offset. The inode is a hash
    /// of the name of the cache that an object is of, or 0 for what is no such object.
    Kernel,
}

impl MemoryScope {
    /// The upper half of the number of each of the others: no device has these bits, and every JSON
    /// reader keeps numbers up to 1 << 53 exact.
    const IPC: u32 = 1 << 20;
    const WAKEUPS: u32 = 1 << 21;
    const KERNEL: u32 = 3 << 20;

    /// The files of a device that were given an inode number after this number of other files.
    #[inline]
    #[must_use]
    pub fn device(dev: u64, reuses: u32) -> Self {
        // A stranger's recording may have more than 32 bits: they keep its devices apart.
        Self::Device { reuses: (dev >> 32) as u32 | reuses, dev: dev as u32 }
    }

    /// The scope as the one number that reports and JSON Lines have for it, as `dev`.
    #[inline]
    #[must_use]
    pub fn number(self) -> u64 {
        let (upper, lower) = match self {
            Self::Device { reuses, dev } => (reuses, dev),
            Self::Ipc(namespace) => (Self::IPC, namespace),
            Self::Wakeups => (Self::WAKEUPS, 0),
            Self::Kernel => (Self::KERNEL, 0),
        };
        u64::from(upper) << 32 | u64::from(lower)
    }

    /// The scope that has this [`MemoryScope::number`].
    #[inline]
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match ((number >> 32) as u32, number as u32) {
            (Self::IPC, namespace) => Self::Ipc(namespace),
            (Self::WAKEUPS, 0) => Self::Wakeups,
            (Self::KERNEL, 0) => Self::Kernel,
            (reuses, dev) => Self::Device { reuses, dev },
        }
    }
}

/// The identity of a byte of memory, independent of the source and of the address at which it is mapped.
///
/// Shared memory is identified by the mapped object; private memory by its address space, so that copy-on-write pages of forks,
/// the zero page, KSM pages and the text of a library never join threads. A frame identifies shared memory if nothing
/// else is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryId {
    /// A byte of a file or of shared memory that is mapped `MAP_SHARED`.
    Shared {
        /// What its inode number belongs to.
        scope: MemoryScope,
        /// Its inode number there.
        ino: u64,
        /// Offset from its beginning in bytes.
        offset: u64,
    },
    /// A byte of physical memory.
    Frame {
        /// Its physical address.
        phys: u64,
    },
    /// A byte of private memory.
    Private {
        /// The address space, numbered by the session: each exec and each fork begins a new one.
        space: u32,
        /// The virtual address in it.
        addr: u64,
    },
}

impl MemoryId {
    /// The memory of the kernel at a physical address.
    #[must_use]
    pub fn kernel(phys: u64) -> Self {
        Self::kernel_object(0, phys)
    }

    /// The same for an object of that cache.
    #[must_use]
    pub fn kernel_object(cache: u64, phys: u64) -> Self {
        Self::Shared { scope: MemoryScope::Kernel, ino: cache, offset: phys }
    }

    /// The granule of `size` bytes (a power of two, such as [`LINE_SIZE`] or [`PAGE_SIZE`]) that contains the byte.
    #[must_use]
    pub fn granule(self, size: u64) -> Self {
        let mask = !(size - 1);
        match self {
            Self::Shared { scope, ino, offset } => Self::Shared { scope, ino, offset: offset & mask },
            Self::Frame { phys } => Self::Frame { phys: phys & mask },
            Self::Private { space, addr } => Self::Private { space, addr: addr & mask },
        }
    }

    /// The byte at this distance behind it.
    #[must_use]
    pub fn byte(self, number: u32) -> Self {
        let number = u64::from(number);
        match self {
            Self::Shared { scope, ino, offset } => Self::Shared { scope, ino, offset: offset.wrapping_add(number) },
            Self::Frame { phys } => Self::Frame { phys: phys.wrapping_add(number) },
            Self::Private { space, addr } => Self::Private { space, addr: addr.wrapping_add(number) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_align_what_they_identify() {
        let memory = MemoryId::Private { space: 3, addr: 0x1fff };
        assert_eq!(memory.granule(LINE_SIZE), MemoryId::Private { space: 3, addr: 0x1fc0 });
        assert_eq!(memory.granule(PAGE_SIZE), MemoryId::Private { space: 3, addr: 0x1000 });
    }

    #[test]
    fn scopes_have_the_numbers_of_the_formats() {
        let scopes = [
            (MemoryScope::device(0x801, 0), 0x801),
            (MemoryScope::device(0x801, 0xffff), 0xffff << 32 | 0x801),
            (MemoryScope::Ipc(4_026_531_839), (1 << 52) + 4_026_531_839),
            (MemoryScope::Wakeups, 1 << 53),
            (MemoryScope::Kernel, 3 << 52),
            (MemoryScope::device(u64::MAX, 0), u64::MAX),
            (MemoryScope::device((1 << 53) + 1, 0), (1 << 53) + 1),
        ];
        for (scope, number) in scopes {
            assert_eq!((scope.number(), MemoryScope::from_number(number)), (number, scope));
        }
        // Reports are sorted by it.
        assert!(scopes[..4].is_sorted());
        assert_eq!(size_of::<Option<MemoryId>>(), 32);
    }
}
