//! Source files, by the paths in debug information.

/// Directories of code that is inlined into the programs of others.
const OF_LIBRARIES: [&str; 4] = ["/usr/include/", "/usr/lib/", "/rustc/", "/include/c++/"];

/// True if a source file is of a library, by its path.
#[must_use]
pub fn is_of_library(path: &str) -> bool {
    OF_LIBRARIES.iter().any(|part| path.contains(part))
}

#[cfg(test)]
mod tests {
    use super::is_of_library;

    #[test]
    fn headers_and_the_standard_libraries_are_not_the_users_own() {
        for (path, is_library) in [
            ("/usr/include/c++/12/bits/atomic_base.h", true),
            ("/opt/gcc/include/c++/14/atomic", true),
            ("/rustc/59807616/library/core/src/sync/atomic.rs", true),
            ("/usr/lib/go/src/sync/mutex.go", true),
            ("/src/pool.cpp", false),
            ("./nptl/pthread_mutex_lock.c", false),
            ("include/pool.h", false),
        ] {
            assert_eq!(is_of_library(path), is_library, "{path}");
        }
    }
}
