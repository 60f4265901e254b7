//! Compiles the BPF programs, where the feature `bpf` asks for them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "bpf")]
    if let Err(sentence) = bpf::build() {
        // A panic would bury the one line that helps.
        eprintln!("error: {sentence}");
        std::process::exit(1);
    }
}

#[cfg(feature = "bpf")]
mod bpf {
    use std::env;
    use std::path::PathBuf;
    use std::process::Command;

    use libbpf_cargo::SkeletonBuilder;

    /// Objects and their skeletons go to `OUT_DIR`, from where src/bpf includes them.
    pub fn build() -> Result<(), String> {
        for file in [
            "hints.bpf.c",
            "operand.bpf.c",
            "kernel_memory.bpf.c",
            "dsq.bpf.c",
            "kernel.h",
            "arch.h",
            "x86.h",
            "arm64.h",
        ] {
            println!("cargo:rerun-if-changed=src/bpf/{file}");
        }
        println!("cargo:rerun-if-env-changed=CLANG");
        let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        let version = Command::new(&clang).arg("--version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            return Err("clang is needed for the BPF programs: install the package clang (apt-get, dnf and \
                        pacman all call it so) or run `make`, which does; or build with --no-default-features --features cli"
                .to_owned());
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; cargo sets it")?);
        for name in ["hints", "operand", "kernel_memory", "dsq"] {
            SkeletonBuilder::new()
                .source(format!("src/bpf/{name}.bpf.c"))
                .obj(out.join(format!("{name}.bpf.o")))
                .clang(&clang)
                .clang_args(["-Wall", "-Werror"])
                .build_and_generate(out.join(format!("{name}.skel.rs")))
                .map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    }
}
