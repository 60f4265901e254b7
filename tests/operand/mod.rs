//! Checks recovered operands against programs that are made for it, with their code as a session reads it. Other programs are in
//! crates/recover/tests.

mod assembly;
mod made;

// What stops programs for the tests of the crate; these here use a part of it.
#[path = "../../crates/recover/tests/operand/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../crates/recover/tests/operand/random.rs"]
#[allow(dead_code)]
mod random;
#[path = "../../crates/recover/tests/operand/step.rs"]
#[allow(dead_code)]
mod step;
#[path = "../../crates/recover/tests/operand/truth.rs"]
mod truth;
