//! The architectures whose registers and code are understood.

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Arch {
    /// x86-64.
    #[default]
    X86_64,
    /// 64-bit Arm: A64 code.
    Arm64,
}

impl Arch {
    /// That of this host; `None` if it is neither.
    pub const HOST: Option<Self> = if cfg!(target_arch = "x86_64") {
        Some(Self::X86_64)
    } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
        Some(Self::Arm64)
    } else {
        None
    };
}
