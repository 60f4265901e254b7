//! Features of newer kernels in an attr, and which of them this kernel accepts.

/// Features that older kernels reject, in the order in which they are given up: newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Feature {
    /// `PERF_FORMAT_LOST` in `read_format` (6.0).
    FormatLost,
    /// `PERF_SAMPLE_WEIGHT_STRUCT` (5.12); `PERF_SAMPLE_WEIGHT` without it.
    WeightStruct,
    /// `PERF_SAMPLE_DATA_PAGE_SIZE` (5.11).
    DataPageSize,
    /// `PERF_SAMPLE_CGROUP` and `attr.cgroup` (5.7, with CONFIG_CGROUP_PERF).
    Cgroup,
    /// `PERF_SAMPLE_PHYS_ADDR` (4.14; needs the right to sample kernel data).
    PhysAddr,
    /// Accesses of kernel code (needs the right to sample kernel data).
    Kernel,
}

impl Feature {
    /// All of them, newest first.
    pub const ALL: [Self; 6] =
        [Self::FormatLost, Self::WeightStruct, Self::DataPageSize, Self::Cgroup, Self::PhysAddr, Self::Kernel];

    /// What the run lacks without it, for the report.
    #[must_use]
    pub fn without(self) -> &'static str {
        match self {
            Self::FormatLost => "no lost counts per event, loss is what the rings report",
            Self::WeightStruct => "PERF_SAMPLE_WEIGHT in place of WEIGHT_STRUCT",
            Self::DataPageSize => "no page sizes",
            Self::Cgroup => "no cgroup in the samples, it is read from procfs",
            Self::PhysAddr => "no physical addresses",
            Self::Kernel => "no accesses by kernel code",
        }
    }

    /// The field of `perf_event_attr` that requests it.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::FormatLost => "PERF_FORMAT_LOST",
            Self::WeightStruct => "PERF_SAMPLE_WEIGHT_STRUCT",
            Self::DataPageSize => "PERF_SAMPLE_DATA_PAGE_SIZE",
            Self::Cgroup => "PERF_SAMPLE_CGROUP",
            Self::PhysAddr => "PERF_SAMPLE_PHYS_ADDR",
            Self::Kernel => "attr.exclude_kernel=0",
        }
    }

    /// Its requirement.
    #[must_use]
    pub fn needs(self) -> &'static str {
        match self {
            Self::FormatLost => "Linux 6.0",
            Self::WeightStruct => "Linux 5.12",
            Self::DataPageSize => "Linux 5.11",
            Self::Cgroup => "Linux 5.7 with CONFIG_CGROUP_PERF",
            Self::PhysAddr | Self::Kernel => "CAP_PERFMON or kernel.perf_event_paranoid <= 1",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of features.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// Every feature.
    #[must_use]
    pub fn all() -> Self {
        Feature::ALL.into_iter().fold(Self(0), Self::with)
    }

    /// No feature.
    #[must_use]
    pub fn none() -> Self {
        Self(0)
    }

    /// True if `feature` is in the set.
    #[must_use]
    pub fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// The set with `feature`.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self(self.0 | feature.bit())
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The set without `feature`.
    #[must_use]
    pub fn less(self, feature: Feature) -> Self {
        Self(self.0 & !feature.bit())
    }

    /// The missing features, newest first.
    pub fn missing(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |&feature| !self.has(feature))
    }
}

impl std::fmt::Debug for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(Feature::ALL.into_iter().filter(|&feature| self.has(feature))).finish()
    }
}

/// A feature that the kernel rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedFeature {
    /// The feature.
    pub feature: Feature,
    /// The kernel's error; `None` if it was not asked.
    pub errno: Option<i32>,
}

impl RefusedFeature {
    /// What is missing, and the kernel's error.
    #[must_use]
    pub fn why(&self) -> String {
        let said = self
            .errno
            .map_or_else(|| "not asked for".to_owned(), |errno| std::io::Error::from_raw_os_error(errno).to_string());
        format!("{} ({}: {said})", self.feature.without(), self.feature.field())
    }

    /// What would help.
    #[must_use]
    pub fn help(&self) -> String {
        format!("it needs {}", self.feature.needs())
    }
}

