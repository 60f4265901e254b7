//! The types and constants of an instruction set.

use std::fmt::Debug;

use super::value::Val;

/// An instruction set.
pub(super) trait Isa: Debug + Clone + Copy + Default + 'static {
    /// An instruction as the decoder gives it.
    type Code: Debug + Clone;
    /// One value for each general register, by its number in instructions.
    type Registers: Debug + Copy + Default + AsRef<[Val]> + AsMut<[Val]>;

    /// The number of the stack pointer.
    const SP: u8;
    /// Registers that hold the return address: code that changes them must be run.
    const RETURN: u32;
}
