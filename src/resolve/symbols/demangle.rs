//! Demangles C++ and Rust names. A C++ name of 300 bytes may expand to terabytes, because a reference can repeat each part;
//! names that become too long stay mangled.

use std::fmt::{self, Write};

use cpp_demangle::DemangleOptions;

/// Bytes of a demangled name.
const MAX: usize = 4096;

struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The name in its language, without the hash of a Rust name and, as in perf, without parameters.
pub(super) fn demangle(name: &str) -> String {
    let mut out = Limited(String::new());
    // Anything else is a name of C, such as "i", which is also how C++ writes "int". Some compilers put one more underscore before
    // all names.
    let mangled = name.strip_prefix('_').filter(|rest| rest.starts_with('_')).unwrap_or(name);
    let (is_cpp, is_rust) = (mangled.starts_with("_Z"), mangled.starts_with("_R") || mangled.starts_with("_ZN"));
    let rust = if is_rust { rustc_demangle::try_demangle(name).ok() } else { None };
    let written = if let Some(rust) = rust {
        write!(out, "{rust:#}").is_ok()
    } else if let Some(cpp) = cpp_demangle::Symbol::new(name).ok().filter(|_| is_cpp) {
        let options = DemangleOptions::new().no_params().no_return_type();
        cpp.structured_demangle(&mut out, &options).is_ok()
    } else {
        false
    };
    if written {
        out.0
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_as_their_language_has_them() {
        for (name, expected) in [
            ("main", "main"),
            ("_ZN3foo3barEi", "foo::bar"),
            ("_ZN3foo3barIiEEvT_", "foo::bar<int>"),
            ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f"),
            ("_ZZ4mainENKUlvE_clEv", "main::{lambda()#1}::operator() const"),
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_Z", "_Z"),
            ("__ZN3foo3barEi", "foo::bar"),
            ("__RNvC6_123foo3bar", "123foo::bar"),
        ] {
            assert_eq!(demangle(name), expected);
        }
    }

    #[test]
    fn names_of_c_stay_as_they_are() {
        for name in [
            "w",
            "i",
            "v",
            "Pi",
            "St",
            "_w",
            "__i",
            "ZN4testE",
            "RNvC6_123foo3bar",
            "R",
            "_R",
            "_Rw",
            "f",
            "_GLOBAL__I_a",
        ] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn a_name_that_grows_without_end_stays_short() {
        // f<P<int, int>, P<P<int, int>, P<int, int>>, ...>, each argument twice the previous one.
        let name = |steps| {
            let mut name = "_Z1fI1PIiiE".to_owned();
            for step in 0..steps {
                let digit = char::from_digit(step + 1, 36).unwrap().to_ascii_uppercase();
                write!(name, "S0_IS{digit}_S{digit}_E").unwrap();
            }
            name + "Evv"
        };
        assert_eq!(demangle(&name(1)), "f<P<int, int>, P<P<int, int>, P<int, int> > >");
        assert_eq!(demangle(&name(30)), name(30));
    }

    proptest! {
        #[test]
        fn any_name_is_taken(name in "(_Z|_R|)[A-Za-z0-9_$.]{0,60}") {
            prop_assert!(demangle(&name).len() <= MAX.max(name.len()));
        }
    }
}
