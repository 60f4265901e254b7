//! What kernel_memory.bpf.c finds of a page of the kernel's memory, and of an object in it.

/// A page of a file in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilePage {
    /// As the kernel numbers it: the major number from bit 20 on (include/linux/kdev_t.h).
    pub device: u32,
    /// The inode's number.
    pub inode: u64,
    /// Its place in the file, in pages.
    pub index: u64,
}

/// A page with objects of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlabPage {
    /// Its place among the pages of its slab.
    pub index: u64,
    /// Bytes of an object.
    pub size: u64,
    /// The name of the objects' cache.
    pub cache: String,
}

/// Objects that belong to something with a number, as in kernel_memory.bpf.c.
// Without BPF, these have no user.
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
