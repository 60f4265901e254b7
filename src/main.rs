//! The `scxprof` command: parse, run, exit code.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_IS_OPEN: AtomicBool = AtomicBool::new(true);

/// Checks whether stdout is open. Rust's runtime opens /dev/null instead of a closed stdout before main begins, and output
/// would be lost silently.
extern "C" fn look_at_stdout() {
    STDOUT_IS_OPEN.store(rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_ok(), Ordering::Relaxed);
}

// The C library calls the functions in this section before main (System V ABI, "Initialization and Termination Functions").
#[used]
#[link_section = ".init_array"]
static LOOK_AT_STDOUT: extern "C" fn() = look_at_stdout;

fn main() -> ExitCode {
    scxprof::cli::main(std::env::args_os(), STDOUT_IS_OPEN.load(Ordering::Relaxed))
}
