//! What kernel_memory.bpf.c finds out about a page of kernel memory, and about an object in it.

/// A page of a file in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilePage {
    /// As the kernel numbers it: the major number from bit 20 on (include/linux/kdev_t.h).
    pub device: u32,
    /// The inode's number.
    pub inode: u64,
    /// Its index in the file, in pages.
    pub index: u64,
}

/// A page that contains objects of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlabPage {
    /// Its index among the pages of its slab.
    pub index: u64,
    /// Bytes of an object.
    pub size: u64,
    /// The name of the objects' cache.
    pub cache: String,
}

/// Kinds of objects whose owner has a number, in the order of kernel_memory.bpf.c.
// Unused in builds without BPF.
#[cfg_attr(not(feature = "bpf"), allow(dead_code))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owned {
    /// The protocol's part of a socket: `struct sock`.
    Sock,
    /// The file's part of a socket: `struct socket_alloc`.
    Socket,
    /// An open file: `struct file`.
    OpenFile,
}
