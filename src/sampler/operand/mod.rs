//! ELF files.

pub mod elf;
