//! The BPF programs that only long tests load use the headers of ours, which change.

use std::path::{Path, PathBuf};
use std::process::Command;

/// libbpf's headers, as the build of this test has made them.
fn headers() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let built =
        std::fs::read_dir(profile.join("build")).unwrap().flatten().map(|entry| entry.path().join("out/include"));
    built.into_iter().find(|include| include.join("bpf/bpf_helpers.h").is_file()).unwrap()
}

#[test]
fn programs_of_long_tests_compile() {
    let headers = headers();
    for source in ["tests/vm/caches/who.bpf.c", "tests/vm/scheduler/dsq.bpf.c"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        let mut command = Command::new(clang);
        command.args(["-fsyntax-only", "-target", "bpf", "-D__TARGET_ARCH_x86", "-Wall", "-Werror", "-I"]);
        let output = command.arg(&headers).arg(&source).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
