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

    /// The one that `uname -m` names `machine`; `None` if it is neither.
    #[must_use]
    pub fn of_machine(machine: &str) -> Option<Self> {
        match machine {
            "x86_64" => Some(Self::X86_64),
            "aarch64" | "arm64" => Some(Self::Arm64),
            _ => None,
        }
    }

    /// Its name, as `uname -m` gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_uname() {
        for arch in [Arch::X86_64, Arch::Arm64] {
            assert_eq!(Arch::of_machine(arch.name()), Some(arch));
        }
        assert_eq!(Arch::of_machine("riscv64"), None);
        assert_eq!(Arch::of_machine(std::env::consts::ARCH), Arch::HOST);
    }
}