impl std::fmt::Display for RefusedFeature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.why(), self.help())
    }
}

/// Finds the features that the kernel accepts: tries all wanted ones, then fewer, dropping the newest first. Then it
/// tries each dropped feature again, so that only rejected ones are missing.
///
/// `open` tries one set. EACCES and EPERM remove features that need rights; EINVAL, E2BIG and EOPNOTSUPP remove
/// features that the kernel may not know; any other error is final.
///
/// Returns the accepted features, and each missing feature with the kernel's error for it.
///
/// # Errors
/// The last error of `open`.
pub fn negotiate<T, E>(
    wanted: Features,
    mut open: impl FnMut(Features) -> Result<T, E>,
    errno: impl Fn(&E) -> i32,
) -> Result<(T, Features, Vec<RefusedFeature>), E> {
    let mut features = wanted;
    let mut given_up = Vec::new();
    let opened = loop {
        let error = match open(features) {
            Ok(opened) => break opened,
            Err(error) => error,
        };
        let next: Vec<Feature> = match errno(&error) {
            libc::EACCES | libc::EPERM => {
                [Feature::PhysAddr, Feature::Kernel].into_iter().filter(|&feature| features.has(feature)).collect()
            }
            libc::EINVAL | libc::E2BIG | libc::EOPNOTSUPP => Feature::ALL
                .into_iter()
                .find(|&feature| feature != Feature::Kernel && features.has(feature))
                .into_iter()
                .collect(),
            _ => return Err(error),
        };
        if next.is_empty() {
            return Err(error);
        }
        for feature in next {
            features = features.less(feature);
            given_up.push(feature);
        }
    };
    let mut best = opened;
    let mut refused = Vec::new();
    for feature in given_up.into_iter().rev() {
        match open(features.with(feature)) {
            Ok(opened) => {
                best = opened;
                features = features.with(feature);
            }
            Err(error) => refused.push(RefusedFeature { feature, errno: Some(errno(&error)) }),
        }
    }
    Ok((best, features, refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that knows only `known`; `rights` says whether it grants access to kernel data.
    fn kernel(known: &[Feature], rights: bool) -> Result<(Features, Vec<RefusedFeature>), i32> {
        let open = |features: Features| {
            let needs_rights = features.has(Feature::PhysAddr) || features.has(Feature::Kernel);
            if !rights && needs_rights {
                return Err(libc::EACCES);
            }
            let unknown =
                |feature: &Feature| *feature != Feature::Kernel && features.has(*feature) && !known.contains(feature);
            if Feature::ALL.iter().any(unknown) {
                return Err(libc::EINVAL);
            }
            Ok(())
        };
        negotiate(Features::all(), open, |errno| *errno).map(|((), features, refused)| (features, refused))
    }

    #[test]
    fn only_what_is_refused_is_given_up() {
        for known in 0..64u8 {
            let known: Vec<_> = Feature::ALL.into_iter().filter(|feature| known & feature.bit() != 0).collect();
            for rights in [true, false] {
                let (features, refused) = kernel(&known, rights).unwrap();
                assert_eq!(refused.len(), features.missing().count());
                for RefusedFeature { feature, errno } in refused {
                    let right = !rights && matches!(feature, Feature::PhysAddr | Feature::Kernel);
                    assert_eq!(errno, Some(if right { libc::EACCES } else { libc::EINVAL }), "{feature:?}");
                }
                for feature in Feature::ALL {
                    let expected = match feature {
                        Feature::Kernel => rights,
                        Feature::PhysAddr => rights && known.contains(&feature),
                        _ => known.contains(&feature),
                    };
                    assert_eq!(features.has(feature), expected, "{feature:?} with {known:?}, rights {rights}");
                }
            }
        }
    }

    #[test]
    fn a_final_error_is_not_retried() {
        let mut tries = 0;
        let result = negotiate(
            Features::all(),
            |_| {
                tries += 1;
                Err::<(), _>(libc::EMFILE)
            },
            |errno| *errno,
        );
        assert_eq!((result.err(), tries), (Some(libc::EMFILE), 1));
    }
}
